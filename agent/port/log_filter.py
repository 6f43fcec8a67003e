"""Select lines of a log: the last ones, those that match, those since a time."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone
from typing import NamedTuple

from agent.settings import values

_FULL = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,]\d+)? ?(Z|[+-]\d\d:\d\d)?")
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\b", re.ASCII)
_SEARCHED = 200  # Characters of a line in which its time is looked for


class LogFilter(NamedTuple):
    """Which lines of a log to print; None for all."""

    last: int | None = None
    pattern: re.Pattern[str] | None = None
    since: datetime | None = None

    def apply(self, text: str, end: datetime) -> str:
        """Return the selected lines; `end` is when the log was written."""
        lines = text.splitlines(keepends=True)
        if self.since is not None:
            lines = _since(lines, self.since, end)
        if self.pattern is not None:
            lines = [line for line in lines if self.pattern.search(line)]
        if self.last is not None:
            lines = lines[len(lines) - min(self.last, len(lines)) :]
        return "".join(lines)


def _since(lines: list[str], start: datetime, end: datetime) -> list[str]:
    """Return the lines since a time, all where none has one; one without belongs to the former."""
    times = []
    later = end
    for line in reversed(lines):  # each is at most as late as the one that follows
        written = _full_time(line) or _clock_time(line, later)
        later = written or later
        times.append(written)
    if not any(times):
        return lines
    for at, written in enumerate(reversed(times)):
        if written and written >= start:
            return lines[at:]
    return []


def _full_time(line: str) -> datetime | None:
    match = _FULL.search(line[:_SEARCHED])
    if match is None:
        return None
    zone = (match[3] or "").replace("Z", "+00:00")
    try:
        written = datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}")
        return written.astimezone(timezone.utc)  # one without a zone is local
    except (ValueError, OverflowError):  # numbers that are no time, or one outside the calendar
        return None


def _clock_time(line: str, later: datetime) -> datetime | None:
    """Return the time of a line of the agent, which begins with the time of day in UTC."""
    match = _CLOCK.match(line)
    if match is None:
        return None
    written = datetime.combine(later, time.fromisoformat(match[0]), later.tzinfo)
    try:
        if written > later + timedelta(minutes=1):  # it was before midnight
            written -= timedelta(days=1)
    except OverflowError:  # a job printed a time at the end of the calendar
        return None
    return written


def time_since(text: str, now: datetime | None = None) -> datetime:
    """Read `--since`: a duration before now, or a time; raises ValueError."""
    try:
        return (now or datetime.now(timezone.utc)) - timedelta(seconds=values.duration(text))
    except ValueError:
        pass
    since = _full_time(text if ":" in text else f"{text}T00:00:00")
    if since is None:
        raise ValueError(f"{text!r} is neither a duration (10m) nor a time (2026-11-23T10:52:16Z)")
    return since
