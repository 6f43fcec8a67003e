"""The agent refuses what an old Ray cannot do; run by scripts/versions."""

from __future__ import annotations

import pytest

from agent.base.versions import release_of
from agent.node.facts import FIRST_WITH_TOKEN
from support.scenario import AGENT, BOOT, Cluster, ends, last_line, ray_in_pods

TOKEN = {"RAY_AUTH_TOKEN": "correct-horse-battery-staple"}


@pytest.mark.pods(2)
def test_a_ray_without_token_auth_is_refused(cluster: Cluster) -> None:
    """A token that Ray does not support ends every node with 78; AGENT_SKIP boots anyway."""
    installed = ray_in_pods()
    if release_of(installed) >= FIRST_WITH_TOKEN:
        pytest.skip(f"Ray {installed} has token auth; scripts/versions runs this with older ones")
    refused = cluster.agents("true", env=TOKEN)
    assert ends(refused, 30) == [78, 78]
    for agent in refused:
        assert f"Ray {installed} has no token auth" in agent.stderr()
        assert "RAY_AUTH_TOKEN" in last_line(agent)
    cluster.env |= {**TOKEN, "AGENT_ALLOW_INSECURE": "1"}
    job = "echo running; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 7"
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    assert worker.exec([AGENT, "status"]).returncode == 0
    dashboard = worker.exec(["curl", "-s", f"http://{cluster.pods[0].ip}:8265/api/version"])
    # refused: it listens on loopback only, since nothing guards it
    assert dashboard.returncode == 7
    stranger = worker.exec([AGENT, "status"], env={"RAY_AUTH_TOKEN": "another"})
    assert stranger.returncode == 69  # the agent's own port requires the token all the same
    assert "asks for the cluster's RAY_AUTH_TOKEN" in stranger.stderr
    (cluster.pods[0].tmp / "go").touch()
    assert ends([head, worker], 40) == [7, 7]
