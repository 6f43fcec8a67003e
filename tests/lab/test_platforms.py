"""Platforms in the lab: their variables, addresses and interfaces, with real Ray."""

from __future__ import annotations

import itertools
import json
import sys
from typing import TYPE_CHECKING

import pytest

from support.scenario import AGENT, BOOT, Cluster, dstack, ends, instant_cluster
from tools.lab.network import ip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import tools.lab as podlab
    from tools.lab import Pod

CURL = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}")
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - the lab's own

SURVEY = """
import json, os, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP")

@ray.remote(num_cpus=0)
def look():
    return {name: os.environ.get(name) for name in NAMES}

ray.init(log_to_driver=False)
nodes = [node for node in ray.nodes() if node["Alive"]]
surveys = [look.options(scheduling_strategy=On(n["NodeID"], soft=False)).remote() for n in nodes]
addresses = [node["NodeManagerAddress"] for node in nodes]
print("survey " + json.dumps(dict(zip(addresses, ray.get(surveys)))))
"""
"""A job that prints the environment of its processes on each node."""

SECOND_NETWORK = "10.78.0"


@pytest.fixture
def second_network(cluster: Cluster) -> Iterator[list[str]]:
    """Give every pod one more interface, like ens2 to ens8 of an Instant Cluster."""
    found = []
    for number, pod in enumerate(cluster.pods):
        found.append(f"{SECOND_NETWORK}.{number + 10}")
        lines = [
            "link add ens2 type veth peer name ens2-far",
            f"address add {found[-1]}/24 dev ens2",
            "link set ens2 up",
            "link set ens2-far up",
        ]
        ip("-n", pod.netns, batch=lines)
    yield found
    # while the lab exists: a veth pair is removed with its namespace anyway
    for pod in cluster.pods:
        ip("-n", pod.netns, "link", "delete", "ens2")


@pytest.mark.pods(3, interface="ens1")
def test_an_instant_cluster_uses_ens1(cluster: Cluster, second_network: list[str]) -> None:
    """On every node, Ray and NCCL use ens1 of an Instant Cluster's interfaces."""
    del cluster.env["HEAD_POD_ID"], cluster.env["EXPECTED_WORKERS"]
    envs = [instant_cluster(cluster.pods, rank) for rank in range(3)]
    survey = (sys.executable, "-c", SURVEY)
    agents = [cluster.agent(n, *survey, env=env) for n, env in enumerate(envs)]
    head = agents[0]
    plan = head.exec([AGENT, "plan", "-v"]).stdout
    assert ends(agents) == [0, 0, 0], head.tail()

    pods = cluster.pods
    line = next(x for x in head.stdout().splitlines() if x.startswith("survey "))
    chosen = {"NCCL_SOCKET_IFNAME": "ens1", "GLOO_SOCKET_IFNAME": "ens1"}
    assert json.loads(line.partition(" ")[2]) == {
        pod.ip: {**chosen, "VLLM_HOST_IP": pod.ip} for pod in pods
    }
    assert "platform:  runpod-cluster" in plan
    assert "role:      head, rank 0 of 3: NODE_RANK=0, NUM_NODES=3" in plan
    assert f"address:   {pods[0].ip} ({pods[0].ip} is an address of this node)" in plan
    assert "NCCL_SOCKET_IFNAME=ens1" in plan
    assert f"--node-ip-address={pods[0].ip} " in plan
    others = [*second_network, *(pod.decoy_ip for pod in pods)]
    for number, agent in enumerate(agents):
        (events,) = pods[number].tmp.glob(f"logs/2*/node{number}/events.jsonl")
        started = events.read_text()
        assert not any(other in text for other in others for text in (agent.stderr(), started))


@pytest.mark.pods(2, interface="ens1")
def test_an_instant_clusters_head_given_by_name(cluster: Cluster) -> None:
    """The head's variable holds a name: the head still uses its address on ens1."""
    del cluster.env["HEAD_POD_ID"], cluster.env["EXPECTED_WORKERS"]
    name = {"PRIMARY_ADDR": "poda.runpod.internal", "MASTER_ADDR": "poda.runpod.internal"}
    show = ("sh", "-c", "echo $VLLM_HOST_IP $NCCL_SOCKET_IFNAME; exit 4")
    agents = [
        cluster.agent(n, *show, env={**instant_cluster(cluster.pods, n), **name}) for n in range(2)
    ]
    assert ends(agents) == [4, 4], agents[0].tail()
    assert agents[0].stdout() == f"{cluster.pods[0].ip} ens1\n"


