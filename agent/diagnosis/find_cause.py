"""The first cause of a failure in the logs of all nodes, with the row that explains it."""

from __future__ import annotations

import re
from enum import IntEnum
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
)
from agent.diagnosis.errors.forms import COMPILER
from agent.diagnosis.errors.last_lines import telling_line
from agent.diagnosis.errors.log_parser import ParsedLog, parse_log
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError
from agent.diagnosis.errors.prefixes import clock_text, seconds_of
from agent.diagnosis.rows import Row, Weight, explain, known_signs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.diagnosis.searched_log import Log

UNKNOWN = "unknown to pod-agent"
_LINES_BEFORE = 4
_LINES = {ErrorKind.PLAIN, ErrorKind.JSON}
_STATED_NODE = re.compile(r"\bnode \((?:ID: \w{1,60}, )?IP: (?P<ip>[\w.:]{3,45})")
"""How Ray states which node an error is about, in its message."""
_NEAR = 60  # lines between the last words of a process and the error of another one
_FEW = 2  # ordinary lines
_LONG_OVERCOME = 20  # steps behind an error that did not lead to the end
_WENT_ON = 20  # ordinary lines of the process that printed what Slurm says of a step's memory
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
    plain = _plain_words(logs, parsed, first)
    if plain is not None:
        return plain
    if first is not None:
        return _diagnosis(logs, first)

    # What steps followed, or a text holds, is only quoted.
    rest = first_of(
        candidate
        for candidate in possible
        if is_marked(candidate.error)
        and candidate.steps_after < _LONG_OVERCOME
        and not is_noise(explained(candidate))
    )
    return Diagnosis() if rest is None else _diagnosis(logs, Explained(rest))


def is_noise(known: Explained) -> bool:
    """Return whether the table calls a line harmless: it is never the answer."""
    return known.row is not None and known.row.kind == "noise"


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
        found = explain(error, "noise", "cause", of_ray=of_ray)
        if found is not None and (best.row is None or found[0].weight > best.weight):
            best = Explained(replace(candidate, error=error), *found)
    return best


def what_led_to(first: Explained, possible: Iterable[Candidate]) -> Explained:
    """Return the earlier error that leads to a cause, also one that steps followed: else itself."""
    if first.row is None or not first.row.follows:
        return first
    for candidate in possible:
        is_before = candidate.log != first.candidate.log or candidate.place < first.candidate.place
        is_long_ago = candidate.steps_after >= _LONG_OVERCOME
        if candidate.standing is Standing.QUOTED or is_long_ago or not is_before:
            continue
        led = explained(candidate)
        if led.row is not None and led.row.key in first.row.follows:
            return led
    return first


class Rung(IntEnum):
    """How strongly a log shows that an error is the first cause; the least counts first."""

    ROOT = 0  # hardware, kernel or scheduler did it: often printed last, and explains the rest
    ENDED = 1  # it ended its process by its form: a crash, a traceback that nobody caught
    FAILED = 2  # an exception, or an error that a row explains
    SAID = 3  # a plain line that a row explains
    LONG_GONE = 4  # an exception that a row explains: its process printed much more, and ended
    WEAK = 5  # a row explains it as what most causes lead to
    FOLLOWED = 6  # it follows from the end of another process
    COMMAND = 7  # a command of a script that a row explains: scripts go on, and clean up
    LOGGED = 8  # a logger's error that no row explains
    LEFT = 9  # a row explains how a process ended, and not why
    PASSED_ON = 10  # it only states that something else failed
    LIKELY = 11  # a line that begins like an error, or a command's, which no row explains


def rung_of(known: Explained, *, has_end: bool) -> Rung | None:
    """Return the rung of an error; None if it can be no cause."""
    candidate = known.candidate
    error = candidate.error
    weight = None if known.row is None else known.row.weight
    is_fatal = candidate.standing is Standing.FATAL
    is_command = error.kind is ErrorKind.SHELL and not is_fatal and not COMPILER.match(error.line)
    is_line = is_command or error.kind in _LINES
    if candidate.standing >= Standing.SURVIVED:
        is_gone = candidate.standing is Standing.SURVIVED and not is_line
        is_strong = weight is not None and weight >= Weight.CAUSE
        return Rung.LONG_GONE if is_gone and is_strong and has_end else None
    if weight is None and not is_marked(error):
        return None
    rung = Rung.FAILED
    if weight is Weight.ROOT:
        rung = Rung.ROOT
    elif weight is None and candidate.role is Role.WRAPPER:
        rung = Rung.PASSED_ON
    elif weight is None and candidate.role is Role.CONSEQUENCE:
        rung = Rung.FOLLOWED
    elif weight is None and is_line:
        is_stated = error.level >= LogLevel.ERROR and not is_command
        rung = Rung.LOGGED if is_stated else Rung.LIKELY
    elif weight is Weight.LAST:
        rung = Rung.LEFT
    elif is_command:
        rung = Rung.COMMAND
    elif weight is Weight.WEAK:
        rung = Rung.WEAK
    elif is_fatal and not is_line:
        rung = Rung.ENDED
    elif error.level <= LogLevel.UNSTATED:
        rung = Rung.SAID
    return rung


