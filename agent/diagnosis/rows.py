"""Rows of rows.toml: each matches parsed errors by words and frames, with its cause."""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from functools import cache, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec.structs import replace

from agent.base.typed import convert
from agent.base.value import Value
from agent.diagnosis.cause import Cause
from agent.diagnosis.errors.forms import FRAME, is_about_an_error
from agent.diagnosis.errors.log_parser import Signs
from agent.diagnosis.errors.parsed_error import LogLevel
from agent.diagnosis.errors.prefixes import read_line
from agent.diagnosis.frame_text import frame_text, place_of, user_of
from agent.diagnosis.gpu_memory import holder_of_gpu_memory
from agent.diagnosis.rows_file import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.diagnosis.errors.parsed_error import ParsedError

ANY = "…"  # any text in the words of a message; `^` at their start is the start of a line
# Characters to which an expression is applied: some take the square of a text's length.
MOST_SEARCHED = 1_000  # by `only` and `unless`
MOST_READ = 2_000  # by `reads`
MOST_AROUND = 4_000  # by `near` and `caller`
MOST_ASKED = 4_000  # by `asks`
_MOST_TEXTS = 512  # whose rows are kept
_MOST_WORDS = 8_192  # the same of words
_WORD = r"[^\W\d]\w*"
_LINES_BEFORE = 4  # that may show who uses a library
_CALLERS = 4  # innermost frames that show who asked
_CARRIES = re.compile(
    r"/(?:requests|urllib3|httpx|httpcore|aiohttp|openai|anthropic|anyio|tenacity|backoff|retrying)/"
    r"|/lib/python3[\d.]*/(?!site-packages|dist-packages)|^<"
)
"""Files of clients and of Python itself, which carry a request for who asks."""
_LONGEST_NAME = 60  # characters of a name from a line that a sentence repeats
_NAME = re.compile(r"\{(\w{1,40})\}")
_LONGEST_WORDS = 110  # the same of several words
_ERROR = r"\W{0,6}(?:[A-Za-z_][\w.]{0,120})?(?:[Ee]rror|Exception|Timeout\w*|Disconnected|ERROR)\b"


class Weight(IntEnum):
    """How much a row explains; in one log the greatest weight wins."""

    LAST = 0  # how a process ended. It counts only where the log has nothing else
    WEAK = 1  # a service that does not answer, or a killed process: most causes lead to these
    CAUSE = 2
    ROOT = 3  # of hardware, kernel or scheduler: often printed last, and explains the rest


class Again(Enum):
    """Whether another try may help."""

    YES = "yes"
    NO = "no"
    EITHER = "either"  # the log alone does not show it


class Words(Value, forbid_unknown_fields=True):
    """One message, as some version of a program prints it; rows.toml explains the fields."""

    example: str
    text: str = ""
    type: str = ""
    error: bool = False
    near: str = ""
    caller: str = ""
    only: str = ""
    unless: str = ""
    mild: bool = False

    def match_error(self, error: ParsedError) -> bool:
        """Return whether an error matches."""
        if self.type and not _is_type(error.type, self.type):
            return False
        if error.level < LogLevel.UNSTATED and not self.mild:
            return False
        before = _nearby(error) if self.near else _callers(error)
        return self.match(error.text, error.line, before)

    def match(self, line: str, body: str, before: Iterable[str]) -> bool:
        """Return whether a line matches; `body` is the line without the prefixes of a launcher.

        `before` is read last, and only where an expression is for it.
        """
        # Does it have the words, in their order?
        parts = _parts(self.text)
        is_at_start = self.text.startswith("^")
        if is_at_start and not body.startswith(parts[0]):
            return False
        searched = body if is_at_start else line
        at = 0
        for part in parts:
            at = searched.find(part, at)
            if at < 0:
                return False
            at += len(part)

        # Do the expressions allow it?
        is_allowed = (
            (not self.error or compiled(_ERROR).match(body) is not None)
            and (not self.only or compiled(self.only).search(line, 0, MOST_SEARCHED) is not None)
            and (not self.unless or compiled(self.unless).search(line, 0, MOST_SEARCHED) is None)
        )
        around = self.near or self.caller
        if not is_allowed or not around:
            return is_allowed
        lines = "\n".join(before)
        nearby = f"{lines}\n{line[:MOST_SEARCHED]}"[-MOST_AROUND:]
        return compiled(around).search(nearby) is not None