WAITS_ALONE = {"head": "waiting for workers", "worker": "waiting for the head"}
"""The line that a node logs while it is alone; only then the next one starts."""


@pytest.mark.pods(3)
@pytest.mark.parametrize(
    ("order", "token"),
    [((1, 2, 0), ""), ((2, 0, 1), TOKEN)],
    ids=["workers first", "head in the middle, with a token"],
)
def test_dstack_in_any_order(cluster: Cluster, order: tuple[int, ...], token: str) -> None:
    """Nodes start in any order; the dashboard uses dstack's forwarded port; one exit code."""
    secret = {"RAY_AUTH_TOKEN": token} if token else {}
    pods = cluster.pods
    job = ("sh", "-c", "echo running; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 9")
    agents: dict[int, podlab.Container] = {}
    for rank, following in itertools.zip_longest(order, order[1:]):
        env = {"AGENT_LOG_DIR": "/tmp/logs", "AGENT_LOG": "console", **secret, **dstack(pods, rank)}
        agents[rank] = pods[rank].start([AGENT, "run", "--", *job], env=env)
        cluster.started.append(agents[rank])
        if following is not None:
            agents[rank].wait_for(WAITS_ALONE["worker" if rank else "head"], timeout=BOOT)
    head = agents[0]
    head.wait_for("running", stream="stdout", timeout=BOOT)
    bearer = ("-H", f"Authorization: Bearer {token}") if token else ()
    forwarded = {path: f"http://127.0.0.1:8265{path}" for path in ("/", "/api/jobs/")}
    codes = {path: head.exec([*CURL, *bearer, url]).stdout for path, url in forwarded.items()}
    assert codes == {"/": "200", "/api/jobs/": "200"}
    if token:
        assert head.exec([*CURL, forwarded["/api/jobs/"]]).stdout == "401"
    (pods[0].tmp / "go").touch()
    assert ends([agents[rank] for rank in range(3)]) == [9, 9, 9], head.tail()
    for rank, agent in agents.items():
        assert f"rank {rank} of 3: DSTACK_NODE_RANK={rank}, DSTACK_NODES_NUM=3" in agent.stderr()
        run = pods[rank].tmp / "logs" / "run-42" / f"node{rank}" / "outcome.json"
        assert json.loads(run.read_text())["exit_code"] == 9


@pytest.mark.fault(
    "dstack",
    "dstack stops all nodes of a run and submits it again, elsewhere, under the same id",
    "continues from run.json if that is on a volume, else starts anew; the log says which",
)
@pytest.mark.pods(3)
@pytest.mark.parametrize("disk", ["volume", "own"])
def test_dstack_resubmits_an_interrupted_run(cluster: Cluster, disk: str, shared: Path) -> None:
    """All nodes are stopped and restarted on other machines, under the same run id.

    With logs on a volume the run continues; without a volume it starts anew. Both are logged.
    """
    logs = str(shared) if disk == "volume" else "/tmp/logs"
    job = ("sh", "-c", "echo attempt $AGENT_ATTEMPT; [ -e /tmp/go ] && exit 7; exec sleep 1000")

    def submit(pods: list[Pod]) -> list[podlab.Container]:
        made = []
        for rank, pod in enumerate(pods):
            env = {"AGENT_LOG_DIR": logs, "AGENT_JOB_RETRIES": "1", **dstack(pods, rank)}
            made.append(pod.start([AGENT, "run", "--", *job], env=env))
        cluster.started.extend(made)
        return made

    first, second, third = cluster.pods
    before = submit([first, second])
    before[0].wait_for("^attempt 1$", "stdout", timeout=BOOT)
    for agent in before:
        agent.kill()
    (third.tmp / "go").touch()
    head, worker = submit([third, first])
    assert ends([head, worker]) == [7, 7], head.tail()
    goes_on = disk == "volume"
    assert head.stdout() == f"attempt {2 if goes_on else 1}\n"
    assert ("run run-42 continues" in head.stderr()) == goes_on
    assert ("run run-42 begins: /tmp/logs has no record of it" in head.stderr()) != goes_on
