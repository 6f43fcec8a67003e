"""Groups of nodes beside the trainer: engines that are killed, frozen, or gone together."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.record.summary import explain
from support.scenario import (
    AGENT,
    BOOT,
    Cluster,
    await_true,
    ends,
    kill_agent,
    stale_samples,
    status_of_head,
)

if TYPE_CHECKING:
    from tools.lab import Container, Pod

SUPPORT = Path(__file__).parents[1]
FILE = """
[groups.rollout]
nodes = 2
min = 2

[services.engine]
where = "rollout"
gpus = 1
weights = "{weights}"
command = '''exec {python} -m agent rehearsal-engine --host {{node_ip}} --port {{port}} \
--log {shared}/engine-{{rank}}-{{port}}.jsonl --load-seconds 1 --seconds-per-request 0.02'''
ready.http = "http://{{node_ip}}:{{port}}/health"
alive = {{ every = "1s", within = "2s", misses = 2 }}
"""

ROUTER = """
[services.router]
command = '''exec {python} -m support.group_services router {{node_ip}} 8005 \
{{addresses:engine|url|space}}'''
env = {{ PYTHONPATH = "{support}" }}
ready.http = "http://{{node_ip}}:8005/health"
alive = {{ every = "1s", within = "2s", misses = 2 }}
"""
HELPERS = """
[groups.helpers]
nodes = 1

[services.environment]
where = "helpers"
command = "exec {python} -m support.group_services environment {{node_ip}} {{port}}"
env = {{ PYTHONPATH = "{support}" }}
ready.http = "http://{{node_ip}}:{{port}}/health"
"""


def add_to_file(cluster: Cluster, text: str, **replaced: str) -> None:
    """Add tables to the file of all pods, and replace values of keys that it has."""
    more = text.format(python=sys.executable, support=SUPPORT)
    for pod in cluster.pods:
        file = pod.tmp / "services.toml"
        known = file.read_text()
        for key, value in replaced.items():
            known = known.replace(f"{key} = 2", f"{key} = {value}")
        file.write_text(known + more)


def set_up(cluster: Cluster, shared: Path, weights: str = "sglang") -> None:
    """Give all pods the file of a group of two nodes with two engines each."""
    text = FILE.format(python=sys.executable, shared=shared, weights=weights)
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text(text)
    cluster.env |= {
        "AGENT_SERVICES": "/tmp/services.toml",
        "AGENT_NUM_GPUS": "2",
        "AGENT_REWARD": "builtin",
    }


def trainer(shared: Path, steps: int, *more: str) -> list[str]:
    """Return the command of an asynchronous trainer with the engines of the group."""
    return [
        *(sys.executable, "-m", "agent", "rehearsal-async"),
        *("--engines", "{addresses:engine|space}"),
        *("--weights-dir", f"{shared}/weights", "--keep"),
        *("--reward-url", "{reward_url}"),
        *("--steps", str(steps), *more),
    ]


def engines_in(container: Container) -> list[int]:
    """Return the process ids of the engines on a pod."""
    return [
        process.host_pid
        for process in container.processes()
        if "rehearsal-engine" in process.cmdline
    ]


def members(head: Container) -> dict[str, str]:
    """Return the state of each member of the group, as the head's status has it."""
    (group,) = status_of_head(head)["groups"]
    (service,) = group["services"]
    return {f"{one['name']} on {one['node']}": one["state"] for one in service["members"]}


@pytest.mark.pods(3)
def test_an_engine_is_killed_every_few_seconds(cluster: Cluster, shared: Path) -> None:
    """The trainer is never restarted, and learns from no stale sample."""
    set_up(cluster, shared)
    agents = cluster.agents(*trainer(shared, 30, "--seconds-per-step", "0.5"))
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    assert set(members(head).values()) == {"serving"}

    # One engine after the other is killed, or frozen, while the job goes on.
    killed = 0
    while head.running and "step 28/" not in head.stdout():
        found = engines_in(agents[1 + killed % 2])
        if not found:
            time.sleep(0.2)
            continue
        os.kill(found[0], signal.SIGSTOP if killed % 3 == 2 else signal.SIGKILL)
        killed += 1
        until = time.monotonic() + 3
        while head.running and time.monotonic() < until:
            time.sleep(0.1)
    assert killed >= 3

    assert ends(agents) == [0, 0, 0], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1
    assert stale_samples(head.stdout()) == 0


