"""Write out the logs of a held-out case: prefixes, ordinary lines, and frames that repeat."""

from __future__ import annotations

import json
import re
import zlib
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.diagnosis.errors.prefixes import read_line, seconds_of
from causes.ordinary.lines import compose

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HELD_OUT = Path(__file__).resolve().parents[3] / "tests" / "causes" / "held_out"


class Text(NamedTuple):
    """The text of a log, and where the output of its last attempt begins."""

    text: str
    begins: int


def written(source: str, case: str) -> Text:
    """Write a case's log out: the directives are in tests/causes/README.md."""
    lines: list[str] = []
    prefixes: list[str] = []
    begins = 0
    begin = _first_time(source)
    for number, line in enumerate(source.strip("\n").split("\n")):
        word, _, rest = line.removeprefix("%% ").partition(" ")
        if not line.startswith("%% "):
            added = [line]
        elif word == "prefix":
            prefixes.append(json.loads(rest))
            continue
        elif word == "end":
            prefixes.pop()
            continue
        elif word == "attempt":
            begins = sum(len(one.encode()) + 1 for one in lines)
            continue
        elif word == "frames":
            added = _part("frames", rest)
        else:
            count, style = rest.split()
            seed = zlib.crc32(f"{case} {number}".encode())
            templates = [marked(line) for line in _part("noise", style)]
            added = compose(int(count), seed, templates)
            added = [timed(one, at, begin) for at, one in enumerate(added, -len(added))]
        before = "".join(prefixes)
        lines += [before + one for one in added]
    return Text("\n".join(lines) + "\n", begins)


_TIMES = re.compile(r"<mmdd> <clock>|<(stamp|vtime|clock|mmdd)>")
_FORMATS = {
    "stamp": "%Y-%m-%d %H:%M:%S",
    "vtime": "%m-%d %H:%M:%S",
    "clock": "%H:%M:%S",
    "mmdd": "%m%d",
    "<mmdd> <clock>": "%m%d %H:%M:%S",
}
_MARK = re.compile("\x00([^\x00]*)\x00")
_FIRST = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[T_ ](\d\d):(\d\d):(\d\d)")
_OF_DATE = re.compile(r"^\w{3} (\w{3} [ \d]\d \d\d:\d\d:\d\d) [A-Z]{3,4} (\d{4})$", re.MULTILINE)
"""What the command `date` prints."""
_NEW_YEAR = datetime(2026, 1, 1)  # noqa: DTZ001 - the time of a log, of no zone
_EARLY = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - the time of a log, of no zone


def _first_time(source: str) -> datetime:
    """Return the first time that a case's own lines show: its ordinary lines are earlier."""
    found = _FIRST.search(source)
    of_date = _OF_DATE.search(source)
    if of_date is not None and (found is None or of_date.start() < found.start()):
        return datetime.strptime(f"{of_date[1]} {of_date[2]}", "%b %d %H:%M:%S %Y")  # noqa: DTZ007 - as above
    if found is None:
        return _EARLY
    year, *rest = found.groups()
    month, day, hour, minute, second = map(int, rest)
    return datetime(int(year or 2026), month, day, hour, minute, second)  # noqa: DTZ001 - as above


def time_near(lines: Sequence[str], place: int, beside: Sequence[str] = ()) -> datetime:
    """Return the time that the nearest line states: the last one before a place, else the next.

    A log without a time is as old as the last line of the logs beside it.
    """
    stated = next(_times(chain(reversed(lines[:place]), lines[place:])), None)
    if stated is None:
        last = next(_times(reversed(beside)), None)
        stated = None if last is None else last + 1
    return _EARLY if stated is None else _NEW_YEAR + timedelta(seconds=stated)


def first_time(texts: Iterable[str]) -> float:
    """Return the first time that a program states in some logs, in seconds since 1970."""
    stated = min(
        filter(None, (next(_times(text.split("\n")), None) for text in texts)), default=0.0
    )
    return (_NEW_YEAR.replace(tzinfo=timezone.utc) + timedelta(seconds=stated)).timestamp()


def _times(lines: Iterable[str]) -> Iterator[float]:
    """Yield the times that programs state; those of the kernel are from before the log."""
    stamps = (read_line(line).stamp for line in lines)
    yield from filter(None, (seconds_of(stamp) for stamp in stamps if stamp[:1].isdigit()))


def marked(template: str) -> str:
    """Mark the times of a template, for `timed` to fill them."""
    return _TIMES.sub(lambda match: f"\x00{_FORMATS[match[1] or match[0]]}\x00", template)


def timed(line: str, seconds: int, begin: datetime) -> str:
    """Fill the times of a line: so many seconds after a time."""
    at = begin + timedelta(seconds=seconds)
    return _MARK.sub(lambda match: at.strftime(match[1]), line)


@lru_cache
def _part(kind: str, name: str) -> list[str]:
    """Return the lines of a file that cases share: ordinary lines, or frames of a traceback."""
    return (HELD_OUT / kind / f"{name}.txt").read_text(encoding="utf-8").splitlines()