def _nearby(error: ParsedError) -> Iterator[str]:
    """Yield what shows who fails: the frames, or a few lines before if all are a library's."""
    yield from error.stack()
    if not error.frames:
        yield from error.before
    elif all("-packages/" in frame.file or "/lib/python" in frame.file for frame in error.frames):
        yield from error.before[-_LINES_BEFORE:]


def _callers(error: ParsedError) -> Iterator[str]:
    """Yield the innermost frames of who asked for something: outer ones may do much else."""
    asking = [frame for frame in error.frames if _CARRIES.search(frame.file) is None]
    if not asking:
        yield from [line for line in error.before if FRAME.match(line)][-_LINES_BEFORE:]
        yield from error.before[-_LINES_BEFORE:]
        return
    yield from replace(error, frames=tuple(asking[-_CALLERS:])).stack()


def _is_type(printed: str, wanted: str) -> bool:
    """Return whether a type has a name, with or without its module."""
    return printed == wanted or printed.endswith(f".{wanted}")


class Case(Value, forbid_unknown_fields=True):
    """A special case of a row: its sentences count where `asks` matches."""

    asks: str
    cause: str = ""  # '' for that of the row
    what_to_do: str = ""


class Row(Value, forbid_unknown_fields=True):
    """A row of rows.toml: a cause, its remedy, and the errors that show it."""

    kind: Literal["noise", "cause", "symptom"]
    key: str
    cause: str  # may name groups of `reads` and `asks` in braces
    what_to_do: str
    words: tuple[Words, ...]
    sources: tuple[str, ...]
    asks: str = ""  # a regular expression for `frame_text`, which it must match
    cases: tuple[Case, ...] = ()  # the first one whose `asks` matches counts
    states_memory: bool = False  # the numbers of torch give the sentences where they can
    labels: tuple[str, ...] = ()
    weight: Weight = Weight.CAUSE
    again: Again = Again.EITHER
    after_loss: bool = False
    follows: tuple[str, ...] = ()  # keys of rows whose errors lead to this one
    is_end_of_job: bool = False  # a scheduler's: what had failed before counts instead
    reads: str = ""  # a regular expression for the message: its groups fill the sentences
    is_live: bool = True
    of_ray: bool = False

    @property
    def decides_retry(self) -> bool:
        """Return whether it decides about another attempt: no weak cause, none by a lost node."""
        return self.weight >= Weight.CAUSE and not self.after_loss and self.again is not Again.YES

    @property
    def forbids_retry(self) -> bool:
        """Return whether another attempt would fail likewise."""
        return self.again is Again.NO

    def explain(self, error: ParsedError, words: Sequence[Words] = ()) -> Cause | None:
        """Return the cause that an error shows, if it is this row's.

        `words` are those whose sign the error has; without them all are tried.
        """
        if not any(one.match_error(error) for one in words or self.words):
            return None

        # Do the frames show the one who asks?
        text = frame_text(error)[:MOST_ASKED] if self.asks or self.cases else ""
        asked = compiled(self.asks).match(text) if self.asks else None
        if self.asks and asked is None:
            return None

        # Which sentences count: those by the numbers of torch, of a special case, or the row's own?
        numbers = holder_of_gpu_memory(error) if self.states_memory else None
        if numbers is not None:
            return numbers
        cause, what_to_do = self.cause, self.what_to_do
        names = self._names(error.text)
        names |= _groups(asked)
        case = next((one for one in self.cases if compiled(one.asks).match(text)), None)
        if case is not None:
            cause = case.cause or cause
            what_to_do = case.what_to_do or what_to_do
            names |= _groups(compiled(case.asks).match(text))

        # What do the frames show besides?
        names["place"] = place_of(error)
        names["user"] = names["user"] or user_of(error, names.get("package", ""))
        return Cause(self.key, *_filled(cause, what_to_do, names))

    def filled(self, line: str) -> tuple[str, str]:
        """Return the cause and the remedy with the names in a line."""
        return _filled(self.cause, self.what_to_do, self._names(line))

    def _names(self, line: str) -> dict[str, str]:
        """Return the names that the sentences may have, with those that the line shows."""
        expressions = filter(None, (self.reads, self.asks, *(case.asks for case in self.cases)))
        groups = [_name_of(group) for one in expressions for group in compiled(one).groupindex]
        names = dict.fromkeys(("place", "user", *groups), "")
        read = compiled(self.reads).search(line, 0, MOST_READ) if self.reads else None
        return names | _groups(read)


