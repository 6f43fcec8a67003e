"""The receipt of a run with a lost attempt: in status, outcome and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.record.summary import explain
from support.scenario import BOOT, ends, status_of_head

if TYPE_CHECKING:
    from support.scenario import Cluster

STEPS = "240"


@pytest.mark.pods(2)
def test_a_rehearsal_that_lost_a_worker(cluster: Cluster) -> None:
    """Its parts sum to the time of the run; the steps of the lost attempt are redone."""
    cluster.env |= {
        "AGENT_JOB_RETRIES": "1",
        "AGENT_NODE_GRACE": "3s",
        "AGENT_PRICE_PER_HOUR": "1.8",
        "AGENT_JOB_ARGS": f"--steps {STEPS}",
    }
    head, worker = cluster.agents()
    head.wait_for(f"^step 120/{STEPS} ", "stdout", timeout=2 * BOOT)
    worker.kill()
    head.wait_for("attempt 1 of 2 is lost", timeout=60)
    again = cluster.agent(1)
    head.wait_for(f"(?s)step 120/{STEPS} .*step 120/{STEPS} ", "stdout", timeout=2 * BOOT)

    # So far: the second attempt repeats steps.
    receipt = status_of_head(head)["receipt"]
    assert receipt["seconds"]["wait"] > 2
    assert receipt["seconds"]["redone"] > 0

    # At the end.
    assert ends([head, again], 2 * BOOT) == [0, 0], head.tail()
    receipt = cluster.outcome(0)["receipt"]
    seconds = receipt["seconds"]
    without = {"checkpoints", "group", "stalled"}  # it has no group, and neither of the others
    assert {part for part, spent in seconds.items() if spent == 0} <= without
    assert sum(seconds.values()) == pytest.approx(receipt["total"], abs=0.5)
    assert head.ended_at is not None
    lasted = head.ended_at - head.started_at
    assert receipt["total"] == pytest.approx(lasted, rel=0.01, abs=3.0)  # the exit itself
    dollars = sum(receipt["cost"].values())
    assert dollars == pytest.approx(2 * 1.8 * receipt["total"] / 3600, abs=0.05)
    (line,) = [one for one in explain(cluster.file(0, "")) if one.startswith("time: ")]
    for name in ("boot", "wait", "first step", "training", "redone"):
        assert f"{name} " in line
