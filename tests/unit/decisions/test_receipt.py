"""The receipt of a run: its parts sum to the run's time, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from agent.decisions.durable import on_clock
from agent.decisions.receipt import PARTS, Meter, Receipt, RunActivity

if TYPE_CHECKING:
    from collections.abc import Sequence

BOOT, WAIT, HOLD = RunActivity("boot"), RunActivity("wait"), RunActivity("hold")


def job(step: int | None = None, at: float | None = None, **more: Any) -> RunActivity:  # noqa: ANN401
    """Return a job that has completed this step of its first attempt."""
    fields: dict[str, Any] = {"attempt": 1, **more}
    return RunActivity("job", step=step, step_at=at, **fields)


def spent(
    samples: Sequence[tuple[float, RunActivity]], end: float, **ended: bool
) -> dict[str, float]:
    """Return the parts that are not 0 after these samples of a run."""
    meter = Meter()
    for at, activity in samples:
        meter = meter.at_moment(activity, at)
    receipt = meter.receipt(end, **ended)
    assert receipt.total == pytest.approx(end)
    return {part: seconds for part in PARTS if (seconds := receipt.of(part))}


def test_a_run_without_faults() -> None:
    """Boot, waiting for workers, the first step, training, and the hold after the verdict."""
    samples = [(0, BOOT), (20, WAIT), (50, job()), (110.5, job(1, 110)), (120.5, job(2, 120))]
    assert spent([*samples, (125, HOLD)], 200) == {
        "boot": 20,
        "wait": 30,
        "first_step": 60,
        "training": 15,
        "hold": 75,
    }


def test_waste_and_the_cost_of_a_step() -> None:
    """Steps that are made again count once; boot, waits, stalls and redone steps are waste."""
    meter = Meter()
    again: dict[str, Any] = {"attempt": 2, "first": 1}
    samples = [
        (0, BOOT),
        (100, job(first=1)),
        (210, job(2, 200, first=1, each=10.0)),
        (300, BOOT),
        (400, job(**again)),
        (520, job(1, 500, **again)),
        (620, job(4, 600, **again)),
    ]
    for at, activity in samples:
        meter = meter.at_moment(activity, at)
    receipt = meter.receipt(600.0 + 20)
    assert receipt.steps == 4
    shown = receipt.to_status(36.0)
    assert shown.cost_per_step == pytest.approx(36 * 620 / 3600 / 4, abs=0.001)
    assert shown.wasted == round(receipt.boot + receipt.redone, 1)
    assert shown.cost_wasted == pytest.approx(36 * shown.wasted / 3600, abs=0.01)
    line = shown.sentence()
    assert line.endswith("; $1.55 a step, $2.33 trained nothing")
    free = receipt.to_status(None)
    assert (free.cost_wasted, free.cost_per_step) == (None, None)


def test_what_is_open_shows_at_any_time() -> None:
    """The time since the last step counts as training until something shows that it was not."""
    samples = [(0, BOOT), (10, job()), (21, job(1, 20)), (31, job(2, 30))]
    assert spent(samples, 36) == {"boot": 10, "first_step": 10, "training": 16}
    assert spent(samples[:2], 36) == {"boot": 10, "first_step": 26}


def test_a_checkpoint_takes_what_is_beyond_a_usual_step() -> None:
    """The step itself is training."""
    samples: list[tuple[float, RunActivity]] = [
        (0, job()),
        (5, job(1, 5)),
        (15, job(2, 15, usual=10.0)),
    ]
    samples += [(26, job(2, 15, usual=10.0, is_pausing=True)), (40, job(3, 40, usual=10.0))]
    assert spent(samples, 40) == {"first_step": 5, "training": 20, "checkpoints": 15}


def test_a_stall_counts_from_its_last_step_on() -> None:
    """It was found later; the step that ends it begins with training again."""
    samples: list[tuple[float, RunActivity]] = [
        (0, job()),
        (5, job(1, 5)),
        (400, job(1, 5, is_stalled=True)),
        (700, job(1, 5)),
    ]
    assert spent(samples, 700) == {"first_step": 5, "stalled": 695}
    samples += [(800, job(2, 800)), (810, job(3, 810))]
    assert spent(samples, 820) == {"first_step": 5, "stalled": 795, "training": 20}


def test_a_group_of_which_nothing_serves() -> None:
    """Its time is taken from the step in which it passed, to the second; a stall hides it not."""
    starved = {"waits_for": "rollout"}
    samples: list[tuple[float, RunActivity]] = [
        (0, job()),
        (5, job(1, 5)),
        (20, job(1, 5, **starved)),
        (30, job(1, 5, is_stalled=True, **starved)),
        (50, job(1, 5)),
        (62, job(2, 60)),
        (70, job(2, 60, waits_for="judges")),
    ]
    parts = {"first_step": 5, "group": 30, "stalled": 25, "training": 10}
    assert spent(samples, 70) == parts
    assert spent(samples, 90) == {**parts, "group": 50}


def test_the_receipt_names_the_group_that_was_waited_for() -> None:
    """Each group has a row, with its share of the cost, and the time trained nothing."""
    meter = Meter()
    samples = [(0, job()), (10, job(1, 10, waits_for="rollout"))]
    for at, activity in [*samples, (610, job(1, 10, waits_for="judges")), (910, job(2, 910))]:
        meter = meter.at_moment(activity, at)
    status = meter.receipt(910.0).to_status(36.0)
    assert status.groups == {"rollout": 600.0, "judges": 300.0}
    assert status.wasted == 900.0
    line = status.sentence()
    both = "waited for the group rollout 10 min ($6.00), waited for the group judges 5 min ($3.00)"
    assert both in line


def test_steps_after_a_loss_are_redone() -> None:
    """An attempt that resumes at step 2 of 4 repeats what lies between; then it trains."""
    samples: list[tuple[float, RunActivity]] = [(0, job()), (5, job(1, 5))]
    samples += [(float(5 + 10 * n), job(1 + n, 5 + 10 * n)) for n in (1, 2, 3)]
    samples += [(40, WAIT), (60, job(attempt=2)), (70, job(3, 70, attempt=2))]
    samples += [(80, job(4, 80, attempt=2)), (95, job(5, 95, attempt=2))]
    # the first 5 s after step 4 were lost with the first attempt
    assert spent(samples, 95) == {
        "first_step": 5 + 10,
        "training": 35 + 15,
        "wait": 20,
        "redone": 10,
    }


def test_many_steps_between_two_looks() -> None:
    """Short steps: what lies before the first one, and what an earlier attempt had done."""
    samples = [(0.0, job()), (20.0, job(6, 20.0, first=1, each=2.0)), (30.0, WAIT)]
    samples += [(40.0, job(attempt=2)), (60.0, job(4, 60.0, first=1, each=2.0, attempt=2))]
    samples += [(68.0, job(8, 68.0, first=1, each=2.0, attempt=2))]
    assert spent(samples, 68.0) == {
        "first_step": 10.0 + 14.0,
        "training": 10.0 + 10.0 + 4.0,
        "wait": 10.0,
        "redone": 6.0 + 4.0,
    }


def test_a_job_without_step_lines() -> None:
    """Once it succeeded, all of it was training; one that failed never got to a step."""
    samples = [(0, BOOT), (10, job()), (60, HOLD)]
    assert spent(samples, 70, has_succeeded=True) == {"boot": 10, "training": 50, "hold": 10}
    assert spent(samples, 70) == {"boot": 10, "first_step": 50, "hold": 10}


@pytest.mark.parametrize("has_succeeded", [True, False])
def test_no_first_step_for_hours(has_succeeded: bool) -> None:  # noqa: FBT001
    """A job that prints no steps is not said to take hours for its first one."""
    meter = Meter().at_moment(BOOT, 0).at_moment(job(), 12)
    found = meter.receipt(18_012, has_succeeded=has_succeeded).to_status(2.0)
    assert found.sentence() == "boot 12 s ($0.01), job 5 h ($10.00, no steps known)"
    known = Meter(prints_steps=True).at_moment(BOOT, 0).at_moment(job(), 12)
    assert known.receipt(18_012).to_status(None).sentence() == "boot 12 s, first step 5 h"


def test_an_agent_that_was_killed() -> None:
    """The next one continues: time without an agent is a wait, or the job's where that runs on."""
    meter = Meter()
    for at, activity in [(0.0, BOOT), (10.0, job()), (20.0, job(1, 20)), (25.0, job(1, 20))]:
        meter = meter.at_moment(activity, at)
    saved = convert(to_builtins(meter), Meter)
    assert saved == meter

    # The clock of the next agent begins 40 s after the first one's.
    runs_on = on_clock(saved, -40.0).resumed(0.5, job_runs=True).at_moment(job(2, 1.0), 2.0)
    parts = {part: seconds for part in PARTS if (seconds := runs_on.receipt(2.0).of(part))}
    assert parts == {"boot": 10.0, "first_step": 10.0, "training": 22.0}
    lost = on_clock(saved, -40.0).resumed(0.5, job_runs=False).receipt(10.5)
    assert (lost.training, lost.wait, lost.away, lost.boot) == (5.0, 15.5, 15.5, 20.0)
    assert lost.total == pytest.approx(50.5)


