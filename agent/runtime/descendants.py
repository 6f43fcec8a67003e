"""Child subreaper: adopt orphans, reap them, and stop every descendant at exit.

Ray's job driver starts its own session and so leaves its process group; when its parent exits, the
subreaper becomes its parent.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import psutil

from agent.base import times
from agent.runtime import parent
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

managed: set[int] = set()  # Their starter waits for them by pid: `reap` must not take their codes


def reap() -> None:
    """Reap ended orphans; called on SIGCHLD, in the thread that starts children."""
    for pid in children_of("self"):
        if pid not in managed:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def children_of(pid: int | Literal["self"]) -> list[int]:
    """Return a process's children, without a scan of all processes."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(pid) for pid in path.read_text().split()]
    return found


async def stop_descendants(grace: float) -> list[str]:
    """Stop all descendants, of any session; return the names of those killed."""
    _signal_all(_descendants(), signal.SIGTERM)
    if await _wait_until_gone(grace):
        return []
    killed = kill_descendants()
    await _wait_until_gone(2.0)
    return killed


def list_descendants() -> list[psutil.Process]:
    """Return all descendants, and those of a killed agent, which are the parent's."""
    own = psutil.Process()
    ours = own.children(recursive=True)
    above = own.parent() if parent.former_agents else None
    others = [] if above is None else above.children(recursive=True)
    return [*ours, *({*others} - {*ours, own})]


def kill_session(leader: int) -> None:
    """Kill the rest of a session whose leader has ended, of any parent."""
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader:
                process.send_signal(signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, of any parent, and wait for their end.

    An exiting process loses its command line first and its ports last: without the wait, its ports
    would still be taken, by no visible process.
    """
    tree = tree_of(pid)
    _signal_all(tree, signal.SIGKILL)
    psutil.wait_procs(tree, timeout=times.DESCENDANTS_EXIT)


def tree_of(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; nothing if it has ended."""
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def kill_marked(variable: str, matches: Callable[[str], bool]) -> list[str]:
    """Kill descendants by a variable in their environment; return their names."""
    of = {process: known(process.environ, dict[str, str]()) for process in _descendants()}
    marked = [process for process, environ in of.items() if matches(environ.get(variable, ""))]
    return [name for process in marked for name in kill(process)]


def kill_descendants() -> list[str]:
    """Kill all descendants at once; return their names."""
    return [name for process in _descendants() for name in kill(process)]


async def _wait_until_gone(limit: float) -> bool:
    async def check() -> bool | NotYet:
        alive = _descendants()
        reap()  # after the check, so that the last one leaves no zombie
        return NotYet() if alive else True

    try:
        return await until(check, limit, longest=0.1)
    except TimedOutError:
        return False


def _descendants() -> list[psutil.Process]:
    return known(lambda: [process for process in list_descendants() if is_alive(process)], [])


def known(read: Callable[[], T], otherwise: T) -> T:
    """Return what psutil reads; the default if the process has ended or belongs to another user."""
    with suppress(psutil.Error, OSError):
        return read()
    return otherwise


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; a zombie and a reused pid do not count."""
    return known(
        lambda: bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE),
        otherwise=False,
    )


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process has used so far."""
    return known(lambda: float(sum(process.cpu_times()[:2])), 0.0)


def _signal_all(processes: list[psutil.Process], signum: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):
            process.send_signal(signum)


def kill(process: psutil.Process) -> list[str]:
    """Kill a process of any parent; return its name if it was running."""
    with suppress(psutil.Error, OSError):
        if is_alive(process):
            pid = f"pid {process.pid}"
            name = known(lambda: f"{process.name()} ({pid})", pid)
            process.send_signal(signal.SIGKILL)
            return [name]
    return []


def open_pidfd(pid: int) -> int:
    """Return a file descriptor that is readable when a process has ended.

    Raises OSError where it is not available: before Linux 5.3, in some sandboxes, and in Pythons
    built with older headers (conda's).
    """
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(pid)
