"""A run that fails names its cause at once, and `explain` summarizes it afterwards."""

from __future__ import annotations

import pytest

from agent.record.explain import explain
from scenario import AGENT, BOOT, Cluster, ends, last_line

FULL = (
    "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; "
    "echo running; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 3"
)


@pytest.mark.pods(2)
def test_a_failed_run_says_why_and_shows_its_logs(cluster: Cluster) -> None:
    """Logs while it runs, the cause with its remedy at its end, the story afterwards."""
    head, worker = cluster.agents("sh", "-c", FULL)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    head.wait_for("the job's output tells: a GPU ran out of memory", timeout=30)  # while it runs
    job = head.exec([AGENT, "logs"], env=cluster.env, timeout=30)
    assert (job.returncode, "CUDA out of memory" in job.stdout) == (0, True), job.stderr
    other = head.exec([AGENT, "logs", "podb"], env=cluster.env, timeout=30)
    assert (other.returncode, "podb" in other.stdout) == (0, True), other.stderr
    refused = worker.exec([AGENT, "logs"], env=cluster.env, timeout=30)
    assert (refused.returncode, "RAY_AUTH_TOKEN" in refused.stderr) == (69, True)

    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [3, 3]
    cause = "job.log tells why: a GPU ran out of memory. "
    assert str(cluster.outcome(0)["remedy"]).startswith(cause)
    assert cause in last_line(head)
    story = explain(cluster.pods[0].tmp / "logs" / "latest")
    assert any(line.startswith("waited for workers ") for line in story), story
    assert any(line.startswith("joined: podb after ") for line in story), story
    assert story[-2].startswith("end: job-failed, exit code 3"), story
    assert story[-1].startswith(f"remedy: {cause}"), story
