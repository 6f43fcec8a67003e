"""Only the agent is killed: the next agent takes over, and the job is not disturbed."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.scenario import (
    AGENT,
    BOOT,
    Cluster,
    agents_in,
    await_true,
    ends,
    kill_agent,
    last_line,
)

if TYPE_CHECKING:
    from tools.lab import Container

COUNTING = "for i in $(seq 40); do echo line $i; sleep 0.25; done; exit 7"
FOREVER = "echo running; while :; do sleep 0.1; done"


def raylets(container: Container) -> list[int]:
    """Return the pids of Ray's node."""
    return [p.pid for p in container.processes() if p.name == "raylet"]


@pytest.mark.fault(
    "agent",
    "only the agent is killed (SIGKILL), on the head or a worker, booting or following",
    "a new one continues with the same Ray, services and job; no line of output is lost. With "
    "`AGENT_LAUNCHER` its ranks end with it: a lost attempt",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("killed", [0, 1], ids=["head", "worker"])
def test_a_killed_agent_is_restarted_and_follows_the_job(cluster: Cluster, killed: int) -> None:
    """The job, Ray and the output continue undisturbed; the exit code is the job's."""
    agents = cluster.agents("sh", "-c", COUNTING)
    agents[0].wait_for("line 5$", stream="stdout", timeout=BOOT)
    rays = raylets(agents[killed])
    kill_agent(agents[killed])
    began = time.monotonic()
    agents[killed].wait_for("still runs: adopted", timeout=10)
    assert time.monotonic() - began < 5
    agents[0].wait_for("line 32$", stream="stdout", timeout=30)
    assert raylets(agents[killed]) == rays != []
    assert ends(agents, 40) == [7, 7]
    assert "left Ray" not in agents[0].stderr()
    lines = agents[0].stdout().splitlines()
    assert [*dict.fromkeys(line for line in lines if line.startswith("line "))] == [
        f"line {i}" for i in range(1, 41)
    ]
    (run,) = cluster.pods[0].tmp.glob("logs/2*/run.json")
    assert len(json.loads(run.read_text())["durable"]["ended"]) == 1


@pytest.mark.fault(
    "agent-again",
    "the agent is killed four times within ten minutes, or its parent is killed",
    "70; as on SIGTERM",
)
@pytest.mark.pods(1)
def test_an_agent_that_is_killed_again_and_again_ends_the_run(cluster: Cluster) -> None:
    """After the third restart, the parent ends everything with 70."""
    (head,) = cluster.agents("sh", "-c", FOREVER)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    for _ in range(4):
        await_true("there is an agent", lambda: len(agents_in(head)) == 1, 10)
        (before,) = agents_in(head)
        kill_agent(head)
        await_true("it is gone", lambda: before not in agents_in(head), 10)  # noqa: B023 - called here
    assert head.wait(20) == 70
    assert "giving up (exit code 70)" in last_line(head)
    outcome = cluster.outcome(0)
    assert (outcome["kind"], outcome["exit_code"]) == ("bug", 70)
    assert outcome["reason"] == "the agent was killed by SIGKILL 4 times: giving up"
    assert [attempt["number"] for attempt in outcome["attempts"]] == [1]


@pytest.mark.fault("agent")
@pytest.mark.pods(2)
def test_killed_while_everything_boots(cluster: Cluster) -> None:
    """The next agent adopts a booting Ray and reward server; no prepare step runs twice."""
    cluster.env["AGENT_PREPARE"] = "echo prepared >> /tmp/prepared"
    head, worker = cluster.agents()
    record = cluster.pods[0].tmp / "logs/latest/poda/node.json"
    await_true(
        "the step is on record",
        lambda: record.exists() and "AGENT_PREPARE" in json.loads(record.read_text())["done"],
        BOOT,
    )
    kill_agent(head)
    head.wait_for(r"ray start \(pid \d+\) still runs: adopted", timeout=10)
    head.wait_for(r"reward server \(pid \d+\) still runs: adopted", timeout=10)
    assert ends([head, worker], BOOT) == [0, 0]
    assert (cluster.pods[0].tmp / "prepared").read_text().split() == ["prepared"]
    assert "removing a stale Ray" not in head.stderr()


IGNORES_TERM = "trap '' TERM; echo running; while :; do sleep 0.1; done"
"""Ignores SIGTERM, so that stopping it takes the whole grace."""


def durable(cluster: Cluster) -> dict[str, Any]:
    """Return what is durable of the run, in the head's run.json."""
    (run,) = cluster.pods[0].tmp.glob("logs/2*/run.json")
    known = json.loads(run.read_text())["durable"]
    assert isinstance(known, dict)
    return known


@pytest.mark.fault("agent-amid")
@pytest.mark.pods(2)
def test_killed_while_it_stops_a_job_after_a_loss(cluster: Cluster) -> None:
    """The next agent reads why the job was stopped: 75 with the worker's name, not 143."""
    cluster.env["AGENT_NODE_GRACE"] = "3s"
    head, worker = cluster.agents("sh", "-c", IGNORES_TERM)
    head.wait_for("^running$", "stdout", timeout=BOOT)
    worker.kill()
    await_true("the stop is on record", lambda: bool(durable(cluster)["stop"]), 40)
    kill_agent(head)
    head.wait_for("stopping the job, as the killed agent did", timeout=30)
    assert head.wait(60) == 75
    assert "podb" in last_line(head)
    outcome = cluster.outcome(0)
    assert [(one["number"], one["exit_code"]) for one in outcome["attempts"]] == [(1, 75)]
    assert outcome["culprit"] == "node"


@pytest.mark.fault("agent-amid")
@pytest.mark.pods(2)
def test_the_next_agent_reads_the_loss(cluster: Cluster) -> None:
    """A job that fails within a minute after a worker's loss is retried by the next agent."""
    cluster.env["AGENT_JOB_RETRIES"] = "1"
    until = "while [ ! -e /tmp/fail ]; do sleep 0.1; done; exit 9"
    job = f'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; {until}'
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    worker.kill()
    head.wait_for("lost a needed node", timeout=30)
    await_true("the loss is on record", lambda: bool(durable(cluster)["losses"]["last"]), 10)
    kill_agent(head)
    head.wait_for("attempt 1 goes on: its job is followed again", timeout=30)
    (cluster.pods[0].tmp / "fail").touch()
    head.wait_for("attempt 1 of 2 is lost: .*lost", timeout=30)
    again = cluster.agent(1, "sh", "-c", job)
    assert ends([head, again]) == [7, 7], head.tail()
    assert head.stdout() == "attempt 1\nattempt 2\n"
    codes = [one["exit_code"] for one in cluster.outcome(0)["attempts"]]
    assert codes == [75, 7]


@pytest.mark.fault(
    "agent-amid",
    "the head's agent is killed after the loss of a worker, as it stops the job, or as it ends",
    "the next one continues from run.json: another attempt, 75 with the worker's name, or the "
    "verdict",
)
@pytest.mark.pods(2)
def test_killed_while_it_ends(cluster: Cluster) -> None:
    """The outcome stands: the next agent starts no run, and the worker receives the verdict."""
    until = "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 7"
    head, worker = cluster.agents("sh", "-c", f"echo running; {until}")
    head.wait_for("^running$", "stdout", timeout=BOOT)
    (follower,) = agents_in(worker)
    # it misses the head's goodbye
    assert worker.exec(["kill", "-STOP", str(follower.pid)]).returncode == 0
    (cluster.pods[0].tmp / "end").touch()
    head.wait_for(r"✗ job +the job failed with exit code 7", timeout=30)
    kill_agent(head)
    assert worker.exec(["kill", "-CONT", str(follower.pid)]).returncode == 0
    head.wait_for(r"starting it again[\s\S]*✗ job +the job failed with exit code 7", timeout=30)
    assert ends([head, worker], 60) == [7, 7], head.tail() + worker.tail()
    assert head.stdout() == "running\n"
    assert [one["exit_code"] for one in cluster.outcome(0)["attempts"]] == [7]
    assert len([*cluster.pods[0].tmp.glob("logs/2*/run.json")]) == 1


@pytest.mark.fault("agent")
@pytest.mark.pods(2)
def test_killed_between_two_attempts(cluster: Cluster) -> None:
    """The next agent adopts the Ray started for the next attempt; the worker's return starts it."""
    cluster.env |= {"AGENT_JOB_RETRIES": "1", "AGENT_NODE_GRACE": "3s"}
    job = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 2 ] && exit 7; sleep 600'
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    worker.kill()
    head.wait_for(r"is lost[\s\S]*starting Ray's head[\s\S]*waiting for workers", timeout=60)
    kill_agent(head)
    head.wait_for(r"ray start \(pid \d+\) still runs: adopted", timeout=20)
    again = cluster.agent(1, "sh", "-c", job)
    assert ends([head, again]) == [7, 7], head.tail()
    assert head.stdout() == "attempt 1\nattempt 2\n"
    assert head.stderr().count("starting Ray's head") == 2


