"""The job's output: known error lines, the reward curve and the last lines."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.base.text import escaped
from agent.decisions.shared import place, shortened
from agent.diagnosis.find_cause import LONGEST, NEAR, Log, find_known_lines, plain_lines, table
from agent.job.progress import ProgressReader, StepSeen, meant
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.decisions.shared import Known


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
        line = shortened(self._clean(known.line))
        cause = self._clean(known.cause)
        cleaned = replace(known, line=line, cause=cause)
        self._found[known.key] = node, cleaned
        say(cleaned.sentence(node), "info" if known.is_noise else "warning")

    @property
    def causes(self) -> tuple[Known, ...]:
        """Return the known lines in this node's output, without noise."""
        lines = [*self._found.values()]
        return tuple(known for node, known in lines if not node and not known.is_noise)

    def warnings(self) -> list[dict[str, str]]:
        """Return the warnings for `/status`."""
        warnings = []
        for node, known in [*self._found.values()]:
            if known.is_noise:
                continue
            cause = f"{node}: {known.cause}" if node else known.cause
            what = f"{cause}{place('', known.rank)} ({known.line})"
            warnings.append({"check": "job output", "what": what, "remedy": known.what_to_do})
        return warnings


MOST_POINTS = 600  # A longer curve is thinned out
MOST_LINES = 40
_LONGEST_LINE = 32_768
_LONGEST_SHOWN = 400


class JobLines:
    """Collects the job's output; one thread writes, others read."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self.known = KnownLines(clean)
        self.last_output: float | None = None  # time of the last output on the monotonic clock
        self._rest = b""
        self._reader = ProgressReader()
        self._points: list[tuple[int, float]] = []
        self._last: deque[str] = deque(maxlen=MOST_LINES)
        self._steps: int | None = None
        self._has_failed = False

    def write(self, data: bytes, _may_try_again: Callable[[float], bool]) -> bool:
        """Add a piece of output; a failure in a line is logged once and ends nothing."""
        self.last_output = time.monotonic()
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines = [*lines, rest]
            rest = b""
        self._rest = rest
        self._read(lines)
        return True

    def close(self) -> None:
        """Add the last line, which has no line end."""
        if self._rest:
            self._read([self._rest])
        self._rest = b""

    def begin_attempt(self) -> None:
        """Log the known lines of the next attempt again."""
        self.known = KnownLines(self._clean)
        self._reader = ProgressReader()

    def curve(self) -> dict[str, object]:
        """Return the rewards by step, and the number of steps if known."""
        return {"steps": self._steps, "points": [[*point] for point in self._points]}

    def tail(self) -> list[str]:
        """Return the last lines, masked and without control characters."""
        return [escaped(line) for line in [*self._last]]

    def _read(self, lines: list[bytes]) -> None:
        """Read whole lines: a defect here must not end what follows the job's progress."""
        if lines:
            self._try(self.known.scan, lines)
        for line in lines:
            # as a terminal shows it
            self._try(self._take, line.rstrip(b"\r").rpartition(b"\r")[2])

    def _try(self, read: Callable[[Any], None], data: object) -> None:
        try:
            read(data)
        except Exception as error:  # noqa: BLE001 - whatever an expression or a number raises
            if not self._has_failed:
                self._has_failed = True
                why = escaped(f"{type(error).__name__}: {error}"[:_LONGEST_SHOWN])
                say(f"a bug: a line of the job's output cannot be read ({why})", "warning")

    def _take(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode(errors="replace")
        # masked before it is cut: a part of a secret is not recognized
        self._last.append(self._clean(line[: 5 * _LONGEST_SHOWN])[:_LONGEST_SHOWN])
        for seen in self._reader.read(line, time.monotonic()):
            if isinstance(seen, StepSeen):
                self._add_step(seen)

    def _add_step(self, seen: StepSeen) -> None:
        """Add a point; another attempt resumes from a checkpoint: its steps replace former ones."""
        self._steps = seen.of or self._steps
        reward = meant("reward", seen.metrics)
        if reward is None:
            return
        step = seen.step
        points = self._points
        if points and step <= points[-1][0]:
            points = [point for point in points if point[0] < step]
        if len(points) >= MOST_POINTS:
            points = points[::2]
        self._points = [*points, (step, reward)]
