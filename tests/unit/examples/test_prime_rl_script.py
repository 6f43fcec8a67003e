"""The script of the prime-rl example: whose end ends a part of the job, and with what code."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.launches import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes
SCRIPT = EXAMPLES / "prime-rl/train.sh"
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
        "orchestrator": "exit 0",
        "env-server": "exec sleep 60",
    }
    for name, text in {**usual, **programs}.items():
        program = folder / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> {place}/calls\n{text}\n')
        program.chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT), "/v/rl.toml", str(place), "http://r:8000/v1", "http://a:1", "http://a:2"],
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
    assert "rl @ /v/rl.toml --dry-run --resume" in calls
    urls = "--model.client.base-url http://r:8000/v1 --model.client.admin-base-url http://a:1 http://a:2"
    assert f"{urls} --rollout_transport.host 10.0.0.1" in calls
    assert "--nnodes=2 --node-rank=0 --nproc-per-node=8 --rdzv-endpoint=10.0.0.1:6379" in calls
    assert "env-server @" in calls
    assert "--rollout_transport.host 10.0.0.1 --monitors.file.path /run/progress-1.jsonl" in calls


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
    assert 'set type = "filesystem" in [weight_broadcast]' in calls


def test_another_node_runs_its_trainer_alone(tmp_path: Path) -> None:
    """It waits for the files of its own attempt."""
    (tmp_path / "run/pod-agent-attempts/r-1").mkdir(parents=True)
    code, calls = run(tmp_path, 1)
    assert code == 0
    assert calls.splitlines()[0].startswith("torchrun --role=trainer --nnodes=2 --node-rank=1")
    assert "orchestrator" not in calls
    assert "--monitors" not in calls
