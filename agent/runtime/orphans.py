"""Orphans: adopted as a child subreaper, reaped when they end, stopped when we end.

Ray's job driver starts a session of its own and so escapes its group; its parent's death makes
it an orphan, which a subreaper inherits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from agent.runtime import parent
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PR_SET_CHILD_SUBREAPER = 36
_DIES_WITHIN = 5.0
"""A process that holds much memory takes a while to give it back."""
_managed: set[int] = set()
_spawning = 0


def become_subreaper() -> None:
    """Make every orphan below us our child; where the kernel refuses, PID 1 has them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def spawning() -> Iterator[set[int]]:
    """Hold the reaper off while a child is started, whose pid is then added to the set.

    Whoever started it waits for it by pid; a reaper that took its exit code first would make
    every failure look like success.
    """
    global _spawning  # noqa: PLW0603 - one process has one set of children
    _spawning += 1
    try:
        yield _managed
    finally:
        _spawning -= 1


def forget(pid: int) -> None:
    """Give a pid back once its process was reaped: the kernel may use it again."""
    _managed.discard(pid)


def reap() -> None:
    """Reap ended orphans; called on SIGCHLD."""
    if _spawning:
        return
    for pid in children_of("self"):
        if pid not in _managed:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def children_of(pid: int | Literal["self"]) -> list[int]:
    """Return a process's children, which are few to look at among all processes."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(pid) for pid in path.read_text().split()]
    return found


async def stop_descendants(grace: float) -> list[str]:
    """End whatever of ours still runs, whatever its session; return what had to be killed."""
    alive = _descendants()
    _signal(alive, signal.SIGTERM)
    if await _gone(grace):
        return []
    stubborn = _descendants()
    names = [_name(process) for process in stubborn]
    _signal(stubborn, signal.SIGKILL)
    await _gone(2.0)
    return names


def below() -> list[psutil.Process]:
    """List what runs below us; what an agent left in whose stead we are is below our parent."""
    own = psutil.Process()
    ours = own.children(recursive=True)
    above = own.parent() if parent.former() else None
    others = [] if above is None else above.children(recursive=True)
    return [*ours, *({*others} - {*ours, own})]


def kill_session(leader: int) -> None:
    """Kill what is left of a session whose leader has ended, though it was no child of ours."""
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader:
                send_to(process, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process and everything below it, though it was no child of ours, and see it gone.

    A process that dies loses its command line first and its ports last: who looked for either
    amid that would find ports that nobody has.
    """
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        tree = [top, *top.children(recursive=True)]
        _signal(tree, signal.SIGKILL)
        psutil.wait_procs(tree, timeout=_DIES_WITHIN)


def kill_marked(variable: str, is_meant: Callable[[str], bool]) -> list[str]:
    """Kill what runs below us with such a variable in its environment; return who that was."""
    return [
        name
        for process in _descendants()
        if is_meant(_value_in(process, variable))
        for name in kill(process)
    ]


def kill_descendants() -> None:
    """Kill everything below us at once."""
    _signal(_descendants(), signal.SIGKILL)


async def _gone(limit: float) -> bool:
    async def check() -> bool | NotYet:
        alive = _descendants()
        reap()  # after the look, so that who ends last leaves no zombie
        return NotYet() if alive else True

    try:
        return await until(check, limit, longest=0.1)
    except TimedOutError:
        return False


def _descendants() -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [process for process in below() if _lives(process)]
    return []


def _value_in(process: psutil.Process, variable: str) -> str:
    with suppress(psutil.Error, OSError):
        return str(process.environ().get(variable, ""))
    return ""


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.name()} (pid {process.pid})"
    return f"pid {process.pid}"


def _signal(processes: list[psutil.Process], signum: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):
            send_to(process, signum)


def kill(process: psutil.Process) -> list[str]:
    """Kill a process that is no child of ours to wait for; return its name where it lived."""
    with suppress(psutil.Error, OSError):
        if _lives(process):
            name = _name(process)
            send_to(process, signal.SIGKILL)
            return [name]
    return []


def send_to(process: psutil.Process, signum: int) -> None:
    """Signal this very process, and never another that has its pid by now.

    A pidfd names one process for good, and which one it is can be asked after it was opened.
    """
    try:
        pidfd = open_pidfd(process.pid)
    except ProcessLookupError:
        raise psutil.NoSuchProcess(process.pid) from None
    except OSError:
        process.send_signal(signum)  # psutil compares start times just before
        return
    try:
        if not process.is_running():
            raise psutil.NoSuchProcess(process.pid)
        signal.pidfd_send_signal(pidfd, signum)
    finally:
        os.close(pidfd)


def open_pidfd(pid: int) -> int:
    """Return a file that is readable when a process has ended.

    Raises OSError where there is none: before Linux 5.3, in some sandboxes, and in Pythons that
    were built against older headers (conda's).
    """
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(pid)