@pytest.mark.fault("agent")
@pytest.mark.pods(1)
def test_killed_together_with_its_ray(cluster: Cluster) -> None:
    """All output of the next attempt is passed on, even after a long output of the earlier one."""
    cluster.env["AGENT_JOB_RETRIES"] = "1"
    job = '[ "$AGENT_ATTEMPT" = 2 ] && echo second && exit 7; seq 3000; sleep 600'
    (head,) = cluster.agents("sh", "-c", job)
    head.wait_for("^3000$", "stdout", timeout=BOOT)
    for process in head.processes():
        if process.name in {"gcs_server", "raylet"}:
            os.kill(process.host_pid, signal.SIGKILL)
    kill_agent(head)
    assert head.wait(2 * BOOT) == 7, head.tail()
    lines = head.stdout().splitlines()
    assert lines[-1] == "second"
    assert [*dict.fromkeys(lines)] == [*map(str, range(1, 3001)), "second"]
    (copy,) = cluster.pods[0].tmp.glob("logs/2*/poda/job.log")
    assert copy.read_text().splitlines()[-1] == "second"


@pytest.mark.fault("agent-amid")
@pytest.mark.pods(2)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_right_after_the_agent_was_killed(cluster: Cluster, signum: signal.Signals) -> None:
    """The next agent stops the job in order, although the signal arrived before it was ready."""
    job = f"trap 'sleep 1; echo cleaned; exit 0' TERM; {FOREVER}"
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("^running$", "stdout", timeout=BOOT)
    kill_agent(head)
    head.wait_for("starting it again", timeout=10)
    head.signal(signum)
    code = 128 + signum
    assert ends([head, worker], 60) == [code, code], head.tail() + worker.tail()
    assert head.stdout().endswith("cleaned\n")


