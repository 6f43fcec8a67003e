"""Child subreaper: adopt orphans, reap them, and stop every descendant at exit.

Ray's job driver starts its own session and so leaves its process group; when its parent exits, the
subreaper becomes its parent.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import psutil

from agent.base import times
from agent.runtime import parent
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")

_managed: set[int] = set()
_spawning = 0


@contextmanager
def spawning() -> Iterator[set[int]]:
    """Suspend `reap` while a child is started, until its pid is in the yielded set.

    Its starter waits for it by pid; if `reap` took its exit code, a failure would look like
    success.
    """
    global _spawning  # noqa: PLW0603 - one process has one set of children
    _spawning += 1
    try:
        yield _managed
    finally:
        _spawning -= 1


def forget(pid: int) -> None:
    """Remove the pid of a reaped process; the kernel may reuse it."""
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
    """Return a process's children, without a scan of all processes."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(pid) for pid in path.read_text().split()]
    return found


async def stop_descendants(grace: float) -> list[str]:
    """Stop all descendants, of any session; return the names of those killed."""
    alive = _descendants()
    _signal_all(alive, signal.SIGTERM)
    if await _wait_until_gone(grace):
        return []
    stubborn = _descendants()
    names = [_name(process) for process in stubborn]
    _signal_all(stubborn, signal.SIGKILL)
    await _wait_until_gone(2.0)
    return names


def list_descendants() -> list[psutil.Process]:
    """Return all descendants, and those of a killed agent, which are the parent's."""
    own = psutil.Process()
    ours = own.children(recursive=True)
    above = own.parent() if parent.former_agents() else None
    others = [] if above is None else above.children(recursive=True)
    return [*ours, *({*others} - {*ours, own})]


def kill_session(leader: int) -> None:
    """Kill the rest of a session whose leader has ended, of any parent."""
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == leader:
                send_to(process, signal.SIGKILL)


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
    names = []
    for process in _descendants():
        environ = known(process.environ, dict[str, str]())
        if matches(environ.get(variable, "")):
            names += kill(process)
    return names


def kill_descendants() -> None:
    """Kill all descendants at once."""
    _signal_all(_descendants(), signal.SIGKILL)


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


def _name(process: psutil.Process) -> str:
    pid = f"pid {process.pid}"
    return known(lambda: f"{process.name()} ({pid})", pid)


def _signal_all(processes: list[psutil.Process], signum: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):
            send_to(process, signum)


def kill(process: psutil.Process) -> list[str]:
    """Kill a process of any parent; return its name if it was running."""
    with suppress(psutil.Error, OSError):
        if is_alive(process):
            name = _name(process)
            send_to(process, signal.SIGKILL)
            return [name]
    return []


def send_to(process: psutil.Process, signum: int) -> None:
    """Signal this process, never another one that reuses its pid.

    A pidfd refers to one process, and its identity is checked after it is open.
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
    """Return a file descriptor that is readable when a process has ended.

    Raises OSError where it is not available: before Linux 5.3, in some sandboxes, and in Pythons
    built with older headers (conda's).
    """
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(pid)
