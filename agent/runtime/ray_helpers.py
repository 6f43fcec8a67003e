"""What a submission needs of the head's Ray beside GCS and raylet, and whether it is stopped.

Ray itself starts those again, or ends, that are gone; of one that is stopped it never knows, and
whoever asks it waits for ever. A running job needs none of them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent.runtime import driver
from agent.runtime.orphans import children_of
from agent.runtime.ray_parts import STOPPED
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.runtime.best_effort import BestEffort
    from agent.runtime.process import Child

_STEP = 1.0
_RAYLET, _FORKSERVER = "/raylet", "multiprocessing.forkserver"
_DASHBOARD = "/dashboard/dashboard.py"
_NAMES = {
    _DASHBOARD: "dashboard",
    "ray-dashboard-JobHead-": "dashboard's part for jobs",
    "ray::DashboardAgent": "dashboard's agent",
    "ray::RuntimeEnvAgent": "agent for runtime_env",
}
"""By what stands in their command lines; the second is a process of its own in newer Rays only."""
_LONGEST_ARGUMENTS = 1000
_BOOTS = 60
"""So many looks are taken for those that are still to come; then only every so many."""
_RARELY = 10


async def watch_helpers(
    child: Child, tell: Callable[[str, bool], None], best_effort: BestEffort
) -> None:
    """Tell what is stopped below a `ray start`, and whether a job runs here; '' where nothing is.

    Only changes are told.
    """
    told, helpers = ("", False), Helpers(child.pid)

    async def look() -> None:
        nonlocal told
        stopped = "" if child.is_stopping else helpers.stopped()
        runs = stopped != "" and await anyio.to_thread.run_sync(driver.any_runs)
        if (stopped, runs) != told:
            told = (stopped, runs)
            tell(*told)

    async def turn() -> NotYet:
        await best_effort("a look at what of Ray is stopped", look)
        return NotYet()

    await until(turn, None, step=_STEP, longest=_STEP)


class Helpers:
    """Looks at them below one `ray start`; to find them takes 5 ms, to look at them again none."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}
        self._looks = 0

    def stopped(self) -> str:
        """Say which of them is stopped; '' where none is."""
        states = {pid: _state_of(pid) for pid in self._known}
        is_whole = len(self._known) == len(_NAMES) and all(states.values())
        self._looks += 1
        if not is_whole and (self._looks <= _BOOTS or self._looks % _RARELY == 0):
            self._known = dict(_found_below(self._pid))
            states = {pid: _state_of(pid) for pid in self._known}
        pid = next((pid for pid, state in states.items() if state in STOPPED), None)
        return "" if pid is None else f"its {self._known[pid]} (pid {pid}) is stopped"


def _found_below(pid: int) -> Iterator[tuple[int, str]]:
    """Yield them by their pids; Ray nests them in one another."""
    for child in children_of(pid):
        line = _command_line(child)
        name = next((name for mark, name in _NAMES.items() if mark in line), None)
        if name is not None:
            yield child, name
        if any(mark in line for mark in (_RAYLET, _FORKSERVER, _DASHBOARD)):
            yield from _found_below(child)


def _state_of(pid: int) -> str:
    """Return a process's state as the kernel names it; '' where it is gone."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0]
    return ""


def _command_line(pid: int) -> str:
    """Return the beginning of a process's command line, in which its program stands."""
    with suppress(OSError), Path(f"/proc/{pid}/cmdline").open("rb") as file:
        return file.read(_LONGEST_ARGUMENTS).decode(errors="replace").replace("\0", " ")
    return ""
