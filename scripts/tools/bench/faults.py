"""One round of faults in one lab: a cold boot, then one kill after another, each timed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.boot import keep_logs
from tools.bench.fault_figures import FaultRound
from tools.bench.machine import await_calm, others_seconds
from tools.bench.systems import BIN, PATH
from tools.lab import Lab, LabError

if TYPE_CHECKING:
    from tools.lab import Container, Pod, ProcessInfo, Running

HERE = Path(__file__).parent
LIMIT = 90.0
PODS = ("pod0", "pod1", "pod2")
SPARE = "spare"
"""An idle pod, on which Ray and the reward server are started alone."""
REWARD_PORT, GCS_PORT, AGENT_PORT = 5000, 6379, 8266
BODY = json.dumps({"query": ["1+1=\\boxed{2}"], "prompts": ["1+1"], "labels": ["2"]})
JOB = "echo attempt $AGENT_ATTEMPT {reward_url}; exec sleep 1000"
SETTINGS = {
    "EXPECTED_WORKERS": str(len(PODS) - 1),
    "AGENT_ON_DONE": "exit",
    "AGENT_LOG_DIR": "/tmp/logs",
    "AGENT_JOB_RETRIES": "1",
    "AGENT_NODE_GRACE": "3m",
}


def fault_round(number: int, keep: Path | None = None) -> FaultRound:
    """Boot, then kill one process or pod after another; a missed deadline is put in `problem`."""
    found = FaultRound(number)
    with Lab(names=[*PODS, SPARE], shm="8g") as lab:
        await_calm()
        others = others_seconds()
        try:
            _Round(lab, found).play()
        except (TimeoutError, LabError) as problem:
            found.problem = str(problem)
        found.others = round(max(0.0, others_seconds() - others), 1)
        if keep is not None:
            keep_logs(lab, keep / f"faults-{number}")
    return found


class _Round:
    def __init__(self, lab: Lab, found: FaultRound) -> None:
        self._lab = lab
        self._found = found
        self._head_ip = lab.pods[0].ip
        began = time.monotonic()
        self._agents = {name: self._start(lab[name]) for name in PODS}
        self._agents["pod0"].wait_for("^attempt 1 ", "stdout", LIMIT)
        found.cold_boot = time.monotonic() - began

    def play(self) -> None:
        """Measure everything; faults that end with the head come before it.

        The plain Ray node joins last: the head cannot know when work on a node without an agent has
        ended, and would wait for it before the next attempt.
        """
        idle = self._lab[SPARE].start(["sleep", "infinity"], env={"PATH": PATH})
        self._reward(idle)
        self._found.head_follows = self._agent("pod0", "status", '"phase": "running"')
        self._found.worker_follows = self._agent("pod1", "readyz", "")
        self._worker()
        self._head()
        self._ray_alone(idle)

    def _start(self, pod: Pod) -> Container:
        own = {"RUNPOD_POD_ID": pod.name, "HEAD_POD_ID": PODS[0], "PATH": PATH}
        argv = [str(BIN / "pod-agent"), "run", "--", "sh", "-c", JOB]
        return pod.start(argv, env={**SETTINGS, **own})

    def _reward(self, idle: Container) -> None:
        """Start one alone, then kill the run's."""
        place = ["--host", "127.0.0.1", "--port", str(REWARD_PORT)]
        watch = _watch(idle, f"http://127.0.0.1:{REWARD_PORT}/get_reward", "rewards", BODY)
        watch.wait_for("^0 ")
        alone = idle.spawn([str(BIN / "pod-agent"), "reward-server", *place])
        self._found.rewards_start = _at(watch, r"^1 (\S+)") - alone.started_at
        for running in (alone, watch):
            running.kill()
        head = self._agents["pod0"]
        url = f"http://{self._head_ip}:{REWARD_PORT}/get_reward"
        (server,) = [p for p in head.processes() if "reward-server" in p.cmdline]
        self._found.scores_again = _outage(head, server, (url, "rewards", BODY))

    def _agent(self, name: str, path: str, wanted: str) -> float:
        """Kill a node's agent; return how long its port did not give the expected answer."""
        node = self._agents[name]
        everyone = node.processes()
        (agent,) = [p for p in everyone if p.ppid == 1 and p.cmdline == everyone[0].cmdline]
        return _outage(node, agent, (f"http://127.0.0.1:{AGENT_PORT}/{path}", wanted))

    def _worker(self) -> None:
        """Kill a worker's pod, and start it again."""
        head, pod = self._agents["pod0"], self._lab["pod1"]
        killed = time.monotonic()
        pod.kill()
        head.wait_for("pod1 is silent", timeout=LIMIT)
        self._found.worker_named = time.monotonic() - killed
        watch = self._nodes()
        before = len(watch.stdout())
        again = self._start(pod)
        self._agents["pod1"] = again
        line = rf"(?s)\A.{{{before},}}?^{_word(pod.ip)} (\S+)"
        self._found.worker_back = _at(watch, line) - again.started_at

    def _ray_alone(self, idle: Container) -> None:
        """Start Ray on an idle pod by hand."""
        spare = self._lab[SPARE].ip
        watch = self._nodes()
        gcs = f"{self._head_ip}:{GCS_PORT}"
        join = ["start", "--block", f"--address={gcs}", f"--node-ip-address={spare}"]
        alone = idle.spawn([str(BIN / "ray"), *join])
        self._found.rays_start = _at(watch, rf"^{_word(spare)} (\S+)") - alone.started_at

    def _nodes(self) -> Running:
        """Watch the nodes from the head's pod."""
        gcs = f"{self._head_ip}:{GCS_PORT}"
        script = str(HERE / "node_watch.py")
        watch = self._agents["pod0"].spawn([sys.executable, script, gcs])
        watch.wait_for("^watching ", timeout=LIMIT)
        return watch

    def _head(self) -> None:
        """Kill the head's pod and start it again with its disk, as a platform does."""
        head = self._lab["pod0"]
        head.kill()
        again = self._start(head)
        self._agents["pod0"] = again
        again.wait_for("^attempt 2 ", "stdout", LIMIT)
        self._found.head_back = time.monotonic() - again.started_at


def _watch(where: Container, *words: str) -> Running:
    return where.spawn([sys.executable, str(HERE / "http_watch.py"), *words])


def _outage(where: Container, victim: ProcessInfo, words: tuple[str, ...]) -> float:
    """Kill a process; return the time until the watched URL answers as expected again."""
    watch = _watch(where, *words)
    watch.wait_for("^1 ", timeout=LIMIT)
    killed = time.monotonic()
    os.kill(victim.host_pid, signal.SIGKILL)
    well = _at(watch, r"(?s)^0 .*^1 (\S+)")
    watch.kill()
    return well - killed


def _at(watch: Running, pattern: str) -> float:
    return float(watch.wait_for(pattern, "stdout", LIMIT)[1])


def _word(ip: str) -> str:
    return ip.replace(".", r"\.")
