"""The first cause of a failure in the logs of all nodes, with the row that explains it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.text import without_controls
from agent.base.value import Value
from agent.decisions.shared import place, shortened
from agent.diagnosis.errors.causal_order import (
    Candidate,
    Role,
    Standing,
    candidates,
    first_of,
)
from agent.diagnosis.errors.last_lines import telling_line
from agent.diagnosis.errors.log_parser import ParsedLog, parse_log
from agent.diagnosis.errors.parsed_error import ErrorKind, ParsedError
from agent.diagnosis.errors.prefixes import clock_text, seconds_of
from agent.diagnosis.order import (
    Explained,
    earliest,
    explained,
    first_cause,
    is_marked,
    is_noise,
    ranked,
    reason_of,
)
from agent.diagnosis.rows import Row, Weight, explain, known_signs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.diagnosis.searched_log import Log

UNKNOWN = "unknown to pod-agent"
_LINES_BEFORE = 4
_STATED_NODE = re.compile(r"\bnode \((?:ID: \w{1,60}, )?IP: (?P<ip>[\w.:]{3,45})")
"""How Ray states which node an error is about, in its message."""
_LONG_OVERCOME = 20  # steps behind an error that did not lead to the end
_OF_THE_JOB = {
    "the job's Python": "the Python of {program}",
    "the job's own code": "its own code",
    " or AGENT_RUNTIME_ENV (pip)": "",  # Ray brings packages only for the job
}
"""Words of rows about the job, and those about a service or prepare step."""
_LEAST_TO_DO = 40  # characters
_LONGEST = 240  # characters of what a user reads before the quoted line


class Diagnosis(Value):
    """The cause of a failure as far as the logs show it, with the line that shows it."""

    line: str = ""  # without prefixes
    log: str = ""
    number: int | None = None  # of the line in the log's file, from 1 on, if it is known
    node: str = ""  # whose log the line is from
    ip: str = ""  # the address of the node that the line is about, if the log names it
    rank: int | None = None
    time: str = ""  # month, day and time of day, if the log states them
    before: tuple[str, ...] = ()  # the lines before it, of the same process
    row: Row | None = None  # the row that explains the failure, if any
    cause: str = ""
    what_to_do: str = ""
    is_marked: bool = True  # whether the line states that it is an error

    @property
    def key(self) -> str:
        """Return the row's key; '' if the cause is not known."""
        return "" if self.row is None else self.row.key

    @property
    def source(self) -> str:
        """Return the log's name, with the number of the line if it is known: job.log:18204."""
        return self.log if self.number is None else f"{self.log}:{self.number}"

    def remedy(self) -> str:
        """Return it as the remedy of an outcome: what happened, where, what to do, the line."""
        if not self.line:
            return ""
        where = place(self.node, self.rank)
        when = f" at {self.time}" if self.time else ""
        shown = f"{self.source}{when}: {shortened(self.line)!r}"
        if self.row is not None:
            return f"{_within(f'{self.cause}{where}', self.what_to_do)} It shows in {shown}"
        if self.cause:
            what = _within(f"{UNKNOWN}{where}: {self.cause}", self.what_to_do)
            return f"{what} It shows in {shown}"
        what = "the first error" if self.is_marked else "the line that may say why"
        return f"Look at {what}{where}, in {shown}: its cause is {UNKNOWN}"

    def page(self) -> str:
        """Return it as the first page of a failure bundle, with the lines before the line."""
        if not self.line:
            return ""
        shown = "\n".join(f"    {line}" for line in (*self.before, self.line))
        return f"{self.remedy()}\n\n{self.source}{place(self.node, self.rank)}:\n{shown}\n"


