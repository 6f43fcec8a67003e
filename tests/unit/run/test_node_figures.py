"""Figures of nodes: read at once, without a source that hangs, and compared by the head."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.shared import HERE
from agent.diagnosis.slow_nodes import LEAST_READINGS
from agent.job.progress import Progress
from agent.node.figures import DiskFigures, Figures, Forecast, GpuFigures
from agent.node.read_figures import HostMemory
from agent.port.protocol import Report, WorkerStats
from agent.run import machine_watch, node_figures
from agent.run.machine_watch import MachineWatch
from agent.run.node_figures import NodeFigures, Source
from agent.run.node_run import NodeStats
from support.fake_runs import run_of, status_of
from support.heads import Trace, goal, reported
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

WORK = GpuFigures(0, 98, power=650, power_limit=700)
HANG = GpuFigures(0, 100, power=131, power_limit=700)


pytestmark = pytest.mark.anyio


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


async def figures_of(figures: NodeFigures) -> Figures:
    """Read all figures of a node."""
    await figures.read()
    assert figures.newest is not None
    return figures.newest


async def test_all_figures_of_a_node() -> None:
    """From the tenth second on: the start of Ray has the CPUs first."""
    now = [0.0]
    figures = NodeFigures(sources(), lambda: now[0])
    await figures.read()
    assert figures.newest is None
    now[0] = 12.34
    gpu = GpuFigures(0, 98, power=650, power_limit=700, usual_power=650)
    disks = (DiskFigures("/tmp", 1, 2),)
    assert await figures_of(figures) == Figures(
        12.3,
        (gpu,),
        disks,
        host_memory_used=3,
        host_memory_total=9,
        network_received=10.0,
        network_sent=20.0,
    )


async def test_a_hung_driver_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second call begins beside the first; once that returns, the figures are back."""
    monkeypatch.setattr(times, "FIGURES_LIMIT", 0.05)
    go_on = threading.Event()
    calls = []

    def hang() -> tuple[tuple[GpuFigures, ...], str]:
        calls.append(1)
        go_on.wait(20)
        return (WORK,), ""

    figures = NodeFigures(sources(gpus=hang), lambda: 60.0)
    figures.gpus = Source(hang, 0.05)  # instead of six seconds
    for _ in range(3):
        found = await figures_of(figures)
        assert (found.gpus, found.gpu_fault) == ((), "the driver does not answer")
        assert found.host_memory_total == 9
    assert len(calls) == 1
    go_on.set()
    figures.gpus = Source(lambda: ((WORK,), ""))
    found = await figures_of(figures)
    assert len(found.gpus) == 1


async def test_a_hung_source_is_called_again_after_it_returned() -> None:
    """The value that came late counts at the next call."""
    go_on = threading.Event()
    source = Source(lambda: go_on.wait(20), 0.05)
    assert await source.value() is None
    assert source.hangs
    go_on.set()
    slow = Source(lambda: go_on.wait(20), 20.0)
    assert await slow.value() is True
    assert not slow.hangs


async def test_who_asks_meanwhile_gets_the_same_value() -> None:
    """Figures and the wait for free memory ask one driver; the next call is a new one."""
    calls = []
    go_on = threading.Event()

    def read() -> int:
        calls.append(go_on.wait(20))
        return len(calls)

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


async def test_the_readers_of_a_plan() -> None:
    """A node without GPUs reads none; its own threads read the rest."""
    real = node_figures.Sources(plan_of({}), lambda: Path("/tmp"))
    assert real.gpus is None
    found = await figures_of(NodeFigures(real, lambda: 60.0))
    assert (found.gpus, found.gpu_fault) == ((), "")
    assert 0 < found.host_memory_used < found.host_memory_total
    assert found.disks[0].total > 0


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


