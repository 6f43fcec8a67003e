"""Prepare steps: beside the boot, before the job, and what a failing one costs."""

from __future__ import annotations

import pytest

from scenario import BOOT, Cluster, ends, last_line

FETCH = "sleep 12; echo data > /tmp/data"


@pytest.mark.pods(2)
def test_steps_run_beside_the_boot_and_before_the_job(cluster: Cluster) -> None:
    """The head's step and each node's take 12 s while Ray boots; the job finds what they left."""
    cluster.env |= {"AGENT_PREPARE": FETCH, "AGENT_PREPARE_EACH": "echo each > /tmp/each"}
    head, worker = cluster.agents("sh", "-c", "cat /tmp/each /tmp/data && exit 7")
    assert ends([head, worker]) == [7, 7]
    assert head.stdout() == "each\ndata\n"
    said = head.stderr()
    assert said.index("AGENT_PREPARE: running") < said.index("podb joined Ray")
    done = said.index("the prepare step is done")
    assert said.index("podb joined Ray") < done < said.index("submitting the job")


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