def test_what_it_costs() -> None:
    """A price of all nodes, by the hour; time without an agent costs nothing."""
    receipt = Receipt(boot=1_800.0, wait=3_600.0, training=36_000.0, away=1_800.0)
    found = receipt.to_status(price=4.0)
    assert found.total == 41_400.0
    cost = found.cost
    assert cost is not None
    assert (cost.boot, cost.wait, cost.training, cost.hold) == (2.0, 2.0, 40.0, 0.0)
    assert found.sentence() == "boot 30 min ($2.00), wait 60 min ($2.00), training 10 h ($40.00)"
    assert receipt.to_status(None).sentence() == "boot 30 min, wait 60 min, training 10 h"


PARTS_OF_RUNS = st.sampled_from(["boot", "wait", "hold", "job", "job", "job"])
LOOKS = st.lists(
    st.tuples(
        st.floats(-5, 500),
        st.builds(
            RunActivity,
            PARTS_OF_RUNS,
            st.integers(1, 3),
            st.none() | st.integers(0, 50),
            st.none() | st.floats(-100, 10_000),
            st.none() | st.integers(0, 50),
            st.none() | st.floats(0, 100),
            st.none() | st.floats(0, 100),
            st.booleans(),
            st.booleans(),
            st.sampled_from(["", "rollout", "judges"]),
        ),
        st.sampled_from(["", "", "", "killed", "killed with its job"]),
    ),
    max_size=60,
)


@given(LOOKS, st.floats(0, 1_000))
def test_the_parts_sum_to_the_run(
    samples: list[tuple[float, RunActivity, str]], more: float
) -> None:
    """In any order of events, with clocks that jump back and agents that are killed."""
    meter, now, before = Meter(), 0.0, 0.0
    latest = 0.0
    for pause, activity, death in samples:
        now = max(0.0, now + pause)
        latest = max(latest, now)
        meter = meter.at_moment(activity, now)
        assert all(meter.spent.of(part) >= 0 for part in PARTS)
        if death:
            meter = on_clock(meter, -latest).resumed(7.0, job_runs=death == "killed")
            before += latest
            now = latest = 7.0
    receipt = meter.receipt(latest + more)
    assert receipt.total == pytest.approx(before + latest + more, rel=1e-9, abs=1e-6)
    assert sum(receipt.groups.values()) == pytest.approx(receipt.group)
    assert 0 <= receipt.away <= receipt.wait + 1e-6
