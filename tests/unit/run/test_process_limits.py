"""No room for another process: an end with 69 that names the limit, not a bug."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from agent.node.limits import ProcessLimitError, process_limit_error, starting
from agent.run.end import agent_error_in

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
FULL = """
import os, pwd, resource, sys, threading
from pathlib import Path
import anyio
from agent.node import read
from agent.node.limits import ProcessLimitError
from agent.processes.process import Child

async def start(piped):
    await Child.start("ray start", ["/bin/true"], {}, lambda: Path("/dev/null"), piped=piped)

def main():
    anyio.run(start, False)  # imports all that it needs while there is room, and the right to read
    read.ask_python("/bin/true")
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.getuid() == 0:  # whom no such limit holds
        os.setuid(65534)
    for call in (
        lambda: anyio.run(start, False),
        lambda: anyio.run(start, True),
        lambda: read.ask_python("/bin/true"),
    ):
        try:
            call()
        except ProcessLimitError as error:
            print(error.end.exit_code, error.sentence())
        else:
            print("started")

main()
"""


def test_a_full_machine_is_reported_with_its_limit() -> None:
    """Every failed start of a child ends with 69, limit and remedy."""
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    for line in lines:
        assert line.startswith("69 ")
        assert "could not be started: no room for another process or thread" in line
        assert "`ulimit -u` is 1" in line
        assert "Raise the limit" in line
    assert lines[0].startswith("69 ray start could not")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BlockingIOError(errno.EAGAIN, "again"), "no room"),
        (OSError(errno.ENOMEM, "memory"), "no memory"),
        (MemoryError(), "no memory"),
        (RuntimeError("can't start new thread"), "no room"),
    ],
)
def test_what_the_kernel_refuses(error: BaseException, words: str) -> None:
    """Each error of a reached limit is recognized, also inside a task group's."""
    with pytest.raises(ProcessLimitError) as caught, starting("the job"):
        raise error
    assert words in caught.value.sentence()
    group = RuntimeError("several")
    group.exceptions = (error,)  # type: ignore[attr-defined] # as a group of exceptions has it
    found = agent_error_in(group)
    assert found is not None
    assert (found.end.exit_code, words in found.reason) == (69, True)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "none"), RuntimeError("a bug"), ValueError("a bug")]
)
def test_any_other_error_stays_what_it_is(error: Exception) -> None:
    """A missing program or a bug is not taken for a full machine."""
    assert process_limit_error("the job", error) is None
    assert agent_error_in(error) is None
    with pytest.raises(type(error)), starting("the job"):
        raise error


RAISE = """
import resource
from agent.base.open_files import raise_open_files

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
most = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most), most))
raise_open_files()
print(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_the_limit_of_open_files_is_raised() -> None:
    """Before Ray starts, the soft limit is as high as the hard one lets it be."""
    command = [sys.executable, "-c", RAISE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    most, soft = done.stdout.split()
    assert soft == most
