"""What limits a run: AGENT_MAX_HOURS, AGENT_MAX_COST and the deadline of a whole boot."""

from __future__ import annotations

import json
from signal import SIGTERM
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import ends
from agent.base.errors import SettingsError
from agent.decisions.head import head_state as h
from agent.decisions.shared import Answered
from agent.plan.node_price import BY_RUNPOD, NodePrice
from agent.port.status import status_lines
from agent.record.outcome_file import RunFacts, outcome_text
from agent.record.run_record import ChosenRun
from agent.run.run_store import RunStore
from agent.settings.load import load
from support.fake_runs import status_of
from support.heads import PAIR, RUNNING, TICK, Trace, goal, job, nodes, ray_lost
from support.run_records import NOW, store_of, submitted, written
from support.worlds import plan_of, topology_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.decisions.head.head_goal import HeadGoal

PRICE = NodePrice(3.0)


class Limit(NamedTuple):
    """A limit that two nodes of three dollars an hour reach after two hours."""

    variable: str
    of: HeadGoal
    end: Outcome
    warned_at: float
    warning: str
    """What it says then of the job, as of a cluster without one."""
    half_used: dict[str, float]
    """What earlier heads have used, half of it."""


HOURS = Limit(
    "AGENT_MAX_HOURS",
    replace(goal(1), max_hours=2.0, price=PRICE),
    ends.MAX_HOURS.outcome(hours=2.0),
    6600.0,
    "the {} is stopped in 600 s: AGENT_MAX_HOURS allows 2 h of 2 node(s), $12.00",
    {"used_hours": 1.0},
)
MONEY = Limit(
    "AGENT_MAX_COST",
    replace(goal(1), max_cost=12.0, price=PRICE),
    ends.MAX_COST.outcome(cost=12.0),
    5760.5,
    "$9.60 of AGENT_MAX_COST=$12.00 are used: the {} is stopped in 24 min",
    {"paid": 6.0, "paid_hours": 1.0, "used_hours": 1.0},
)
LIMITS = pytest.mark.parametrize("limit", [HOURS, MONEY], ids=["hours", "money"])


@LIMITS
def test_the_job_is_stopped_with_its_grace(limit: Limit) -> None:
    """A warning before, then a stop like by a signal; the pod is held."""
    trace = Trace(limit.of, PAIR)
    trace.take(job("RUNNING"), limit.warned_at - 1.5)
    assert limit.variable not in trace.log
    trace.take(job("RUNNING"), limit.warned_at)
    trace.take(job("RUNNING"), 7199)
    assert trace.log.count(limit.warning.format("job")) == 1
    assert (trace.outcomes, "StopJob" in trace.kinds()) == ([], False)
    trace.take(job("RUNNING"), 7200)
    assert "StopJob" in trace.kinds()
    trace.take(job("STOPPED"), 7205)
    (end,) = trace.outcomes
    assert (end.kind, end.exit_code, end.holds_pod) == (limit.end.kind, 78, True)
    assert end.remedy.startswith(f"Raise {limit.variable}")
    assert trace.log.count(limit.warning.format("job")) == 1


@LIMITS
@pytest.mark.parametrize("retries", [0, 3])
def test_no_attempt_follows(limit: Limit, retries: int) -> None:
    """Also if the job is being stopped after a loss, or the next attempt boots."""
    trace = Trace(replace(limit.of, retries=retries, **limit.half_used), RUNNING)
    assert trace.finish()
    (end,) = trace.outcomes
    assert end.exit_code in {69, 75, 78}
    assert trace.now <= 3600 + 16


@LIMITS
def test_a_cluster_without_a_job_is_stopped_too(limit: Limit) -> None:
    """The warning names what ends."""
    trace = Trace(replace(limit.of, has_job=False), PAIR)
    trace.take(TICK, limit.warned_at)
    assert limit.warning.format("cluster") in trace.log
    trace.take(TICK, 7200)
    assert [end.culprit for end in trace.outcomes] == [limit.variable]


@LIMITS
def test_what_is_used_is_recorded(limit: Limit, tmp_path: Path) -> None:
    """A restarted head goes on counting; a raised limit continues the run, without a retry."""
    first = store_of(tmp_path)
    first.measure_use(3600, 6.0)
    first.measure_use(7200.5, 12.0)
    durable = submitted(first.durable).with_end(limit.end, NOW)
    first.put(replace(durable, verdict=limit.end), 0.0)
    first.close()
    found = written(tmp_path)
    known = found.measured
    assert (known.paid, known.paid_seconds, known.used) == (12.0, 7200.5, 7200.5)
    assert (found.durable.is_over, found.durable.tried) == (False, ())
    assert found.durable.ended[0].exit_code == 128 + SIGTERM

    again = RunStore(tmp_path, "f" * 16, ChosenRun("run", found))
    hours = 7200.5 / 3600
    assert (again.paid, again.paid_hours, again.used_hours) == (12.0, hours, hours)
    most = {HOURS.variable: (2.0, 3.0), MONEY.variable: (12.0, 20.0)}[limit.variable]
    for allowed, end in zip(most, (limit.end, None), strict=True):
        given = (allowed, None) if limit is HOURS else (None, allowed)
        assert again.outcome_at_start(0, *given) == end
    again.measure_use(10)  # without a price: the hours count, and are paid by a later one
    known = again.measured
    assert (known.paid, known.paid_seconds, known.used) == (12.0, 7200.5, 7210.5)
    again.close()


