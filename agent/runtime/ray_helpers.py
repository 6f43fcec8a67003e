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


async def watch_helpers(child: Child, tell: Callable[[str, bool], None]) -> None:
    """Tell what is stopped below a `ray start`, and whether a job runs here; '' where nothing is.

    Only changes are told.
    """
    told = ("", False)

    async def look() -> NotYet:
        nonlocal told
        stopped = "" if child.is_stopping else stopped_below(child.pid)
        runs = stopped != "" and await anyio.to_thread.run_sync(driver.any_runs)
        if (stopped, runs) != told:
            told = (stopped, runs)
            tell(*told)
        return NotYet()

    await until(look, None, step=_STEP, longest=_STEP)


def stopped_below(pid: int) -> str:
    """Say which of them is stopped below a `ray start`; '' where none is."""
    found = [f"{name} (pid {pid})" for name, pid in _helpers(pid) if _is_stopped(pid)]
    return f"its {found[0]} is stopped" if found else ""


def _helpers(pid: int) -> Iterator[tuple[str, int]]:
    """Yield those that are found below a process, which Ray nests in one another."""
    for child in children_of(pid):
        line = _command_line(child)
        name = next((name for mark, name in _NAMES.items() if mark in line), None)
        if name is not None:
            yield name, child
        if any(mark in line for mark in (_RAYLET, _FORKSERVER, _DASHBOARD)):
            yield from _helpers(child)


def _is_stopped(pid: int) -> bool:
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] in STOPPED
    return False


def _command_line(pid: int) -> str:
    """Return the beginning of a process's command line, in which its program stands."""
    with suppress(OSError), Path(f"/proc/{pid}/cmdline").open("rb") as file:
        return file.read(_LONGEST_ARGUMENTS).decode(errors="replace").replace("\0", " ")
    return ""
