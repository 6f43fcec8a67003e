"""The bundle of a failed run: one file, on the node where something failed."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, last_line

if TYPE_CHECKING:
    from pathlib import Path

    from tools.lab import Container

TOKEN = "t0ken-0123456789abcdef0123456789"  # noqa: S105 - no secret of anybody's
HANGS = "echo running; exec sleep 1000"


def bundles(cluster: Cluster, pod: int) -> list[Path]:
    """Return the bundles of a pod's run folder."""
    return sorted(cluster.file(pod, "x").parent.glob("failure-*.tar.gz"))


def unpacked(path: Path) -> dict[str, str]:
    """Unpack a bundle: text by file name."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {
            name.partition("/")[2]: file.read().decode() for name, file in files if file is not None
        }


def bundle_contents(cluster: Cluster, pod: int, container: Container) -> dict[str, str]:
    """Return the contents of a pod's only bundle, whose path the last log line gives."""
    (path,) = bundles(cluster, pod)
    where = last_line(container).rpartition(" ")[2]
    assert where.endswith(f"/{path.name}"), last_line(container)
    assert cluster.outcome(pod)["bundle"] == path.name
    assert path.stat().st_mode & 0o777 == 0o600
    found = unpacked(path)
    assert json.loads(found["outcome.json"])["remedy"] == cluster.outcome(pod)["remedy"]
    return found


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
