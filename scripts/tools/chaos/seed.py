"""One seed: three pods, a job, the seed's faults, and the result."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tools.chaos import model
from tools.chaos.hands import JOB, FaultInjector, Node
from tools.chaos.model import Beat
from tools.chaos.plan import HEAD, KILL, PODS, plan
from tools.chaos.results import Result
from tools.lab import Lab
from tools.lab.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.chaos.plan import InjectedFault

AGENT = str(Path(sys.prefix) / "bin/pod-agent")
SHARED = Path("/var/tmp")
"""A folder of the machine that all pods see; private folders are made in it."""
VOLUME_SIZE = "64m"
STEP = 0.05
GAVE_UP = 70
AFTER_THE_END = 20.0
"""How long an agent's leftovers may take to exit, for example a killed parent's children."""


def attempt(seed: int, seconds: float, keep: Path, say: Callable[[str], None]) -> Result:
    """Run one seed in its own lab; all violations are in the result."""
    with _folder() as ledger, _volume() as volume, Lab(pods=PODS, shm="1g") as lab:
        return _Run(lab, ledger, volume, say).play(seed, seconds, keep)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder that all pods see."""
    with tempfile.TemporaryDirectory(prefix="pod-agent-chaos-", dir=SHARED) as folder:
        (Path(folder) / "beats").mkdir()
        yield Path(folder)


@contextmanager
def _volume() -> Iterator[Path]:
    """Mount a small disk that all pods see, like a network volume, so that it can be filled."""
    with _folder() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_SIZE}", "tmpfs", str(folder)]
        subprocess.run(mount, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)


class _Run:
    def __init__(self, lab: Lab, ledger: Path, volume: Path, say: Callable[[str], None]) -> None:
        self._lab = lab
        self._ledger = ledger
        self._volume = volume
        self._say = say
        self._began = time.monotonic()
        self._done: list[InjectedFault] = []
        self._lasting: list[tuple[float, InjectedFault]] = []
        self._injector = FaultInjector(
            lab, volume, [self._start(pod) for pod in range(PODS)], self._start
        )

    def _start(self, number: int) -> Node:
        pod, head = self._lab.pods[number], self._lab.pods[HEAD]
        own = {"RUNPOD_POD_ID": pod.name, "HEAD_POD_ID": head.name}
        env = {**model.SETTINGS, **own, "AGENT_LOG_DIR": f"{self._volume}/logs"}
        container = pod.start(["sleep", "infinity"], env=env)
        return Node(container, container.spawn([AGENT, "run", "--", *JOB, str(self._ledger)]))

    def play(self, seed: int, seconds: float, keep: Path) -> Result:
        """Apply the seed's faults, let the job end, and check the result."""
        for fault in plan(seed, seconds):
            self._pass_time(fault.at)
            if self._is_over():
                break
            if self._injector.do(fault):
                self._say(fault.sentence())
                self._done.append(fault)
                if fault.lasts:
                    self._lasting.append((fault.at + fault.lasts, fault))
        self._pass_time(seconds)
        for _, fault in self._lasting:
            self._undo(fault)
        (self._ledger / "go").touch()
        problems = self._await_ends()
        codes = {pod: self._code(pod) for pod in range(PODS)}
        beats = read_beats(self._ledger / "beats", self._began)
        began = min((beat.first for beat in beats), default=None)
        problems += model.wrong_ends(self._done, codes, began)
        problems += model.wrong_attempts(self._done, beats)
        problems += self._left_over()
        problems += self._words(codes)
        self._keep(keep)
        return Result(
            seed,
            seconds,
            len(plan(seed, seconds)),
            tuple(fault.sentence() for fault in self._done),
            tuple(codes.values()),
            max((beat.attempt for beat in beats), default=0),
            round(self._now(), 1),
            tuple(problems),
        )

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _is_over(self) -> bool:
        """Return whether the head's run has ended by itself."""
        head = self._injector.nodes[HEAD]
        return head.container.running and not head.agent.running

    def _pass_time(self, at: float) -> None:
        """Wait until then, or until the run is over; undo faults when due."""
        while self._now() < at and not self._is_over():
            due = [entry for entry in self._lasting if entry[0] <= self._now()]
            for entry in due:
                self._lasting.remove(entry)
                self._undo(entry[1])
            time.sleep(STEP)

    def _undo(self, fault: InjectedFault) -> None:
        if fault.kind == KILL and self._is_over():
            return  # its run has ended: nobody starts it again
        self._say(f"{self._now():.1f} s: undone: {fault.sentence()}")
        self._injector.undo(fault)

    def _code(self, pod: int) -> int | None:
        node = self._injector.nodes[pod]
        return node.agent.poll() if node.container.running else None

    def _await_ends(self) -> list[str]:
        """Wait for every agent that can end; report those that are late."""

        def running() -> list[str]:
            nodes = enumerate(self._injector.nodes)
            return [f"pod{i}" for i, n in nodes if n.container.running and n.agent.running]

        try:
            until(lambda: not running(), model.LATEST, "the end of all agents")
        except TimeoutError:
            late = ", ".join(running())
            return [f"{late} did not end within {model.LATEST:g} s of the last fault"]
        return []

    def _left_over(self) -> list[str]:
        """Report what an ended agent left in its pod: processes, and thus open ports."""
        found = []
        for pod, node in enumerate(self._injector.nodes):
            if not node.container.running or node.agent.running:
                continue

            def only_idle(node: Node = node) -> bool:
                return len(_others(node)) == 0

            try:
                until(only_idle, AFTER_THE_END, "no leftovers")
            except TimeoutError:
                left = "; ".join(_others(node))
                found.append(f"pod{pod} left processes behind: {left}")
        return found

    def _words(self, codes: dict[int, int | None]) -> list[str]:
        """Report agents whose last line lacks their outcome, or that wrote a traceback."""
        found = []
        for pod, node in enumerate(self._injector.nodes):
            said = node.agent.stderr()
            if _TRACE in said:
                found.append(f"pod{pod} wrote a traceback")
            last, code = said.strip().splitlines()[-1:], codes[pod]
            ending = f"(exit code {code})" if code != GAVE_UP else "giving up"
            if code is not None and not (last and ending in last[0]):
                found.append(f"pod{pod} ended with {code} with the last line: {' '.join(last)}")
        return found

    def _keep(self, folder: Path) -> None:
        """Copy the evidence: output of all agents, and the run folder."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._volume, folder / "volume", symlinks=True)
        shutil.copytree(self._ledger, folder / "ledger")
        shutil.copytree(self._lab.folder / "logs", folder / "output")


_TRACE = "Traceback (most recent call last)"


def _others(node: Node) -> list[str]:
    """List the running processes of a pod except for its idle first one."""
    return [
        info.cmdline for info in node.container.processes() if info.pid != 1 and not info.zombie
    ]


def read_beats(folder: Path, began: float) -> list[Beat]:
    """Read the period of each process of each attempt, relative to the run's start."""
    found = []
    for path in sorted(folder.iterdir()):
        attempt, place = path.name.split(".", 1)
        times = [float(line) - began for line in path.read_text().splitlines()]
        if times:
            found.append(Beat(int(attempt), place.rpartition(".")[0], times[0], times[-1]))
    return found
