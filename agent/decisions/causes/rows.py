"""The rows of rows.toml (causes of failures with their messages), and lines that they match."""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent.base.text import parse_toml, without_controls
from agent.base.value import Value
from agent.decisions.values import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ANY = "…"  # any text in the words of a message; `^` at their start is the start of a line
LONGEST = 2_000  # characters of a line that are searched
_SEARCHED = 1_000  # those of them that `only` and `unless` search
NEAR = 14  # lines before a match that `Words.near` may match
_ERROR = r"\W{0,6}(?:[A-Za-z_][\w.]{0,120})?(?:[Ee]rror|Exception|Timeout\w*|Disconnected|ERROR)\b"
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


class Weight(IntEnum):
    """How much a row explains; in one log the greatest weight wins."""

    LAST = 0  # how a process ended. It counts only where the log has nothing else
    WEAK = 1
    """A service that does not answer, or a process that was killed. Most causes lead to these."""
    CAUSE = 2
    ROOT = 3  # of hardware, kernel or scheduler: often printed last, and explains the rest


class Again(Enum):
    """Whether another try may help."""

    YES = "yes"
    NO = "no"
    EITHER = "either"  # the log alone does not show it


class Words(Value, forbid_unknown_fields=True):
    """One message, as some version of a program prints it; rows.toml explains the fields."""

    text: str
    example: str
    error: bool = False
    near: str = ""
    only: str = ""
    unless: str = ""
    mild: bool = False

    @property
    def sign(self) -> str:
        """Return the longest part that each matching line contains."""
        return max(_parts(self.text), key=len)

    def match(self, line: str, body: str, before: str) -> bool:
        """Return whether a line matches; `body` is the line without the prefixes of a launcher."""
        at, is_at_start = 0, self.text.startswith("^")
        if is_at_start and not body.startswith(_parts(self.text)[0]):
            return False
        for one in _parts(self.text):
            at = (body if is_at_start else line).find(one, at)
            if at < 0:
                return False
            at += len(one)
        return (
            (not self.error or compiled(_ERROR).match(body) is not None)
            and (not self.only or compiled(self.only).search(line, 0, _SEARCHED) is not None)
            and (not self.unless or compiled(self.unless).search(line, 0, _SEARCHED) is None)
            and (not self.near or compiled(self.near).search(f"{before}\n{line}") is not None)
        )


class Cause(Value, forbid_unknown_fields=True):
    """A row of rows.toml: a cause, its remedy, and the messages that show it."""

    key: str
    cause: str  # may name groups of `reads` in braces
    what_to_do: str
    words: tuple[Words, ...]
    sources: tuple[str, ...]
    labels: tuple[str, ...] = ()
    weight: Weight = Weight.CAUSE
    again: Again = Again.EITHER
    after_loss: bool = False
    reads: str = ""  # a regular expression whose named groups fill `cause` and `what_to_do`
    is_live: bool = True
    of_ray: bool = False

    def match(self, line: str, body: str, before: str = "") -> bool:
        """Return whether a line shows this cause."""
        return any(words.match(line, body, before) for words in self.words)

    def filled(self, line: str) -> tuple[str, str]:
        """Return the cause and the remedy with the names in a line."""
        if not self.reads:
            return self.cause, self.what_to_do
        found = compiled(self.reads).search(line)
        names = compiled(self.reads).groupindex
        values = {name: (found and found[name]) or "?" for name in names}
        return self.cause.format(**values), self.what_to_do.format(**values)


@cache
def _parts(text: str) -> tuple[str, ...]:
    return tuple(text.removeprefix("^").split(ANY))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile an expression at its first use: most rows never need theirs."""
    return re.compile(pattern)


Signs = tuple[tuple[Cause, Words, str], ...]
"""The messages of rows in order, each with its sign: most signs are in no line."""


class KnownRows(Value):
    """All rows; of several that match a line, the first one counts."""

    noise: tuple[Cause, ...]
    causes: tuple[Cause, ...]
    symptoms: tuple[Cause, ...]
    all_rows: Signs
    noise_rows: Signs
    symptom_rows: Signs
    cause_keys: frozenset[str]
    live_keys: frozenset[str]  # the keys of the rows that are reported while the job runs


@cache
def table() -> KnownRows:
    """Return the table, read at its first use: most runs start before they need it."""
    data = parse_toml(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
    noise, causes, symptoms = (
        tuple(_row(row, data["patterns"]) for row in data[kind])
        for kind in ("noise", "cause", "symptom")
    )
    rows = (*noise, *causes, *symptoms)
    return KnownRows(
        *(noise, causes, symptoms, _signs(rows), _signs(noise), _signs(symptoms)),
        cause_keys=frozenset(row.key for row in causes),
        live_keys=frozenset(row.key for row in rows if row.is_live),
    )


def _signs(rows: Iterable[Cause]) -> Signs:
    return tuple((row, words, words.sign) for row in rows for words in row.words)


def _row(row: Mapping[str, Any], patterns: Mapping[str, str]) -> Cause:
    def full(expression: str) -> str:
        return re.sub(r"<([a-z_]+)>", lambda found: patterns[found[1]], expression)

    words = [
        {name: full(v) if name in {"near", "only", "unless"} else v for name, v in one.items()}
        for one in row["words"]
    ]
    weight = Weight[row.get("weight", "cause").upper()]
    return msgspec.convert({**row, "words": words, "weight": weight}, Cause)


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
    for at in reversed(range(len(lines))):
        is_likely = any(word in lines[at] for word in ("step", "loss", "poch", "iter"))
        if is_likely and compiled(_PROGRESS).search(lines[at]) is not None:
            return at
    return -1


def matches(lines: Sequence[str], signs: Signs) -> dict[int, Cause]:
    """Return the first row that matches each line, by the line's index."""
    found: dict[int, Cause] = {}
    bodies: dict[int, str] = {}
    loud = [at for at, line in enumerate(lines) if not _is_low(line)]
    text, loud_text = "\n".join(lines), "\n".join([lines[at] for at in loud])
    places: dict[tuple[str, bool], list[int]] = {}
    for row, words, sign in signs:
        if sign not in (text if words.mild else loud_text):
            continue
        place = (sign, words.mild)
        if place not in places:
            chosen = range(len(lines)) if words.mild else loud
            places[place] = [at for at in chosen if sign in lines[at]]
        for at in places[place]:
            line = lines[at]
            if at in found or (at and _is_frame(lines[at - 1])):
                continue  # below a frame stands its line of code, which may quote a message
            if at not in bodies:
                bodies[at] = body_of(line)
            is_open = words.mild or compiled(_HANDLED).search(line) is None
            if is_open and words.match(line, bodies[at], _before(lines, at) if words.near else ""):
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


def find_known_lines(
    lines: Sequence[bytes], reported: Iterable[str] = (), before: Sequence[str] = ()
) -> list[Known]:
    """Return the known lines among these, each row once, without rows already reported.

    `before` are the lines before them, which may show what an error is about.
    """
    rows = table()
    texts = [*before, *plain_lines(b"\n".join(lines).decode(errors="replace"))]
    found, seen = [], {*reported}
    for at, row in sorted(matches(texts, rows.all_rows).items(), key=lambda one: one[0]):
        if at < len(before) or row.key in seen or row.key not in rows.live_keys:
            continue
        seen.add(row.key)
        cause, what_to_do = row.filled(texts[at])
        line, rank = texts[at].strip(), rank_of(texts[at])
        is_noise, is_symptom = row in rows.noise, row in rows.symptoms
        found.append(Known(row.key, line, cause, what_to_do, is_noise, is_symptom, rank))
    return found
