"""What the page shows of the job's own output: its curve of rewards, and its last lines."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from agent.record.known_lines import KnownLines
from agent.record.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_POINTS = 600
"""A longer curve is thinned out: a picture has no more columns."""
MOST_LINES = 40
_LONGEST_LINE = 32_768
_LONGEST_SHOWN = 400
_NUMBER = r"(?:np\.float\d+\()?([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\b"
_SPEAKS_OF_A_STEP = re.compile(
    r"\bstep (?P<rehearsal>\d+)/(?P<of>\d+) mean reward "
    r"|\bstep:(?P<verl>\d+) - "
    r"|\bGlobal step (?P<openrlhf>\d+): \{",
)
"""How a line begins that tells of a step, whatever process it is said to come from."""
_REWARD = {
    "rehearsal": re.compile(rf"mean reward {_NUMBER}"),
    "verl": re.compile(rf" critic/rewards/mean:{_NUMBER}"),
    "openrlhf": re.compile(rf"'reward': {_NUMBER}"),
}


class Point(NamedTuple):
    """The mean reward of one step."""

    step: int
    reward: float


def point_in(line: str) -> tuple[Point, int | None] | None:
    """Return what a line tells of a step, and how many there are, if it tells; else None."""
    step = _SPEAKS_OF_A_STEP.search(line)
    if step is None or step.lastgroup is None:
        return None
    kind = next(name for name in _REWARD if step[name])
    reward = _REWARD[kind].search(line, step.start())
    if reward is None:  # verl tells validations in such lines, too
        return None
    return Point(int(step[kind]), float(reward[1])), int(step["of"]) if step["of"] else None


class JobLines:
    """Takes the job's output in, as one thread reads it; others may look at any time."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self.known = KnownLines(clean)
        self.heard: float | None = None
        """When the job wrote something last, on the monotonic clock."""
        self._rest = b""
        self._points: list[Point] = []
        self._last: deque[str] = deque(maxlen=MOST_LINES)
        self._of: int | None = None

    def write(self, data: bytes, _may_try_again: Callable[[float], bool]) -> bool:
        """Take a piece of it in; this never fails."""
        self.heard = time.monotonic()
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        if lines:
            self.known.look(lines)
        for line in lines:
            self._take(line.rstrip(b"\r").rpartition(b"\r")[2])  # as a terminal shows it
        return True

    def close(self) -> None:
        """Take the last line in, though it has no end."""
        if self._rest:
            self.known.look([self._rest])
            self._take(self._rest)
        self._rest = b""
        self.known.over()

    def curve(self) -> dict[str, object]:
        """Return the rewards by step, and how many steps there are where the job told it."""
        return {"steps": self._of, "points": [[*point] for point in self._points]}

    def tail(self) -> list[str]:
        """Return the last lines, without a secret or a control character in them."""
        return [printable(self._clean(line)) for line in [*self._last]]

    def _take(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode(errors="replace")
        self._last.append(line[:_LONGEST_SHOWN])
        found = point_in(line)
        if found is None:
            return
        point, of = found
        self._of = of or self._of
        points = self._points
        if points and point.step <= points[-1].step:  # another attempt goes on from a checkpoint
            points = [one for one in points if one.step < point.step]
        points = [*points, point]
        if len(points) > MOST_POINTS:
            points = [*points[:-1:2], point]
        self._points = points
