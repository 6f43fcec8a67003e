"""The first cause of a failure in the logs of all nodes, with the row that explains it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.text import without_controls
from agent.base.value import Value
from agent.decisions.shared import place, shortened
from agent.diagnosis.cause import Cause
from agent.diagnosis.errors.causal_order import (
    Candidate,
    Role,
    Standing,
    candidates,
    first_of,
    is_of_native_code,
)
from agent.diagnosis.errors.last_lines import telling_line
from agent.diagnosis.errors.log_parser import ParsedLog, parse_log
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError
from agent.diagnosis.errors.prefixes import clock_text, seconds_of
from agent.diagnosis.rows import Row, Weight, explain, known_signs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = "unknown to pod-agent"
_LINES_BEFORE = 4
_LONG_GONE = 40  # ordinary lines of its process behind an error
_WAITED = re.compile(
    r"\b(?:answered|returned|status|HTTP|response)\b.{0,40}\b5\d\d\b"
    r"|\b(?:did|does) not (?:start|answer|respond)|\bnot ready\b|\btimed out\b"
    r"|\b[Ff]ailed to (?:start|launch|init|initialize|set ?up)\b"
)
"""An end that states a wait for another program, or only that something did not start."""
_POLLED = re.compile(r"\b[Ww]ait(?:ing|ed)? (?:for|until)\b|\bnot ready\b")
"""What a program prints while it waits for another one, which may have ended."""
_ONLY_FAILED = re.compile(
    r"(?!.*(?:: .{12}|\bbecause\b|\bdue to\b)).{0,120}\b(?:fail(?:ed|s|ure)?|unsuccessful)\b"
    r"[^:]{0,60}(?::? ?-?\d{1,6})?\W{0,3}$",
    re.IGNORECASE,
)
"""A message that states that something failed, and not why."""
_STATED_NODE = re.compile(r"\bnode \((?:ID: \w{1,60}, )?IP: (?P<ip>[\w.:]{3,45})")
"""How Ray states which node an error is about, in its message."""
_NEAR_SLURM = 12  # lines of one failure
_NEAR = 60  # lines between the last words of a process and the error of another one
_FEW = 2  # ordinary lines
_POLLS = 12  # the same of a program that says that it waits
_LONG_SURVIVED = 40  # the same behind an error that a row explains
_WENT_ON = 20  # ordinary lines of the process that printed what Slurm says of a step's memory
_OF_THE_JOB = {
    "the job's Python": "the Python of {program}",
    "the job's own code": "its own code",
    " or AGENT_RUNTIME_ENV (pip)": "",  # Ray brings packages only for the job
}
"""Words of rows about the job, and those about a service or prepare step."""
_LEAST_TO_DO = 40  # characters
_LONGEST = 240  # characters of what a user reads before the quoted line


class Log(Value):
    """The end of one log of a node."""

    node: str  # '' for this node
    name: str
    text: str
    of_ray: bool = False  # whether Ray itself wrote it, not the job
    program: str = ""  # the service or prepare step that wrote it; '' for the job and Ray
    clock_ahead: float = 0.0  # seconds that its node's clock is ahead of this one's
    at: float | None = None  # when its first error arrived, in seconds since 1970, on one clock
    first_line: int | None = None  # the number of the text's first line in the file, from 1 on


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
        return f"{UNKNOWN}: {what}{where}, in {shown}"

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


class Explained(Value):
    """An error that may be the first cause, with the row that explains it, if one does."""

    candidate: Candidate
    row: Row | None = None
    cause: Cause | None = None

    @property
    def weight(self) -> Weight:
        """Return how much its row explains."""
        return Weight.LAST if self.row is None else self.row.weight

    @property
    def number(self) -> int:
        """Return the number of its line in its log."""
        return self.candidate.error.number


def plain_lines(text: str) -> list[str]:
    """Split a log into lines without control characters, as a terminal shows them."""
    lines = without_controls(text.replace("\r\n", "\n")).split("\n")
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def diagnose_logs(logs: Sequence[Log]) -> Diagnosis:
    """Return the first cause of what the logs show, by its row where one explains it."""
    parsed = [parse_log(plain_lines(log.text), log.node, log.name, known_signs()) for log in logs]
    ahead = [log.clock_ahead for log in logs]
    possible = [
        replace(candidate, at=logs[candidate.log].at) for candidate in candidates(parsed, ahead)
    ]
    standing = [candidate for candidate in possible if candidate.standing < Standing.QUOTED]
    known = [explained(candidate, of_ray=logs[candidate.log].of_ray) for candidate in standing]
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
    plain = _plain_words(logs, parsed, first)
    if plain is not None:
        return plain
    if first is not None:
        return _diagnosis(logs, first)

    # What steps followed, or a text holds, is only quoted.
    rest = first_of(candidate for candidate in possible if is_marked(candidate.error))
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
        and candidate.error.kind is not ErrorKind.PLAIN
    ]
    return _earliest(known for known in ended if known.weight >= Weight.CAUSE)


def _plain_words(
    logs: Sequence[Log], parsed: Sequence[ParsedLog], first: Explained | None
) -> Diagnosis | None:
    """Return the line without a mark of an error that may say why the job ended."""
    for log, parsed_log in zip(logs, parsed, strict=True):
        is_here = first is None or parsed[first.candidate.log] is parsed_log
        if log.of_ray or not is_here:
            continue
        end = None if first is None else first.number
        last = telling_line(parsed_log.last_lines, parsed_log.last_step, end)
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


def explained(candidate: Candidate, *, of_ray: bool = False) -> Explained:
    """Return the row that explains most of an error's chain, its main part first."""
    best = Explained(candidate)
    for error in (candidate.error, *candidate.whole.chain()):
        found = explain(error, "cause", of_ray=of_ray)
        if found is not None and (best.row is None or found[0].weight > best.weight):
            best = Explained(replace(candidate, error=error), *found)
    return best


