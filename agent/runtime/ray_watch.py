"""Watch Ray's own processes and the kernel's OOM killer."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent.base import times
from agent.node import limits
from agent.record.log import say
from agent.record.node_record import read_stat
from agent.runtime import driver
from agent.runtime.descendants import children_of
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.runtime.process import Child
    from agent.runtime.waiting import BestEffort


REQUIRED_PROCESSES = ("gcs_server", "raylet")  # Ray restarts all others
STOPPED_LIMIT = times.RAY_HANGS
_ENDED_STATES, STOPPED_STATES = {"Z", "X", "x"}, {"T", "t"}

_RAYLET, _FORKSERVER = "/raylet", "multiprocessing.forkserver"
_DASHBOARD = "/dashboard/dashboard.py"
_NAMES = {
    _DASHBOARD: "dashboard",
    "ray-dashboard-JobHead-": "dashboard's part for jobs",
    "ray::DashboardAgent": "dashboard's agent",
    "ray::RuntimeEnvAgent": "agent for runtime_env",
}
"""Names by a part of the command line; the second is a separate process in newer Rays only."""
_MAX_ARGUMENTS = 1000
_SEARCH_EVERY = 10  # Every so many checks also search for helpers that were started since


class RayProcess(NamedTuple):
    """A process of Ray and its last state."""

    pid: int
    state: str


class RayPartsState:
    """Ray's processes found so far, and since when one is stopped."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._stopped_since: dict[str, float] = {}

    def update(self, found: Mapping[str, RayProcess], now: float) -> tuple[str, str]:
        """Record one check; return why this Ray is lost, and which process is stopped, or ''."""
        self._known |= {name: part.pid for name, part in found.items()}
        for name, pid in self._known.items():
            if name not in found or found[name].state in _ENDED_STATES:
                return f"its {name} (pid {pid}) is gone", ""
        for name, part in found.items():
            if part.state not in STOPPED_STATES:
                self._stopped_since.pop(name, None)
                continue
            seconds = now - self._stopped_since.setdefault(name, now)
            what = f"its {name} (pid {part.pid}) is stopped"
            is_lost = seconds >= STOPPED_LIMIT
            return (f"{what} for {round(seconds)} s", "") if is_lost else ("", what)
        return "", ""


class RayParts:
    """Watches the processes of one `ray start`, and stops it when one is lost."""

    def __init__(self, child: Child, clock: Callable[[], float]) -> None:
        self._child, self._clock = child, clock
        self.evidence = ""  # Why it was stopped, or ''

    async def watch(self) -> None:
        """Watch until one is gone or stopped for too long; then stop this Ray."""
        state, warned = RayPartsState(), ""

        async def check() -> str | NotYet:
            nonlocal warned
            if self._child.is_stopping:
                return NotYet()
            gone, stopped = state.update(ray_processes(self._child.pid), self._clock())
            if stopped and stopped != warned:
                say(f"{stopped}: Ray is taken for lost after {STOPPED_LIMIT:g} s", "warning")
            warned = stopped
            return gone or NotYet()

        self.evidence = await until(check, None, step=times.RAY_POLL, longest=times.RAY_POLL)
        with anyio.move_on_after(times.RAY_EXIT_NOTICED):
            await self._child.wait()
        await self._child.stop(0.0)

    async def end_sentence(self, code: int) -> str:
        """Return a sentence with how this Ray ended."""
        end = f"`ray start` ended, {await self._child.end_sentence(code)}"
        return f"{self.evidence}; {end}" if self.evidence else end


def ray_processes(pid: int) -> dict[str, RayProcess]:
    """Return the required processes of Ray among a process's children."""
    found: dict[str, RayProcess] = {}
    for child in children_of(pid):
        stat = read_stat(child)
        if stat is not None and stat.name in REQUIRED_PROCESSES:
            found[stat.name] = RayProcess(child, stat.state)
    return found


async def watch_helpers(
    child: Child, emit: Callable[[str, bool], None], best_effort: BestEffort
) -> None:
    """Emit changes of which helper of a `ray start` is stopped ('': none), and if a job runs."""
    emitted, helpers = ("", False), RayHelpers(child.pid)

    async def check() -> None:
        nonlocal emitted
        stopped = "" if child.is_stopping else helpers.stopped()
        runs = stopped != "" and await anyio.to_thread.run_sync(driver.any_driver_runs)
        if (stopped, runs) != emitted:
            emitted = (stopped, runs)
            emit(*emitted)

    await best_effort.every(times.RAY_HELPERS_POLL, "a look at what of Ray is stopped", check)


class RayHelpers:
    """Checks the helpers of one `ray start`; their pids are cached, since a search takes 5 ms."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, str] = {}
        self._checks = 0

    def stopped(self) -> str:
        """Return which helper is stopped; '' for none."""
        stats = {pid: read_stat(pid) for pid in self._known}
        if self._checks % _SEARCH_EVERY == 0 or None in stats.values():
            self._known = dict(_found_below(self._pid))
            stats = {pid: read_stat(pid) for pid in self._known}
        self._checks += 1
        for pid, stat in stats.items():
            if stat is not None and stat.state in STOPPED_STATES:
                return f"its {self._known[pid]} (pid {pid}) is stopped"
        return ""


def _found_below(pid: int) -> Iterator[tuple[int, str]]:
    """Yield pids and names of the helpers, at any depth."""
    for child in children_of(pid):
        line = ""
        with suppress(OSError), Path(f"/proc/{child}/cmdline").open("rb") as file:
            line = file.read(_MAX_ARGUMENTS).decode(errors="replace").replace("\0", " ")
        name = next((name for mark, name in _NAMES.items() if mark in line), None)
        if name is not None:
            yield child, name
        if any(mark in line for mark in (_RAYLET, _FORKSERVER, _DASHBOARD)):
            yield from _found_below(child)


class MemoryWatch:
    """Counts OOM kills since the agent's start."""

    def __init__(
        self,
        count: Callable[[], limits.OomKills] = limits.oom_kills,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self.kills = count()
        self._grew_at: float | None = None
        self._last_sentence = ""

    def poll(self) -> str:
        """Return a sentence if there were OOM kills since the last poll, else ''."""
        now = self._count()
        more = now.number - self.kills.number
        self.kills = now
        if more <= 0:
            return ""
        self._grew_at, self._last_sentence = self._clock(), oom_sentence(now, more)
        return self._last_sentence

    def recent(self) -> str:
        """Return that sentence for a minute, unless another container's process may be meant."""
        self.poll()
        is_recent = self._grew_at is not None and self._clock() - self._grew_at <= times.OOM_RECENT
        return self._last_sentence if is_recent and self.kills.of_container else ""


def oom_sentence(kills: limits.OomKills, more: int) -> str:
    """Return a sentence with what ran out of memory and what was killed."""
    where = "this container" if kills.of_container else "this machine"
    what = "a process" if more == 1 else f"{more} processes"
    return f"{where} ran out of memory: the kernel's OOM killer ended {what} of it"
