"""Read the stacks of the job's processes on this node.

By py-spy, which needs nothing in the process. Where that may not look into it: by a signal, but
only to a process in which a program of ours registered a handler (bundled/rehearsal.py). The state
of a process, and what it waits for in the kernel, come from /proc.
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, NamedTuple

import anyio
import psutil
from msgspec.structs import replace

from agent.base import times
from agent.diagnosis.stacks import ProcessStack, parse_faulthandler, parse_py_spy
from agent.processes.driver import catches_signal, is_python, output_of
from agent.processes.process import cpu_seconds, known
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agent.diagnosis.stacks import ThreadStack
    from agent.processes.driver import JobProcess


NO_PTRACE = (
    "py-spy may not look into processes here: give the container SYS_PTRACE (`--cap-add "
    "SYS_PTRACE`, on Kubernetes securityContext.capabilities.add)"
)
NO_PY_SPY = "py-spy is not installed here: `pip install py-spy` in the image shows where it hangs"
STACK_SIGNAL = signal.SIGRTMIN + 5
"""The signal of `register_stacks`: no program uses it for anything else."""
STACKS_FOLDER = "stacks"  # of the run folder: our programs write their stacks there on a signal
STACKS_VARIABLE = "POD_AGENT_STACKS"
_AT_ONCE = 4
_MOST_PROCESSES = 64
_LARGEST_DUMP = 4 << 20  # bytes
_LONGEST_HEADER = 1_000  # characters of a file's first line
_NO_BACKTRACE = {"RUST_BACKTRACE": "0"}  # makes py-spy print errors without its own backtrace
_NOT_RUNNABLE = {"T", "t", "D"}
"""States in which py-spy cannot stop a process; it reads one that does not change (0.4.3)."""
_PERMISSION = ("Permission denied", "Operation not permitted")


class StackTools(NamedTuple):
    """What reads stacks on this node."""

    py_spy: str | None
    env: Mapping[str, str]  # without secrets
    log: Callable[[], Path]
    signaled: str = ""  # the folder in which `register_stacks` makes files; '' for none


async def read_stacks(
    node: str, processes: Sequence[JobProcess], tools: StackTools, limit: float
) -> tuple[ProcessStack, ...]:
    """Return the stacks of processes; those that are not read within the limit have none."""

    def look() -> tuple[list[JobProcess], list[ProcessStack]]:
        chosen = _worth_reading(processes)
        return chosen, [_from_proc(node, process) for process in chosen]

    chosen, results = await in_thread(look, limit) or ([], [])
    slots = anyio.Semaphore(_AT_ONCE)

    async def add(at: int) -> None:
        async with slots:
            threads, source = await _threads_of(results[at], chosen[at].process, tools)
        results[at] = replace(results[at], threads=threads, source=source)

    with anyio.move_on_after(limit):
        async with anyio.create_task_group() as tasks:
            for at in range(len(chosen)):
                tasks.start_soon(add, at)
    return tuple(results)


def _worth_reading(processes: Iterable[JobProcess]) -> list[JobProcess]:
    """Return the Python processes, and others that do not run; without any, the first ones."""
    everything = [*processes]
    pythons = [process for process in everything if is_python(process.process)]
    others = [
        process
        for process in everything
        if process not in pythons and _state(process.process) in _NOT_RUNNABLE
    ]
    chosen = [*pythons, *others] or everything[:1]
    chosen.sort(key=lambda process: process.is_child)
    return chosen[:_MOST_PROCESSES]


def _state(process: psutil.Process) -> str:
    """Return the kernel's letter for a process; 'X' if it is gone."""
    text = _read(process.pid, "stat")
    return text.rpartition(")")[2].split()[0] if ")" in text else "X"


def _from_proc(node: str, job: JobProcess) -> ProcessStack:
    """Return what /proc has of a process."""
    process = job.process
    channel = _read(process.pid, "wchan").strip()
    return ProcessStack(
        node,
        process.pid,
        job.role,
        rank=job.rank,
        world=job.world,
        parent=known(process.ppid, 0),
        state=_state(process),
        cpu_seconds=cpu_seconds(process),
        source="its stack was not read in time",
        wait_channel="" if channel == "0" else channel,
    )


def _read(pid: int, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    return ""


async def _threads_of(
    stack: ProcessStack, process: psutil.Process, tools: StackTools
) -> tuple[tuple[ThreadStack, ...], str]:
    """Return the threads of a process and what read them; without any, why."""
    if not await in_thread(partial(is_python, process), times.STALLED_DISK):
        return (), "it is no Python process"
    why = NO_PY_SPY
    if tools.py_spy is not None:
        freeze = ["--nonblocking"] if stack.state in _NOT_RUNNABLE else []
        argv = [tools.py_spy, "dump", "--json", *freeze, "--pid", str(stack.pid)]
        env = {**tools.env, **_NO_BACKTRACE}
        text, why = await output_of(argv, env, tools.log, times.STACK_DUMP)
        if not why:
            with suppress(ValueError):
                return parse_py_spy(text[:_LARGEST_DUMP]), "py-spy"
            why = "py-spy printed no stacks"
        elif any(word in why for word in _PERMISSION):
            why = NO_PTRACE

    # It may have registered for our signal. A stopped process does not act on one.
    if stack.state not in _NOT_RUNNABLE:
        text = await _signaled_stacks(process, tools.signaled)
        if text:
            return parse_faulthandler(text), "faulthandler"
    return (), why


async def _signaled_stacks(process: psutil.Process, folder: str) -> str:
    """Return what faulthandler writes on our signal; '' if the process has not registered.

    A child of a registered process has no file of its own, and a program that replaced it no
    handler: neither gets the signal, which could end it.
    """
    if not folder:
        return ""
    file = Path(folder) / f"{process.pid}.stacks"
    before = await in_thread(partial(_size_if_registered, process, file), times.STALLED_DISK)
    if before is None:
        return ""

    with suppress(psutil.Error, OSError):
        process.send_signal(STACK_SIGNAL)
    text = ""

    async def is_written() -> bool | NotYet:
        nonlocal text
        data = await in_thread(partial(_from, file, before), times.STALLED_DISK)
        if data is None:  # the disk does not answer
            return True
        has_grown = len(data) > len(text)
        text = data.decode(errors="replace")
        return NotYet() if has_grown or not text else True

    with suppress(TimedOutError):
        await until(is_written, times.STACK_SIGNALED)
    return text


def _size_if_registered(process: psutil.Process, file: Path) -> int | None:
    """Return the size of the file if this very process registered, and still has a handler."""
    with suppress(psutil.Error, OSError, ValueError, RecursionError):
        with file.open(encoding="utf-8") as opened:
            registered = json.loads(opened.readline(_LONGEST_HEADER))
        status = file.stat()
        is_same = registered == {"pid": process.pid, "signal": STACK_SIGNAL}
        is_younger = status.st_mtime >= process.create_time() - 1.0
        if is_same and is_younger and catches_signal(process, STACK_SIGNAL):
            return status.st_size
    return None


def _from(file: Path, offset: int) -> bytes:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(_LARGEST_DUMP)
    return b""


def find_py_spy(pythons: Sequence[str], path: str | None) -> str | None:
    """Return py-spy next to one of these Pythons, else the one on PATH."""
    for python in pythons:
        beside = which("py-spy", path=str(Path(python).parent))
        if beside is not None:
            return beside
    return which("py-spy", path=path)
