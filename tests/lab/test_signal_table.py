"""A table of role, phase and signal: exit code, time, and leftover processes.

SIGTERM and SIGHUP end every node with 143, SIGINT with 130; the last line names the signal. A held
pod exits with its verdict. SIGKILL hits only the agent: its parent starts another, which continues.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.scenario import AGENT, BOOT, Cluster, await_true

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.lab import Container, ProcessInfo
    from tools.lab.process import Running

JOB = "trap 'sleep 3; exit 0' TERM; echo running; for i in $(seq 120); do sleep 0.1; done; exit 7"
"""Cleans up for 3 s when it is stopped; otherwise ends by itself."""
GRACE = 25.0
SIGNALS = (SIGTERM, SIGINT, SIGHUP, SIGKILL)
PHASES = {
    "head": ("starting", "booting", "waiting", "running", "stopping", "holding"),
    "worker": ("starting", "waiting", "joining", "running"),
}
COVERED = {
    ("head", "booting", SIGTERM),  # test_ends.py
    ("head", "running", SIGTERM),  # same, with the job's clean-up and the worker's exit
    ("worker", "running", SIGTERM),  # same, with the head's grace
    ("head", "running", SIGKILL),  # test_agent_killed.py, with every line of the job's output
    ("worker", "running", SIGKILL),  # same
    ("head", "booting", SIGKILL),  # same, with services and a prepare step
}
LOG_LINES = {
    "starting": "pod-agent on",
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
    """Return all cells that no other scenario covers."""
    found = []
    for role, phases in PHASES.items():
        for phase, signum in itertools.product(phases, SIGNALS):
            cell = Cell(role, phase, signum)
            if cell not in COVERED:
                name = f"{role}-{phase.replace(' ', '-')}-{signum.name}"
                found.append(pytest.param(cell, id=name))
    return found


class Node:
    """An agent that is not its container's first process, so that leftovers can be listed."""

    def __init__(self, cluster: Cluster, number: int, job: str, **env: str) -> None:
        pod = cluster.pods[number]
        self.idle: Container = pod.start(["sleep", "infinity"])
        full = {**cluster.env, "RUNPOD_POD_ID": pod.name, **env}
        self.parent: Running = self.idle.spawn([AGENT, "run", "--", "sh", "-c", job], env=full)
        cluster.started.append(self.idle)

    def agents(self) -> list[ProcessInfo]:
        """Return the agent below its parent: one, or briefly none."""
        everyone = self.idle.processes()
        parents = [p.pid for p in everyone if p.host_pid == self.parent.pid]
        return [p for p in everyone if p.ppid in parents and not p.zombie and AGENT in p.cmdline]

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal; SIGKILL hits the agent, as by the kernel's OOM killer."""
        if signum is not SIGKILL:
            self.parent.signal(signum)
            return
        await_true("there is an agent", lambda: len(self.agents()) == 1, 10)
        os.kill(self.agents()[0].host_pid, signum)

    def left(self) -> list[str]:
        """List the processes that still run here."""
        everyone = [p.cmdline for p in self.idle.processes() if not p.zombie]
        return [line for line in everyone if line != "sleep infinity"]


@pytest.mark.fault(
    "signals-table",
    "SIGTERM, SIGINT, SIGHUP or SIGKILL in any phase, on the head or a worker",
    "143 or 130, or the verdict of a held pod; a killed agent is restarted; nothing is left",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("cell", cells())
def test_a_signal(cluster: Cluster, cell: Cell) -> None:
    """Send one signal to one role in one phase: the right code in time, no leftovers."""
    cluster.env |= {"AGENT_NODE_GRACE": "3s", "EXPECTED_WORKERS": "1"}
    hit, other = _start(cluster, cell)
    _await_phase(hit, other, cell)
    hit.signal(cell.signum)
    if cell.signum is SIGKILL:
        hit.parent.wait_for("starting it again", timeout=10)
    code = _expected(cell)
    if code is None:  # it continues, and waits as before
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
    """Start the node that gets the signal, and the other one if the phase needs it."""
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
    if phase in LOG_LINES:
        parent.wait_for(LOG_LINES[phase], timeout=BOOT)


def _expected(cell: Cell) -> int | None:
    """Return the exit code of the node that gets the signal; None if it continues."""
    if cell.phase == "holding":
        return None if cell.signum is SIGKILL else 5
    if cell.signum is SIGKILL:
        return {"running": 7, "joining": 7, "stopping": 143}.get(cell.phase)
    if cell.phase == "stopping":
        return 143  # the first request stands; only a second SIGINT would kill
    return 130 if cell.signum is SIGINT else 143


def _other_leaves(cell: Cell, other: Node, code: int) -> None:
    """Workers end with the head's code; a head without its worker waits, or gives up."""
    if cell.role == "head" or cell.signum is SIGKILL:
        assert other.parent.wait(BOOT) == code, other.parent.tail()
    elif cell.phase == "running":
        assert other.parent.wait(BOOT) == 75, other.parent.tail()
    else:
        other.signal(SIGTERM)
        assert other.parent.wait(GRACE + 10) == 143, other.parent.tail()
    await_true("nothing is left there", lambda: not other.left(), 10)