def what_led_to(first: Explained, possible: Iterable[Candidate]) -> Explained:
    """Return the earlier error that leads to a cause, also one that steps followed: else itself."""
    if first.row is None or not first.row.follows:
        return first
    for candidate in possible:
        is_before = candidate.log != first.candidate.log or candidate.place < first.candidate.place
        if candidate.standing is Standing.QUOTED or not is_before:
            continue
        led = explained(candidate)
        if led.row is not None and led.row.key in first.row.follows:
            return led
    return first


def first_cause(known: Sequence[Explained]) -> Explained | None:
    """Return the cause of all others: what hardware, kernel or scheduler did, else the first."""
    # A fault of the hardware is often printed last, and explains the rest.
    known = [error for error in known if not _went_on_after(error, known)]
    roots = [error for error in known if error.row is not None and error.row.weight is Weight.ROOT]
    if roots:
        root = _earliest(roots)
        return _failed_before(root, known) or root

    # What a process survived for long is no cause, except an exception before the end of something.
    has_end = any(_passes_on(error) for error in known)
    known = [error for error in known if not is_survived(error) or (has_end and _is_strong(error))]

    # The first error that is no consequence, of those that ended a process if there are any.
    originals = [error for error in known if _is_original(error)]
    if any(_ended(error) for error in known if error.candidate.role is Role.CONSEQUENCE):
        originals = [error for error in originals if not _is_long_gone(error)]
    if originals:
        least = min(map(_standing, originals))
        first = _earliest([error for error in originals if _standing(error) == least])
        first = _explained_before(first, originals)
        return _crashed_before(first, known) or _ended_before(first, known) or first

    # Only consequences: a row that explains some, else the first of them, else how it ended.
    for least_weight in (Weight.WEAK, Weight.LAST):
        of_rows = [
            error for error in known if error.row is not None and error.weight >= least_weight
        ]
        if of_rows:
            most = max(error.weight for error in of_rows)
            return _earliest([error for error in of_rows if error.weight == most])
        if least_weight is Weight.WEAK and (first := _earliest_of(known, Role.CONSEQUENCE)):
            return first
    return _earliest_of(known, Role.WRAPPER)


