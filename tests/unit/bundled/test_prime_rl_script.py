"""The script of the recipe prime-rl: whole checkpoints, and whose end ends the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.sources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes
SCRIPT = ROOT / "agent/bundled/prime_rl.sh"
RL = """mkdir -p {run}/configs/envs/train; touch {run}/configs/envs/train/a.json
echo '{files}' > {run}/configs/orchestrator.json; echo rl "$@" >> {run}/calls"""


def run(
    tmp_path: Path, rank: int, broadcast: str = "filesystem", **programs: str
) -> tuple[int, str]:
    """Run the script with these programs; return its exit code, and what was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    place = tmp_path / "run"
    place.mkdir(exist_ok=True)
    files = json.dumps({"weight_broadcast": {"type": broadcast}})
    usual = {
        "rl": RL.format(run=place, files=files),
        "torchrun": "exit 0",
        "orchestrator": f"until grep -q env-server {place}/calls; do sleep 0.05; done",
        "env-server": "exec sleep 60",
    }
    for name, text in {**usual, **programs}.items():
        program = folder / name
        said = f'echo "{name} $* label=$WANDB_SHARED_LABEL id=$WANDB_RUN_ID" >> {place}/calls'
        program.write_text(f"#!/bin/bash\n{said}\n{text}\n")
        program.chmod(0o755)
    urls = ("http://r:8000/v1", "http://a:1", "http://a:2")
    done = subprocess.run(
        ["bash", str(SCRIPT), str(place), *urls, "@", "/v/rl.toml", "--seq-len", "2048"],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "NNODES": "2",
            "NODE_RANK": str(rank),
            "NPROC_PER_NODE": "8",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "6379",
            "AGENT_ATTEMPT_ID": "r-1",
            "AGENT_PROGRESS_FILE": "/run/progress-1.jsonl",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    calls = place / "calls"
    return done.returncode, (calls.read_text() if calls.exists() else "") + done.stderr


def test_all_goes_well(tmp_path: Path) -> None:
    """The first node makes the files and runs all four; it ends once both trainers have."""
    code, calls = run(tmp_path, 0)
    assert code == 0, calls
    assert "rl @ /v/rl.toml --seq-len 2048 --dry-run --resume" in calls
    urls = "--model.client.base-url http://r:8000/v1 --model.client.admin-base-url http://a:1 http://a:2"
    assert f"{urls} --rollout_transport.host 10.0.0.1" in calls
    assert "--nnodes=2 --node-rank=0 --nproc-per-node=8 --rdzv-endpoint=10.0.0.1:6379" in calls
    assert "env-server @" in calls
    assert "--rollout_transport.host 10.0.0.1 --monitors.file.path /run/progress-1.jsonl" in calls
    labels = re.findall(r"^([\w-]+) .* label=(.*)$", calls, re.MULTILINE)
    assert dict(labels[1:]) == {
        "torchrun": "trainer id=r-1",
        "orchestrator": "orchestrator id=r-1",
        "env-server": " id=r-1",
    }


@pytest.mark.parametrize(
    ("program", "text", "code"),
    [
        ("orchestrator", "exit 3", 3),
        ("torchrun", "exit 4", 4),
        ("env-server", "exit 0", 1),
        ("env-server", "exit 5", 5),
        ("rl", "exit 2", 2),
    ],
)
def test_one_process_ends_all(tmp_path: Path, program: str, text: str, code: int) -> None:
    """The others would wait for ever for what it does."""
    waiting = dict.fromkeys(("orchestrator", "torchrun"), "exec sleep 60")
    found, calls = run(tmp_path, 0, **{**waiting, program: text})
    assert found == code, calls


def test_nccl_is_refused(tmp_path: Path) -> None:
    """An engine that was restarted could not get the weights."""
    code, calls = run(tmp_path, 0, broadcast="nccl")
    assert code == 78
    assert 'weight_broadcast: set type = "filesystem"' in calls


def test_it_resumes_from_a_whole_checkpoint(tmp_path: Path) -> None:
    """prime-rl would take the highest step, and fail: its parts are put aside before."""
    steps = tmp_path / "run/checkpoints"
    for step, files in {
        20: ("trainer/.metadata", "orchestrator/progress.pt"),
        40: ("trainer/__0_0.distcp", "orchestrator/progress.pt"),  # killed while it saved
        57: ("orchestrator/progress.pt",),  # an orchestrator's end
    }.items():
        for file in files:
            path = steps / f"step_{step}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    (steps / "part_of_step_57/older").mkdir(parents=True)
    code, said = run(tmp_path, 0)
    assert code == 0, said
    names = sorted(path.name for path in steps.iterdir())
    assert names == ["part_of_step_40", "part_of_step_57", "step_20"]
    assert [path.name for path in (steps / "part_of_step_57").iterdir()] == ["orchestrator"]
    assert "step_40 is a part of a checkpoint" in said


def test_an_environment_of_a_former_run_is_not_served(tmp_path: Path) -> None:
    """Its server would take the port of another one."""
    former = tmp_path / "run/configs/envs/train"
    former.mkdir(parents=True)
    (former / "former.json").touch()
    code, calls = run(tmp_path, 0)
    assert code == 0, calls
    assert "former.json" not in calls


def test_another_node_runs_its_trainer_alone(tmp_path: Path) -> None:
    """It waits for the files of its own attempt."""
    (tmp_path / "run/pod-agent-attempts/r-1").mkdir(parents=True)
    code, calls = run(tmp_path, 1)
    assert code == 0
    assert calls.splitlines()[0].startswith("torchrun --role=trainer --nnodes=2 --node-rank=1")
    assert "orchestrator" not in calls
    assert "--monitors" not in calls
