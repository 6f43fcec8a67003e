"""Differing nodes and unreachable targets are reported before the job starts."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from support.scenario import AGENT, BOOT, Cluster, ends, last_line

BY_TORCHRUN = {
    "AGENT_LAUNCHER": "torchrun",
    "PYTHONPATH": str(Path(__file__).with_name("stand_in")),
}
ODD = {"NCCL_IB_DISABLE": "1", "AGENT_REWARD_PORT": "5001"}


def seconds(line: str) -> int:
    """Return when a line of the agent's log was written."""
    hours, minutes, rest = line.split(" ", 1)[0].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(rest)


@pytest.mark.pods(3)
def test_differences_between_nodes_are_logged(cluster: Cluster) -> None:
    """One warning for each difference; `doctor --all` prints the same.

    The third node is configured with a reward server port where no server listens.
    """
    asks = f"{AGENT} doctor --all --json"
    reward = {"AGENT_REWARD": "builtin"}
    agents = [
        cluster.agent(pod, "sh", "-c", asks, env=reward | (ODD if pod == 2 else {}))
        for pod in range(3)
    ]
    assert ends(agents) == [0, 0, 0], agents[0].tail()
    log = agents[0].stderr()
    odd = cluster.pods[2].name
    assert f"NCCL_IB_DISABLE: 1 on {odd}, not set on the 2 others" in log
    assert f"reward server: {odd} gets no score from it: connection refused" in log
    assert "network: " not in log
    joined = max(seconds(line) for line in log.splitlines() if line.endswith(" joined Ray"))
    (warning,) = [line for line in log.splitlines() if "NCCL_IB_DISABLE: " in line]
    assert seconds(warning) - joined <= 1
    data = json.loads(agents[0].stdout())
    assert sorted(data["nodes"]) == sorted(pod.name for pod in cluster.pods)
    assert not data["unknown"]
    assert {row["check"] for row in data["between"]} == {"NCCL_IB_DISABLE", "reward server"}
    (ray,) = [row for row in data["findings"] if row["check"] == "ray"]
    assert len(ray["nodes"]) == 3


@pytest.mark.pods(2)
def test_differences_that_end_the_run(cluster: Cluster) -> None:
    """A DEBUG_RAY that differs on one node: found when all have joined; no job is submitted."""
    agents = [cluster.agent(0, "true"), cluster.agent(1, "true", env={"DEBUG_RAY": "1"})]
    assert ends(agents) == [78, 78]
    names = [pod.name for pod in cluster.pods]
    warning = f"the nodes do not agree: DEBUG_RAY: 1 on {names[1]}, 0 on {names[0]}"
    assert all(warning in last_line(agent) for agent in agents)
    assert cluster.outcome(0)["culprit"] == "agreement"
    assert not cluster.file(0, "job.log").exists()


@pytest.mark.pods(3)
def test_a_slow_link_is_measured_and_named(cluster: Cluster) -> None:
    """One pod's traffic is limited as on RunPod's Global Networking; one warning names it."""
    slow = cluster.pods[1].name
    cluster.pods[1].slow_down(100)
    cluster.env |= BY_TORCHRUN  # torchrun needs no Ray; the links are measured in the same way
    agents = cluster.agents("sh", "-c", "exec sleep 600")
    agents[0].wait_for(r"Mbps between \w+, \w+ and \w+: syncing", timeout=BOOT)
    agents[0].wait_for("✓ job ", timeout=BOOT)
    (warning,) = [line for line in agents[0].stderr().splitlines() if " Mbps between " in line]
    found = re.search(
        r"network: ([\d.]+) Mbps between (\w+), (\w+) and (\w+): syncing 15 GB", warning
    )
    assert found is not None, warning
    assert 60 <= float(found[1]) <= 120
    assert found[2] == slow
    assert "on RunPod an Instant Cluster" in warning
    agents[0].signal(signal.SIGTERM)
    assert ends(agents, 40) == [143, 143, 143]