def _went_on_after(stated: Explained, known: Sequence[Explained]) -> bool:
    """Return whether a job went on after Slurm stated a kill in a step, and failed much later."""
    candidate = stated.candidate
    is_kill = stated.row is not None and stated.row.weight is Weight.ROOT
    is_end = stated.row is not None and stated.row.is_end_of_job
    if not is_kill or is_end or candidate.error.kind is not ErrorKind.SLURM:
        return False
    if candidate.went_on <= _WENT_ON:
        return False
    return any(
        _is_original(error)
        and _ended(error)
        and error.candidate.error.kind is ErrorKind.PYTHON
        and error.candidate.log == candidate.log
        and error.number > stated.number
        and error.candidate.went_on < candidate.went_on - _WENT_ON
        for error in known
    )


def _failed_before(root: Explained | None, known: Sequence[Explained]) -> Explained | None:
    """Return what had ended a process when a scheduler ended the job: the rest waited for it."""
    if root is None or root.row is None or not root.row.is_end_of_job:
        return None
    fatal = [error for error in known if _standing(error) < Standing.SURVIVED]
    ended = [error for error in fatal if _is_original(error) and _ended(error)]
    ended = [error for error in ended if error.row is None or not error.row.is_end_of_job]
    first = _earliest([root, *ended])
    return None if first is root else first


def _explained_before(first: Explained | None, originals: Sequence[Explained]) -> Explained | None:
    """Return the error with a row that an error without one follows from.

    Slurm prints several lines about one failure. A process that has printed an exception may crash
    while it ends. And what a program prints as its last words, before another one ends with an
    error of its own, was that one's cause: a server in the same log, a child process.
    """
    if first is None or first.row is not None:
        return first
    if first.candidate.error.kind is ErrorKind.CPP:
        return _earliest(error for error in originals if _is_just_before(error, first)) or first
    is_of_slurm = first.candidate.error.kind is ErrorKind.SLURM
    near = [
        error
        for error in originals
        if error.row is not None
        and error.candidate.log == first.candidate.log
        and abs(error.number - first.number) <= (_NEAR_SLURM if is_of_slurm else _NEAR)
    ]
    if is_of_slurm:
        same = [error for error in near if error.candidate.error.kind is ErrorKind.SLURM]
        return _earliest(same) or first
    native = _native_words_before(first, originals)
    if native is not None:
        return native
    if not _WAITED.search(first.candidate.error.line):
        return first
    chain = first.candidate.whole.chain()
    has_polled = any(_POLLED.search(line) for part in chain for line in part.before)
    most = _POLLS if has_polled else _FEW
    last_standing = Standing.SURVIVED if has_polled else Standing.LAST
    last_words = [
        error
        for error in near
        if error.number < first.number
        and error.candidate.standing in {Standing.LAST, last_standing}
        and error.candidate.went_on <= most
    ]
    return _earliest(last_words) or first


def _native_words_before(first: Explained, originals: Sequence[Explained]) -> Explained | None:
    """Return the line of compiled code that says why an exception only states a failure."""
    error = first.candidate.error
    if error.kind is not ErrorKind.PYTHON or not _ONLY_FAILED.match(error.message):
        return None
    near = [
        known
        for known in originals
        if known.candidate.error.kind is ErrorKind.PLAIN
        and is_of_native_code(known.candidate.error)
        and known.candidate.log == first.candidate.log
        and 0 < first.number - known.number <= _NEAR
        and known.candidate.went_on - first.candidate.went_on <= _FEW
    ]
    of_rows = [known for known in near if known.row is not None]
    return _earliest(of_rows or near)


def _crashed_before(first: Explained | None, known: Sequence[Explained]) -> Explained | None:
    """Return the crash of another process just before an error that no row explains.

    What asks a process that has crashed prints an error of its own, often without its reason.
    """
    if first is None or first.row is not None:
        return None
    return _earliest(
        error
        for error in known
        if error.row is not None
        and error.candidate.error.kind is ErrorKind.CPP
        and error.candidate.role is Role.ORIGINAL
        and error.candidate.log == first.candidate.log
        and 0 < first.number - error.number <= _NEAR
        and not _is_same_process(error, first)
    )