async def test_a_leak_is_forecast() -> None:
    """Memory that grows steadily for twenty minutes, and the program that takes it."""
    now = [10.0]
    gib = 1 << 30

    def memory() -> HostMemory:
        return HostMemory(int((80 + now[0] / 360) * gib), 100 * gib)

    leak = sources(memory=memory, programs=lambda: {"ray::WorkerDict": memory().used // 2 * 2})
    figures = NodeFigures(leak, lambda: now[0])
    while now[0] < 1_500:
        found = await figures_of(figures)
        now[0] += 30
    (forecast,) = found.forecasts
    assert (forecast.what, forecast.program) == ("host memory", "ray::WorkerDict")
    assert forecast.per_hour == pytest.approx(10 * gib, rel=0.1)


# --- the head reads all nodes' figures --------------------------------------------------------

STATE = Trace(goal(3), [(2.0, reported(2)), (2.1, reported(3)), (2.2, reported(4))]).state
KEYS = {worker.name: key for key, worker in STATE.fleet.workers.items()}
LEAK = Forecast("host memory", 9_600, 3_100_000_000, 1_200, "ray::WorkerDict")

CLOCK = [600.0]  # the run's clock: its last item


def watch(progress: Progress | None = None) -> tuple[MachineWatch, list[Any]]:
    """Return the watch of a head with three workers, and the events that it records."""
    run = run_of(plan_of({}))
    events: list[Any] = []
    run.record = events.append
    run.now = lambda: CLOCK[-1]
    return MachineWatch(run, lambda: STATE, lambda: progress), events


def figures(at: int, use: int = 91, *forecasts: Forecast) -> Figures:
    """Return the figures of a node with one GPU."""
    return Figures(float(at), (GpuFigures(0, use, power=650, clock=1_395),), forecasts=forecasts)


def test_a_slow_node_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the status while it is slow, and is recorded for `explain`."""
    log: list[str] = []
    monkeypatch.setattr(machine_watch, "say", lambda text, _level: log.append(text))
    machines, events = watch()
    slow = next(iter(KEYS))
    for at in range(LEAST_READINGS + 5):
        nodes = {key: figures(at) for key in (HERE, *KEYS.values())}
        machines.look({**nodes, KEYS[slow]: figures(at, 14)})
    figure = "GPU utilization 14 %, median of all nodes 91 %, for 5 min"
    said = f"slow node {slow}: {figure}"
    remedy = "Check its cooling, its power and other jobs on it, or replace it"
    assert log == [f"{said}. {remedy}"]
    assert [event.what for event in events] == [said]
    (finding,) = machines.findings()
    assert finding.sentence() == f"slow node: {slow}: {figure}. {remedy}"
    assert machines.slow_text(KEYS[slow]) == figure
    monkeypatch.setattr(sys.modules[__name__], "CLOCK", [720.0])
    assert machines.slow_text(KEYS[slow]) == figure.replace("5 min", "7 min")
    assert machines.slow_text(HERE) == ""

    # It recovers, or leaves.
    machines.look({key: figures(99) for key in (HERE, *KEYS.values())} | {KEYS[slow]: Figures(1.0)})
    for at in range(100, 130):
        machines.look({key: figures(at) for key in (HERE, *KEYS.values())})
    assert machines.findings() == []


def test_a_forecast_is_logged_again_at_half_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the step since which it grows, where the job's steps are known."""
    log: list[str] = []
    monkeypatch.setattr(machine_watch, "say", lambda text, _level: log.append(text))
    progress = Progress(1, 0.0, 1, 240, last_at=9.0, durations=(6.0,), strides=(1,))
    machines, events = watch(progress)
    name = next(iter(KEYS))
    for seconds in (9_600, 9_000, 5_000, 4_700, 4_600):
        ahead = Forecast(LEAK.what, seconds, LEAK.per_hour, LEAK.since, LEAK.program)
        machines.look({KEYS[name]: figures(seconds, 91, ahead)})
    assert [event.node for event in events] == [name, name]
    assert len(log) == 2
    assert (
        f"host memory of {name} reaches 95 % in 2 h 40 min: +3.1 GB an hour since about step 40, "
        "most of it in `ray::WorkerDict`. Ray kills workers there. Lower what grows"
    ) in log[0]
    (finding,) = machines.findings()
    assert "reaches 95 % in 76 min 40 s" in finding.what
    machines.look({})
    assert machines.findings() == []
