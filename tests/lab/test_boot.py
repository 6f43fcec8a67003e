"""Boot: one identical environment on every pod becomes one job with one exit code."""

from __future__ import annotations

import json
import re
import time

import pytest

from support.scenario import AGENT, BOOT, RAY, Cluster, await_true, ends, last_line

LOOK_AROUND = "env; pwd; echo done; exit 7"


@pytest.mark.pods(2)
def test_one_environment_two_runs(cluster: Cluster) -> None:
    """All pods end with the job's code, twice in a row; the decoy interface is never chosen."""
    agents = cluster.agents("sh", "-c", LOOK_AROUND)
    assert ends(agents) == [7, 7]
    head, worker = agents
    env = dict(line.split("=", 1) for line in head.stdout().splitlines() if "=" in line)
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "podnet1"
    assert env["VLLM_HOST_IP"] == cluster.pods[0].ip
    assert env["RAY_AUTH_MODE"] == "disabled"
    assert "done" in head.stdout().splitlines()
    assert worker.stdout() == ""
    decoys = [pod.decoy_ip for pod in cluster.pods]
    for agent in agents:
        assert not any(decoy in agent.stderr() for decoy in decoys)
        assert "exit code 7" in last_line(agent)
    ended = [agent.ended_at for agent in agents]
    assert None not in ended
    for pod in cluster.pods:
        assert cluster.outcome(pod)["kind"] == "job-failed"

    again = cluster.agents("sh", "-c", "echo second run")
    assert ends(again) == [0, 0]
    assert again[0].stdout() == "second run\n"


@pytest.mark.pods(3)
def test_rehearsal_learns_on_three_pods(cluster: Cluster) -> None:
    """The default job learns; every node takes part and reaches the reward server."""
    agents = cluster.agents()
    assert ends(agents, 120.0) == [0, 0, 0], agents[0].tail()
    lines = [line for line in agents[0].stdout().splitlines() if "reward" in line]
    steps = [re.match(r"step (\d+)/(\d+) mean reward (\d\.\d+)", line) for line in lines]
    assert all(steps)
    rewards = [float(step[3]) for step in steps if step]
    assert rewards[0] < 0.5
    assert rewards[-1] >= 0.9
    curve = json.loads(cluster.file(0, "curve.json").read_text())
    assert len(curve["nodes"]) == 3
    head = agents[0].stderr()
    assert "removing a stale" not in head


@pytest.mark.pods(2)
def test_a_worker_twenty_seconds_before_the_head(cluster: Cluster) -> None:
    """A worker that starts 20 s early logs what it waits for, and joins at once."""
    worker = cluster.agent(1, "true")
    until = worker.started_at + 20
    await_true("20 s", lambda: worker.poll() is not None or time.monotonic() >= until, 25)
    assert worker.running
    head = cluster.agent(0, "true")
    assert ends([head, worker]) == [0, 0]
    assert re.search(r"waiting for the head poda.*connection refused", worker.stderr())


@pytest.mark.fault(
    "dns",
    "DNS gives no answer, an empty, a wrong or an old one, and later a right one",
    "the worker waits and resolves again; without an answer it uses the former address",
)
@pytest.mark.pods(2, unpublished=("poda",))
def test_the_heads_name_resolves_ten_seconds_late(cluster: Cluster) -> None:
    """A late DNS entry of the head delays the run by no more than that."""
    head, worker = cluster.agents("true")
    until = worker.started_at + 10
    await_true("10 s", lambda: worker.poll() is not None or time.monotonic() >= until, 15)
    assert worker.running
    cluster.pods[0].publish()
    assert ends([head, worker]) == [0, 0]
    assert "does not resolve" in worker.stderr()