def _within(what: str, what_to_do: str) -> str:
    """Return what happened and what to do, without what makes it too long to read at its end."""
    text = f"{what}. {what_to_do}".removesuffix(".")
    while len(text) >= _LONGEST:  # room for the period is left
        shorter = max(text[:-1].rfind(mark) for mark in (". ", "; ", ": ", ", "))
        if shorter < len(what) + _LEAST_TO_DO:  # something to do is left, if not a whole sentence
            return f"{text[: _LONGEST - 2].rpartition(' ')[0]}…."
        text = text[:shorter]
    return text if text.endswith("?") else f"{text}."


def plain_lines(text: str) -> list[str]:
    """Split a log into lines without control characters, as a terminal shows them."""
    lines = without_controls(text.replace("\r\n", "\n")).split("\n")
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def weighed(log: Log) -> list[str]:
    """Return each error of a log with why it is the cause or is not, that of the cause first."""
    parsed = [parse_log(plain_lines(log.text), log.node, log.name, known_signs())]
    known = [explained(candidate) for candidate in candidates(parsed)]
    chosen = diagnose_logs([log]).line
    harmless = [(one, None) for one in known if is_noise(one)]
    others = ranked([one for one in known if not is_noise(one)])
    lines = []
    for one, rung in sorted(
        [*harmless, *others],
        key=lambda pair: (pair[0].candidate.error.line != chosen, pair[0].number),
    ):
        error = one.candidate.error
        source = log.name if log.first_line is None else f"{log.name}:{log.first_line + one.number}"
        row = "no row" if one.row is None else f"row {one.row.key!r}"
        why = reason_of(one, rung)
        lines.append(f"{source}: {shortened(error.line)!r}: {why} ({row})")
    return lines


def diagnose_logs(logs: Sequence[Log]) -> Diagnosis:
    """Return the first cause of what the logs show, by its row where one explains it."""
    parsed = [parse_log(plain_lines(log.text), log.node, log.name, known_signs()) for log in logs]
    ahead = [log.clock_ahead for log in logs]
    possible = [
        replace(candidate, at=logs[candidate.log].at) for candidate in candidates(parsed, ahead)
    ]
    standing = [candidate for candidate in possible if candidate.standing < Standing.QUOTED]
    known = [explained(candidate, of_ray=logs[candidate.log].of_ray) for candidate in standing]
    harmless = {one.candidate.place for one in known if is_noise(one)}
    known = [one for one in known if not is_noise(one)]
    known = [one for one in known if logs[one.candidate.log].of_ray or not is_said_in_passing(one)]
    first = first_cause(known)
    if first is not None:
        first = what_led_to(first, possible)
    if first is not None and not is_only_passed_on(first):
        return _diagnosis(logs, first)

    # A line that passes on another error: its process ended, though steps of others followed.
    last_words = None if first is None else _last_words(possible)
    if last_words is not None:
        return _diagnosis(logs, last_words)

    # Is there no error, or only a line that passes one on? Then plain words may say why.
    plain = _plain_words(logs, parsed, first, harmless)
    if plain is not None:
        return plain
    if first is not None:
        return _diagnosis(logs, first)

    # What steps followed, or a text holds, is only quoted.
    rest = first_of(
        candidate
        for candidate in possible
        if is_marked(candidate.error)
        and candidate.standing is not Standing.IGNORED
        and candidate.steps_after < _LONG_OVERCOME
        and not is_noise(explained(candidate))
    )
    return Diagnosis() if rest is None else _diagnosis(logs, Explained(rest))


def is_said_in_passing(known: Explained) -> bool:
    """Return whether a line is no error by its form, and its row explains least.

    Jobs that go on print such lines too; in the logs of a Ray that did not start they count.
    """
    is_least = known.row is not None and known.row.weight is Weight.LAST
    return is_least and not is_marked(known.candidate.error)


def is_only_passed_on(first: Explained) -> bool:
    """Return whether the first cause is a line that only states that something else failed."""
    return first.row is None and first.candidate.role is Role.WRAPPER


