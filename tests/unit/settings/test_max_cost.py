"""AGENT_MAX_COST: a run ends once it has used its money, as it does with AGENT_MAX_HOURS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import ends
from agent.base.errors import SettingsError
from agent.decisions.head import head_state as h
from agent.decisions.shared import Answered
from agent.plan.node_price import BY_RUNPOD, NodePrice
from agent.record.run_record import ChosenRun
from agent.run.run_store import RunStore
from agent.settings.load import load
from support.heads import PAIR, RUNNING, TICK, Trace, goal, job
from support.run_records import NOW, store_of, submitted, written
from support.worlds import plan_of, topology_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal

MONEY = replace(goal(1), max_cost=12.0, price=NodePrice(3.0))
"""Twelve dollars for two nodes of three dollars: two hours."""
OVER = ends.MAX_COST.outcome(cost=12.0)


def test_the_job_is_stopped_with_its_grace() -> None:
    """Announced at 80 %, then a stop like by a signal; the pod is held."""
    trace = Trace(MONEY, PAIR)
    trace.take(job("RUNNING"), 5759)
    assert "AGENT_MAX_COST" not in trace.log
    trace.take(job("RUNNING"), 5760.5)
    line = "$9.60 of AGENT_MAX_COST=$12.00 are used: the job is stopped in 24 min"
    assert trace.log.count(line) == 1
    trace.take(job("RUNNING"), 7199)
    assert (trace.outcomes, "StopJob" in trace.kinds()) == ([], False)
    trace.take(job("RUNNING"), 7200)
    assert "StopJob" in trace.kinds()
    trace.take(job("STOPPED"), 7205)
    (end,) = trace.outcomes
    assert (end.kind, end.exit_code, end.holds_pod) == (OVER.kind, 78, True)
    assert end.remedy.startswith("Raise AGENT_MAX_COST")
    assert trace.log.count("are used") == 1


@pytest.mark.parametrize("retries", [0, 3])
def test_no_attempt_follows(retries: int) -> None:
    """Also if the next attempt boots; a head without anything else to do ends in time."""
    trace = Trace(
        replace(MONEY, retries=retries, paid=6.0, paid_hours=1.0, used_hours=1.0), RUNNING
    )
    assert trace.finish()
    assert trace.now <= 3600 + 16


def test_a_cluster_without_a_job_is_stopped_too() -> None:
    """The warning names what ends."""
    trace = Trace(replace(MONEY, has_job=False), PAIR)
    trace.take(TICK, 5760.5)
    assert "the cluster is stopped in 24 min" in trace.log
    trace.take(TICK, 7200)
    assert [end.culprit for end in trace.outcomes] == ["AGENT_MAX_COST"]


def test_a_price_that_comes_later() -> None:
    """Nothing ends the run before; then all of its hours count."""
    trace = Trace(replace(MONEY, price=None), PAIR)
    trace.take(job("RUNNING"), 9000)
    assert "AGENT_MAX_COST" not in trace.log
    trace.take(Answered(h.PriceKnown(NodePrice(1.0, BY_RUNPOD))), 9001)
    assert "AGENT_MAX_COST" not in trace.log
    trace = Trace(replace(MONEY, price=None), PAIR)
    trace.take(job("RUNNING"), 9000)
    trace.take(Answered(h.PriceKnown(NodePrice(3.0, BY_RUNPOD))), 9001)
    assert "StopJob" in trace.kinds()
    trace.take(job("STOPPED"), 9005)
    assert [end.culprit for end in trace.outcomes] == ["AGENT_MAX_COST"]


@given(st.floats(0.01, 100.0), st.floats(0, 500.0), st.floats(0, 50.0), st.floats(0, 90_000.0))
def test_cost_and_its_moment_agree(price: float, paid: float, hours: float, now: float) -> None:
    """The moment at which a run has cost so much is where its cost says it."""
    of: HeadGoal = replace(
        MONEY, price=NodePrice(price), paid=paid, paid_hours=hours / 2, used_hours=hours
    )
    cost = of.cost(now)
    assert cost is not None
    assert of.costs_at(cost) == pytest.approx(now, abs=0.01, rel=1e-6)


def test_used_money_is_recorded(tmp_path: Path) -> None:
    """A restarted head goes on counting, whatever its own price; a raised limit continues."""
    first = store_of(tmp_path)
    first.measure_use(3600, 6.0)
    first.measure_use(7200, 12.0)
    durable = submitted(first.durable).with_end(OVER, NOW)
    first.put(replace(durable, verdict=OVER), 0.0)
    first.close()
    found = written(tmp_path)
    known = found.measured
    assert (known.paid, known.paid_seconds, known.used) == (12.0, 7200, 7200)
    assert (found.durable.is_over, found.durable.tried) == (False, ())

    again = RunStore(tmp_path, "f" * 16, ChosenRun("run", found))
    assert again.outcome_at_start(0, None, 12.0) == OVER
    assert again.outcome_at_start(0, None, 20.0) is None
    of = replace(
        MONEY,
        price=NodePrice(1.0),
        paid=again.paid,
        paid_hours=again.paid_hours,
        used_hours=again.used_hours,
    )
    assert of.cost(1800.0) == 13.0
    again.measure_use(10)  # without a price: the hours count, and are paid by a later one
    assert (again.measured.paid, again.measured.paid_seconds, again.measured.used) == (
        12.0,
        7200,
        7210,
    )
    again.close()


def test_a_limit_without_a_price_is_refused() -> None:
    """78 before anything starts; RunPod's API gives the price of a pod of its own."""
    pod = {"RUNPOD_POD_ID": "7h9k2m4n6p"}
    key = {"RUNPOD_API_KEY": "rpa_0123456789abcdef0123"}
    limit = {"AGENT_MAX_COST": "50"}
    with pytest.raises(SettingsError, match="AGENT_PRICE_PER_HOUR beside it") as caught:
        load(limit)
    assert caught.value.end.exit_code == 78
    with pytest.raises(SettingsError, match="without RUNPOD_POD_ID"):
        topology_of({**limit, **key})
    topology_of({**limit, **key, **pod})
    topology_of({**limit, "AGENT_PRICE_PER_HOUR": "2"})


def test_the_plan_has_the_hours_that_it_pays() -> None:
    """The limit, and what it means, where the price is known."""
    given = {"AGENT_MAX_COST": "100", "AGENT_PRICE_PER_HOUR": "2.5", "EXPECTED_WORKERS": "3"}
    (note,) = (note for note in plan_of(given).notes if "MAX_COST" in note)
    assert note.endswith("then the job is stopped, after 10.0 h of 4 node(s)")
