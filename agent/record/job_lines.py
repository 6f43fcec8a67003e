"""The job's output: known error lines, the reward curve and the last lines."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.causes.find import LONGEST, NEAR, Log, find_known_lines, plain_lines, table
from agent.decisions.values import place
from agent.record.log import printable, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.decisions.values import Known


class KnownLines:
    """Logs known lines of the job's output; one thread scans, others read the results."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._is_over = False
        self._logged: tuple[Known, ...] = ()
        self._remote_keys: frozenset[str] = frozenset()  # reported for the current attempt
        self._remote: tuple[tuple[str, Known], ...] = ()  # what was logged of these, with the node
        self._attempt = 0  # the latest attempt with a report of another node
        self._ended_attempt = 0  # its output has ended: no report of it counts any more
        self._before: list[str] = []  # the lines before those that are scanned next

    def scan(self, lines: Sequence[bytes]) -> None:
        """Scan whole lines."""
        if self._is_over:
            self._is_over, self._logged, self._ended_attempt = False, (), self._attempt
            self._before = []
        remote = self._remote_keys if self._attempt > self._ended_attempt else frozenset()
        reported, before = remote.union(one.key for one in self._logged), self._before
        for known in find_known_lines(lines, reported, before):
            cleaned = self._cleaned(known)
            self._logged = (*self._logged, cleaned)
            say(cleaned.sentence(), "info" if known.is_noise else "warning")
        last = b"\n".join(line[:LONGEST] for line in lines[-NEAR:])
        self._before = [*before, *plain_lines(last.decode(errors="replace"))][-NEAR:]

    def add_from_node(self, node: str, attempt: int, found: Sequence[Known]) -> None:
        """Add the lines that another node found in its output; called from another thread."""
        if found and attempt != self._attempt:
            self._attempt, self._remote_keys, self._remote = attempt, frozenset(), ()
        for known in found:
            row = table().get(known.key)
            if known.key in self._remote_keys or row is None or not row.is_live:
                continue
            self._remote_keys |= {known.key}
            if any(one.key == known.key for one in self._logged):
                continue
            cleaned = self._cleaned(known)
            self._remote = (*self._remote, (node, cleaned))
            say(cleaned.sentence(node), "warning")

    def logs_of_nodes(self, attempt: int, first: str = "") -> tuple[Log, ...]:
        """Return the lines that other nodes reported in an attempt, those of one node first."""
        if attempt != self._attempt:
            return ()
        nodes = dict.fromkeys(node for node, _ in self._remote)
        return tuple(
            Log(node, "the job's output", "\n".join(k.line for at, k in self._remote if at == node))
            for node in sorted(nodes, key=lambda name: name != first)
        )

    def _cleaned(self, known: Known) -> Known:
        """Mask secrets before the line is shortened, since that could cut a secret in two."""
        cleaned = replace(known, line=self._clean(known.line), cause=self._clean(known.cause))
        return replace(cleaned, line=cleaned.shown)

    def end_output(self) -> None:
        """End the attempt's output: the next attempt's lines are logged again."""
        self._is_over = True

    @property
    def causes(self) -> tuple[Known, ...]:
        """Return the known lines in this node's output, without noise."""
        return tuple(known for known in self._logged if not known.is_noise)

    def warnings(self) -> list[dict[str, str]]:
        """Return the warnings for `/status`."""
        found = [*(("", known) for known in self.causes), *((f"{n}: ", k) for n, k in self._remote)]
        return [
            {
                "check": "job output",
                "what": f"{node}{known.cause}{place('', known.rank)} ({known.shown})",
                "remedy": known.what_to_do,
            }
            for node, known in found
        ]


MOST_POINTS = 600  # A longer curve is thinned out
MOST_LINES = 40
_LONGEST_LINE = 32_768
_LONGEST_SHOWN = 400
_NUMBER = r"(?:np\.float\d+\()?([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\b"
_STEP_LINE = (
    r"\bstep (?P<rehearsal>\d+)/(?P<of>\d+) mean reward "
    r"|\bstep:(?P<verl>\d+) - "
    r"|\bGlobal step (?P<openrlhf>\d+): \{"
)
"""The start of a line with a step's reward, behind any prefix; compiled when the job writes."""
_REWARD = {
    "rehearsal": rf"mean reward {_NUMBER}",
    "verl": rf" critic/rewards/mean:{_NUMBER}",
    "openrlhf": rf"'reward': {_NUMBER}",
}


def point_in(line: str) -> tuple[tuple[int, float], int | None] | None:
    """Return the step in a line and its reward, with the number of steps if it has one."""
    step = re.search(_STEP_LINE, line)
    if step is None or step.lastgroup is None:
        return None
    kind = next(name for name in _REWARD if step[name])
    reward = re.search(_REWARD[kind], line[step.start() :])
    if reward is None:  # verl writes validations in such lines, too
        return None
    return (int(step[kind]), float(reward[1])), int(step["of"]) if step["of"] else None


class JobLines:
    """Collects the job's output; one thread writes, others read."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean, self.known = clean, KnownLines(clean)
        self.last_output: float | None = None  # time of the last output on the monotonic clock
        self._rest = b""
        self._points: list[tuple[int, float]] = []
        self._last: deque[str] = deque(maxlen=MOST_LINES)
        self._steps: int | None = None

    def write(self, data: bytes, _may_try_again: Callable[[float], bool]) -> bool:
        """Add a piece of output; this never fails."""
        self.last_output = time.monotonic()
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        if lines:
            self.known.scan(lines)
        for line in lines:
            self._take(line.rstrip(b"\r").rpartition(b"\r")[2])  # as a terminal shows it
        return True

    def close(self) -> None:
        """Add the last line, which has no line end."""
        if self._rest:
            self.known.scan([self._rest])
            self._take(self._rest)
        self._rest = b""
        self.known.end_output()

    def curve(self) -> dict[str, object]:
        """Return the rewards by step, and the number of steps if known."""
        return {"steps": self._steps, "points": [[*point] for point in self._points]}

    def tail(self) -> list[str]:
        """Return the last lines, masked and without control characters."""
        return [printable(self._clean(line)) for line in [*self._last]]

    def _take(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode(errors="replace")
        self._last.append(line[:_LONGEST_SHOWN])
        found = point_in(line)
        if found is None:
            return
        point, of = found
        self._steps = of or self._steps
        points = self._points
        if points and point[0] <= points[-1][0]:  # another attempt resumes from a checkpoint
            points = [one for one in points if one[0] < point[0]]
        points = points if len(points) < MOST_POINTS else points[::2]
        self._points = [*points, point]
