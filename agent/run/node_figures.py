"""The figures of this node: read at intervals, each source in a thread that may hang."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.diagnosis.forecast import HOST_MEMORY, Trend
from agent.node.figures import Figures, UsualPower
from agent.node.read_figures import (
    HostMemory,
    NetworkReader,
    NvmlReader,
    memory_by_program,
    read_amd,
    read_disks,
    read_host_memory,
)
from agent.record.background import in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agent.node.figures import DiskFigures, Forecast, GpuFigures
    from agent.plan.plan import Plan

_PROGRAMS_READ = 60.0  # Between two readings of the programs that hold the memory.


T = TypeVar("T")


class Source(Generic[T]):
    """One reader: while a call of it is under way, no other begins, whoever asks."""

    def __init__(self, read: Callable[[], T], limit: float = times.FIGURES_LIMIT) -> None:
        self._read = read
        self._limit = limit
        self._pending: asyncio.Future[T] | None = None

    async def value(self) -> T | None:
        """Return what is read; None while it hangs, and where it fails."""
        pending = self._pending
        if pending is None:
            pending = self._pending = in_background(self._read)
        if pending is None:  # `pids.max` allows no thread
            return None
        await asyncio.wait([pending], timeout=self._limit)
        if not pending.done():
            return None
        if self._pending is pending:  # else another caller has begun the next
            self._pending = None
        return None if pending.exception() else pending.result()

    @property
    def hangs(self) -> bool:
        """Return whether the last call has not returned yet."""
        return self._pending is not None


class Sources:
    """What this node's figures are read from; a test replaces them."""

    def __init__(self, plan: Plan, run_folder: Callable[[], Path]) -> None:
        nvml = NvmlReader()
        self.gpus = gpu_reader(plan, nvml)
        self.gpu_holders: Callable[[], Mapping[int, Sequence[str]]] = nvml.holders
        self.memory: Callable[[], HostMemory] = read_host_memory
        self.network = NetworkReader().read
        self.programs: Callable[[], Mapping[str, int]] = memory_by_program
        self._plan = plan
        self._run_folder = run_folder

    def disks(self) -> tuple[DiskFigures, ...]:
        """Return the disks of checkpoints, run folder and Ray's session."""
        job = self._plan.job
        folders = ["" if job is None else job.checkpoints, str(self._run_folder())]
        return read_disks(filter(None, [*folders, self._plan.facts.temp]))


def gpu_reader(
    plan: Plan, nvml: NvmlReader
) -> Callable[[], tuple[Sequence[GpuFigures], str]] | None:
    """Return the reader of this node's GPUs; None without one."""
    facts = plan.facts
    if not facts.gpus:
        return None
    if facts.gpu_maker == "nvidia":
        return nvml.read
    if facts.gpu_maker == "amd":
        return partial(read_amd, plan.environ.get("PATH"))
    return None


class NodeFigures:
    """Reads this node's figures; `newest` has the last ones."""

    def __init__(
        self,
        sources: Sources,
        now: Callable[[], float],
        job_gpus: Callable[[], frozenset[int] | None] = lambda: None,
    ) -> None:
        self._job_gpus = job_gpus  # their numbers; None where services have none of their own
        self.newest: Figures | None = None
        self._now = now
        self.gpus = None if sources.gpus is None else Source(sources.gpus)
        self.gpu_holders = Source(sources.gpu_holders)
        """The processes with memory of each GPU; asked only where that memory is not free."""
        self._memory = Source(sources.memory)
        self._network = Source(sources.network)
        self._disks = Source(sources.disks)
        self._usual: dict[int, UsualPower] = {}

        # What grows: memory with the programs that hold it, and each disk.
        self._programs = Source(sources.programs)
        self._largest: Mapping[str, int] = {}
        self._programs_due = 0.0
        self._trends: dict[str, Trend] = {}

    async def read(self) -> None:
        """Read all sources at the same time."""
        # The start of Ray and of the job has the CPUs first.
        now = self._now()
        if now < times.FIGURES_READ:
            return

        read: dict[str, object] = {}

        async def read_gpus() -> None:
            if self.gpus is not None:
                read["gpus"], read["gpu_fault"] = await self._read_gpus(self.gpus)

        async def read_memory() -> None:
            memory = await self._memory.value()
            if memory is not None:
                read["host_memory_used"] = memory.used
                read["host_memory_total"] = memory.total

        async def read_network() -> None:
            rates = await self._network.value()
            if rates is not None:
                read["network_received"], read["network_sent"] = rates

        async def read_all_disks() -> None:
            read["disks"] = await self._disks.value() or ()

        async with anyio.create_task_group() as tasks:
            for part in (read_gpus, read_memory, read_network, read_all_disks):
                tasks.start_soon(part)
        figures = replace(Figures(at=round(now, 1)), **read)
        self.newest = replace(figures, forecasts=await self._forecasts(figures))

    async def _forecasts(self, figures: Figures) -> tuple[Forecast, ...]:
        """Return what will be full soon, by these figures and earlier ones."""
        if figures.at >= self._programs_due:
            self._programs_due = figures.at + _PROGRAMS_READ
            self._largest = await self._programs.value() or {}

        grows = [(HOST_MEMORY, figures.host_memory_used, figures.host_memory_total)]
        grows += [(f"disk {disk.folder}", disk.used, disk.total) for disk in figures.disks]
        forecasts = []
        for what, used, total in grows:
            if not total:  # it could not be read
                continue
            trend = self._trends.setdefault(what, Trend(what))
            programs = self._largest if what == HOST_MEMORY else {}
            trend.add(figures.at, used, total, programs)
            forecast = trend.forecast()
            if forecast is not None:
                forecasts.append(forecast)
        return tuple(forecasts)

    async def _read_gpus(
        self, source: Source[tuple[Sequence[GpuFigures], str]]
    ) -> tuple[tuple[GpuFigures, ...], str]:
        """Return the GPUs with their usual power, or why there are none."""
        answer = await source.value()
        if answer is None:
            return (), "the driver does not answer" if source.hangs else "the driver fails"
        gpus = []
        of_job = self._job_gpus()
        for gpu in answer[0]:
            usual = self._usual.setdefault(gpu.index, UsualPower())
            is_of_service = of_job is not None and gpu.index not in of_job
            power = usual.with_sample(gpu)
            gpus.append(replace(gpu, usual_power=power, is_of_service=is_of_service))
        return tuple(gpus), answer[1]
