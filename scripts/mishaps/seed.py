"""One seed: three pods, a job, what the seed does to them, and what came of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mishaps import model
from mishaps.hands import JOB, Hands, Node
from mishaps.model import Beat
from mishaps.plan import HEAD, KILL, PODS, plan
from mishaps.results import Result
from podlab import Lab
from podlab.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mishaps.plan import Mishap

AGENT = str(Path(sys.prefix) / "bin/pod-agent")
SHARED = Path("/var/tmp")
"""A folder of the machine that all pods see; private places are made in it."""
VOLUME_SIZE = "64m"
STEP = 0.05
GAVE_UP = 70
AFTER_THE_END = 20.0
"""How long what an agent leaves may still be on its way out; a killed parent's children, say."""


def attempt(seed: int, seconds: float, keep: Path, say: Callable[[str], None]) -> Result:
    """Run one seed in a lab of its own; all that is found wrong stands in the result."""
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
    """Mount a small disk that all pods see, as a network volume: it can be filled."""
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
        self._done: list[Mishap] = []
        self._lasting: list[tuple[float, Mishap]] = []
        self._hands = Hands(lab, volume, [self._start(pod) for pod in range(PODS)], self._start)

    def _start(self, number: int) -> Node:
        pod, head = self._lab.pods[number], self._lab.pods[HEAD]
        own = {"RUNPOD_POD_ID": pod.name, "HEAD_POD_ID": head.name}
        env = {**model.SETTINGS, **own, "AGENT_LOG_DIR": f"{self._volume}/logs"}
        container = pod.start(["sleep", "infinity"], env=env)
        return Node(container, container.spawn([AGENT, "run", "--", *JOB, str(self._ledger)]))

    def play(self, seed: int, seconds: float, keep: Path) -> Result:
        """Do what the seed says, let the job end, and judge."""
        for mishap in plan(seed, seconds):
            self._pass_time(mishap.at)
            if self._is_over():
                break
            if self._hands.do(mishap):
                self._say(mishap.sentence())
                self._done.append(mishap)
                if mishap.lasts:
                    self._lasting.append((mishap.at + mishap.lasts, mishap))
        self._pass_time(seconds)
        for _, mishap in self._lasting:
            self._undo(mishap)
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
            tuple(mishap.sentence() for mishap in self._done),
            tuple(codes.values()),
            max((beat.attempt for beat in beats), default=0),
            round(self._now(), 1),
            tuple(problems),
        )

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _is_over(self) -> bool:
        """Say whether the head's run has ended by itself."""
        head = self._hands.nodes[HEAD]
        return head.container.running and not head.agent.running

    def _pass_time(self, at: float) -> None:
        """Wait until then, or until the run is over; undo what is due meanwhile."""
        while self._now() < at and not self._is_over():
            due = [entry for entry in self._lasting if entry[0] <= self._now()]
            for entry in due:
                self._lasting.remove(entry)
                self._undo(entry[1])
            time.sleep(STEP)

    def _undo(self, mishap: Mishap) -> None:
        if mishap.kind == KILL and self._is_over():
            return  # what it belonged to has ended: nobody starts it again
        self._say(f"{self._now():.1f} s: undone: {mishap.sentence()}")
        self._hands.undo(mishap)

    def _code(self, pod: int) -> int | None:
        node = self._hands.nodes[pod]
        return node.agent.poll() if node.container.running else None

    def _await_ends(self) -> list[str]:
        """Wait for every agent that can end; say which did not in time."""

        def running() -> list[str]:
            nodes = enumerate(self._hands.nodes)
            return [f"pod{i}" for i, n in nodes if n.container.running and n.agent.running]

        try:
            until(lambda: not running(), model.LATEST, "the end of all agents")
        except TimeoutError:
            late = ", ".join(running())
            return [f"{late} did not end within {model.LATEST:g} s of the last mishap"]
        return []

    def _left_over(self) -> list[str]:
        """Say what an ended agent left in its pod: processes, and with them open ports."""
        found = []
        for pod, node in enumerate(self._hands.nodes):
            if not node.container.running or node.agent.running:
                continue

            def only_idle(node: Node = node) -> bool:
                return len(_others(node)) == 0

            try:
                until(only_idle, AFTER_THE_END, "nothing to be left")
            except TimeoutError:
                left = "; ".join(_others(node))
                found.append(f"pod{pod} has left over: {left}")
        return found

    def _words(self, codes: dict[int, int | None]) -> list[str]:
        """Say which agents' last words do not tell their end, or are none for a person."""
        found = []
        for pod, node in enumerate(self._hands.nodes):
            said = node.agent.stderr()
            if _TRACE in said:
                found.append(f"pod{pod} wrote a traceback")
            last, code = said.strip().splitlines()[-1:], codes[pod]
            told = f"(exit code {code})" if code != GAVE_UP else "giving up"
            if code is not None and not (last and told in last[0]):
                found.append(f"pod{pod} ended with {code} and said last: {' '.join(last)}")
        return found

    def _keep(self, folder: Path) -> None:
        """Copy what shows why: output of all agents, and the run folder."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._volume, folder / "volume", symlinks=True)
        shutil.copytree(self._ledger, folder / "ledger")
        shutil.copytree(self._lab.folder / "logs", folder / "output")


_TRACE = "Traceback (most recent call last)"


def _others(node: Node) -> list[str]:
    """List what lives in a pod beside its idle first process."""
    return [
        info.cmdline for info in node.container.processes() if info.pid != 1 and not info.zombie
    ]


def read_beats(folder: Path, began: float) -> list[Beat]:
    """Read when each process of each attempt was seen alive, counted from the run's start."""
    found = []
    for path in sorted(folder.iterdir()):
        attempt, place = path.name.split(".", 1)
        times = [float(line) - began for line in path.read_text().splitlines()]
        if times:
            found.append(Beat(int(attempt), place.rpartition(".")[0], times[0], times[-1]))
    return found
