"""The job's output: known error lines, the reward curve and the last lines."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.text import escaped
from agent.decisions.causes.find import LONGEST, NEAR, Log, find_known_lines, plain_lines, table
from agent.decisions.values import place, shortened
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.decisions.values import Known


class KnownLines:
    """Logs known lines of an attempt's output, each cause once.

    One thread scans this node's output, another adds what the other nodes found.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._found: dict[str, tuple[str, Known]] = {}  # by key, with the node; '' is this one
        self._before: list[str] = []  # the lines before those that are scanned next

    def scan(self, lines: Sequence[bytes]) -> None:
        """Scan whole lines."""
        for known in find_known_lines(lines, [*self._found], self._before):
            self._add("", known)
        last = b"\n".join(line[:LONGEST] for line in lines[-NEAR:])
        self._before = [*self._before, *plain_lines(last.decode(errors="replace"))][-NEAR:]

    def add_from_node(self, node: str, found: Sequence[Known]) -> None:
        """Add the lines that another node found in its output of the attempt."""
        for known in found:
            row = table().get(known.key)
            if known.key not in self._found and row is not None and row.is_live:
                self._add(node, known)

    def logs_of_nodes(self, first: str = "") -> tuple[Log, ...]:
        """Return the lines that other nodes reported, those of one node first."""
        lines: dict[str, list[str]] = {}
        for node, known in [*self._found.values()]:
            if node:
                lines.setdefault(node, []).append(known.line)
        nodes = sorted(lines, key=lambda name: name != first)
        return tuple(Log(node, "the job's output", "\n".join(lines[node])) for node in nodes)

    def _add(self, node: str, known: Known) -> None:
        """Mask secrets before the line is shortened, since that could cut a secret in two."""
        line, cause = shortened(self._clean(known.line)), self._clean(known.cause)
        cleaned = replace(known, line=line, cause=cause)
        self._found[known.key] = node, cleaned
        say(cleaned.sentence(node), "info" if known.is_noise else "warning")

    @property
    def causes(self) -> tuple[Known, ...]:
        """Return the known lines in this node's output, without noise."""
        found = [*self._found.values()]
        return tuple(known for node, known in found if not node and not known.is_noise)

    def warnings(self) -> list[dict[str, str]]:
        """Return the warnings for `/status`."""
        return [
            {
                "check": "job output",
                "what": f"{node}: {known.cause}".removeprefix(": ")
                + f"{place('', known.rank)} ({known.line})",
                "remedy": known.what_to_do,
            }
            for node, known in [*self._found.values()]
            if not known.is_noise
        ]


MOST_POINTS = 600  # A longer curve is thinned out
MOST_LINES = 40
_LONGEST_LINE = 32_768
_LONGEST_SHOWN = 400
_REWARD = r"(?:np\.float\d+\()?(?P<reward>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\b"
_STEP_LINES = (
    rf"\bstep (?P<step>\d+)/(?P<of>\d+) mean reward {_REWARD}",  # the rehearsal
    rf"\bstep:(?P<step>\d+) - (?:.*? )?critic/rewards/mean:{_REWARD}",  # verl
    rf"\bGlobal step (?P<step>\d+): \{{.*?'reward': {_REWARD}",  # OpenRLHF
)
"""A step's reward, behind any prefix; compiled when the job writes."""


def point_in(line: str) -> tuple[tuple[int, float], int | None] | None:
    """Return the step in a line and its reward, with the number of steps if it has one."""
    for pattern in _STEP_LINES:
        found = re.search(pattern, line)
        if found is not None:
            of = found.groupdict().get("of")
            return (int(found["step"]), float(found["reward"])), int(of) if of else None
    return None


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

    def begin_attempt(self) -> None:
        """Log the known lines of the next attempt again."""
        self.known = KnownLines(self._clean)

    def curve(self) -> dict[str, object]:
        """Return the rewards by step, and the number of steps if known."""
        return {"steps": self._steps, "points": [[*point] for point in self._points]}

    def tail(self) -> list[str]:
        """Return the last lines, masked and without control characters."""
        return [escaped(self._clean(line)) for line in [*self._last]]

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
