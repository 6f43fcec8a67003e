"""Take off what launchers, Ray and loggers write before a program's own line.

A line may have several prefixes: `(Worker pid=7, ip=10.0.0.3) [rank3]: ERROR 11-26 20:12:10
[core.py:123] …`. What they state is kept: process, rank, address, level, time and repeats.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from agent.diagnosis.errors.parsed_error import LogLevel

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 2_000  # characters of a line that are read
_MOST_LAYERS = 7
_LEVELS = {
    "T": LogLevel.DEBUG,
    "D": LogLevel.DEBUG,
    "I": LogLevel.INFO,
    "N": LogLevel.INFO,
    "S": LogLevel.INFO,
    "W": LogLevel.WARNING,
    "E": LogLevel.ERROR,
    "C": LogLevel.FATAL,
    "F": LogLevel.FATAL,
}
"""The level by its first letter: TRACE, DEBUG, INFO, NOTICE, SUCCESS, WARNING, ERROR, …"""
_NAMES = r"(?:TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_DAY = r"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_STAMP = rf"{_DAY}[ T_]{_CLOCK}{_ZONE}"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_FILE = r"[\w./-]{1,120}\.(?:py|cc|cpp|cu|h|hpp|go|rs|cuh)"
_GAP = rf"(?:[\t ](?!{_NAMES} {{1,8}}[^\s|:-]))?"
"""A blank behind a time; one before a level without a mark is left: `10:00:00 ERROR text`."""

# By the first character of what is left of a line, so that most expressions are never tried.
_PAREN = re.compile(
    r"\((?P<who>[\w.:<>/@-]{1,80}(?: [\w.:-]{1,40})?)(?:(?: |\[)rank=(?P<rank>\d{1,6})\]?)?"
    r"(?: \w+=\w+){0,3} pid=(?P<pid>\d{1,9})(?:, ip=(?P<ip>[\w.:]{3,45}))?\) ?"
    r"|\((?P<who3>[\w.-]{1,60}), rank=(?P<rank2>\d{1,6}), pid=(?P<pid3>\d{1,9})"
    r"(?:, ip=(?P<ip3>[\w.:]{3,45}))?\) ?"
    r"|\((?P<who2>raylet|gcs_server|autoscaler|dashboard|log_monitor)[^)]{0,60}\) ?"
    r"|\(pid=(?P<pid2>[\w.]{1,20})(?:, ip=(?P<ip2>[\w.:]{3,45}))?\) ?"
)
_BRACKET = re.compile(
    r"\[(?:rank[ =]?|Rank |default)(?P<rank>\d{1,6})\]:? ?"
    r"|\[(?P<role>[A-Za-z_]\w{0,30}?)(?P<local>\d{1,5})\|(?P<rank2>\d{1,6})\]: ?"
    r"|\[(?P<who>[A-Za-z_]\w{1,40}-\d{1,5}/\d{1,5})\] "
    r"|\[(?P<host>\d{1,5}\] \[\d{1,5})\] "  # Monarch's: of the process and of its host
    r"|\[\d{1,5},(?P<rank3>\d{1,6})\]<std(?:out|err)>: ?"
    rf"|\[(?P<time>{_STAMP})(?:[ ,]+(?P<letter>[DIWEFC])(?=[ ,\]]))?(?P<more>[^\]\n]{{0,60}})\]"
    rf"{_GAP}"
    rf"|\[(?:\d\d/\d\d/(?:\d{{4}}|\d\d) )?(?:{_CLOCK})\]{_GAP}"
    r"|\[(?P<letter2>[DIWEF])(?P<time2>\d{3,4} \d\d:\d\d:\d\d)[^\]]{0,120}\] ?"
    rf"|\[(?P<letter4>[DIWEF]) {_FILE}:\d{{1,6}}\] ?"
    rf"|\[(?P<time4>(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} [ \d]\d \d\d:\d\d:\d\d \d{{4}})\] ?"
    r"|\[ {0,6}\d{1,8}\.\d{1,6}\] ?"
    rf"|\[ ?(?P<level>{_NAMES}|(?i:error|warn(?:ing)?|info"
    rf"|debug)) {{0,3}}(?:\|[^\]]{{0,80}})?\] ?"
    rf"|\[NeMo (?P<letter3>[DIWEFC]) (?P<time3>{_DAY} \d\d:\d\d:\d\d)[^\]]{{0,80}}\] ?"
    rf"|\[(?:{_FILE}|[\w./-]{{1,60}}):\d{{1,6}}(?::[\w<>.]{{1,80}})?\] ?"
    r"|\[(?:launcher|torchrun|deepspeed|pid \d+)\] ?"
)
_DIGIT = re.compile(
    rf"(?P<time>{_STAMP}){_GAP}"
    rf"|(?P<time2>\d\d/\d\d/(?:\d{{4}}|\d\d) \d\d:\d\d:\d\d){_GAP}"
    rf"|(?P<time3>\d\d-\d\d {_CLOCK}){_GAP}"
    rf"|(?:{_CLOCK})(?=[ \t|]){_GAP}"
    r"|(?P<host2>\d[\w.-]{1,60}):\d{1,9}:\d{1,9} \[\d{1,3}\] ?"
    r"(?=(?:[\w./-]{1,80}:\d{1,7} )?NCCL )"
    r"|(?P<rank4>\d{1,5}): ?(?=[^\d])"
    r"|(?P<host>\d{1,3}(?:\.\d{1,3}){3}): (?=\S)"
)
_WORD = re.compile(
    rf"(?P<level>{_NAMES})(?: (?P<time3>\d\d-\d\d {_CLOCK}))(?: \[[^\]\n]{{1,80}}\])? ?"
    rf"|(?P<level2>{_NAMES}):(?:[\w.]{{1,80}}:)?(?: {{4}}| ?)"
    rf"|wandb: (?P<level5>{_NAMES}) ?"
    rf"|(?P<level3>{_NAMES})(?: {{1,8}}(?:\||-|(?={_FILE}:\d)) ?)"
    r"|(?P<letter>[DIWEF])(?P<time4>\d{4} \d\d:\d\d:\d\d)(?:\.\d{1,9})? [^\]\n]{1,120}?\] ?"
    rf"|(?P<time2>{_MONTH} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[\w.-]{{1,80}}) (?=\w)"
    rf"|{_FILE}:\d{{1,6}}(?:\]:?|:| --)? (?:-- )?"
    r"|(?P<host2>(?!E[A-Z0-9]\d{4}: )[A-Za-z][\w.-]{0,60}\d): (?=\S)"  # not Ascend's codes
    r"|(?P<host3>[A-Za-z][\w.-]{1,60}):\d{1,9}:\d{1,9} \[\d{1,3}\] ?"
    r"(?=(?:[\w./-]{1,80}:\d{1,7} )?NCCL )"
    r"|(?P<host4>[A-Za-z][\w.-]{0,60}[-_]\d{1,3}) {1,20}\| "
    r"|(?:kubelet|containerd|dockerd|crio)\[\d{1,9}\]: "
    r"|std(?:out|err) [FP] "
    r"|level=(?P<level4>\w{4,8}) msg=\"?"
    rf"|time=\"?(?P<time>{_STAMP})\"? ?"
)
_BETWEEN = re.compile(
    rf"[ \t]{{0,4}}(?:[-|>]{{1,2}} {{0,3}})?(?:(?P<level>{_NAMES}) {{0,8}}(?:[-|:]{{1,2}}"
    rf"|(?= [\w./]+:\d)) ?)"
    rf"|[ \t]{{1,4}}(?P<level3>{_NAMES}) {{1,8}}(?=\S)"
    r"|[ \t]?[-|] (?=\S)"
    r"|[ \t]{1,12}\|\| "
    r"|>> ?"
    rf"|[ \t]?(?:[\w.<>]{{1,80}}:[\w<>.]{{1,80}}:\d{{1,6}}"
    rf"|[\w.]{{1,80}}) - (?:(?P<level2>{_NAMES}) - )?"
)
"""What stands between the parts of a logger's prefix: only behind another prefix."""
_PICTURES = "\u203c\u2049\u2139\u231b\u23f0-\u23f3\u2600-\u27bf\u2b50\u2b55\U0001f300-\U0001faff"
_PICTURE = re.compile(
    rf"[{_PICTURES}]\ufe0f?(?:(?=[ \t]{{1,3}}{_NAMES}\b)|(?={_NAMES}:)| {{1,3}}(?=\[{_NAMES}\]))"
)
"""A picture before a level, which some loggers print."""
_FIRST_PICTURE = "\u2000"
_STATED = {
    pattern: tuple(name.rstrip("0123456789") for name in pattern.groupindex)
    for pattern in (_PAREN, _BRACKET, _DIGIT, _WORD, _BETWEEN, _PICTURE)
}
"""What the groups of each expression state, in their order: all of them have names."""
_REPEATED = re.compile(r" ?\[repeated (\d{1,9})x across cluster\].{0,200}$")
_INNER_RANK = re.compile(r"\b[Rr]ank[ =]?(\d{1,6})\b")
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_DIGITS = frozenset("0123456789")


