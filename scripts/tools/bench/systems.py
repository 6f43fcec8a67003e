"""How each system boots a pod: its command line and environment."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.lab import Pod

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PATH = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STARTED, ENDED = "job-started", "job-ended"
"""Files in the head pod's /tmp that the job writes: the same clock for every system."""

NOW = "date +%s.%N >"
JOB = f"{NOW} /tmp/{STARTED}; echo JOB-STARTED; {NOW} /tmp/{ENDED}"


@dataclass(frozen=True)
class Boot:
    """The command and environment of one pod."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


def agent(pods: Sequence[Pod], pod: Pod, where: Path = BIN) -> Boot:
    """Boot with the agent: one identical environment, except for the pod's ID."""
    env = {
        "RUNPOD_POD_ID": pod.name,
        "HEAD_POD_ID": pods[0].name,
        "EXPECTED_WORKERS": str(len(pods) - 1),
        "AGENT_ON_DONE": "exit",
        "AGENT_LOG_DIR": "/tmp/logs",
    }
    return Boot([str(where / "pod-agent"), "run", "--", "sh", "-c", JOB], env)


def former(checkout: Path) -> Callable[[Sequence[Pod], Pod], Boot]:
    """Return the boot function of a former version: another checkout with its .venv."""

    def boot(pods: Sequence[Pod], pod: Pod) -> Boot:
        return agent(pods, pod, where=checkout.resolve() / ".venv" / "bin")

    return boot


def handmade(pods: Sequence[Pod], pod: Pod) -> Boot:
    """Boot with handmade scripts that get every address as an argument.

    A shell is PID 1, since it reaps: `ray stop` waits 20 s for processes that nobody reaps.
    """
    head = pods[0]
    if pod is head:
        script = [str(HERE / "handmade_head.py"), head.ip, str(len(pods)), JOB]
    else:
        script = [str(HERE / "handmade_worker.py"), head.ip, pod.ip]
    return Boot(["sh", "-c", '"$@"; exit $?', "handmade", sys.executable, *script])


def symmetric_run(pods: Sequence[Pod], pod: Pod) -> Boot:
    """Boot with `ray symmetric-run`.

    It is the head on the node that has the address on any interface, and a worker's `ray start`
    takes the source address of the route to the head, so the decoy does not mislead it (Ray 2.60).
    It finds `ray` on PATH.
    """
    del pod
    where = [f"--address={pods[0].ip}:6379", f"--min-nodes={len(pods)}"]
    argv = [str(BIN / "ray"), "symmetric-run", *where, "--", "sh", "-c", JOB]
    return Boot(argv)


SYSTEMS: dict[str, Callable[[Sequence[Pod], Pod], Boot]] = {
    "agent": agent,
    "handmade": handmade,
    "symmetric-run": symmetric_run,
}
WORKERS_NEVER_LEAVE = frozenset({"handmade"})


def is_ours(cmdline: str) -> bool:
    """Check whether a command line is the agent's, or its parent's."""
    return re.search(r"/bin/pod-agent( |$)| -m agent( |$)", cmdline) is not None


def is_bridge(cmdline: str) -> bool:
    """Check whether a command line is the process that connects the agent to Ray."""
    return " ray-bridge " in cmdline