def first_cause(known: Sequence[Explained]) -> Explained | None:
    """Return the cause of all others: the earliest of those with the strongest evidence."""
    has_end = any(map(_passes_on, known))
    rungs: dict[Rung, list[Explained]] = {}
    for one in known:
        rung = rung_of(one, has_end=has_end)
        if rung is not None:
            rungs.setdefault(rung, []).append(one)
    failed = [*rungs.get(Rung.ENDED, ()), *rungs.get(Rung.FAILED, ())]
    roots = [one for one in rungs.pop(Rung.ROOT, ()) if not _went_on_after(one, failed)]
    if roots:
        return _failed_before(_earliest(roots), failed)
    first = _earliest(rungs[min(rungs)]) if rungs else None
    if first is None or first.row is not None:
        return first

    # No row explains it: what was printed with it may say more.
    burst = [one for one in known if _is_of_burst(one, first)]
    explaining = _earliest(one for one in burst if one.row is not None)
    others = rungs.get(Rung.LOGGED, []) if first.candidate.role is not Role.ORIGINAL else []
    if first.candidate.role is Role.WRAPPER:
        others = [*others, *rungs.get(Rung.LIKELY, ())]
    if first.candidate.error.kind is ErrorKind.CPP:
        failed = rungs.get(Rung.FAILED, [])
        others = [
            one for one in failed if _is_same_process(one, first) and one.number < first.number
        ]
    return explaining or _earliest(one for one in others if one in burst) or first


def _passes_on(known: Explained) -> bool:
    """Return whether an error is a line about the end of something else."""
    return known.candidate.role is not Role.ORIGINAL and is_marked(known.candidate.error)


def _is_of_burst(one: Explained, first: Explained) -> bool:
    """Return whether an error was printed with another one: both are of one failure."""
    candidate = one.candidate
    error = candidate.error
    if candidate.log != first.candidate.log or abs(one.number - first.number) > _NEAR:
        return False
    if error.level <= LogLevel.UNSTATED:
        return False
    if one.row is not None and one.weight < Weight.CAUSE:
        is_crash = error.kind is ErrorKind.CPP and candidate.role is Role.ORIGINAL
        return is_crash and one.number < first.number and not _is_same_process(one, first)
    is_same = _is_same_process(one, first)
    if error.kind is ErrorKind.SHELL and first.candidate.error.kind is not ErrorKind.SHELL:
        is_before = one.number < first.number and first.candidate.role is not Role.ORIGINAL
        if not is_before or not is_same:
            return False
    return not is_same or abs(candidate.went_on - first.candidate.went_on) <= _FEW


def _went_on_after(root: Explained, failed: Sequence[Explained]) -> bool:
    """Return whether the job went on after Slurm stated a kill in a step, and failed much later."""
    candidate = root.candidate
    is_end = root.row is not None and root.row.is_end_of_job
    if candidate.error.kind is not ErrorKind.SLURM or is_end:
        return False
    return any(
        one.candidate.log == candidate.log
        and one.candidate.error.kind is ErrorKind.PYTHON
        and one.number > root.number
        and candidate.went_on - one.candidate.went_on > _WENT_ON
        for one in failed
    )


def _failed_before(root: Explained | None, failed: Sequence[Explained]) -> Explained | None:
    """Return what had ended a process when a scheduler ended the job: the rest waited for it."""
    if root is None or root.row is None or not root.row.is_end_of_job:
        return root
    return _earliest([root, *failed])


def _is_same_process(one: Explained, other: Explained) -> bool:
    """Return whether two errors are of one process, as far as prefixes show it."""
    former = one.candidate.error
    later = other.candidate.error
    return (former.pid, former.rank, former.actor) == (later.pid, later.rank, later.actor)


def is_marked(error: ParsedError) -> bool:
    """Return whether an error has the form of one, or states its level; others need a row."""
    return error.kind is not ErrorKind.PLAIN or error.level > LogLevel.UNSTATED


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