_UNSTATED = LogLevel.UNSTATED


class PrintedLine(NamedTuple):
    """A line without its prefixes, and what these state."""

    body: str
    printed: str
    source: tuple[str, ...] = ()  # which process printed it, as far as prefixes show
    level: LogLevel = LogLevel.UNSTATED
    stamp: str = ""  # the time as printed
    rank: int | None = None
    pid: int | None = None
    actor: str = ""
    ip: str = ""
    repeated: int = 1


def read_line(printed: str) -> PrintedLine:
    """Take the prefixes off a line without control characters."""
    # Does it begin like a prefix? Most lines of most logs do not.
    text = printed[:LONGEST]
    match = _layer(text, 0)
    if match is None and "[repeated " not in text:
        level = LogLevel.INFO if text.startswith(("NCCL INFO", "NCCL TRACE")) else _UNSTATED
        return PrintedLine(text, text, level=level)

    # Take off one after another.
    at = 0
    layers: list[re.Match[str]] = []
    while match is not None and match.end() > at and len(layers) < _MOST_LAYERS:
        at = match.end()
        layers.append(match)
        match = _layer(text, at)
    body = text[at:]

    # Ray says at the end how often it left the line out.
    repeated = 1
    if "[repeated " in body:
        again = _REPEATED.search(body)
        if again is not None:
            repeated = int(again[1])
            body = body[: again.start()]
    return _stated(layers, PrintedLine(body, text, repeated=repeated))


