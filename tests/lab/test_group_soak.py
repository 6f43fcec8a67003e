"""Engines, a judge and an environment die in turn: few steps are lost.

`POD_AGENT_SOAK_SECONDS=600` has an engine killed or frozen every 30 s for ten minutes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest

from support.scenario import AGENT, BOOT, Cluster, await_true, ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.lab import Container

SUPPORT = Path(__file__).parents[1]
SECONDS = float(os.environ.get("POD_AGENT_SOAK_SECONDS") or 40.0)
IS_LONG = SECONDS >= 300
PAUSE = max(8.0, SECONDS / 20)
"""Between two engines that die."""
LOAD = 1.0
"""Seconds for which an engine loads, by its own sleep."""
FILE = """
[groups.rollout]
nodes = 2
min = 1

[groups.helpers]
nodes = 1

[services.engine]
where = "rollout"
gpus = 1
weights = "sglang"
keep = 2
command = '''exec {python} -m agent rehearsal-engine --host {{node_ip}} --port {{port}} \
--log {shared}/engine-{{rank}}-{{port}}.jsonl --load-seconds {load} --seconds-per-request 0.02'''
ready.http = "http://{{node_ip}}:{{port}}/health"
alive = {{ every = "1s", within = "1s", misses = 1 }}

[services.judge]
where = "helpers"
command = "exec {python} -m support.group_services judge {{node_ip}} {{port}}"
env = {{ PYTHONPATH = "{support}" }}
ready.http = "http://{{node_ip}}:{{port}}/v1/models"

[services.environment]
where = "helpers"
command = "exec {python} -m support.group_services environment {{node_ip}} {{port}}"
env = {{ PYTHONPATH = "{support}" }}
ready.http = "http://{{node_ip}}:{{port}}/health"
"""


class Soak:
    """A trainer that learns while what it needs dies."""

    def __init__(self, cluster: Cluster, shared: Path) -> None:
        text = FILE.format(python=sys.executable, shared=shared, support=SUPPORT, load=LOAD)
        for pod in cluster.pods:
            (pod.tmp / "services.toml").write_text(text)
        cluster.env |= {
            "AGENT_SERVICES": "/tmp/services.toml",
            "AGENT_NUM_GPUS": "4",
            "AGENT_REWARD": "judge",
        }
        self.shared = shared
        self.samples_file = shared / "samples.jsonl"
        job = (
            *(sys.executable, "-m", "agent", "rehearsal-async"),
            *("--engines", "{addresses:engine|space}"),
            *("--environments", "{addresses:environment|space}"),
            *("--reward-url", "{reward_url}", "--samples", str(self.samples_file)),
            *("--weights-dir", str(shared / "weights"), "--group", "4"),  # it removes each folder
            *("--steps", "5000", "--seconds-per-step", "1.0"),
        )
        groups = ("trainer", "rollout", "rollout", "helpers")
        self.agents = [
            cluster.agent(number, *job, env={"AGENT_GROUP": group})
            for number, group in enumerate(groups)
        ]
        self.head, *self.rollout, self.helpers = self.agents
        self.deaths = Counter[str]()
        self.died_at: list[float] = []
        self.chance = random.Random(7)  # noqa: S311 - no secret

    def kill(self, agent: Container, program: str, number: signal.Signals) -> None:
        """Kill or freeze one process of a program, if one is there."""
        found = [one for one in agent.processes() if program in one.cmdline]
        if found:
            os.kill(self.chance.choice(found).host_pid, number)
            self.deaths[f"{program} by {number.name}"] += 1
            self.died_at.append(time.time())

    def kill_engine(self) -> None:
        """Kill or freeze one of the eight engines."""
        number = self.chance.choice([signal.SIGKILL, signal.SIGSTOP])
        self.kill(self.chance.choice(self.rollout), "rehearsal-engine", number)

    def samples(self) -> list[dict[str, Any]]:
        """Return what was learned from so far."""
        return [json.loads(line) for line in self.samples_file.read_text().splitlines()]

    def seconds_to_weights(self) -> Iterator[float]:
        """Yield how long each restarted engine was without weights after its own load."""
        for log in self.shared.glob("engine-*.jsonl"):
            rows = [json.loads(row) for row in log.read_text().splitlines()]
            for start, own in itertools.groupby(rows, lambda row: int(row["start"])):
                first: dict[str, float] = {}
                for row in own:
                    first.setdefault(row["what"], row["at"])
                if start > 1 and "update_weights_from_disk" in first:
                    yield first["update_weights_from_disk"] - first["start"] - LOAD


def wait_until(at: float) -> None:
    """Wait until a time."""
    await_true("a pause", lambda: time.time() >= at, max(0.0, at - time.time()) + 5, step=0.1)


def usual_step(ends: list[float], deaths: list[float]) -> float:
    """Return the mean seconds of the steps that no death in the 8 s before can have touched."""
    steps = [*itertools.pairwise(ends)]
    calm = [
        (began, ended)
        for began, ended in steps
        if not any(began - 8.0 <= death <= ended for death in deaths)
    ]
    return mean(ended - began for began, ended in calm)


@pytest.mark.timeout(SECONDS * 1.3 + 200)
@pytest.mark.pods(4)
def test_engines_a_judge_and_an_environment_die(cluster: Cluster, shared: Path) -> None:
    """One attempt, no stale sample, almost all steps, and engines serve soon after their load."""
    soak = Soak(cluster, shared)
    soak.head.wait_for("^step 3/", "stdout", timeout=BOOT)
    calm = time.time()
    wait_until(calm + min(60.0, SECONDS / 4))

    # One engine after the other; between them, the judge and the environment in turn.
    storm = time.time()
    beside = itertools.cycle(["judge", "environment"])
    every = 4 if IS_LONG else 2
    for turn in range(round(SECONDS / PAUSE)):
        soak.kill_engine()
        if turn % every == 1:
            wait_until(storm + (turn + 0.5) * PAUSE)
            soak.kill(soak.helpers, f"group_services {next(beside)}", signal.SIGKILL)
        wait_until(storm + (turn + 1) * PAUSE)
    over = time.time()

    # How many steps were lost, by the pace of the others, and how soon did the engines serve again?
    samples = soak.samples()
    first_of = {one["step"]: float(one["at"]) for one in reversed(samples)}
    steps = sorted(at for at in first_of.values() if at < over)
    usual = usual_step([at for at in steps if at >= calm], soak.died_at)
    made = sum(at >= storm for at in steps)
    share = made * usual / (over - storm)
    stale = sum(one["stale"] for one in samples)
    without = sorted(soak.seconds_to_weights())
    print(f"{share:.3f} of the steps: {made} in {over - storm:.0f} s, else {usual:.3f} s each")
    print(f"before: {sum(calm <= at < storm for at in steps)} steps in {storm - calm:.0f} s")
    print(f"{stale} of {len(samples)} samples stale; {soak.deaths}")
    print(f"seconds to the weights: {[round(one, 1) for one in without]}")
    soak.head.exec([AGENT, "stop"])
    assert ends(soak.agents) == [143] * 4, soak.head.tail()
    outcome = cluster.outcome(0)
    assert len(outcome["attempts"]) == 1
    assert {one["service"] for one in outcome["shortages"]} == {"judge", "environment"}
    assert stale == 0
    assert without[len(without) // 2] <= 2.0
    assert share >= (0.95 if IS_LONG else 0.8)  # a frozen engine costs the time until it is found