def _groups(found: re.Match[str] | None) -> dict[str, str]:
    """Return the names that an expression reads; of `name` and `name2` the one that matched."""
    names: dict[str, str] = {}
    for group, value in ({} if found is None else found.groupdict()).items():
        name = _name_of(group)
        names[name] = value or names.get(name, "")
    return names


def _name_of(group: str) -> str:
    return group.rstrip("0123456789")


def _filled(cause: str, what_to_do: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return two sentences with names; what could not be read goes with its parentheses."""
    for name, value in names.items():
        if not value:
            cause = compiled(r" \([^(){}]*\{" + name + r"\}[^(){}]*\)").sub("", cause)
    shown = {name: short_name(value) or "?" for name, value in names.items()}

    def fill(named: re.Match[str]) -> str:
        return shown.get(named[1], named[0])

    return _NAME.sub(fill, cause), _NAME.sub(fill, what_to_do)


def short_name(name: str) -> str:
    """Return a long name without its middle, and several words without their end."""
    if " " in name:
        words = name.rstrip(". ")
        is_long = len(words) > _LONGEST_WORDS
        return f"{words[:_LONGEST_WORDS].rpartition(' ')[0]} …" if is_long else words
    if len(name) <= _LONGEST_NAME:
        return name
    end = _LONGEST_NAME * 2 // 3
    return f"{name[: _LONGEST_NAME - end - 1]}…{name[-end:]}"


@cache
def _parts(text: str) -> tuple[str, ...]:
    return tuple(text.removeprefix("^").split(ANY))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile an expression at its first use: most rows never need theirs."""
    return re.compile(pattern)


@cache
def sign_of(text: str) -> str:
    """Return the longest part that each matching line contains: most signs are in no line."""
    return max(_parts(text), key=len)


@cache
def table() -> Mapping[str, Row]:
    """Return the rows by key, read at their first use: most runs start before they need them.

    Of several rows that match a line the first one counts.
    """
    data = read_rows()
    kinds = ("noise", "cause", "symptom")
    rows = [_row({**row, "kind": kind}, data["patterns"]) for kind in kinds for row in data[kind]]
    return {row.key: row for row in rows}


class _Entry(NamedTuple):
    """One message of a row, and the sign that each line with it contains."""

    place: int  # among all messages
    row: Row
    words: Words
    sign: str


class _Signs:
    """The entries of some messages by the words that a line with their sign has."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._by_word: dict[str, list[_Entry]] = {}  # a whole word
        self._by_part: dict[str, list[_Entry]] = {}  # a part of one; '' for a sign without letters
        for entry in entries:
            whole = compiled(rf"(?<=\W){_WORD}(?=\W)").findall(entry.sign)
            parts = compiled(_WORD).findall(entry.sign)
            known = self._by_word if whole else self._by_part
            known.setdefault(max(whole or parts, key=len, default=""), []).append(entry)

    @lru_cache(maxsize=_MOST_WORDS)  # noqa: B019 - there are two, for ever
    def near(self, word: str) -> tuple[_Entry, ...]:
        """Return the entries whose sign a text with this word may have."""
        if not word:
            return tuple(self._by_part.get("", ()))
        near = [*self._by_word.get(word, ())]
        for part, entries in self._by_part.items():
            near += entries if part and part in word else ()
        return tuple(near)


@cache
def _signs(*, mild: bool) -> _Signs:
    """Return the signs of all messages; with `mild` of those alone that a warning has."""
    every = [(row, words) for row in table().values() for words in row.words]
    entries = [
        _Entry(place, row, words, sign_of(words.text)) for place, (row, words) in enumerate(every)
    ]
    return _Signs(entry for entry in entries if entry.words.mild or not mild)


@cache
def quiet_signs() -> tuple[str, ...]:
    """Return the signs of messages without a word of an error, which look like ordinary lines."""
    every = [words for row in table().values() for words in row.words]
    quiet = (sign_of(words.text) for words in every if not _is_loud(words.example))
    return tuple(dict.fromkeys(filter(None, quiet)))


def _is_loud(example: str) -> bool:
    return is_about_an_error(read_line(example).body)


@lru_cache(maxsize=_MOST_TEXTS)
def _entries_for(text: str, *, mild: bool) -> tuple[_Entry, ...]:
    """Return the entries of which a text has the sign, in the order of the table.

    It is asked several times about each text: whether a row may match, and which one does.
    """
    signs = _signs(mild=mild)
    found = {
        entry.place: entry
        for word in {"", *compiled(_WORD).findall(text)}
        for entry in signs.near(word)
        if entry.sign in text
    }
    return tuple(found[place] for place in sorted(found))


def may_match(printed: str, body: str, level: LogLevel) -> bool:
    """Return whether the words of a line that was printed have the sign of a row: most have none.

    The whole line is searched, since the row that explains it is looked up by that.
    """
    entries = _entries_for(printed, mild=level < LogLevel.UNSTATED)
    return any(entry.sign in body for entry in entries)


def known_signs() -> Signs:
    """Return which lines a row may explain, for a parser."""
    kinds = ("noise", "cause", "symptom")
    return Signs(quiet_signs(), may_match, lambda e: explain(e, *kinds, of_ray=True) is not None)


def explain(error: ParsedError, *kinds: str, of_ray: bool = False) -> tuple[Row, Cause] | None:
    """Return the first row of some kinds that explains an error, with its cause.

    One that only tells how a process ended yields to one behind it.
    """
    best: tuple[Row, Cause] | None = None
    entries = _entries_for(error.text, mild=error.level < LogLevel.UNSTATED)
    for _, of_row in groupby(entries, key=lambda entry: entry.row.key):
        same = [*of_row]
        row = same[0].row
        if row.kind not in kinds or (row.of_ray and not of_ray):
            continue
        if best is not None and row.weight is Weight.LAST:
            continue
        cause = row.explain(error, [entry.words for entry in same])
        if cause is None:
            continue
        best = row, cause
        if row.weight is not Weight.LAST:
            break
    return best


def _row(row: Mapping[str, Any], patterns: Mapping[str, str]) -> Row:
    def full(expression: str) -> str:
        """Return an expression with the patterns that it names, which may name others."""
        return re.sub(r"(?<!P)<([a-z_]+)>", lambda named: full(patterns[named[1]]), expression)

    words = []
    for message in row["words"]:
        names = ("near", "caller", "only", "unless")
        expressions = {name: full(message[name]) for name in names if name in message}
        words.append({**message, **expressions})
    weight = Weight[row.get("weight", "cause").upper()]
    row = {name: full(value) if name == "asks" else value for name, value in row.items()}
    cases = [{**case, "asks": full(case["asks"])} for case in row.get("cases", ())]
    return convert({**row, "words": words, "cases": cases, "weight": weight}, Row)
