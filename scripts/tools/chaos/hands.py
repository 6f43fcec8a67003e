"""Apply faults to pods, undo them, and report which of them had an effect."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tools.chaos import plan as p

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.chaos.plan import InjectedFault
    from tools.lab import Container, Lab, ProcessInfo, Running

BALLAST = "ballast"
BLOCK = 1 << 20
JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]
DRIVER = " ".join(JOB)


class Node:
    """A pod with an agent below an idle first process, so that leftovers can be listed."""

    def __init__(self, container: Container, agent: Running) -> None:
        self.container = container
        self.agent = agent

    def find(self, what: str) -> list[ProcessInfo]:
        """Return the processes here that a fault hits."""
        living = [info for info in self.container.processes() if not info.zombie]
        if what != p.AGENT:
            return [info for info in living if _is(info, what)]
        parents = [info for info in living if info.host_pid == self.agent.pid]
        return [  # a parent is not hit itself: it ends with its pod
            info
            for parent in parents
            for info in living
            if info.ppid == parent.pid and info.cmdline == parent.cmdline
        ]


def _is(info: ProcessInfo, what: str) -> bool:
    if what == p.DRIVER:
        return info.cmdline.startswith(DRIVER)
    if what == p.REWARD:
        return "reward-server" in info.cmdline
    return info.cmdline.startswith("ray::Heart") if what == p.ACTOR else info.name.startswith(what)


class FaultInjector:
    """Applies faults to the pods of a lab; `start` starts a pod's agent."""

    def __init__(
        self, lab: Lab, volume: Path, nodes: Sequence[Node], start: Callable[[int], Node]
    ) -> None:
        self._lab = lab
        self._volume = volume
        self._start = start
        self.nodes = [*nodes]

    def do(self, one: InjectedFault) -> bool:
        """Apply a fault; return whether it hit anything."""
        pod, node = self._lab.pods[one.pod], self.nodes[one.pod]
        if one.kind == p.CUT:
            pod.cut()
        elif one.kind == p.DNS:
            self._confuse(one)
        elif one.kind == p.DISK:
            self._fill()
        elif not node.container.running or not node.agent.running:
            return False
        elif one.what == p.POD:
            pod.kill() if one.kind == p.KILL else pod.freeze()
        else:
            return self._signal(node.find(one.what), one.kind)
        return True

    def undo(self, one: InjectedFault) -> None:
        """Undo a lasting fault; a killed pod is started again, as by a platform."""
        pod, node = self._lab.pods[one.pod], self.nodes[one.pod]
        if one.kind == p.CUT:
            pod.heal()
        elif one.kind == p.DNS:
            self._lab.dns(answering=True)
            pod.publish()
        elif one.kind == p.DISK:
            (self._volume / BALLAST).unlink(missing_ok=True)
        elif one.kind == p.STOP:
            pod.thaw()
        elif not node.container.running:
            self.nodes[one.pod] = self._start(one.pod)

    @staticmethod
    def _signal(found: list[ProcessInfo], kind: str) -> bool:
        number = signal.SIGKILL if kind == p.KILL else signal.SIGSTOP
        hit = False
        for info in found[:1]:
            with contextlib.suppress(ProcessLookupError):  # it exited by itself meanwhile
                os.kill(info.host_pid, number)
                hit = True
        return hit

    def _confuse(self, one: InjectedFault) -> None:
        head = self._lab.pods[p.HEAD]
        if one.what == p.SILENT:
            self._lab.dns(answering=False)
        elif one.what == p.UNKNOWN:
            head.unpublish()
        else:
            head.publish(self._lab.pods[-1].ip)

    def _fill(self) -> None:
        with contextlib.suppress(OSError), (self._volume / BALLAST).open("ab") as ballast:
            while True:
                ballast.write(b"\0" * BLOCK)
                ballast.flush()
