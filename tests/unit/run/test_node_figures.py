"""The figures of a node are read at the same time, and a source that hangs is left out."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.node.figures import DiskFigures, Figures, GpuFigures
from agent.node.read_figures import HostMemory
from agent.port.protocol import Report, WorkerStats
from agent.run import node_figures
from agent.run.node_figures import NodeFigures, Source
from agent.run.node_run import NodeStats
from support.fake_runs import status_of
from support.heads import Trace, goal, reported
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable


WORK = GpuFigures(0, 98, power=650, power_limit=700)
HANG = GpuFigures(0, 100, power=131, power_limit=700)


def sources(**changed: Callable[[], Any]) -> Any:  # noqa: ANN401 - stands for Sources
    """Return sources with these readers in place of healthy ones."""
    healthy: dict[str, Callable[[], Any]] = {
        "gpus": lambda: ((WORK,), ""),
        "gpu_holders": dict,
        "memory": lambda: HostMemory(3, 9),
        "network": lambda: (10.0, 20.0),
        "disks": lambda: (DiskFigures("/tmp", 1, 2),),
        "programs": dict,
    }
    return SimpleNamespace(**{**healthy, **changed})


def test_all_figures_of_a_node() -> None:
    """From the tenth second on: the start of Ray has the CPUs first."""
    now = [0.0]
    figures = NodeFigures(sources(), lambda: now[0])
    anyio.run(figures.read)
    assert figures.newest is None
    now[0] = 12.34
    anyio.run(figures.read)
    gpu = GpuFigures(0, 98, power=650, power_limit=700, usual_power=650)
    disks = (DiskFigures("/tmp", 1, 2),)
    assert figures.newest == Figures(12.3, (gpu,), "", 3, 9, disks, 10.0, 20.0)


def test_a_hung_driver_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second call begins beside the first; once that returns, the figures are back."""
    monkeypatch.setattr(times, "FIGURES_LIMIT", 0.05)
    go_on = threading.Event()
    calls = []

    def hang() -> tuple[tuple[GpuFigures, ...], str]:
        calls.append(1)
        go_on.wait(20)
        return (WORK,), ""

    async def look() -> None:
        figures = NodeFigures(sources(gpus=hang), lambda: 60.0)
        figures.gpus = Source(hang, 0.05)  # instead of six seconds
        for _ in range(3):
            await figures.read()
            assert figures.newest is not None
            assert figures.newest.gpus == ()
            assert figures.newest.gpu_fault == "the driver does not answer"
            assert figures.newest.host_memory_total == 9
        assert len(calls) == 1
        go_on.set()
        figures.gpus = Source(lambda: ((WORK,), ""))
        await figures.read()
        assert figures.newest is not None
        assert len(figures.newest.gpus) == 1

    anyio.run(look)


def test_a_hung_source_is_called_again_after_it_returned() -> None:
    """The value that came late counts at the next call."""
    go_on = threading.Event()
    source = Source(lambda: go_on.wait(20), 0.05)

    async def look() -> None:
        assert await source.value() is None
        assert source.hangs
        go_on.set()
        slow = Source(lambda: go_on.wait(20), 20.0)
        assert await slow.value() is True
        assert not slow.hangs

    anyio.run(look)


def test_who_asks_meanwhile_gets_the_same_value() -> None:
    """Figures and the wait for free memory ask one driver; the next call is a new one."""
    calls = []
    go_on = threading.Event()

    def read() -> int:
        calls.append(go_on.wait(20))
        return len(calls)

    async def ask() -> None:
        source = Source(read, 20.0)
        values = []

        async def add() -> None:
            values.append(await source.value())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add)
            tasks.start_soon(add)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        assert values == [1, 1]
        assert await source.value() == 2

    anyio.run(ask)


def test_the_readers_of_a_plan() -> None:
    """A node without GPUs reads none; its own threads read the rest."""
    plan = plan_of({})
    real = node_figures.Sources(plan, lambda: Path("/tmp"))
    assert real.gpus is None
    figures = NodeFigures(real, lambda: 60.0)
    anyio.run(figures.read)
    assert figures.newest is not None
    assert figures.newest.gpus == ()
    assert figures.newest.gpu_fault == ""
    assert 0 < figures.newest.host_memory_used < figures.newest.host_memory_total
    assert figures.newest.disks[0].total > 0


def test_a_report_and_the_status_have_them() -> None:
    """A worker without services sends them; the head shows each node's and its own."""
    figures = Figures(12.0, (WORK, HANG))
    stats = NodeStats(str, lambda: figures).for_report()
    assert stats is not None
    sent = Report("agent1", "10.0.0.1", "p", stats=stats).to_dict()
    read = Report.from_dict(sent).stats
    assert read is not None
    assert read.figures == figures
    assert WorkerStats(attempt=2).after(read) == replace(read, attempt=2)

    trace = Trace(goal(1), [(2.0, reported(1))])
    key = next(iter(trace.state.fleet.workers))
    shown = status_of(trace.state, plan_of({}), stats={key: WorkerStats(figures=figures)})
    status = shown.status()
    (node,) = status.nodes
    assert node.figures is not None
    assert node.figures.gpus.power == (650, 131)
    assert status.figures is None


def test_figures_are_sent_every_thirty_seconds() -> None:
    """What is read meanwhile is not: the head keeps the former ones."""
    newest = [Figures(0.0)]
    stats = NodeStats(str, lambda: newest[0])
    sent = []
    for second in range(10, 130, 10):
        newest[0] = Figures(float(second))
        report = stats.for_report()
        if report is not None and report.figures is not None:
            sent.append(report.figures.at)
    assert sent == [10.0, 40.0, 70.0, 100.0]


def test_a_leak_is_forecast() -> None:
    """Memory that grows steadily for twenty minutes, and the program that takes it."""
    now = [10.0]
    gib = 1 << 30

    def memory() -> HostMemory:
        return HostMemory(int((80 + now[0] / 360) * gib), 100 * gib)

    leak = sources(memory=memory, programs=lambda: {"ray::WorkerDict": memory().used // 2 * 2})
    figures = NodeFigures(leak, lambda: now[0])

    async def pass_time() -> None:
        while now[0] < 1_500:
            await figures.read()
            now[0] += 30

    anyio.run(pass_time)
    assert figures.newest is not None
    (forecast,) = figures.newest.forecasts
    assert (forecast.what, forecast.program) == ("host memory", "ray::WorkerDict")
    assert forecast.per_hour == pytest.approx(10 * gib, rel=0.1)
