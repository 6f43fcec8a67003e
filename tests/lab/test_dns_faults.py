"""DNS that is late or wrong, or changes: the agent waits, and resolves the name again."""

from __future__ import annotations

import pytest

from support.scenario import BOOT, Cluster, ends, keep_running

UNUSED_ADDRESS = "10.77.0.99"
"""An address of the pods' network that no pod has: packets to it are lost."""
TWICE = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; exec sleep 1000'


@pytest.mark.fault("dns")
@pytest.mark.pods(2)
def test_a_dns_server_that_answers_late(cluster: Cluster) -> None:
    """A DNS server that answers 15 s late delays only the boot; later timeouts have no effect."""
    cluster.lab.dns(answering=False)
    head, worker = cluster.agents("sh", "-c", "echo here; sleep 8; exit 7")
    keep_running(15, head, worker)
    assert "no answer from DNS" in worker.stderr()
    cluster.lab.dns(answering=True)
    head.wait_for("podb joined Ray", timeout=BOOT)
    cluster.lab.dns(answering=False)
    assert ends([head, worker], 60) == [7, 7], head.tail()


@pytest.mark.fault("dns")
@pytest.mark.pods(3)
@pytest.mark.parametrize("wrong", ["nobody's", "a worker's"])
def test_dns_gives_a_wrong_address_first(cluster: Cluster, wrong: str) -> None:
    """A worker resolves the name again until it leads to the head."""
    cluster.env["EXPECTED_WORKERS"] = "1"
    cluster.lab.publish("poda", UNUSED_ADDRESS if wrong == "nobody's" else cluster.pods[1].ip)
    head, worker = cluster.agent(0, "true"), cluster.agent(1, "true")
    worker.wait_for(r"waiting for the head poda[^\n]*(no answer|refused|worker)", timeout=20)
    keep_running(5, head, worker)
    cluster.pods[0].publish()
    assert ends([head, worker]) == [0, 0], head.tail() + worker.tail()


@pytest.mark.fault("dns")
@pytest.mark.pods(3)
def test_the_heads_name_moves_while_dns_fails(cluster: Cluster) -> None:
    """The head restarts elsewhere: DNS returns its old address, then no entry, then times out."""
    cluster.env |= {"EXPECTED_WORKERS": "1", "AGENT_JOB_RETRIES": "1"}
    old, worker = cluster.agent(0, "sh", "-c", TWICE), cluster.agent(1, "sh", "-c", TWICE)
    old.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    cluster.pods[0].lose()
    worker.wait_for("waiting for a reply from the head", timeout=20)
    new = cluster.agent(2, "sh", "-c", TWICE, env={"RUNPOD_POD_ID": "poda"})
    keep_running(4, new, worker)
    cluster.lab.unpublish("poda")
    keep_running(4, new, worker)
    cluster.lab.dns(answering=False)
    keep_running(8, new, worker)
    cluster.lab.publish("poda", cluster.pods[2].ip)
    cluster.lab.dns(answering=True)
    assert ends([new, worker], 2 * BOOT) == [7, 7], new.tail() + worker.tail()
    assert new.stdout() == "attempt 2\n"
    assert "the head's Ray was restarted" in worker.stderr()
