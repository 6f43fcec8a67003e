"""Prepare steps: beside the boot, before the job, and what a failing one costs."""

from __future__ import annotations

import pytest

from scenario import BOOT, Cluster, ends, last_line

FETCH = "until [ -e /tmp/go ]; do sleep 0.1; done; echo data > /tmp/data"


@pytest.mark.pods(2)
def test_steps_run_beside_the_boot_and_before_the_job(cluster: Cluster) -> None:
    """Ray comes up and the worker joins while the head's step runs; the job finds all done."""
    cluster.env |= {"AGENT_PREPARE": FETCH, "AGENT_PREPARE_EACH": "echo each > /tmp/each"}
    head, worker = cluster.agents("sh", "-c", "cat /tmp/each /tmp/data && exit 7")
    head.wait_for("podb joined Ray", timeout=BOOT)
    assert (cluster.pods[1].tmp / "each").read_text() == "each\n"
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker]) == [7, 7]
    assert head.stdout() == "each\ndata\n"
    said = head.stderr()
    done = said.index("AGENT_PREPARE_EACH and AGENT_PREPARE: done")
    assert done < said.index("submitting the job")


@pytest.mark.pods(2)
def test_a_step_that_fails_ends_the_run_with_its_last_words(cluster: Cluster) -> None:
    """Head and worker end with 69 at once; the last line has the variable and its last words."""
    cluster.env["AGENT_PREPARE"] = "echo no such dataset; exit 3"
    head, worker = cluster.agents("true")
    assert ends([head, worker]) == [69, 69]
    assert "AGENT_PREPARE failed: exit code 3; its last words: no such dataset" in last_line(head)
    assert "AGENT_PREPARE failed" in last_line(worker)
    assert cluster.outcome(0)["culprit"] == "AGENT_PREPARE"


@pytest.mark.pods(2)
def test_a_worker_whose_step_fails_is_named_by_the_head(cluster: Cluster) -> None:
    """It ends with 69; the head waits for another until its deadline, and says why it lacks one."""
    cluster.env |= {
        "AGENT_PREPARE_EACH": "[ $RUNPOD_POD_ID = poda ] || { echo disk full; exit 5; }",
        "AGENT_WAIT_WORKERS": "20s",
    }
    head, worker = cluster.agents("true")
    assert worker.wait(BOOT) == 69
    assert "AGENT_PREPARE_EACH failed: exit code 5; its last words: disk full" in last_line(worker)
    assert head.wait(BOOT) == 69
    assert "podb" in last_line(head)
    assert "AGENT_PREPARE_EACH failed: exit code 5; its last words: disk full" in last_line(head)
