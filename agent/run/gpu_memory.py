"""Wait until this node's GPUs are free before the next attempt.

Memory that a dead process still holds, or that a foreign process holds, makes the next attempt run
out of memory as soon as it begins. After the processes of an attempt were killed, this waits until
the memory is free, names what holds it, and gives up at a deadline: the attempt begins anyway.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import listed
from agent.node.facts import CUDA
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.log import say
from agent.settings.rules import BUNDLED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.node.figures import GpuFigures
    from agent.plan.plan import Plan
    from agent.run.node_figures import Source

_IDLE_SHARE = 5  # percent of its memory that a GPU without a job may hold
_BEYOND_START = 512  # MiB beyond what it held at the agent's start
_MIB_PER_GIB = 1024
_MAY_FAIL = "the job may run out of memory"


def held_gpus(
    gpus: Sequence[GpuFigures], at_start: Mapping[int, int], visible: frozenset[int] | None = None
) -> tuple[GpuFigures, ...]:
    """Return the GPUs whose memory is not free; `visible` are those of this node's job."""
    held = []
    for gpu in gpus:
        is_ours = visible is None or gpu.index in visible
        if not is_ours or gpu.memory_used is None or not gpu.memory_total:
            continue
        idle = gpu.memory_total * _IDLE_SHARE // 100
        if gpu.memory_used > max(idle, at_start.get(gpu.index, 0) + _BEYOND_START):
            held.append(gpu)
    return tuple(held)


def describe(held: Sequence[GpuFigures], names: Mapping[int, Sequence[str]], when: str = "") -> str:
    """Name GPUs whose memory is in use, and the processes that use it, if known."""
    parts = []
    for gpu in held:
        used = (gpu.memory_used or 0) / _MIB_PER_GIB
        total = (gpu.memory_total or 0) / _MIB_PER_GIB
        who = listed(names.get(gpu.index, ())) or "no process that is visible here"
        parts.append(f"GPU {gpu.index} has {used:.1f} of {total:.0f} GiB in use{when} ({who})")
    return "; ".join(parts)


def what_to_end(held: Sequence[GpuFigures], names: Mapping[int, Sequence[str]]) -> str:
    """Return what would free the memory of these GPUs."""
    known = {name for gpu in held for name in names.get(gpu.index, ())}
    if not known:
        return "free that memory"
    return "end that process" if len(known) == 1 else "end these processes"


def visible_gpus(environ: Mapping[str, str]) -> frozenset[int] | None:
    """Return the GPUs that the environment selects by number; None for all."""
    if CUDA not in environ:
        return None
    words = [word.strip() for word in environ[CUDA].split(",")]
    return frozenset(int(word) for word in words if word.isdecimal())


class GpuMemory:
    """The memory of this node's GPUs between attempts."""

    def __init__(
        self,
        plan: Plan,
        gpus: Source[tuple[Sequence[GpuFigures], str]] | None,
        holders: Source[Mapping[int, Sequence[str]]],
        job_gpus: Callable[[], frozenset[int] | None] = lambda: None,
    ) -> None:
        self._source = gpus
        self._holders = holders
        self._chosen = visible_gpus(plan.environ)
        self._job_gpus = job_gpus  # where services have GPUs of their own
        self._at_start: dict[int, int] = {}

        # A service may hold memory of the job's GPUs while no job runs, if it has none of its own.
        own = [spec for spec in plan.all_services if spec.argv is not None and not spec.gpus]
        self._may_wait = all(spec.asked in BUNDLED for spec in own)

    @property
    def _visible(self) -> frozenset[int] | None:
        of_job = self._job_gpus()
        return self._chosen if of_job is None else of_job

    async def look_at_start(self) -> None:
        """Name what holds memory before the first attempt."""
        gpus = await self._read()
        held = held_gpus(gpus, {}, self._visible)
        if held:
            names = await self._names()
            in_use = describe(held, names, " before the job")
            say(f"{in_use}: {what_to_end(held, names)}, or {_MAY_FAIL}", "warning")
        self._at_start = {gpu.index: gpu.memory_used or 0 for gpu in gpus}

    async def await_free(self, limit: float = times.GPUS_FREED) -> None:
        """Wait until the GPUs have the memory that they had at the start, within a limit."""
        if self._source is None or not self._may_wait:
            return

        async def look() -> bool | NotYet:
            held = held_gpus(await self._read(), self._at_start, self._visible)
            return NotYet(describe(held, await self._names())) if held else True

        waits = partial(say, level="warning")
        try:
            await until(
                look, limit, on_evidence=lambda why: waits(f"waiting for GPU memory: {why}")
            )
        except TimedOutError as late:
            what = f"GPU memory is still in use after {limit:g} s: {late}"
            waits(f"{what}. Starting the attempt anyway; it may run out of memory")

    async def _read(self) -> Sequence[GpuFigures]:
        """Return the GPUs' figures; none while the driver hangs, which others report."""
        if self._source is None:
            return ()
        answer = await self._source.value()
        return () if answer is None else answer[0]

    async def _names(self) -> Mapping[int, Sequence[str]]:
        """Return the processes that hold memory, by GPU."""
        return await self._holders.value() or {}
