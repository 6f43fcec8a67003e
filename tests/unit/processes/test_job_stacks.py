"""Stacks of real processes: by py-spy, by a signal where our program takes it; busy CPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest
from anyio.lowlevel import checkpoint

from agent.bundled import rehearsal
from agent.diagnosis.stacks import place_of
from agent.processes.driver import JobProcess, busy_cores, output_of
from agent.processes.job_stacks import (
    NO_PTRACE,
    NO_PY_SPY,
    STACK_SIGNAL,
    StackTools,
    find_py_spy,
    read_stacks,
)
from support.machine_files import program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.diagnosis.stacks import ProcessStack

REAL = find_py_spy([sys.executable], None)
_DROPS = "setpriv --inh-caps=-sys_ptrace --bounding-set=-sys_ptrace"
WAITS = "def waits_here():\n    print('up', flush=True)\n    input()\nwaits_here()"
needs_py_spy = pytest.mark.skipif(REAL is None, reason="py-spy is not installed here")


@contextmanager
def running(script: str) -> Iterator[psutil.Process]:
    """Run a Python that has printed a line."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        try:
            yield psutil.Process(child.pid)
        finally:
            child.kill()


def look(
    *processes: psutil.Process, tool: str | None = None, signaled: str = "", limit: float = 20.0
) -> tuple[ProcessStack, ...]:
    """Read the stacks of processes."""
    jobs = [JobProcess(f"rank {n}", process, n, 9) for n, process in enumerate(processes)]
    tools = StackTools(tool, dict(os.environ), lambda: Path(os.devnull), signaled)

    async def read() -> tuple[ProcessStack, ...]:
        stacks = await read_stacks("poda", jobs, tools, limit)
        for _ in range(10):  # pipes of a tool that was stopped close in the loop's next turns
            await checkpoint()
        return stacks

    return anyio.run(read)


@needs_py_spy
def test_the_real_py_spy() -> None:
    """It names the function in which each process waits."""
    with running(WAITS) as one, running(WAITS) as other:
        stacks = look(one, other, tool=REAL)
    assert [stack.pid for stack in stacks] == [one.pid, other.pid]
    assert {place_of(stack).function for stack in stacks} == {"waits_here"}
    assert {stack.source for stack in stacks} == {"py-spy"}
    assert (stacks[1].rank, stacks[1].world, stacks[1].parent) == (1, 9, os.getpid())


@needs_py_spy
def test_a_stopped_process_is_read() -> None:
    """py-spy cannot stop a process that is stopped already, and must not wait for it."""
    with running(WAITS) as process:
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 10
        while process.status() != psutil.STATUS_STOPPED and time.monotonic() < until:
            time.sleep(0.01)
        (stack,) = look(process, tool=REAL)
        assert process.status() == psutil.STATUS_STOPPED
    place = place_of(stack)
    assert (place.activity.name, place.function) == ("STOPPED", "waits_here")


@needs_py_spy
def test_without_the_capability_the_message_names_it(tmp_path: Path) -> None:
    """On most pods py-spy may not look into processes."""
    if os.geteuid() != 0:
        pytest.skip("only root can drop it")
    tool = program(tmp_path, "py-spy", f'exec {_DROPS} {REAL} "$@"')
    with running(WAITS) as process:
        (stack,) = look(process, tool=tool)
    assert (stack.threads, stack.source) == ((), NO_PTRACE)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo '[{\"frames\": 7}]'", "py-spy printed no stacks"),
        ("echo 'Permission denied (os error 13)' >&2; exit 1", NO_PTRACE),
        ("echo 'Failed to find python version' >&2; exit 1", "exit code 1; last output: Failed"),
    ],
)
def test_a_tool_that_fails(script: str, expected: str, tmp_path: Path) -> None:
    """The process is there, with the reason."""
    with running(WAITS) as process:
        (stack,) = look(process, tool=program(tmp_path, "py-spy", script))
        (without,) = look(process)
    assert stack.source.startswith(expected)
    assert without.source == NO_PY_SPY
    assert without.wait_channel or without.state == "R"


def test_a_tool_that_hangs_costs_only_its_process(tmp_path: Path) -> None:
    """After the node's limit the others are there."""
    script = 'case "$*" in *"--pid {0}") exec sleep 100;; esac; exit 3'
    with running(WAITS) as one, running(WAITS) as other:
        tool = program(tmp_path, "py-spy", script.replace("{0}", str(one.pid)))
        began = time.monotonic()
        stacks = look(one, other, tool=tool, limit=1.5)
    assert time.monotonic() - began < 8
    assert [stack.source for stack in stacks] == ["its stack was not read in time", "exit code 3"]


def test_a_shell_has_no_stack() -> None:
    """It is left out beside a Python; alone it is there, so that somebody is named."""
    with subprocess.Popen(["sleep", "100"]) as sleeper, running(WAITS) as python:
        shell = psutil.Process(sleeper.pid)
        assert [stack.pid for stack in look(shell, python)] == [python.pid]
        (alone,) = look(shell)
        sleeper.kill()
    assert alone.source == "it is no Python process"


# --- by a signal ----------------------------------------------------------------------------------

REGISTERS = """
import os, sys
sys.path.insert(0, {folder!r})
os.environ["POD_AGENT_STACKS"] = {stacks!r}
import rehearsal
rehearsal.register_stacks()
"""


def registering(stacks: Path) -> str:
    """Return the beginning of a program that registers."""
    return REGISTERS.format(folder=str(Path(rehearsal.__file__).parent), stacks=str(stacks))