def _last_words(possible: Iterable[Candidate]) -> Explained | None:
    """Return the first error with a row that was the last that its process printed."""
    ended = [
        explained(candidate)
        for candidate in possible
        if candidate.standing is Standing.OVERCOME
        and candidate.role is Role.ORIGINAL
        and candidate.went_on == 0
        and candidate.steps_after < _LONG_OVERCOME
        and candidate.error.kind is not ErrorKind.PLAIN
    ]
    return earliest(one for one in ended if one.weight >= Weight.CAUSE and not is_noise(one))


def _plain_words(
    logs: Sequence[Log],
    parsed: Sequence[ParsedLog],
    first: Explained | None,
    harmless: set[tuple[int, int]],
) -> Diagnosis | None:
    """Return the line without a mark of an error that may say why the job ended."""
    for at, (log, parsed_log) in enumerate(zip(logs, parsed, strict=True)):
        is_here = first is None or parsed[first.candidate.log] is parsed_log
        if log.of_ray or not is_here:
            continue
        end = None if first is None else first.number
        lines = [one for one in parsed_log.last_lines if (at, one.number) not in harmless]
        last = telling_line(lines, parsed_log.last_step, end)
        if last is not None:
            return Diagnosis(
                line=last.line.body.strip(),
                log=log.name,
                number=None if log.first_line is None else log.first_line + last.number,
                node=log.node,
                ip=last.line.ip,
                rank=last.line.rank,
                time=clock_text(seconds_of(last.stamp)),
                before=_lines_before(parsed_log, last.number),
                is_marked=False,
            )
    return None


def _lines_before(log: ParsedLog, number: int) -> tuple[str, ...]:
    lines = [printed.line.body for printed in log.last_lines if printed.number < number]
    return tuple(lines[-_LINES_BEFORE:])


def what_led_to(first: Explained, possible: Iterable[Candidate]) -> Explained:
    """Return the earlier error that leads to a cause, also one that steps followed: else itself."""
    if first.row is None or not first.row.follows:
        return first
    for candidate in possible:
        is_before = candidate.log != first.candidate.log or candidate.place < first.candidate.place
        is_long_ago = candidate.steps_after >= _LONG_OVERCOME
        is_none = candidate.standing in {Standing.QUOTED, Standing.IGNORED}
        if is_none or is_long_ago or not is_before:
            continue
        led = explained(candidate)
        if led.row is not None and led.row.key in first.row.follows:
            return led
    return first


def _address(error: ParsedError, whole: ParsedError) -> str:
    """Return the address of the node that an error is about: its message knows better than Ray."""
    stated = _STATED_NODE.search(error.message)
    if stated is not None:
        return stated["ip"]
    return next((part.ip for part in whole.chain() if part.ip), "")


def _about(program: str, text: str) -> str:
    """Return the words of a row about the job as words about the program that wrote the log."""
    if program:
        for words, others in _OF_THE_JOB.items():
            text = text.replace(words, others.format(program=program))
    return text


def _diagnosis(logs: Sequence[Log], known: Explained) -> Diagnosis:
    """Return where an error is, and what its row states."""
    error = known.candidate.error
    log = logs[known.candidate.log]
    whole = known.candidate.whole
    diagnosis = Diagnosis(
        line=error.line,
        log=log.name,
        number=None if log.first_line is None else log.first_line + error.number,
        node=log.node,
        ip=_address(error, whole),
        rank=next((part.rank for part in whole.chain() if part.rank is not None), None),
        time=clock_text(error.time),
        before=error.before[-_LINES_BEFORE:],
    )
    if known.row is not None and known.cause is not None:
        row, cause = known.row, known.cause
        sentence = _about(log.program, cause.sentence)
        remedy = _about(log.program, cause.remedy)
        return replace(diagnosis, row=row, cause=sentence, what_to_do=remedy)
    symptom = explain(error, "symptom")
    if symptom is None:
        return diagnosis
    return replace(diagnosis, cause=symptom[1].sentence, what_to_do=symptom[1].remedy)