@pytest.mark.pods(3)
def test_nothing_serves(cluster: Cluster, shared: Path) -> None:
    """That no engine serves is in log, receipt and `explain`; requests wait for the first one."""
    set_up(cluster, shared)
    agents = cluster.agents(*trainer(shared, 30, "--seconds-per-step", "0.5"))
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    for agent in agents[1:]:
        for engine in engines_in(agent):
            os.kill(engine, signal.SIGKILL)
    why = r"no engine serves since ..:.. UTC: .*exit code 137 \(SIGKILL\)"
    head.wait_for(f"{why}.*; the trainer waits for samples", timeout=20)
    head.wait_for("engine: . of 4 serve again, after", timeout=30)
    await_true("all serve", lambda: set(members(head).values()) == {"serving"}, 30)
    assert ends(agents) == [0, 0, 0], head.tail()
    outcome = cluster.outcome(0)
    (short,) = outcome["shortages"]
    assert (short["group"], short["service"]) == ("rollout", "engine")
    assert 0 < short["seconds_without_any"] <= short["seconds"] < 60
    assert outcome["receipt"]["groups"].keys() == {"rollout"}
    lines = explain(cluster.file(0, "outcome.json").parent)
    assert any("rollout had too few members of engine" in line for line in lines), lines
    assert any(line.startswith("members started again: engine") for line in lines), lines


def step_of(head: Container) -> int:
    """Return the last step that the trainer has printed."""
    lines = [line for line in head.stdout().splitlines() if line.startswith("step ")]
    return int(lines[-1].split()[1].partition("/")[0]) if lines else 0


def goes_on(head: Container, what: str, within: float = 20.0, steps: int = 5) -> None:
    """Wait until the trainer has made further steps."""
    before = step_of(head)
    await_true(f"{what}: {steps} further steps", lambda: step_of(head) >= before + steps, within)


def all_serve(head: Container, what: str, within: float = 40.0) -> None:
    """Wait until each of the four members serves, by the head's status."""
    await_true(
        f"{what}: all serve",
        lambda: sorted(members(head).values()) == ["serving"] * 4,
        within,
        step=0.5,
    )


def set_fault(pod: Pod, port: int, name: str) -> None:
    """Have an engine behave as a broken one."""
    url = f"http://{pod.ip}:{port}/fault"
    body = json.dumps({"name": name})
    asked = ["curl", "-sf", "-X", "POST", "-d", body, "-H", "Content-Type: application/json", url]
    assert pod.containers[-1].exec(asked).returncode == 0


@pytest.mark.timeout(640)
@pytest.mark.pods(3)
def test_what_a_group_survives(cluster: Cluster, shared: Path) -> None:
    """A killed head agent, a cut-off node, a lost node, engines that hang or fail: one attempt."""
    set_up(cluster, shared)
    agents = cluster.agents(*trainer(shared, 2000, "--seconds-per-step", "0.3"))
    head, first, second = agents
    head.wait_for("^step 3/", "stdout", timeout=BOOT)

    # The head's agent is killed: front, job and engines go on.
    kill_agent(head)
    goes_on(head, "a killed head agent")
    all_serve(head, "a killed head agent")

    # A node is cut off, and ends its engines itself; then it is back.
    cluster.pods[1].cut()
    goes_on(head, "a node that is cut off", within=60)
    time.sleep(1)
    await_true("its engines are down", lambda: "dead" in members(head).values(), 60, step=0.5)
    cluster.pods[1].heal()
    all_serve(head, "a node that was cut off", within=90)
    goes_on(head, "a node that was cut off")

    # A node is gone, and another one takes its place.
    second.kill()
    goes_on(head, "a lost node", within=60)
    again = cluster.agent(2)
    all_serve(head, "a node in place of a lost one", within=90)
    goes_on(head, "a node in place of a lost one")

    # An engine that answers its probe and no request, that fails each, that hangs in an update.
    for fault in ("probes-only", "fails", "refit-hangs"):
        set_fault(cluster.pods[1], 31_000, fault)
        goes_on(head, fault, within=180)
        head.wait_for("engine.0 on podb is down .*: restart", timeout=150)
        all_serve(head, fault, within=60)

    # All of that in one attempt, and nothing was learned from stale weights.
    head.exec([AGENT, "stop"])
    assert ends([head, first, again]) == [143, 143, 143], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1
    assert stale_samples(head.stdout()) == 0


@pytest.mark.pods(3)
def test_a_killed_agent_leaves_engines_their_weights(cluster: Cluster, shared: Path) -> None:
    """By NCCL none could get them again: agents of engines and head are killed at no cost."""
    set_up(cluster, shared, "nccl")
    for pod in cluster.pods:
        file = pod.tmp / "services.toml"
        file.write_text(file.read_text().replace("min = 2", 'lost = "retry"'))
    agents = cluster.agents(sys.executable, "-c", "import time; time.sleep(30)")
    head, first, _ = agents
    head.wait_for("job .* attempt 1", timeout=BOOT)
    before = engines_in(first)
    kill_agent(first)
    first.wait_for("engine.0 .* adopted", timeout=20)
    all_serve(head, "a killed agent of engines")
    kill_agent(first)
    kill_agent(head)
    head.wait_for("still runs: adopted", timeout=20)
    await_true("the head reports", lambda: "groups" in status_of_head(head), 20, step=0.5)
    all_serve(head, "killed agents of engines and head")
    assert engines_in(first) == before
    assert ends(agents) == [0, 0, 0], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1