@pytest.mark.pods(2)
def test_a_worker_never_starts(cluster: Cluster) -> None:
    """At the deadline, head and worker end with 69; the head names the missing worker.

    The report counts the nodes that joined, and has no attempt, whose log would be empty.
    """
    cluster.env |= {"EXPECTED_WORKERS": "2", "AGENT_WAIT_WORKERS": "45s"}
    head, worker = cluster.agents("true")
    assert ends([head, worker], 90) == [69, 69]
    assert "1 of 2 joined" in last_line(head)
    assert "1 never reported" in last_line(head)
    outcome = cluster.outcome(0)
    assert (outcome["kind"], outcome["culprit"]) == ("unavailable", "workers")
    assert "workers not ready" in last_line(worker)
    report = cluster.file(0, "report.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', report)
    assert data is not None
    status = json.loads(data[1])["status"]
    assert (status["nodes_joined"], status["nodes_expected"]) == (2, 3)
    assert (status["attempts"], status["what_runs"]["command"]) == ([], "true")


@pytest.mark.pods(3)
def test_dstack_names_the_missing_rank(cluster: Cluster) -> None:
    """Where the platform has ranks, the missing one is named, with its last reported phase."""
    ips = [pod.ip for pod in cluster.pods]
    common = {
        "DSTACK_NODES_NUM": "3",
        "DSTACK_MASTER_NODE_IP": ips[0],
        "DSTACK_NODES_IPS": "\n".join(ips),
        "DSTACK_RUN_ID": "run-42",
        "AGENT_WAIT_WORKERS": "25s",
        "AGENT_LOG_DIR": "/tmp/logs",
    }
    cluster.env = common
    head = cluster.agent(0, "true", env={"DSTACK_NODE_RANK": "0"})
    worker = cluster.agent(1, "true", env={"DSTACK_NODE_RANK": "1"})
    assert ends([head, worker], 60) == [69, 69]
    assert "no report from rank 2" in last_line(head)
    assert "dstack · node1, worker, rank 1 of 3" in worker.stderr()
    found = (cluster.pods[0].tmp / "logs" / "run-42").iterdir()
    assert [path.name for path in found if path.is_dir()] == ["node0"]


@pytest.mark.pods(1)
def test_one_node_with_a_stale_ray_on_its_port(cluster: Cluster) -> None:
    """EXPECTED_WORKERS=0 needs no worker; a Ray left on the pod is removed first."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"], env={"RAY_AUTH_MODE": "disabled"})
    stale = idle.exec(
        [RAY, "start", "--head", f"--node-ip-address={pod.ip}", "--port=6379"], timeout=60
    )
    assert stale.returncode == 0, stale.stderr
    agent = idle.spawn([AGENT, "run", "--", "sh", "-c", "exit 3"], env=_own(cluster))
    assert agent.wait(BOOT) == 3, agent.tail()
    assert "removing a stale Ray" in agent.stderr()
    left = [p.cmdline for p in idle.processes() if "ray" in p.cmdline and not p.zombie]
    assert left == []


def _own(cluster: Cluster) -> dict[str, str]:
    return {**cluster.env, "RUNPOD_POD_ID": cluster.pods[0].name}


@pytest.mark.pods(2)
def test_a_head_without_head_pod_id(cluster: Cluster) -> None:
    """The pod ID exists only once the head runs; workers get it in HEAD_POD_ID.

    The pods of examples/runpod start in this order.
    """
    head_id = cluster.env.pop("HEAD_POD_ID")
    cluster.env["EXPECTED_WORKERS"] = "1"
    head = cluster.agent(0, "sh", "-c", "exit 7")
    worker = cluster.agent(1, "sh", "-c", "exit 7", env={"HEAD_POD_ID": head_id})
    assert ends([head, worker]) == [7, 7]
    assert f"starting Ray's head on {cluster.pods[0].ip}:" in head.stderr()


@pytest.mark.pods(1)
def test_a_background_server_of_a_prepare_step(cluster: Cluster) -> None:
    """AGENT_PREPARE_EACH starts a background server: it runs until the job ends.

    examples/skypilot/search-r1.yaml starts its retriever in this way.
    """
    serve = "sleep 4321 & echo $! > /tmp/server.pid"
    head = cluster.agent(
        0,
        *("sh", "-c", "kill -0 $(cat /tmp/server.pid) && exit 7"),
        env={"EXPECTED_WORKERS": "0", "AGENT_PREPARE_EACH": serve},
    )
    assert ends([head]) == [7]
