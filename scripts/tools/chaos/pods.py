"""Injects faults into the pods of a lab, and undoes them."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.chaos import faults as f

if TYPE_CHECKING:
    from support.volumes import Disk
    from tools.chaos.faults import Fault
    from tools.lab import Container, Lab, ProcessInfo, Running

AGENT = str(Path(sys.prefix) / "bin/pod-agent")
JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]


@dataclass(frozen=True)
class Node:
    """A pod with an agent below an idle first process, so that leftovers can be listed."""

    container: Container
    agent: Running

    @property
    def has_ended(self) -> bool:
        """Return whether the agent ended by itself, and not with its pod."""
        return self.container.running and not self.agent.running

    def others(self) -> list[ProcessInfo]:
        """Return the processes beside the idle first one."""
        return [info for info in self.container.processes() if info.pid != 1 and not info.zombie]

    def find(self, target: str) -> list[ProcessInfo]:
        """Return the processes that a fault hits; an agent's parent ends only with its pod."""
        others = self.others()
        if target != f.AGENT:
            return [info for info in others if _is(info, target)]
        parents = [info for info in others if info.host_pid == self.agent.pid]
        return [
            info
            for parent in parents
            for info in others
            if info.ppid == parent.pid and info.cmdline == parent.cmdline
        ]


def _is(info: ProcessInfo, target: str) -> bool:
    match target:
        case f.DRIVER:
            return info.cmdline.startswith(" ".join(JOB))
        case f.ACTOR:
            return info.cmdline.startswith("ray::Heart")
        case f.REWARD:
            return "reward-server" in info.cmdline
        case _:
            return info.name.startswith(target)


class Pods:
    """The nodes of a lab, with their faults."""

    def __init__(self, lab: Lab, disk: Disk, env: dict[str, str], job: list[str]) -> None:
        self._lab = lab
        self._disk = disk
        self._env = env
        self._job = job
        self.nodes = [self._start(number) for number in range(f.PODS)]

    def _start(self, number: int) -> Node:
        pod = self._lab.pods[number]
        env = {**self._env, "RUNPOD_POD_ID": pod.name, "HEAD_POD_ID": self._lab.pods[f.HEAD].name}
        container = pod.start(["sleep", "infinity"], env=env)
        return Node(container, container.spawn([AGENT, "run", "--", *self._job]))

    def inject(self, fault: Fault) -> bool:
        """Inject a fault; return whether it hit anything."""
        pod, node = self._lab.pods[fault.pod], self.nodes[fault.pod]
        match fault.kind.action, fault.kind.target:
            case f.CUT, _:
                pod.cut()
            case f.DNS, f.SILENT:
                self._lab.dns(answering=False)
            case f.DNS, f.UNKNOWN:
                pod.unpublish()
            case f.DNS, f.WRONG:
                pod.publish(self._lab.pods[-1].ip)
            case f.DISK, _:
                self._disk.fill()
            case _ if not node.container.running or not node.agent.running:
                return False
            case f.KILL, f.POD:
                pod.kill()
            case f.STOP, f.POD:
                pod.freeze()
            case action, target:
                return _signal(node.find(target), action)
        return True

    def undo(self, fault: Fault) -> None:
        """Undo a lasting fault; a killed pod is started again, as by a platform."""
        pod = self._lab.pods[fault.pod]
        match fault.kind.action:
            case f.CUT:
                pod.heal()
            case f.DNS:
                self._lab.dns(answering=True)
                pod.publish()
            case f.DISK:
                self._disk.free()
            case f.STOP:
                pod.thaw()
            case f.KILL if not self.nodes[fault.pod].container.running:
                self.nodes[fault.pod] = self._start(fault.pod)


def _signal(found: list[ProcessInfo], action: str) -> bool:
    if not found:
        return False
    try:
        os.kill(found[0].host_pid, signal.SIGKILL if action == f.KILL else signal.SIGSTOP)
    except ProcessLookupError:  # it exited by itself meanwhile
        return False
    return True
