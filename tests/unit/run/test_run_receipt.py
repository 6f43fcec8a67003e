"""The receipt of a run, as the head makes it from its state and the job's steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.checks.finding import Finding, Level
from agent.decisions.durable import Durable
from agent.decisions.receipt import PARTS, Meter, RunActivity
from agent.job.progress import Progress
from agent.record.run_record import RUN_FILE, ChosenRun, Measured, SavedMeter
from agent.run.run_receipt import RunReceipt, activity_of
from agent.run.run_store import RunStore
from support.groups import RUNS as GROUP_RUNS
from support.groups import UP, a_goal, ends_with, says
from support.heads import PAIR, History, Trace, goal, job
from support.run_records import record_of, written

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_state import HeadState

RUNS: History = PAIR


def state_of(history: History, workers: int = 1) -> HeadState:
    """Return the head's state after these events."""
    return Trace(goal(workers), history).state


def test_what_a_head_does() -> None:
    """Booting is a wait once only workers are missing; a job has the steps of its own attempt."""
    begins = state_of([])
    assert activity_of(begins, None).part == "boot"
    running = state_of(RUNS)
    assert activity_of(running, None) == RunActivity("job", 1)
    progress = Progress(
        1, 4.0, first=1, last=3, last_at=9.0, durations=(2.0, 4.0), strides=(1, 1), pause_at=9.5
    )
    seen = activity_of(running, progress, lambda at: at + 100)
    assert seen == RunActivity("job", 1, 3, 109.0, 1, 3.0, 3.0, is_pausing=True)
    assert activity_of(running, progress.next_attempt(2, 10.0)) == RunActivity("job", 1)
    ended = state_of([*RUNS, (9.0, job("SUCCEEDED"))])
    assert activity_of(ended, progress).part == "hold"


def test_what_a_job_waits_for() -> None:
    """A group of which nothing serves, while the job runs."""
    oom = "exit code 1"
    events = [*GROUP_RUNS, (7.0, ends_with(2, oom)), (8.0, ends_with(3, oom))]
    trace = Trace(a_goal(), [*UP, *events])
    assert activity_of(trace.state, None).waits_for == "rollout"
    trace.take(says(2, "ready", "pending", generation=2), 9.0)
    assert activity_of(trace.state, None).waits_for == ""


class Rig:
    """A receipt whose clock, state and progress a test sets."""

    def __init__(self, former: Meter | None = None) -> None:
        self.at = 0.0
        self.state = state_of([])
        self.progress: Progress | None = None
        self.saved: list[SavedMeter] = []
        self.run = SimpleNamespace(
            now=lambda: self.at, started=50.0, plan=SimpleNamespace(job=None)
        )
        store: Any = SimpleNamespace(
            former_meter=lambda _now: former,
            measure=lambda **of: self.saved.append(of["receipt"]),
        )
        run: Any = self.run
        self.receipt = RunReceipt(run, store, lambda: self.state, lambda: self.progress)

    def seconds(self) -> dict[str, float]:
        """Return the parts that are not 0."""
        seconds = self.receipt.to_status().seconds
        return {part: spent for part in PARTS if (spent := seconds.of(part))}


def test_a_run_on_the_clock() -> None:
    """Each phase is settled when it ends, and the rest is open; a stall counts once."""
    rig = Rig()
    rig.receipt.look(())
    rig.at = 10.0
    rig.state = state_of(RUNS)
    rig.receipt.look_at_change(())
    assert rig.seconds() == {"boot": 10.0}
    assert [one.meter.now.part for one in rig.saved] == ["job"]  # `explain` may read it at once
    rig.at = 30.0
    rig.progress = Progress(1, 10.0, first=1, last=1, last_at=25.0)
    rig.receipt.look(())
    assert rig.seconds() == {"boot": 10.0, "first_step": 15.0, "training": 5.0}
    finding: Any = object()
    rig.at = 500.0
    rig.receipt.look((finding,))
    rig.at = 510.0
    rig.receipt.look((finding,))
    assert rig.seconds() == {"boot": 10.0, "first_step": 15.0, "stalled": 485.0}
    rig.at = 530.0
    rig.progress = Progress(1, 10.0, first=1, last=2, last_at=520.0)
    rig.receipt.look((finding,))
    assert rig.seconds() == {"boot": 10.0, "first_step": 15.0, "stalled": 495.0, "training": 10.0}


def test_a_stall_that_was_no_hang_counts_once() -> None:
    """The warning then says that the job has gone on: the step after it is not stalled."""
    rig = Rig()
    rig.at = 10.0
    rig.state = state_of(RUNS)
    rig.progress = Progress(1, 10.0, first=1, last=1, last_at=10.0)
    rig.receipt.look(())
    former = Finding("stall", Level.WARN, "attempt 1 makes no progress")
    finding = Finding("stall", Level.WARN, "attempt 2 makes no progress")
    rig.at = 400.0
    rig.receipt.look((former, finding))
    rig.at = 500.0
    rig.progress = replace(rig.progress, last=2, last_at=500.0)
    rig.receipt.look((former, finding))
    before = rig.seconds()["stalled"]
    gone_on = replace(finding, what=f"{finding.what}; it has gone on")
    rig.at = 520.0
    rig.receipt.look((former, gone_on))
    rig.at = 600.0
    rig.progress = replace(rig.progress, last=3, last_at=600.0)
    rig.receipt.look((former, gone_on))
    assert rig.seconds()["stalled"] == before
    rig.at = 900.0
    rig.receipt.look((gone_on, finding))  # another one; the oldest are left out
    assert rig.seconds()["stalled"] > before


def test_a_stopped_agent() -> None:
    """The run's clock stood still for 100 s, and the job ran on."""
    rig = Rig()
    rig.at = 10.0
    rig.state = state_of(RUNS)
    rig.receipt.look(())
    rig.run.started += 100.0
    rig.at = 12.0
    assert rig.seconds() == {"boot": 10.0, "first_step": 102.0}


def test_the_record_of_a_run_has_it(tmp_path: Path) -> None:
    """The next agent reads it from run.json, on its own clock."""
    rig = Rig()
    rig.at = 10.0
    rig.state = state_of(RUNS)
    rig.receipt.look(())
    rig.receipt.save()
    (saved,) = rig.saved
    assert saved.clock.age() == pytest.approx(10.0, abs=0.5)
    (tmp_path / "run").mkdir()
    record_of(Durable("run"), Measured(receipt=saved)).write(tmp_path / "run" / RUN_FILE)
    store = RunStore(tmp_path, "f" * 16, ChosenRun("run", written(tmp_path)))
    store.close()
    former = store.former_meter(0.0)
    assert former is not None
    assert former.receipt(5.0).total == pytest.approx(15.0, abs=0.5)
