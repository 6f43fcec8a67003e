"""On a Mac and Windows the verbs that touch nothing work, and the others say why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import to_builtins

from agent.port.glance import judged
from support.http_peer import answering, reply
from support.served import a_head
from tools.page.runs import status as run_of

SCRIPT = Path(__file__).parents[2] / "support" / "other_system.py"
SYSTEMS = (pytest.param("darwin", marks=pytest.mark.slow), "win32")


def run_on(system: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as on another system."""
    argv = [sys.executable, str(SCRIPT), system, *words]
    env = {**os.environ, **environ}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.mark.processes
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], "write the files that start a run on a platform"),
        (["--version"], "Ray not installed"),
        (["recipes"], "verl-grpo"),
        (["recipe", "verl-grpo", "--nodes", "2", "--gpus", "8", "--model-size", "7B"], "nnodes=2"),
        (["env", "--all"], "AGENT_ALLOW_INSECURE"),
        (["completion", "bash"], "complete -o default"),
        (["plan", "-v", "--check", "--", "train"], "and a run needs Linux"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_touches_nothing_works(system: str, words: list[str], expected: str) -> None:
    """Neither Ray nor a call of POSIX is needed."""
    done = run_on(system, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("system", SYSTEMS)
def test_init_writes_the_same_file_as_on_linux(system: str, tmp_path: Path) -> None:
    """With the line ends of Linux, which reads it."""
    words = ["init", "slurm", "verl-grpo", "--nodes", "3", "--gpus", "8"]
    words += ["--container", "none", "--python", "~/venv/bin/python"]
    words += ["--agent-url", "https://files.example/pod-agent", "--agent-sha256", "0" * 64, "--to"]
    done = run_on(system, *words, str(tmp_path / "there"))
    assert done.returncode == 0, done.stderr
    here = [sys.executable, "-m", "agent", *words, str(tmp_path / "here")]
    subprocess.run(here, check=True, capture_output=True, timeout=60)
    written = [*(tmp_path / "there").iterdir()]
    assert written
    for file in written:
        assert file.read_bytes() == (tmp_path / "here" / file.name).read_bytes()
        assert b"\r" not in file.read_bytes()


@pytest.mark.processes
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("words", [[], ["run", "--", "true"], ["doctor"]])
def test_what_needs_linux_is_78(system: str, words: list[str]) -> None:
    """It names the verbs that work, and starts nothing."""
    done = run_on(system, *words)
    assert done.returncode == 78
    assert f"needs Linux, and this is {system}" in done.stderr
    assert "init, recipes, recipe, completion" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_remote_run_is_looked_at(system: str, tmp_path: Path) -> None:
    """What its head answers is shown, through a tunnel, too; without a head it is 69."""
    with answering(reply(json.dumps(to_builtins(judged(run_of(2)))).encode())) as peer:
        there = run_on(system, "status", AGENT_HEAD="127.0.0.1", AGENT_PORT=str(peer.port))
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout.startswith("first sums · rehearsal · attempt 2 of 3")

    token = "t" * 32
    with a_head(token) as head:
        log = run_on(system, "logs", "head", AGENT_PORT=str(head.port), RAY_AUTH_TOKEN=token)
    assert (log.returncode, log.stderr) == (0, "")
    assert "step 1" in log.stdout

    (tmp_path / "run-1" / "pod0").mkdir(parents=True)  # a run on this laptop, not a whole one
    (tmp_path / "latest").symlink_to("run-1")
    for verb in ("status", "logs"):
        gone = run_on(system, verb, AGENT_PORT="2999", AGENT_LOG_DIR=str(tmp_path))
        assert gone.returncode == 69
        assert "connection refused" in gone.stderr
