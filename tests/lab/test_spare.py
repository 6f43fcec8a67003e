"""A spare worker beyond those that an attempt needs: used from the next attempt on."""

from __future__ import annotations

import json
import sys

import pytest

from support.scenario import BOOT, Cluster, ends

TWICE = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; exec sleep 1000'
"""Hangs in the first attempt, like a collective, and ends in the second."""
SPARE = "podc is one more than the running attempt needs: unused until another begins"


@pytest.mark.fault(
    "worker-spare",
    "a worker that the attempt does not need joins late, or replaces a lost one",
    "a log line: it is unused until the next attempt, which uses it",
)
@pytest.mark.pods(3)
@pytest.mark.parametrize("comes", ["late", "in place of a lost one"])
def test_a_spare_joins_the_next_attempt(cluster: Cluster, comes: str) -> None:
    """A node of the attempt is lost: the spare replaces it in the next attempt, not in this one."""
    is_late = comes == "late"
    grace = "15s" if is_late else "60s"  # the spare must join within it
    cluster.env |= {"EXPECTED_WORKERS": "1", "AGENT_JOB_RETRIES": "1", "AGENT_NODE_GRACE": grace}
    job = ("sh", "-c", TWICE)
    head, used = cluster.agent(0, *job), cluster.agent(1, *job)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    if not is_late:
        used.kill()
    spare = cluster.agent(2, *job)
    head.wait_for(SPARE, timeout=BOOT)
    if is_late:
        used.kill()
    head.wait_for("attempt 1 of 2 is lost: lost a needed node.*podb", timeout=2 * BOOT)
    assert ends([head, spare], 2 * BOOT) == [7, 7], head.tail()
    assert head.stdout() == "attempt 1\nattempt 2\n"
    head.wait_for("attempt 2 of 2: .*podb.*; 2 of 2 node", timeout=5)
    assert "all needed nodes are back" not in head.stderr()
    (run,) = cluster.pods[0].tmp.glob("logs/2*/run.json")
    assert json.loads(run.read_text())["durable"]["ended"][1]["nodes"] == ["podc"]


@pytest.mark.pods(3)
def test_a_spare_that_is_lost_before_the_job(cluster: Cluster) -> None:
    """Ray lists it for a while: the job begins once it does not, and uses no node that is gone."""
    gate = "until [ -e /tmp/go ]; do sleep 0.1; done"
    cluster.env |= {"EXPECTED_WORKERS": "1", "AGENT_PREPARE": gate}
    count = (
        "import ray; ray.init(logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
    )
    head, used, _ = cluster.agents(sys.executable, "-c", count)
    for name in ("podb", "podc"):
        head.wait_for(f"{name} joined Ray", timeout=BOOT)
    cluster.pods[2].cut()
    head.wait_for("podc left Ray", timeout=30)
    (cluster.pods[0].tmp / "go").touch()
    head.wait_for("waiting for Ray to drop podc", timeout=10)
    assert ends([head, used], 2 * BOOT) == [0, 0], head.tail()
    assert head.stdout() == "2\n"