def _stated(layers: Sequence[re.Match[str]], line: PrintedLine) -> PrintedLine:
    """Add to a line what its prefixes state, from the outermost one on."""
    source: list[str] = []
    level = _UNSTATED
    stamp = ""
    number: dict[str, int] = {}
    name: dict[str, str] = {}
    for match in layers:
        for what, value in zip(_STATED[match.re], match.groups(), strict=True):
            if not value:
                continue
            if what in {"level", "letter"}:
                level = _LEVELS.get(value[0].upper(), level)
            elif what == "time":
                stamp = stamp or value
            elif what == "rank":
                number[what] = int(value)
                source.append(f"rank {value}")
            elif what in {"who", "ip", "pid", "host"}:
                name.setdefault(what, value)
                source.append(value)
            elif what == "more" and (inner := _INNER_RANK.search(value)) is not None:
                number.setdefault("rank", int(inner[1]))
    if line.body.startswith(("NCCL INFO", "NCCL TRACE")):
        level = LogLevel.INFO
    return PrintedLine(
        line.body,
        line.printed,
        tuple(dict.fromkeys(source)),
        level,
        stamp,
        number.get("rank"),
        int(name["pid"]) if name.get("pid", "").isdigit() else None,
        name.get("who", ""),
        name.get("ip", ""),
        line.repeated,
    )


def _layer(text: str, at: int) -> re.Match[str] | None:
    """Return the prefix at a place, if there is one."""
    first = text[at : at + 1]
    match: re.Match[str] | None = None
    if first == "(":
        match = _PAREN.match(text, at)
    elif first == "[":
        match = _BRACKET.match(text, at)
    elif first in _DIGITS:
        match = _DIGIT.match(text, at)
    elif first in _LETTERS:
        match = _WORD.match(text, at)
    elif first > _FIRST_PICTURE:
        match = _PICTURE.match(text, at)
    if match is None and at:
        match = _BETWEEN.match(text, at)
    return match


# --- times ---------------------------------------------------------------------------------------

_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DATE = re.compile(
    r"(?:\d{4}[-/](?P<m1>\d\d)[-/](?P<d1>\d\d)[ T_]"
    r"|(?P<m2>\d\d)/(?P<d2>\d\d)/\d{2,4} "
    r"|(?P<m3>\d\d)-(?P<d3>\d\d) "
    r"|(?P<m4>\d{1,2})(?P<d4>\d\d) "
    rf"|(?:\w{{3}} )?(?P<name>{_MONTH}) (?P<d5>[ \d]\d) )"
    r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<part>\d{1,9}))?"
)


def seconds_of(stamp: str) -> float | None:
    """Return a printed time as seconds since the year began; None where no day is stated.

    Many loggers leave the year out, so that it cannot be compared.
    """
    read = _DATE.match(stamp)
    if read is None:
        return None
    if read["name"]:
        month = _MONTHS.index(read["name"]) // 3 + 1
    else:
        month = int(read["m1"] or read["m2"] or read["m3"] or read["m4"])
    day = int(read["d1"] or read["d2"] or read["d3"] or read["d4"] or read["d5"])
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    days = _BEFORE_MONTH[month - 1] + day - 1
    part = float(f"0.{read['part']}") if read["part"] else 0.0
    return days * 86_400 + int(read["h"]) * 3_600 + int(read["m"]) * 60 + int(read["s"]) + part


def clock_text(seconds: float | None) -> str:
    """Return a time within the year as month, day and time of day; '' for none."""
    if seconds is None:
        return ""
    days, rest = divmod(max(0, int(seconds)), 86_400)
    month = next(at for at in range(12, 0, -1) if days >= _BEFORE_MONTH[at - 1])
    day = days - _BEFORE_MONTH[month - 1] + 1
    return f"{month:02}-{day:02} {rest // 3_600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
