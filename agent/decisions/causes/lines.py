"""Log lines: their prefixes, ranks, levels and times, and which rows match them."""

from __future__ import annotations

from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from agent.base.text import without_controls
from agent.decisions.causes.row import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.decisions.causes.row import Cause, Words

LONGEST = 2_000
"""Characters of a line that are searched."""
NEAR = 14
"""Lines before a match that `Words.near` may match."""
_STAMP = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"
_PREFIX = (
    r"\s*(?:"
    r"\((?P<who>[\w.:<>/ -]{1,60}?)(?: \w+=\w+){0,3} pid=\d+(?:, ip=(?P<ip>[\w.:]+))?\)"
    r"|\((?:raylet|autoscaler|gcs_server)[^)]{0,60}\)"
    r"|\[(?:rank|default|Rank )(?P<rank>\d+)\]:?"
    r"|\[[EWIF]\s?\d{0,4}[^\]]{0,60}\.(?:cpp|cc|h|hpp|py):\d+\]"
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d[^\]]{0,80}\]"
    r"|(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d(?: \[[^\]]{1,60}\])?"
    rf"|\[{_STAMP}[^\]]{{0,40}}\]"
    rf"|{_STAMP}"
    r"|(?:ERROR|CRITICAL|Error)(?::[\w.]+)?:(?= )"
    r"|\[(?:ERROR|WARNING|INFO|error)\]"
    r"|\[[\w./-]{1,40}:\d+:\w{1,60}\]"
    r"|[\w.-]{1,40}\.(?:cc|py|h):\d+\]?:?(?: --)?"
    r"|(?:[\w.-]{1,60}: )?\d{1,4}: (?=\S)"
    r"|[-|:](?= )|ERROR(?= )"
    r")\s?"
)
"""What a launcher, Ray or a logger writes before a program's own line."""
_RANK = (
    r"\[(?:rank|Rank |default)(?P<a>\d+)\]|\brank=(?P<b>\d+)|\[Rank (?P<c>\d+)\]"
    r"|\((?:\w+) (?:TP|DP)?\w* ?rank=(?P<d>\d+)"
)
_MILD = (
    r"(?<!NCCL )\bWARN(?:ING)?\b|^\W*(?:rank\d+\]:)?\[?W\d{3,4} |\b(?:INFO|DEBUG|NOTICE)\b"
    r"|\w{4,}Warning: "
)
_NCCL_WARN = r"\.(?:h|cc|cu):\d+ (?:NCCL )?WARN\b"
_HANDLED = (
    r"(?i)"
    r"\bretrying\b|\bwill retry\b|\bfalling back\b|\bfallback\b|\bskipping\b|\bignor(?:ed|ing)\b"
    r"|\btrying (?:again|the next|another)\b|\bretry loop\b|\battempt \d+ ?(?:/|of) ?\d+"
)
_PROGRESS = (
    r"\bstep:\d+ - |\bGlobal step \d+: \{|\bstep \d+/\d+ |\{'loss': |\bTrain epoch \["
    r"|\biteration +\d+/ *\d+ \||\bEpoch: \[\d+\]\[ *\d+/\d+\]"
)
_TIME = (
    r"(?:\d{4}-(?P<mo>\d\d)-(?P<d>\d\d)[ T_]|\[?[EWIF](?P<mo2>\d{1,2})(?P<d2>\d\d) "
    r"|(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<d3>\d{1,2}) "
    r"|\b(?P<mo4>\d\d)-(?P<d4>\d\d) )(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def plain_lines(text: str) -> list[str]:
    """Split a log into lines without control characters, as a terminal shows them."""
    lines = without_controls(text.replace("\r\n", "\n")).split("\n")
    return [
        (line if "\r" not in line else line.rstrip("\r").rpartition("\r")[2])[:LONGEST]
        for line in lines
    ]


def body_of(line: str) -> str:
    """Return a line without the prefixes of launchers, Ray and loggers."""
    at = 0
    for _ in range(6):
        found = compiled(_PREFIX).match(line, at)
        if found is None or found.end() == at:
            break
        at = found.end()
    return line[at:].lstrip(" ") if at else line


def rank_of(line: str) -> int | None:
    """Return the rank that a line names in its prefix."""
    found = compiled(_RANK).search(line[:200])
    return None if found is None else int(next(filter(None, found.groups())))


def is_mild(line: str) -> bool:
    """Return whether a line is a warning or less, or speaks of another try."""
    return _is_low(line) or compiled(_HANDLED).search(line) is not None


_LOW = ("INFO", "WARN", "Warning", "DEBUG", "NOTICE", "[W", "W1", "W0")


def _is_low(line: str) -> bool:
    head = line[:160]
    if ".h:" in head or ".cc:" in head or ".cu:" in head:
        head = compiled(_NCCL_WARN).sub("", head)
    return any(word in head for word in _LOW) and (compiled(_MILD).search(head) is not None)


def time_of(line: str) -> tuple[int, ...] | None:
    """Return the time of a line as month, day, hour, minute and second."""
    found = compiled(_TIME).search(line[:120])
    if found is None:
        return None
    month = found["mo"] or found["mo2"] or found["mo4"]
    number = int(month) if month else _MONTHS.index(found["name"]) // 3 + 1
    day = found["d"] or found["d2"] or found["d3"] or found["d4"]
    return number, int(day), int(found["h"]), int(found["m"]), int(found["s"])


def last_progress(lines: Sequence[str]) -> int:
    """Return the index of the last line that a training step prints; -1 without one."""
    for index, line in zip(count(len(lines) - 1, -1), reversed(lines), strict=False):
        if ("step" in line or "loss" in line or "poch" in line or "iter" in line) and (
            compiled(_PROGRESS).search(line) is not None
        ):
            return index
    return -1


class Rows:
    """Rows in order, with the signs of their messages: most signs are in no line."""

    def __init__(self, rows: Sequence[Cause]) -> None:
        self._rows = rows

    @cached_property
    def signs(self) -> tuple[tuple[Cause, Words, str, bool], ...]:
        """Return each message with its sign, and whether a warning counts."""
        words = ((row, one) for row in self._rows for one in row.words)
        return tuple((row, one, one.sign, one.mild) for row, one in words)


def matches(lines: Sequence[str], rows: Rows) -> dict[int, Cause]:
    """Return the first row that matches each line, by the line's index."""
    found: dict[int, Cause] = {}
    bodies: dict[int, str] = {}
    loud = [at for at, line in enumerate(lines) if not _is_low(line)]
    text, loud_text = "\n".join(lines), "\n".join([lines[at] for at in loud])
    places: dict[tuple[str, bool], list[int]] = {}
    for row, words, sign, is_mild_too in rows.signs:
        if sign not in (text if is_mild_too else loud_text):
            continue
        place = (sign, is_mild_too)
        if place not in places:
            chosen = range(len(lines)) if is_mild_too else loud
            places[place] = [at for at in chosen if sign in lines[at]]
        for at in places[place]:
            line = lines[at]
            if at in found or (at and _is_frame(lines[at - 1])):
                continue  # below a frame stands its line of code, which may quote a message
            if at not in bodies:
                bodies[at] = body_of(line)
            before = _before(lines, at) if words.near else ""
            if words.match(line, bodies[at], before) and (
                is_mild_too or compiled(_HANDLED).search(line) is None
            ):
                found[at] = row
    return found


def _is_frame(line: str) -> bool:
    return 'File "' in line and body_of(line).lstrip().startswith('File "')


def _before(lines: Sequence[str], at: int) -> str:
    """Return the lines before one, without those that name much in passing."""
    near = lines[max(0, at - NEAR) : at]
    return "\n".join(
        line
        for line in near
        if compiled(_PROGRESS).search(line) is None
        and "Error executing job with overrides" not in line
    )