@pytest.mark.pods(2)
def test_weights_as_prime_rl_sends_them(cluster: Cluster, shared: Path) -> None:
    """Two engines on one node: one that is killed gets the newest folder before it serves."""
    set_up(cluster, shared, "prime-rl")
    text = (cluster.pods[0].tmp / "services.toml").read_text()
    text = text.replace("nodes = 2", "nodes = 1").replace("min = 2", "min = 1")
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text(text)
    more = ("--seconds-per-step", "0.5", "--dialect", "prime-rl")
    agents = cluster.agents(*trainer(shared, 30, *more))
    head, node = agents
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    for _ in range(3):
        os.kill(engines_in(node)[0], signal.SIGKILL)
        goes_on(head, "a killed engine")
        await_true(
            "both serve", lambda: sorted(members(head).values()) == ["serving"] * 2, 30, step=0.5
        )
    assert ends(agents) == [0, 0], head.tail()


@pytest.mark.pods(3)
def test_a_group_whose_nodes_join_ray(cluster: Cluster) -> None:
    """Ray has all nodes; the job counts the trainer's, and a node may name its group."""
    for pod in cluster.pods:
        (pod.tmp / "services.toml").write_text("[groups.rollout]\nnodes = 1\nray = true\n")
    cluster.env |= {"AGENT_SERVICES": "/tmp/services.toml", "AGENT_NUM_GPUS": "2"}
    words = "{nodes} {total_gpus} {nodes:rollout} {gpus:rollout} {nodes:trainer}"
    look = f"import ray; ray.init(); print({words!r}, int(ray.cluster_resources()['GPU']))"
    job = (sys.executable, "-c", look)
    agents = [
        cluster.agent(0, *job),
        cluster.agent(1, *job, env={"AGENT_GROUP": "rollout"}),
        cluster.agent(2, *job, env={"AGENT_GROUP": "trainer"}),
    ]
    assert ends(agents) == [0, 0, 0], agents[0].tail()
    assert agents[0].stdout().splitlines()[-1] == "2 4 1 2 2 6"


@pytest.mark.pods(3)
def test_a_router_that_is_killed(cluster: Cluster, shared: Path) -> None:
    """Requests through it are sent again once it is back, and weights go past it."""
    set_up(cluster, shared)
    add_to_file(cluster, ROUTER)
    job = trainer(shared, 40, "--seconds-per-step", "0.5")
    agents = cluster.agents(*job, "--router", "http://{address:router}:8005")
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    for count, number in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL), 1):
        (router,) = [one for one in head.processes() if "group_services router" in one.cmdline]
        os.kill(router.host_pid, number)
        head.wait_for(f"router is down .*: restart {count} of 3", timeout=20)
        goes_on(head, "a killed router", steps=3)
    assert ends(agents) == [0, 0, 0], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1
    assert stale_samples(head.stdout()) == 0


@pytest.mark.timeout(400)
@pytest.mark.pods(3)
def test_nodes_that_come_back_in_another_group(cluster: Cluster, shared: Path) -> None:
    """The one is a spare of its new group until a node of that goes; the other takes its place."""
    set_up(cluster, shared)
    add_to_file(cluster, HELPERS, nodes="1", min="1")
    job = trainer(shared, 2000, "--seconds-per-step", "0.3")

    def start(pod: int, group: str) -> Container:
        return cluster.agent(pod, *job, env={"AGENT_GROUP": group})

    head, first, second = start(0, "trainer"), start(1, "rollout"), start(2, "helpers")
    head.wait_for("^step 3/", "stdout", timeout=BOOT)

    # The engines' node comes back as one of the helpers, of which none lacks.
    first.kill()
    first = start(1, "helpers")
    head.wait_for(r"podb is a spare: helpers has all of its 1 node\(s\)", timeout=60)
    head.wait_for("no engine serves since", timeout=60)

    # The helpers' node comes back as the engines': each group has its node again.
    second.kill()
    second = start(2, "rollout")
    head.wait_for("podb takes the place of a node of helpers that has gone", timeout=60)
    goes_on(head, "engines on another node", within=90)
    groups = {one["name"]: one["services"] for one in status_of_head(head)["groups"]}
    states = {
        f"{member['name']} on {member['node']}": member["state"]
        for services in groups.values()
        for service in services
        for member in service["members"]
    }
    assert states == dict.fromkeys(
        ["engine.0 on podc", "engine.1 on podc", "environment on podb"], "serving"
    )
    head.exec([AGENT, "stop"])
    assert ends([head, first, second]) == [143, 143, 143], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1
    assert stale_samples(head.stdout()) == 0
