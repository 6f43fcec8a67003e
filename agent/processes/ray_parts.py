"""Ray's own processes on this node: one that is lost or stopped ends or explains its Ray."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.ends import exit_sentence
from agent.processes.driver import drivers_by_job
from agent.processes.process import children_of
from agent.processes.waiting import NotYet, until
from agent.record.background import result_in_thread
from agent.record.log import say
from agent.record.node_record import read_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.processes.process import Child
    from agent.processes.waiting import BestEffort
    from agent.record.node_record import ProcessStat

_RAY_EXIT_NOTICED = 1.5  # `ray start` exits within a second of a Ray process, and logs more.
_RAY_POLL = 0.5  # Between two checks of this node's Ray and GCS.
_RAY_HELPERS_POLL = 1.0  # Between two checks of Ray's dashboard and agents.
_REQUIRED = ("gcs_server", "raylet")  # Ray restarts all others
_ENDED_STATES = {"Z", "X", "x"}
_STOPPED_STATES = {"T", "t"}

_DASHBOARD = "/dashboard/dashboard.py"
_WITH_HELPERS = ("/raylet", "multiprocessing.forkserver", _DASHBOARD)
_NAMES = {
    _DASHBOARD: "dashboard",
    "ray-dashboard-JobHead-": "dashboard's part for jobs",
    "ray::DashboardAgent": "dashboard's agent",
    "ray::RuntimeEnvAgent": "agent for runtime_env",
}
"""Names by a part of the command line; the second is a separate process in newer Rays only."""


class RayParts:
    """Watches the processes of one `ray start`, and stops it when one is lost."""

    def __init__(self, child: Child, clock: Callable[[], float]) -> None:
        self._child = child
        self._clock = clock
        self._known: dict[str, int] = {}
        self._stopped_since: dict[str, float] = {}
        self.evidence = ""  # Why it was stopped, or ''

    async def watch(self) -> None:
        """Watch until one is gone or stopped for too long; then stop this Ray."""

        async def check() -> str | NotYet:
            if self._child.is_stopping:
                return NotYet()
            return self.find_lost(ray_processes(self._child.pid)) or NotYet()

        self.evidence = await until(check, None, step=_RAY_POLL, longest=_RAY_POLL)
        with anyio.move_on_after(_RAY_EXIT_NOTICED):
            await self._child.wait()
        await self._child.stop(0.0)

    def find_lost(self, running: Mapping[int, ProcessStat]) -> str:
        """Record one check; return why this Ray is lost, or ''. Log a process that is stopped."""
        now = self._clock()
        limit = times.RAY_HANGS
        self._known |= {stat.name: pid for pid, stat in running.items()}
        for name, pid in self._known.items():
            if pid not in running or running[pid].state in _ENDED_STATES:
                return f"its {name} (pid {pid}) is gone"
            if running[pid].state not in _STOPPED_STATES:
                self._stopped_since.pop(name, None)
                continue

            # It is stopped: for how long?
            what = f"its {name} (pid {pid}) is stopped"
            if name not in self._stopped_since:
                say(f"{what}: Ray is taken for lost after {limit:g} s", "warning")
            if now - self._stopped_since.setdefault(name, now) >= limit:
                return f"{what} for {limit:g} s"
        return ""

    def end_sentence(self, code: int) -> str:
        """Return a sentence with how this Ray ended."""
        end = f"`ray start` ended, {exit_sentence(code)}"
        return f"{self.evidence}; {end}" if self.evidence else end


def ray_processes(pid: int) -> dict[int, ProcessStat]:
    """Return the required processes of Ray among a process's children."""
    stats = {child: read_stat(child) for child in children_of(pid)}
    return {child: stat for child, stat in stats.items() if stat and stat.name in _REQUIRED}


async def watch_helpers(
    child: Child, emit: Callable[[str, bool], None], best_effort: BestEffort
) -> None:
    """Emit changes of which helper of a `ray start` is stopped ('': none), and if a job runs."""
    emitted = ("", False)

    async def check() -> None:
        nonlocal emitted
        stopped = ""
        if not child.is_stopping:  # with many workers a search takes some time
            stopped = await result_in_thread(partial(stopped_helper, child.pid))
        runs = stopped != "" and bool(await result_in_thread(drivers_by_job))
        if (stopped, runs) != emitted:
            emitted = (stopped, runs)
            emit(*emitted)

    await best_effort.every(_RAY_HELPERS_POLL, "a look at what of Ray is stopped", check)


def stopped_helper(pid: int) -> str:
    """Return which helper of a `ray start` is stopped; '' for none."""
    for helper, name in _helpers_below(pid):
        stat = read_stat(helper)
        if stat is not None and stat.state in _STOPPED_STATES:
            return f"its {name} (pid {helper}) is stopped"
    return ""


def _helpers_below(pid: int) -> Iterator[tuple[int, str]]:
    """Yield pids and names of the helpers, at any depth."""
    for child in children_of(pid):
        line = ""
        with suppress(OSError):
            line = Path(f"/proc/{child}/cmdline").read_text(errors="replace").replace("\0", " ")
        name = next((name for mark, name in _NAMES.items() if mark in line), None)
        if name is not None:
            yield child, name
        if any(mark in line for mark in _WITH_HELPERS):
            yield from _helpers_below(child)
