"""On a Mac and Windows the verbs that touch nothing work, and the others say why not."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import TYPE_CHECKING

import pytest
from msgspec import to_builtins

from agent.port.glance import judged
from support.http_peer import answering, reply
from support.served import a_head
from tools.page.runs import status as run_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).parents[2] / "support" / "other_system.py"
SYSTEMS = (pytest.param("darwin", marks=pytest.mark.slow), "win32")


class OtherSystem:
    """A process that runs command lines as on another system."""

    def __init__(self, name: str, process: subprocess.Popen[str], folder: Path) -> None:
        self.name = name
        self._process = process
        self._files = (folder / str(number) for number in count())

    def run(self, *words: str, **environ: str) -> CompletedProcess[str]:
        """Run the command line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = next(self._files), next(self._files)
        request = {"words": words, "environ": environ, "out": str(out), "err": str(err)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return CompletedProcess(words, code, out.read_text(), err.read_text())


@pytest.fixture(scope="module", params=SYSTEMS)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OtherSystem]:
    """Return each other system."""
    argv = [sys.executable, str(SCRIPT), request.param]
    folder = tmp_path_factory.mktemp(request.param)
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as process:
        yield OtherSystem(request.param, process, folder)


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
def test_what_touches_nothing_works(system: OtherSystem, words: list[str], expected: str) -> None:
    """Neither Ray nor a call of POSIX is needed."""
    done = system.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout


def test_init_writes_the_same_file_as_on_linux(system: OtherSystem, tmp_path: Path) -> None:
    """With the line ends of Linux, which reads it."""
    words = ["init", "slurm", "verl-grpo", "--nodes", "3", "--gpus", "8"]
    words += ["--container", "none", "--python", "~/venv/bin/python"]
    words += ["--agent-url", "https://files.example/pod-agent", "--agent-sha256", "0" * 64, "--to"]
    done = system.run(*words, str(tmp_path / "there"))
    assert done.returncode == 0, done.stderr
    here = [sys.executable, "-m", "agent", *words, str(tmp_path / "here")]
    subprocess.run(here, check=True, capture_output=True, timeout=60)
    written = [*(tmp_path / "there").iterdir()]
    assert written
    for file in written:
        assert file.read_bytes() == (tmp_path / "here" / file.name).read_bytes()
        assert b"\r" not in file.read_bytes()


@pytest.mark.parametrize("words", [[], ["run", "--", "true"], ["doctor"]])
def test_what_needs_linux_is_78(system: OtherSystem, words: list[str]) -> None:
    """It names the verbs that work, and starts nothing."""
    done = system.run(*words)
    assert done.returncode == 78
    assert f"needs Linux, and this is {system.name}" in done.stderr
    assert "init, recipes, recipe, completion" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_remote_run_is_looked_at(system: OtherSystem, tmp_path: Path) -> None:
    """What its head answers is shown, through a tunnel, too; without a head it is 69."""
    with answering(reply(json.dumps(to_builtins(judged(run_of(2)))).encode())) as peer:
        there = system.run("status", AGENT_HEAD="127.0.0.1", AGENT_PORT=str(peer.port))
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout.startswith("first sums · rehearsal · attempt 2 of 3")

    token = "t" * 32
    with a_head(token) as head:
        log = system.run("logs", "head", AGENT_PORT=str(head.port), RAY_AUTH_TOKEN=token)
    assert (log.returncode, log.stderr) == (0, "")
    assert "step 1" in log.stdout

    (tmp_path / "run-1" / "pod0").mkdir(parents=True)  # a run on this laptop, not a whole one
    (tmp_path / "latest").symlink_to("run-1")
    for verb in ("status", "logs"):
        gone = system.run(verb, AGENT_PORT="2999", AGENT_LOG_DIR=str(tmp_path))
        assert gone.returncode == 69
        assert "connection refused" in gone.stderr
