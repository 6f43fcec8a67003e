"""The bundle of a failed run: one file, on the node where something failed."""

from __future__ import annotations

import json

import pytest

from support.bundles import bundle_contents
from support.scenario import BOOT, Cluster, last_line

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - no secret of anybody's
HANGS = "echo running; exec sleep 1000"


@pytest.mark.pods(2)
def test_the_bundle_of_a_lost_worker(cluster: Cluster) -> None:
    """The head's bundle holds the lost worker's last report."""
    cluster.env["AGENT_NODE_GRACE"] = "3s"
    head, worker = cluster.agents("sh", "-c", HANGS)
    head.wait_for("^running$", "stdout", timeout=BOOT)
    worker.kill()
    assert head.wait(60) == 75
    found = bundle_contents(cluster, 0, head)
    report = json.loads(found["podb/last-report.json"])
    assert (report["state"], report["phase"]) == ("lost", "following the head")
    assert report["silent"]


@pytest.mark.pods(2)
def test_the_bundle_of_a_worker_that_lost_its_head(cluster: Cluster) -> None:
    """The worker writes its own bundle, as no head can collect its logs."""
    cluster.env["AGENT_HEAD_GRACE"] = "5s"
    head, worker = cluster.agents("sh", "-c", HANGS)
    head.wait_for("^running$", "stdout", timeout=BOOT)
    head.kill()
    assert worker.wait(60) == 75
    found = bundle_contents(cluster, 1, worker)
    assert {"plan.txt", "podb/agent.log", "podb/ray-start.log", "podb/ray/raylet.out"} <= {*found}
    assert "The logs of this node are in " in last_line(worker)
