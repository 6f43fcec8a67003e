"""Groups of nodes beside the trainer: engines that are killed, frozen, or gone together."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.scenario import BOOT, Cluster, await_true, ends, status_of_head

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.lab import Container

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
        *("--samples", f"{shared}/samples.jsonl"),
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


def samples(shared: Path) -> Sequence[dict[str, Any]]:
    """Return what the trainer has learned from."""
    return [json.loads(line) for line in (shared / "samples.jsonl").read_text().splitlines()]


@pytest.mark.pods(3)
def test_an_engine_is_killed_every_few_seconds(cluster: Cluster, shared: Path) -> None:
    """The trainer is never restarted, and learns from no stale sample."""
    set_up(cluster, shared)
    agents = cluster.agents(*trainer(shared, 40, "--seconds-per-step", "0.5"))
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    assert set(members(head).values()) == {"serving"}

    # One engine after the other is killed, or frozen, while the job goes on.
    killed = 0
    while head.running and "step 38/" not in head.stdout():
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
    outcome = cluster.outcome(0)
    assert len(outcome["attempts"]) == 1
    assert "stale samples 0" in head.stdout().splitlines()[-1] or all(
        not one.get("is_stale") for one in samples(shared)
    )


@pytest.mark.pods(3)
def test_nothing_serves(cluster: Cluster, shared: Path) -> None:
    """The log says that no engine serves, and requests wait for the first one that is back."""
    set_up(cluster, shared)
    agents = cluster.agents(*trainer(shared, 30, "--seconds-per-step", "0.5"))
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    for agent in agents[1:]:
        for engine in engines_in(agent):
            os.kill(engine, signal.SIGKILL)
    head.wait_for("no engine serves since .*; what needs it waits", timeout=20)
    head.wait_for("engine: . of 4 serve again", timeout=30)
    await_true("all serve", lambda: set(members(head).values()) == {"serving"}, 30)
    assert ends(agents) == [0, 0, 0], head.tail()