def test_a_job_that_ends_at_that_moment_has_its_own_end() -> None:
    """The job's end counts before the hours."""
    trace = Trace(HOURS.of, PAIR)
    trace.take(job("SUCCEEDED", 0), 7300)
    assert [end.exit_code for end in trace.outcomes] == [0]


def test_the_wait_for_a_node_that_never_comes_is_part_of_it() -> None:
    """During a boot there is no job to stop: the head ends."""
    trace = Trace(replace(HOURS.of, max_hours=0.01), [(1, nodes()), (36, TICK)])
    assert [end.exit_code for end in trace.outcomes] == [78]
    assert "StopJob" not in trace.kinds()


def test_a_boot_that_begins_again_and_again_ends() -> None:
    """A Ray lost in each boot restarts all waits, but not the boot's own deadline."""
    trace = Trace(replace(goal(1), boot_limit=250.0), [(1.0, nodes())])
    trace.take(ray_lost("exit 1"), 100)
    assert trace.state.began == 100
    trace.take(nodes(), 101)
    trace.take(TICK, 249)
    assert trace.outcomes == []
    assert trace.finish()
    (end,) = trace.outcomes
    assert (end.exit_code, trace.now) == (69, 250.0)
    assert end.reason.startswith("the boot took 4 min, longer than all its waits together: workers")


# --- prices --------------------------------------------------------------------------------------


def test_a_price_that_comes_later() -> None:
    """Nothing ends the run before; then all of its hours count."""
    for price, is_over in ((1.0, False), (3.0, True)):
        trace = Trace(replace(MONEY.of, price=None), PAIR)
        trace.take(job("RUNNING"), 9000)
        assert "AGENT_MAX_COST" not in trace.log
        trace.take(Answered(h.PriceKnown(NodePrice(price, BY_RUNPOD))), 9001)
        assert ("StopJob" in trace.kinds(), "AGENT_MAX_COST" in trace.log) == (is_over, is_over)
    trace.take(job("STOPPED"), 9005)
    assert [end.culprit for end in trace.outcomes] == ["AGENT_MAX_COST"]


@given(st.floats(0.01, 100.0), st.floats(0, 500.0), st.floats(0, 50.0), st.floats(0, 90_000.0))
def test_cost_and_its_moment_agree(price: float, paid: float, hours: float, now: float) -> None:
    """The moment at which a run has cost so much is where its cost says it."""
    of = replace(
        MONEY.of, price=NodePrice(price), paid=paid, paid_hours=hours / 2, used_hours=hours
    )
    cost = of.cost(now)
    assert cost is not None
    assert of.costs_at(cost) == pytest.approx(now, abs=0.01, rel=1e-6)


def test_what_earlier_heads_paid_counts() -> None:
    """Whatever this head's own price is."""
    price = NodePrice(1.0)
    of = replace(MONEY.of, price=price, paid=12.0, paid_hours=2.0, used_hours=2.0)
    assert of.cost(1800.0) == 13.0


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


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"AGENT_MAX_HOURS": "10"}, "AGENT_MAX_HOURS=10: then the job is stopped"),
        (
            {"AGENT_MAX_HOURS": "10", "AGENT_PRICE_PER_HOUR": "2.5"},
            "at most $100.00 for 4 node(s)",
        ),
        (
            {"AGENT_MAX_COST": "100", "AGENT_PRICE_PER_HOUR": "2.5"},
            "then the job is stopped, after 10.0 h of 4 node(s)",
        ),
    ],
)
def test_the_plan_has_the_highest_cost(given: dict[str, str], note: str) -> None:
    """The hours of all nodes, and their price if it is known."""
    (found,) = (n for n in plan_of({**given, "EXPECTED_WORKERS": "3"}).notes if "AGENT_MAX" in n)
    assert found.endswith(note)


def test_the_cost_counts_all_nodes_and_all_heads() -> None:
    """Two nodes for 2.5 h at $3; unknown without a price, where nothing is shown."""
    for price, cost in ((PRICE, 15.0), (None, None)):
        state = Trace(replace(goal(1), price=price, used_hours=2.0), []).state
        status = status_of(state, plan_of({}), now=1800.0)
        assert status.status().cost == status.cost() == cost
        assert json.loads(outcome_text(HOURS.end, RunFacts(cost=cost))).get("cost") == cost
        assert ("since the start, $15.00" in status_lines(status.status())[0].label) == bool(cost)
