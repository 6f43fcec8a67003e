"""The head reads all nodes' figures: it logs a slow node and a forecast once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from agent.decisions.shared import HERE
from agent.diagnosis.slow_nodes import LEAST_READINGS
from agent.job.progress import Progress
from agent.node.figures import Figures, Forecast, GpuFigures
from agent.run import machine_watch
from agent.run.machine_watch import MachineWatch
from support.fake_runs import run_of
from support.heads import Trace, goal, reported
from support.worlds import plan_of

if TYPE_CHECKING:
    import pytest

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
