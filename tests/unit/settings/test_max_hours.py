"""AGENT_MAX_HOURS and the deadline of a whole boot: no run bills without an end."""

from __future__ import annotations

import json
from signal import SIGTERM
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.plan.node_price import NodePrice
from agent.port.status import status_lines
from agent.record.run_folder import RunFacts, outcome_text
from agent.record.run_record import ChosenRun
from agent.run.run_store import RunStore
from support.fake_runs import status_of
from support.heads import PAIR, RUNNING, TICK, Trace, goal, job, nodes, ray_lost
from support.run_records import NOW, store_of, submitted, written
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

HOURS = replace(goal(1), max_hours=2.0, price=NodePrice(3.0))
"""Two hours of two nodes."""
OVER = ends.MAX_HOURS.outcome(hours=2.0)


def test_the_job_is_stopped_with_its_grace() -> None:
    """A warning with the price ten minutes before, then a stop like by a signal; then held."""
    trace = Trace(HOURS, PAIR)
    trace.take(job("RUNNING"), 6500)
    assert "AGENT_MAX_HOURS" not in trace.log
    trace.take(job("RUNNING"), 6600)
    line = "the job is stopped in 600 s: AGENT_MAX_HOURS allows 2 h of 2 node(s), $12.00"
    assert line in trace.log
    trace.take(job("RUNNING"), 7199)
    assert (trace.outcomes, "StopJob" in trace.kinds()) == ([], False)
    trace.take(job("RUNNING"), 7200)
    assert "StopJob" in trace.kinds()
    trace.take(job("STOPPED"), 7205)
    (end,) = trace.outcomes
    assert (end.kind, end.exit_code, end.holds_pod) == (OVER.kind, 78, True)
    assert trace.log.count("AGENT_MAX_HOURS allows") == 1


def test_a_job_that_ends_at_that_moment_has_its_own_end() -> None:
    """The job's end counts before the hours."""
    trace = Trace(HOURS, PAIR)
    trace.take(job("SUCCEEDED", 0), 7300)
    assert [end.exit_code for end in trace.outcomes] == [0]


@pytest.mark.parametrize("retries", [0, 3])
def test_no_attempt_follows(retries: int) -> None:
    """Also if the job is being stopped after a loss, or the next attempt boots."""
    trace = Trace(replace(HOURS, retries=retries, used_hours=1.0), RUNNING)
    assert trace.finish()
    (end,) = trace.outcomes
    assert end.exit_code in {69, 75, 78}
    assert trace.now <= 3600 + 16


def test_the_wait_for_a_node_that_never_comes_is_part_of_it() -> None:
    """During a boot there is no job to stop: the head ends."""
    trace = Trace(replace(HOURS, max_hours=0.01), [(1, nodes()), (36, TICK)])
    assert [end.exit_code for end in trace.outcomes] == [78]
    assert "StopJob" not in trace.kinds()


def test_a_cluster_without_a_job_is_stopped_too() -> None:
    """The warning names what ends."""
    trace = Trace(replace(HOURS, has_job=False), PAIR)
    trace.take(TICK, 6600)
    assert "the cluster is stopped in 600 s: AGENT_MAX_HOURS allows 2 h" in trace.log


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


def test_used_hours_are_recorded(tmp_path: Path) -> None:
    """A restarted head continues counting; a raised limit continues the run, without a retry."""
    first = store_of(tmp_path)
    first.measure_use(5400)
    first.measure_use(7200.5)
    durable = submitted(first.durable).with_end(OVER, NOW)
    first.put(replace(durable, verdict=OVER), 0.0)
    first.close()
    found = written(tmp_path)
    assert found.measured.used == 7200.5
    assert (found.durable.is_over, found.durable.tried) == (False, ())
    assert found.durable.ended[0].exit_code == 128 + SIGTERM
    again = RunStore(tmp_path, "f" * 16, ChosenRun("run", found))
    assert again.outcome_at_start(0, 2.0) == OVER
    assert again.outcome_at_start(0, 3.0) is None
    again.measure_use(10)
    assert again.measured.used == 7210.5
    again.close()


def test_the_plan_has_the_highest_cost() -> None:
    """The hours of all nodes, and their price if it is known."""
    given = {"AGENT_MAX_HOURS": "10", "EXPECTED_WORKERS": "3"}
    assert "AGENT_MAX_HOURS=10: then the job is stopped" in plan_of(given).notes
    (note,) = (n for n in plan_of({**given, "AGENT_PRICE_PER_HOUR": "2.5"}).notes if "HOURS" in n)
    assert note.endswith("at most $100.00 for 4 node(s)")


def test_the_cost_counts_all_nodes_and_all_heads() -> None:
    """Two nodes for 2.5 h at $3; unknown without a price, where nothing is shown."""
    for price, cost in ((NodePrice(3.0), 15.0), (None, None)):
        state = Trace(replace(goal(1), price=price, used_hours=2.0), []).state
        status = status_of(state, plan_of({}), now=1800.0)
        assert status.status().cost == status.cost() == cost
        assert json.loads(outcome_text(OVER, RunFacts(cost=cost))).get("cost") == cost
        assert ("since the start, $15.00" in status_lines(status.status())[0].label) == bool(cost)