def _ended_before(first: Explained | None, known: Sequence[Explained]) -> Explained | None:
    """Return the exception with a weak row that ended a process before a logger's unknown line.

    What is logged behind an end did not lead to it.
    """
    is_logged = first is not None and first.candidate.error.kind is ErrorKind.PLAIN
    if first is None or first.row is not None or not is_logged:
        return None
    return _earliest(
        error
        for error in known
        if error.weight is Weight.WEAK
        and error.candidate.error.kind is ErrorKind.PYTHON
        and error.candidate.role is Role.ORIGINAL
        and error.candidate.standing is Standing.FATAL
        and error.candidate.log == first.candidate.log
        and error.number < first.number
    )


def _is_same_process(one: Explained, other: Explained) -> bool:
    """Return whether two errors are of one process, as far as prefixes show it."""
    former = one.candidate.error
    later = other.candidate.error
    return (former.pid, former.rank, former.actor) == (later.pid, later.rank, later.actor)


def _is_just_before(known: Explained, crash: Explained) -> bool:
    """Return whether an exception was printed before a crash, with nothing ordinary between."""
    error = known.candidate.error
    ended = crash.candidate.error
    return (
        error.kind is ErrorKind.PYTHON
        and _is_same_process(known, crash)
        and known.candidate.log == crash.candidate.log
        and 0 < ended.number - error.number <= _NEAR_SLURM
        and known.candidate.went_on == crash.candidate.went_on
    )


def _ended(known: Explained) -> bool:
    """Return whether an error ended its process, as far as its log shows it."""
    return is_marked(known.candidate.error) and known.candidate.standing < Standing.SURVIVED


def _passes_on(known: Explained) -> bool:
    """Return whether an error is a line about the end of something else."""
    return known.candidate.role is not Role.ORIGINAL and is_marked(known.candidate.error)


def _is_strong(known: Explained) -> bool:
    """Return whether an error may have ended a process that printed much afterwards.

    A logger's line tells of many things that are handled, whatever row it has.
    """
    if known.row is None:
        return True
    is_plain = known.candidate.error.kind is ErrorKind.PLAIN
    return known.row.weight >= Weight.CAUSE and not is_plain


def is_survived(known: Explained) -> bool:
    """Return whether so much followed an error that its process cannot have ended by it."""
    most = _LONG_GONE if known.row is None else _LONG_SURVIVED
    return known.candidate.standing >= Standing.SURVIVED and known.candidate.went_on > most


def _is_long_gone(known: Explained) -> bool:
    """Return whether a process printed so much behind an unknown error that it did not end it."""
    return (
        known.row is None
        and known.candidate.went_on > _LONG_GONE
        and _standing(known) >= Standing.SURVIVED
    )


def _standing(known: Explained) -> Standing:
    """Return an error's standing: a logger's line without a row may tell of what was handled."""
    standing = known.candidate.standing
    is_plain = known.candidate.error.kind is ErrorKind.PLAIN
    return max(standing, Standing.SURVIVED) if is_plain and known.row is None else standing


def is_marked(error: ParsedError) -> bool:
    """Return whether an error has the form of one, or states its level; others need a row."""
    return error.kind is not ErrorKind.PLAIN or error.level >= LogLevel.ERROR


def _earliest_of(known: Sequence[Explained], role: Role) -> Explained | None:
    of_role = [error for error in known if error.row is None and error.candidate.role is role]
    return _earliest([error for error in of_role if is_marked(error.candidate.error)])


def _is_original(known: Explained) -> bool:
    """Return whether an error may be the first cause: a row knows better than its form."""
    if known.row is not None:
        return known.row.weight >= Weight.CAUSE
    candidate = known.candidate
    return candidate.role is Role.ORIGINAL and is_marked(candidate.error)


def _earliest(known: Iterable[Explained]) -> Explained | None:
    every = [*known]
    first = first_of(error.candidate for error in every)
    return next((error for error in every if error.candidate is first), None)


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