def test_a_process_that_registered_is_signaled(tmp_path: Path) -> None:
    """Where py-spy may not look, its own handler writes the stacks; twice, too."""
    with running(registering(tmp_path) + WAITS) as process:
        for _ in range(2):
            (stack,) = look(process, signaled=str(tmp_path))
            assert stack.source == "faulthandler"
            assert place_of(stack).function == "waits_here"
        assert process.is_running()


@pytest.mark.parametrize("first", ["{", "", "[" * 500, "\udcff"])
def test_a_broken_file_is_none(first: str, tmp_path: Path) -> None:
    """Whatever its first line is, the process gets no signal."""
    with running(WAITS) as process:
        file = tmp_path / f"{process.pid}.stacks"
        file.write_bytes(first.encode(errors="surrogateescape") + b"\n")
        (stack,) = look(process, signaled=str(tmp_path))
        assert stack.source == NO_PY_SPY
        assert process.status() != psutil.STATUS_ZOMBIE


def test_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    """It holds neither the agent's loop nor its end: opening a pipe waits as such a disk does."""
    with running(WAITS) as process:
        file = tmp_path / f"{process.pid}.stacks"
        os.mkfifo(file)
        release = threading.Timer(9.0, lambda: os.close(os.open(file, os.O_RDWR)))
        release.start()
        began = time.monotonic()
        (stack,) = look(process, signaled=str(tmp_path))
        assert time.monotonic() - began < 7
        assert stack.source == NO_PY_SPY
        release.cancel()
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # the thread ends


CHILD = """
import os, signal, subprocess, sys
pid = os.fork()
if pid == 0:
    {child}
    input()
print("up", flush=True)
print(pid, flush=True)
input()
"""


@pytest.mark.parametrize(
    "child", ["pass", "os.execvp(sys.executable, [sys.executable, '-c', 'input()'])"]
)
def test_other_processes_get_no_signal(child: str, tmp_path: Path) -> None:
    """Neither a child of a registered process, nor a program without a handler: it would die."""
    with running(registering(tmp_path) + CHILD.replace("{child}", child)) as process:
        until = time.monotonic() + 10
        while not process.children() and time.monotonic() < until:
            time.sleep(0.01)
        (one,) = process.children()
        claimed = tmp_path / f"{one.pid}.stacks"
        for text in ("", json.dumps({"pid": process.pid, "signal": STACK_SIGNAL}), "{}"):
            if text:
                claimed.write_text(text + "\n")
            (stack,) = look(one, signaled=str(tmp_path))
            assert stack.source == NO_PY_SPY
        assert one.status() != psutil.STATUS_ZOMBIE
        one.kill()


def test_py_spy_is_found_beside_its_python_or_on_path(tmp_path: Path) -> None:
    """An image's Python may have it where PATH does not lead."""
    python = str(tmp_path / "env/bin/python")
    assert find_py_spy([python], str(tmp_path)) is None
    on_path = program(tmp_path, "py-spy", "true")
    assert find_py_spy([python], str(tmp_path)) == on_path
    (tmp_path / "env/bin").mkdir(parents=True)
    assert find_py_spy([python], str(tmp_path)) == on_path
    beside = program(tmp_path / "env/bin", "py-spy", "true")
    assert find_py_spy([python], str(tmp_path)) == beside
    assert find_py_spy(["/none/bin/python", python], str(tmp_path)) == beside


# --- what a job keeps busy --------------------------------------------------------------------

IN_ITS_STEAD = """
from agent.processes import parent
from agent.processes.driver import job_processes
parent.former_agents = {former}
print([one.process.pid for one in job_processes(None) if one.role == "ray::Trainer"])
"""


@pytest.mark.parametrize("former", [(1,), ()])
def test_a_stall_of_a_killed_agent_is_examined_by_the_next(former: tuple[int, ...]) -> None:
    """It is below our parent then: who looked only below us would take the job for idle."""
    left = ["ray::Trainer", "-c", "input()"]
    with subprocess.Popen(left, executable=sys.executable, stdin=subprocess.PIPE) as trainer:
        try:
            argv = [sys.executable, "-c", IN_ITS_STEAD.format(former=former)]
            found = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        finally:
            trainer.kill()
    assert found.stdout == f"{[trainer.pid] if former else []}\n"


# --- how busy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "seconds", "processes", "is_busy"),
    [(0.0, 10.0, 4, False), (1.0, 10.0, 4, False), (5.0, 10.0, 4, True), (0.0, 0.0, 0, False)],
)
def test_processors_that_work(
    used: float, seconds: float, processes: int, *, is_busy: bool
) -> None:
    """Processes that only wait use a little each."""
    assert bool(busy_cores(used, seconds, processes)) is is_busy


# --- where it is ---------------------------------------------------------------------------------


def test_a_tool_has_its_time(tmp_path: Path) -> None:
    """What it prints, or why there is nothing; it is not waited for for ever."""
    log = tmp_path / "tool.log"

    async def ask(script: str, limit: float = 20.0) -> tuple[str, str]:
        return await output_of([program(tmp_path, "tool", script)], {}, lambda: log, limit)

    assert anyio.run(ask, "echo one; echo two") == ("one\ntwo\n", "")
    said, fault = anyio.run(ask, "echo one; echo broken >&2; exit 3")
    assert (said, fault) == ("one\n", "exit code 3; last output: broken")
    assert anyio.run(ask, "exec sleep 100", 0.3) == ("", "tool did not end within 0.3 s")
    missing = anyio.run(output_of, ["/none/py-spy"], {}, lambda: log, 5.0)
    assert missing == ("", "[Errno 2] No such file or directory: '/none/py-spy'")
