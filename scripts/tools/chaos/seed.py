"""One seed: three pods, a job, the seed's faults, and the result."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.volumes import memory_disk
from tools.chaos.faults import HEAD, KILL, PODS, Fault, faults_of
from tools.chaos.permitted import RETRIES, Beat, wrong_attempts, wrong_codes
from tools.chaos.pods import JOB, Node, Pods
from tools.lab import Lab
from tools.lab.waiting import until

if TYPE_CHECKING:
    from support.volumes import Disk

SETTINGS = {
    "EXPECTED_WORKERS": str(PODS - 1),
    "AGENT_JOB_RETRIES": str(RETRIES),
    "AGENT_NODE_GRACE": "10s",
    "AGENT_HEAD_GRACE": "60s",
    "AGENT_WAIT_HEAD": "90s",
    "AGENT_WAIT_WORKERS": "90s",
    "AGENT_REWARD": "builtin",
    "AGENT_WAIT_REWARD": "60s",
}
LATEST = 10.0 + 25.0 + 20.0 + 90.0 + 95.0
"""Seconds from the last fault to the last exit.

The sum of node grace, stop, the second pause, the wait for workers, and the time for an attempt to
boot, be submitted and be reported on a loaded machine.
"""
AFTER_THE_END = 20.0
"""Seconds in which an agent's leftovers may exit, for example a killed parent's children."""
SHARED = Path("/var/tmp")
"""A folder of the machine that all pods see."""
VOLUME_SIZE = "64m"
STEP = 0.05
GAVE_UP = 70


class Result(NamedTuple):
    """The result of one seed."""

    problems: list[str]
    """What is not permitted."""
    summary: str


def play(seed: int, seconds: float, keep: Path) -> Result:
    """Play one seed in its own lab, and keep the evidence."""
    with (
        tempfile.TemporaryDirectory(prefix="pod-agent-chaos-", dir=SHARED) as folder,
        memory_disk(Path(folder, "volume"), VOLUME_SIZE) as disk,
        Lab(pods=PODS, shm="1g") as lab,
    ):
        ledger = Path(folder, "ledger")
        (ledger / "beats").mkdir(parents=True)
        run = _Run(lab, disk, ledger)
        faults = faults_of(seed, seconds)
        run.inject_all(faults, seconds)
        (ledger / "go").touch()
        problems = run.await_ends()
        beats = _read_beats(ledger / "beats", run.began)
        problems += run.judge(beats)
        shutil.rmtree(keep, ignore_errors=True)
        shutil.copytree(disk.folder, keep / "volume", symlinks=True)
        shutil.copytree(ledger, keep / "ledger")
        shutil.copytree(lab.folder / "logs", keep / "output")
        attempts = max((beat.attempt for beat in beats), default=0)
        codes = ", ".join("none" if code is None else str(code) for code in run.codes().values())
        hits = f"{len(run.hits)} of {len(faults)} faults hit, {attempts} attempt(s)"
        return Result(problems, f"{hits}, exit codes {codes}, {run.now():.0f} s")


class _Run:
    def __init__(self, lab: Lab, disk: Disk, ledger: Path) -> None:
        self.began = time.monotonic()
        env = {**SETTINGS, "AGENT_LOG_DIR": f"{disk.folder}/logs"}
        self._pods = Pods(lab, disk, env, [*JOB, str(ledger)])
        self.hits: list[Fault] = []
        """The faults that hit something."""

    def now(self) -> float:
        """Return the seconds since the agents' start."""
        return time.monotonic() - self.began

    def _is_over(self) -> bool:
        """Return whether the head's run has ended by itself."""
        return self._pods.nodes[HEAD].has_ended

    def inject_all(self, faults: list[Fault], seconds: float) -> None:
        """Inject the faults, and undo those that last, at the latest after these seconds."""
        begins = [(fault.at, fault, False) for fault in faults]
        ends = [(fault.at + fault.lasts, fault, True) for fault in faults if fault.lasts]
        for at, fault, is_end in sorted([*begins, *ends], key=lambda step: step[0]):
            self._wait_until(min(at, seconds))
            if is_end and fault in self.hits:
                self._undo(fault)
            elif not is_end and not self._is_over() and self._pods.inject(fault):
                _say(fault.sentence())
                self.hits.append(fault)
        self._wait_until(seconds)

    def _wait_until(self, at: float) -> None:
        """Wait until then, or until the run is over."""
        while self.now() < at and not self._is_over():
            time.sleep(STEP)

    def _undo(self, fault: Fault) -> None:
        if fault.kind.action == KILL and self._is_over():
            return  # its run has ended: nobody starts it again
        _say(f"{self.now():.1f} s: undone: {fault.sentence()}")
        self._pods.undo(fault)

    def await_ends(self) -> list[str]:
        """Wait for every agent that can end; report those that are late."""

        def running() -> list[str]:
            nodes = enumerate(self._pods.nodes)
            return [f"pod{i}" for i, n in nodes if n.container.running and n.agent.running]

        try:
            until(lambda: not running(), LATEST, "the end of all agents")
        except TimeoutError:
            late = ", ".join(running())
            return [f"{late} did not end within {LATEST:g} s of the last fault"]
        return []

    def codes(self) -> dict[int, int | None]:
        """Return each agent's exit code; None if its pod was killed, or if it never ended."""
        nodes = enumerate(self._pods.nodes)
        return {pod: node.agent.poll() if node.has_ended else None for pod, node in nodes}

    def judge(self, beats: list[Beat]) -> list[str]:
        """Report what is not permitted."""
        began = min((beat.first for beat in beats), default=None)
        problems = wrong_codes(self.hits, self.codes(), began) + wrong_attempts(self.hits, beats)
        for pod, node in enumerate(self._pods.nodes):
            problems += [f"pod{pod} {problem}" for problem in _wrong_end(node)]
        return problems


def _wrong_end(node: Node) -> list[str]:
    """Report what an ended agent left: processes, and thus open ports; a wrong last line."""
    problems = []
    output = node.agent.stderr()
    if "Traceback (most recent call last)" in output:
        problems.append("wrote a traceback")
    if not node.has_ended:
        return problems
    code = node.agent.poll()
    ending = "giving up" if code == GAVE_UP else f"(exit code {code})"
    last = output.strip().rpartition("\n")[2]
    if ending not in last:
        problems.append(f"ended with {code} with the last line: {last}")
    try:
        until(lambda: not node.others(), AFTER_THE_END, "no leftovers")
    except TimeoutError:
        left = "; ".join(info.cmdline for info in node.others())
        problems.append(f"left processes behind: {left}")
    return problems


def _read_beats(folder: Path, began: float) -> list[Beat]:
    """Read the period of each process of each attempt, relative to the run's start."""
    beats = []
    for path in sorted(folder.iterdir()):
        attempt, place = path.name.split(".", 1)
        times = [float(line) - began for line in path.read_text().splitlines()]
        if times:
            beats.append(Beat(int(attempt), place.rpartition(".")[0], times[0], times[-1]))
    return beats


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
