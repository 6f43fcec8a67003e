"""Shared by the scenarios: agents in the pods of a lab, their output, and waiting."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import tools.lab as podlab

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tools.lab import Container, Pod
    from tools.lab.container import ProcessInfo

REPO = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("POD_AGENT_ENVIRONMENT") or sys.prefix)
"""The environment with agent and Ray for the pods; scripts/versions sets another one."""
AGENT = str(ENVIRONMENT / "bin/pod-agent")
RAY = str(ENVIRONMENT / "bin/ray")
QUICK_DNS = {"RES_OPTIONS": "timeout:1 attempts:1"}
BOOT = 90.0
"""Maximum time until a job starts; three Rays share two cores here."""


def needed_in_pods() -> list[Path]:
    """List paths that pods must see: that environment, and the Python that it links to."""
    pythons = [str(ENVIRONMENT / "bin/python"), os.environ.get("POD_AGENT_TORCH_PYTHON")]
    given = [Path(python) for python in pythons if python]
    return [path.parents[2] for python in given for path in (python, python.resolve())]


def ray_in_pods() -> str:
    """Return the version of Ray in the pods."""
    asked = subprocess.run([AGENT, "--version"], capture_output=True, text=True, check=True)
    return asked.stdout.split()[-1]


def instant_cluster(pods: Sequence[Pod], rank: int) -> dict[str, str]:
    """Return the variables that RunPod sets on a node of an Instant Cluster."""
    return {
        "PRIMARY_ADDR": pods[0].ip,
        "PRIMARY_PORT": "29400",
        "MASTER_ADDR": pods[0].ip,
        "MASTER_PORT": "29400",
        "HOST_NODE_ADDR": f"{pods[0].ip}:29400",
        "NODE_ADDR": pods[rank].ip,
        "NODE_RANK": str(rank),
        "NUM_NODES": str(len(pods)),
        "NUM_TRAINERS": "8",
        "WORLD_SIZE": str(8 * len(pods)),
    }


def dstack(pods: Sequence[Pod], rank: int) -> dict[str, str]:
    """Return the variables that dstack sets on a node."""
    return {
        "DSTACK_RUN_NAME": "ray-cluster",
        "DSTACK_RUN_ID": "run-42",
        "DSTACK_JOB_ID": f"job-{rank}",
        "DSTACK_NODE_RANK": str(rank),
        "DSTACK_NODES_NUM": str(len(pods)),
        "DSTACK_NODES_IPS": "\n".join(pod.ip for pod in pods),
        "DSTACK_MASTER_NODE_IP": pods[0].ip,
        "DSTACK_GPUS_PER_NODE": "0",
        "DSTACK_GPUS_NUM": "0",
    }


def need_lab() -> None:
    """Skip where no lab can be made, with the reason; in CI, fail."""
    reason = podlab.missing()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


class Process(Protocol):
    """What a test starts, and waits for: a container, or another command."""

    def wait(self, timeout: float = ...) -> int:
        """Return its exit code."""

    def stdout(self) -> str:
        """Return its output so far."""

    def stderr(self) -> str:
        """Return its log so far."""

    def tail(self) -> str:
        """Return the end of both."""


@dataclass
class Cluster:
    """Pods of a lab, one identical environment, and the agents started in them."""

    lab: podlab.Lab
    env: dict[str, str]
    started: list[Container] = field(default_factory=list)

    @property
    def pods(self) -> list[Pod]:
        """The lab's pods, the head first."""
        return list(self.lab.pods)

    def agent(self, pod: Pod | int, *job: str, env: Mapping[str, str] | None = None) -> Container:
        """Start the agent as a pod's first process, as on RunPod."""
        where = self.pods[pod] if isinstance(pod, int) else pod
        own = {"RUNPOD_POD_ID": where.name}
        command = [AGENT, "run", "--", *job] if job else [AGENT]
        container = where.start(command, env={**self.env, **own, **(env or {})})
        self.started.append(container)
        return container

    def agents(self, *job: str, env: Mapping[str, str] | None = None) -> list[Container]:
        """Start the agent in every pod at once."""
        return [self.agent(pod, *job, env=env) for pod in self.pods]

    def file(self, pod: Pod | int, name: str) -> Path:
        """Return a file of a pod's newest run folder."""
        where = self.pods[pod] if isinstance(pod, int) else pod
        root = Path(where.tmp) / "logs"
        runs = sorted(root.glob(f"*/{where.name}*"), key=lambda path: path.stat().st_mtime)
        return runs[-1] / name

    def outcome(self, pod: Pod | int) -> dict[str, Any]:
        """Read a pod's outcome.json."""
        return read_outcome(self.file(pod, "outcome.json").parent)


def read_outcome(folder: Path, file: str = "outcome.json") -> dict[str, Any]:
    """Read a node's outcome.json from its run folder."""
    data = json.loads((folder / file).read_text())
    assert isinstance(data, dict)
    return data


def ends(containers: Sequence[Process], timeout: float = BOOT) -> list[int]:
    """Wait until all have exited; return their exit codes."""
    until = time.monotonic() + timeout
    return [c.wait(timeout=max(0.1, until - time.monotonic())) for c in containers]


def last_line(container: Container) -> str:
    """Return the last line that an agent wrote to stderr."""
    return container.stderr().strip().splitlines()[-1]


def stale_samples(output: str) -> int:
    """Return how many samples of the rehearsal were stale, as its last step has counted them."""
    counts = re.findall(r"^step \d+/\d+ .* stale samples (\d+)$", output, re.MULTILINE)
    return int(counts[-1])


def lookup(container: Container, name: str) -> str:
    """Return the first address that the container's resolver finds for a name."""
    done = container.exec(["getent", "ahostsv4", name], env=QUICK_DNS, timeout=20)
    return (done.stdout.split() or [""])[0]


def await_true(
    what: str, check: Callable[[], bool], timeout: float = 30.0, step: float = 0.05
) -> None:
    """Wait for a condition, with a deadline."""
    until = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < until, f"{what}: not within {timeout} s"
        time.sleep(step)


def keep_running(seconds: float, *agents: Container) -> None:
    """Wait for a duration, during which the agents must keep running."""
    over = time.monotonic() + seconds
    await_true(f"{seconds} s", lambda: time.monotonic() >= over, seconds + 5)
    assert all(agent.running for agent in agents), [agent.tail() for agent in agents]


def agents_in(container: Container) -> list[ProcessInfo]:
    """List the agents below the container's first process: one, or briefly none."""
    everyone = container.processes()
    first = everyone[0].cmdline if everyone else ""
    return [p for p in everyone if p.ppid == 1 and p.cmdline == first]


def kill_agent(container: Container) -> None:
    """Kill the agent with SIGKILL, as the kernel's OOM killer does."""
    (agent,) = agents_in(container)
    os.kill(agent.host_pid, signal.SIGKILL)


def status_of_head(head: Container) -> dict[str, Any]:
    """Return the head's status."""
    status = json.loads(head.exec([AGENT, "status", "--json"]).stdout)
    assert isinstance(status, dict)
    return status


def states(head: Container) -> dict[str, str]:
    """Return each node's state from the head's status."""
    status = status_of_head(head)
    return {node["name"]: node["state"] for node in status["nodes"]}