@pytest.mark.fault("agent-again")
@pytest.mark.pods(1)
def test_a_killed_parent_stops_the_agent(cluster: Cluster) -> None:
    """A parent that is not the pod's first process is killed: the agent ends as on SIGTERM."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"])
    command = [AGENT, "run", "--", "sh", "-c", FOREVER]
    parent = idle.spawn(command, env={**cluster.env, "RUNPOD_POD_ID": pod.name})
    parent.wait_for("running", stream="stdout", timeout=BOOT)
    parent.signal(signal.SIGKILL)
    # not `wait_for`, which gives up as soon as the parent has ended
    await_true("the agent was told", lambda: "asked to stop by SIGTERM" in parent.stderr(), 10)
    await_true(
        "nothing is left",
        lambda: all(p.zombie or "sleep infinity" in p.cmdline for p in idle.processes()),
        30,
    )
    assert cluster.outcome(0)["exit_code"] == 143


@pytest.mark.fault("agent")
@pytest.mark.pods(1)
def test_logs_follow_survives_a_killed_agent(cluster: Cluster) -> None:
    """`logs --follow` continues with the next agent, and ends with the run."""
    pod = cluster.pods[0]
    idle, env = pod.start(["sleep", "infinity"]), {**cluster.env, "RUNPOD_POD_ID": pod.name}
    head = idle.spawn([AGENT, "run", "--", "sh", "-c", COUNTING], env=env)
    head.wait_for("line 2$", stream="stdout", timeout=BOOT)
    follower = idle.spawn([AGENT, "logs", "--follow"], env=env)
    follower.wait_for("line 5$", stream="stdout", timeout=30)
    everyone = idle.processes()
    (parent,) = [p.pid for p in everyone if p.host_pid == head.pid]
    (agent,) = [p for p in everyone if p.ppid == parent and AGENT in p.cmdline]
    os.kill(agent.host_pid, signal.SIGKILL)
    head.wait_for("still runs: adopted", timeout=20)
    assert head.wait(BOOT) == 7, head.tail()
    assert follower.wait(30) == 0, follower.tail()
    lines = [line for line in follower.stdout().splitlines() if line.startswith("line ")]
    assert [*dict.fromkeys(lines)] == [f"line {i}" for i in range(1, 41)]
