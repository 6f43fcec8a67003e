"""Child subreaper: adopt orphans, reap them, and stop every descendant at exit.

Ray's job driver starts its own session and so leaves its process group; when its parent exits, the
subreaper becomes its parent.
"""

from __future__ import annotations

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
    from collections.abc import Callable, Iterable

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


def list_descendants() -> list[psutil.Process]:
    """Return all running descendants, and those of a killed agent, which are the parent's."""
    own = os.getpid()
    tops = (own, os.getppid()) if parent.former_agents else (own,)
    found = {process for top in tops for process in tree_of(top)[1:]}
    return [process for process in found if process.pid != own and is_alive(process)]


async def stop_descendants(grace: float) -> list[str]:
    """Stop all descendants, of any session; return the names of those killed."""
    send_signal(list_descendants(), signal.SIGTERM)
    if await _wait_until_gone(grace):
        return []
    killed = kill(list_descendants())
    await _wait_until_gone(2.0)
    return killed


async def _wait_until_gone(limit: float) -> bool:
    async def check() -> bool | NotYet:
        alive = list_descendants()
        reap()  # after the check, so that the last one leaves no zombie
        return NotYet() if alive else True

    try:
        return await until(check, limit, longest=0.1)
    except TimedOutError:
        return False


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, of any parent, and wait for their end.

    An exiting process loses its command line first and its ports last: without the wait, its ports
    would still be taken, by no visible process.
    """
    tree = tree_of(pid)
    send_signal(tree, signal.SIGKILL)
    psutil.wait_procs(tree, timeout=times.DESCENDANTS_EXIT)


def tree_of(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; nothing if it has ended."""
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def kill_marked(variable: str, matches: Callable[[str], bool]) -> list[str]:
    """Kill descendants by a variable in their environment; return their names."""
    of = {one: known(one.environ, dict[str, str]()) for one in list_descendants()}
    return kill(one for one, environ in of.items() if matches(environ.get(variable, "")))


def kill(processes: Iterable[psutil.Process]) -> list[str]:
    """Kill processes of any parent; return the names of those that were running."""
    alive = [process for process in processes if is_alive(process)]
    names = [f"{known(process.name, 'a process')} (pid {process.pid})" for process in alive]
    send_signal(alive, signal.SIGKILL)
    return names


def send_signal(processes: Iterable[psutil.Process], signum: int) -> None:
    """Signal those of the processes that still run; a reused pid is no such process."""
    for process in processes:
        with suppress(psutil.Error, OSError):
            process.send_signal(signum)


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
