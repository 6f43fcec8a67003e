"""A table of role, phase and signal: the exit code, the time, and what is left running.

SIGTERM and SIGHUP end it with 143, SIGINT with 130, on every node, and its last line names the
signal; what was held ends with its verdict. SIGKILL hits the agent alone: its small parent starts
another, which goes on.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING, NamedTuple

import pytest

from scenario import AGENT, BOOT, Cluster, await_true

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podlab import Container, ProcessInfo
    from podlab.process import Running

JOB = "trap 'sleep 3; exit 0' TERM; echo running; for i in $(seq 120); do sleep 0.1; done; exit 7"
"""Cleans up for a while where it is stopped, and else ends by itself."""
GRACE = 25.0
SIGNALS = (SIGTERM, SIGINT, SIGHUP, SIGKILL)
PHASES = {
    "head": ("first word", "booting", "waiting", "running", "stopping", "holding"),
    "worker": ("first word", "waiting", "joining", "running"),
}
ELSEWHERE = {
    ("head", "booting", SIGTERM),  # test_ends.py
    ("head", "running", SIGTERM),  # same, with the job's clean-up and the worker's end
    ("worker", "running", SIGTERM),  # same, with the head's grace
    ("head", "running", SIGKILL),  # test_agent_killed.py, with every line of the job's output
    ("worker", "running", SIGKILL),  # same
    ("head", "booting", SIGKILL),  # same, with services and a prepare step
}
WORDS = {
    "first word": "pod-agent on",
    "booting": "starting Ray's head",
    "joining": "joining Ray at",
    "stopping": "stopping the job",
    "holding": "holding the pod",
}


class Cell(NamedTuple):
    """One cell of the table."""

    role: str
    phase: str
    signum: signal.Signals


def cells() -> Sequence[object]:
    """Return all cells that no other scenario has."""
    found = []
    for role, phases in PHASES.items():
        for phase, signum in itertools.product(phases, SIGNALS):
            cell = Cell(role, phase, signum)
            if cell not in ELSEWHERE:
                name = f"{role}-{phase.replace(' ', '-')}-{signum.name}"
                found.append(pytest.param(cell, id=name))
    return found


class Node:
    """An agent that is not its container's first process, so that what it leaves can be seen."""

    def __init__(self, cluster: Cluster, number: int, job: str, **env: str) -> None:
        pod = cluster.pods[number]
        self.idle: Container = pod.start(["sleep", "infinity"])
        full = {**cluster.env, "RUNPOD_POD_ID": pod.name, **env}
        self.parent: Running = self.idle.spawn([AGENT, "run", "--", "sh", "-c", job], env=full)
        cluster.started.append(self.idle)

    def agents(self) -> list[ProcessInfo]:
        """Return the agent below the small parent: one, or for a moment none."""
        everyone = self.idle.processes()
        parents = [p.pid for p in everyone if p.host_pid == self.parent.pid]
        return [p for p in everyone if p.ppid in parents and not p.zombie and AGENT in p.cmdline]

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal as a platform would, or have the agent killed as the kernel would."""
        if signum is not SIGKILL:
            self.parent.signal(signum)
            return
        await_true("there is an agent", lambda: len(self.agents()) == 1, 10)
        os.kill(self.agents()[0].host_pid, signum)

    def left(self) -> list[str]:
        """List what still runs here."""
        everyone = [p.cmdline for p in self.idle.processes() if not p.zombie]
        return [line for line in everyone if line != "sleep infinity"]


@pytest.mark.pods(2)
@pytest.mark.parametrize("cell", cells())
def test_a_signal(cluster: Cluster, cell: Cell) -> None:
    """Send one signal to one role in one phase: the right code in time, and nothing left."""
    cluster.env |= {"AGENT_NODE_GRACE": "3s", "EXPECTED_WORKERS": "1"}
    hit, other = _start(cluster, cell)
    _await_phase(hit, other, cell)
    hit.signal(cell.signum)
    if cell.signum is SIGKILL:
        hit.parent.wait_for("starting it again", timeout=10)
    code = _expected(cell)
    if code is None:  # it goes on, and waits as before
        await_true("another agent", lambda: len(hit.agents()) == 1, 20)
        anew = r"pod-agent on(.|\n)*pod-agent on"
        hit.parent.wait_for("its verdict stands" if cell.phase == "holding" else anew, timeout=20)
        hit.signal(SIGTERM)
        code = 143 if cell.phase != "holding" else 5
    began = time.monotonic()
    limit = GRACE if cell.signum is not SIGKILL else BOOT
    assert hit.parent.wait(limit + 10) == code, hit.parent.tail()
    assert time.monotonic() - began < limit
    if code in {143, 130} and cell.signum is not SIGKILL and cell.phase != "stopping":
        assert f"asked to stop by {cell.signum.name} " in hit.parent.stderr().splitlines()[-1]
    await_true("nothing is left", lambda: not hit.left(), 10)
    if other is not None:
        _other_leaves(cell, other, code)


def _start(cluster: Cluster, cell: Cell) -> tuple[Node, Node | None]:
    """Start the node that is hit, and the other where the phase needs one."""
    job = "exit 5" if cell.phase == "holding" else JOB
    on_done = {"AGENT_ON_DONE": "hold"} if cell.phase == "holding" else {}
    if cell.role == "head":
        if cell.phase in {"stopping", "holding"}:
            cluster.env["EXPECTED_WORKERS"] = "0"
        hit = Node(cluster, 0, job, **on_done)
        return hit, Node(cluster, 1, job) if cell.phase == "running" else None
    hit = Node(cluster, 1, job)
    return hit, Node(cluster, 0, job) if cell.phase in {"joining", "running"} else None


def _await_phase(hit: Node, other: Node | None, cell: Cell) -> None:
    parent, phase = hit.parent, cell.phase
    if phase == "waiting" and cell.role == "head":
        parent.wait_for("waiting for workers", timeout=30)
        await_true("its Ray is up", lambda: any("raylet" in line for line in hit.left()), BOOT)
    elif phase == "waiting":
        parent.wait_for("waiting for the head", timeout=30)
    elif phase in {"running", "stopping"}:
        head = hit if cell.role == "head" or other is None else other
        head.parent.wait_for("^running$", stream="stdout", timeout=BOOT)
    if phase == "stopping":
        parent.signal(SIGTERM)
    if phase in WORDS:
        parent.wait_for(WORDS[phase], timeout=BOOT)


def _expected(cell: Cell) -> int | None:
    """Return the code of the node that is hit; None where it goes on without an end."""
    if cell.phase == "holding":
        return None if cell.signum is SIGKILL else 5
    if cell.signum is SIGKILL:
        return {"running": 7, "joining": 7, "stopping": 143}.get(cell.phase)
    if cell.phase == "stopping":
        return 143  # the first request stands; a second SIGINT alone would kill
    return 130 if cell.signum is SIGINT else 143


def _other_leaves(cell: Cell, other: Node, code: int) -> None:
    """Workers leave with the head's code; a head without its worker waits for it, or gives up."""
    if cell.role == "head" or cell.signum is SIGKILL:
        assert other.parent.wait(BOOT) == code, other.parent.tail()
    elif cell.phase == "running":
        assert other.parent.wait(BOOT) == 75, other.parent.tail()
    else:
        other.signal(SIGTERM)
        assert other.parent.wait(GRACE + 10) == 143, other.parent.tail()
    await_true("nothing is left there", lambda: not other.left(), 10)
