"""The order of errors by cause: which one came first, and which only follow from it.

An error counts before those that pass it on (wrappers) and those that follow from the end of
another process (consequences). Among the rest one that ended its process counts before one that
its process survived, and then the first in time.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agent.base.value import Value
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError
from agent.diagnosis.errors.roles import has_role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.diagnosis.errors.log_parser import ParsedLog
    from agent.diagnosis.errors.process_output import Occurrence

_NOT_REBUILT = re.compile(r"TypeError: (?:\w{1,80}\.)?__init__\(\) missing \d+ required")
"""Ray builds an exception anew that takes other arguments than it was pickled with."""
_OF_RAY = re.compile(r"ray\.exceptions\.|Failed to deserialize exception|traceback: Traceback")
_HOOK_FAILED = re.compile(
    r"(?:docker: |.{0,80}\bError response from daemon: ).{0,400}\berror running (?:\w+ )?hook\b"
)
"""The program that ran says why in the next line."""
_GIVES_REASON = re.compile(r"\[Errno \d{1,3}\] ")
"""The text of an exception that a program prints below its own words about it."""
_SAYS_WHY = re.compile(r"\b[Rr]eason: \w")
_SOMETHING_FAILED = re.compile(
    r"(?:Trial|Worker|Task|Actor|Replica|Rank)\b.{0,40}\b(?:failed|died)\b.{0,60}$"
)
"""A line of a launcher that gives no reason: also an exception that only follows shows more."""
_REBUILDS = "from_ray_exception"
"""The function in which the exception of another process is built anew, which may fail."""
_ARGPARSE = re.compile(r"[\w./-]{1,120}: error: ")  # a program ends behind it
_SANDBOX = re.compile(r"/tmp/(?:[\w.-]+/)*tmp[a-z0-9_]{8}(?:/[\w.-]+)*\.?(?:py)?$")
_NATIVE_PLACE = re.compile(r"[\w-]\.(?:cpp|cc|cu|cuh|h|hpp|rs):\d{1,6}\b")
_PLACE_WITHIN = 160  # characters of a line: the source file that a logger states
_NEAR_RAY = 4  # lines
_GOES_ON = 40  # ordinary lines of a process behind an error that it survived
STEPS_OF_OTHERS = 2  # steps behind an error: of one the other processes may still print the line


class Role(IntEnum):
    """What an error is to the end of the run."""

    ORIGINAL = 0
    CONSEQUENCE = 1
    WRAPPER = 2


class Standing(IntEnum):
    """What the log shows of the process of an error; all but the first two name no cause."""

    FATAL = 0  # the error ended it: what passes it on says so, or it is an end by its form
    OPEN = 1  # nothing shows that it went on
    SURVIVED = 2  # it printed so much behind the error that this cannot have ended it
    QUOTED = 3  # the error stands in a text
    OVERCOME = 4  # steps followed, or another try
    IGNORED = 5  # Python or the program went on by itself, or it is older than the log


class Candidate(Value):
    """An error that may be the first cause."""

    error: ParsedError  # the part of the chain that shows most
    whole: ParsedError
    role: Role
    standing: Standing
    log: int  # the number of its log
    went_on: int = 0  # ordinary lines that its process printed afterwards
    steps_after: int = 0
    at: float | None = None  # when the first error of that log arrived, if it is known

    @property
    def place(self) -> tuple[int, int]:
        """Return its place in the order of logs and lines."""
        return self.log, self.error.number


def role_of(error: ParsedError) -> Role:
    """Return whether an error only passes on another one, or follows from another's end."""
    if error.frames and error.frames[-1].function == _REBUILDS:
        return Role.CONSEQUENCE if error.name == "RuntimeError" else Role.WRAPPER
    if not error.frames and _NOT_REBUILT.match(error.line):
        is_of_ray = any(_OF_RAY.search(line) for line in error.before[-_NEAR_RAY:])
        return Role.WRAPPER if is_of_ray else role_of_text(error)
    if has_role("wrapper", error.line):
        return Role.WRAPPER
    if _HOOK_FAILED.match(error.line) and "nvidia-container-cli" not in error.line:
        return Role.WRAPPER
    if error.kind is ErrorKind.SLURM:  # it states why, or only that a step ended
        if " DUE TO " in error.line:
            return Role.ORIGINAL
        return Role.WRAPPER if has_role("end of a step", error.line) else role_of_text(error)
    if error.kind is ErrorKind.NCCL:  # one line of several; rows name those that show a cause
        return Role.CONSEQUENCE
    return role_of_text(error)


def _only_reports(error: ParsedError) -> bool:
    """Return whether an exception only states that something failed, or did not answer."""
    if error.kind is not ErrorKind.PYTHON or _SAYS_WHY.search(error.message):
        return False
    return has_role("report", error.message)


def role_of_text(error: ParsedError) -> Role:
    """Return the role of an error by its words alone."""
    is_consequence = _is_consequence(error.line[:600]) or _is_consequence(error.printed[:300])
    return Role.CONSEQUENCE if is_consequence else Role.ORIGINAL


@lru_cache(maxsize=4_096)
def _is_consequence(text: str) -> bool:
    """Return it, kept for a while: the role of an error is asked for several times."""
    return has_role("consequence", text)


_REQUESTS = {"MaxRetryError", "ConnectionError", "HTTPError", "HTTPStatusError", "ReadTimeout"}
_BARE = {"ReadTimeout", "ConnectTimeout", "TimeoutError", "ConnectError", "WriteTimeout"}
"""Errors that often say nothing: who raised them from what says more."""
_LOOKUPS = {"KeyError", "AttributeError", "IndexError", "StopIteration", "LookupError", "Empty"}


def main_error(error: ParsedError) -> ParsedError:
    """Return the part of a chain that shows the cause: the innermost that is no wrapper.

    A failed lookup, during whose handling something else failed, shows less than that.
    """
    chain = [*error.chain()]
    originals = [part for part in chain if role_of(part) is Role.ORIGINAL]
    request = next((part for part in chain if part.name in _REQUESTS and part.message), None)
    if not originals:
        consequences = [part for part in chain if role_of(part) is Role.CONSEQUENCE]
        return request or (consequences or chain)[0]
    first = originals[0]
    if request is not None and first in chain[chain.index(request) :]:
        return request  # whose address it shows; what was raised from it rarely does
    if first.name in _LOOKUPS and len(originals) > 1 and len(originals[1].message) > 40:
        return originals[1]
    if first.name in _LOOKUPS | _BARE and not first.message.strip():
        outer = chain[chain.index(first) + 1 :]
        return next((part for part in outer if part.message.strip()), first)
    return first


class _Judged(NamedTuple):
    """What an error is by itself: it is asked for with each piece of a running job's output."""

    error: ParsedError  # it is kept, so that no other one has its identity
    main: ParsedError  # the part of its chain that shows most
    role: Role  # of the whole
    only_reports: bool
    shows_end: bool
    begins: bool  # whether its traceback begins where a program does: nobody has caught it
    is_end: bool  # a crash, or an exception that nobody has caught
    is_fatal: bool  # by its form, unless what follows shows another thing
    is_of_a_sandbox: bool


_judged: dict[int, _Judged] = {}
_MOST_JUDGED = 4_096


def _judge(error: ParsedError) -> _Judged:
    """Judge an error by itself, once: to compare its fields would cost as much."""
    known = _judged.get(id(error))
    if known is None:
        if len(_judged) >= _MOST_JUDGED:
            _judged.clear()
        role = min(role_of(part) for part in error.chain())
        main = main_error(error)
        begins = _begins_a_program(main)
        shows_end = shows_an_end(error)
        is_end = begins or _is_hydras(main) or main.kind is ErrorKind.CPP
        known = _Judged(
            error,
            main,
            role,
            only_reports=role is Role.ORIGINAL and _only_reports(main),
            shows_end=shows_end,
            begins=begins,
            is_end=is_end,
            is_fatal=not _is_mild(main) and (shows_end or is_end or _ends_by_its_form(main)),
            is_of_a_sandbox=_is_of_a_sandbox(error),
        )
        _judged[id(error)] = known
    return known


def shows_an_end(error: ParsedError) -> bool:
    """Return whether an error shows that a process ended by another one."""
    return any(has_role("end", part.line) for part in error.chain())


def candidates(logs: Sequence[ParsedLog], clocks_ahead: Sequence[float] = ()) -> list[Candidate]:
    """Return the errors of all logs with their role and standing, their times on one clock."""
    announcing = _announcing(logs)
    found = []
    for number, log in enumerate(logs):
        for occurrence in log.occurrences:
            judged = _judge(occurrence.error)
            error = judged.main
            role = judged.role
            if (number, error.number) in announcing:
                role = Role.WRAPPER
            if role is Role.ORIGINAL and judged.only_reports:
                role = Role.CONSEQUENCE
            standing = _standing(occurrence, judged)
            if clocks_ahead and clocks_ahead[number] and error.time is not None:
                error = replace(error, time=error.time - clocks_ahead[number])
            found.append(
                Candidate(
                    error,
                    occurrence.error,
                    role,
                    standing,
                    number,
                    went_on=occurrence.ordinary_after,
                    steps_after=occurrence.steps_after,
                )
            )
    return found


def _announcing(logs: Sequence[ParsedLog]) -> set[tuple[int, int]]:
    """Return the places of a logger's lines that only announce the traceback below them."""
    places = set()
    for number, log in enumerate(logs):
        for former, occurrence in pairwise(log.occurrences):
            plain = former.error
            if plain.kind is not ErrorKind.PLAIN or plain.level < LogLevel.LIKELY:
                continue
            chain = [*occurrence.error.chain()]
            first = chain[0]
            is_below = bool(first.frames) or _GIVES_REASON.match(first.line) is not None
            above = (part.before[-1].strip() for part in chain if part.before)
            if not is_below or plain.line not in above or is_of_native_code(plain):
                continue  # native code prints none of Python's tracebacks
            role = _judge(occurrence.error).role
            if role is Role.ORIGINAL or (
                role is Role.CONSEQUENCE and _SOMETHING_FAILED.match(plain.line) is not None
            ):
                places.add((number, plain.number))
    return places


def is_of_native_code(error: ParsedError) -> bool:
    """Return whether a logger's line states a source file of compiled code, as glog does."""
    return _NATIVE_PLACE.search(error.printed[:_PLACE_WITHIN]) is not None


def _standing(occurrence: Occurrence, judged: _Judged) -> Standing:
    if occurrence.is_harmless and not judged.begins:
        return Standing.IGNORED
    if judged.is_of_a_sandbox or (occurrence.is_quoted and not judged.shows_end):
        return Standing.QUOTED
    is_retried = occurrence.is_retried and not judged.is_end
    if occurrence.steps_after >= STEPS_OF_OTHERS or is_retried:
        return Standing.OVERCOME
    if judged.is_fatal:
        return Standing.FATAL
    return Standing.SURVIVED if occurrence.ordinary_after > _GOES_ON else Standing.OPEN


def _is_mild(error: ParsedError) -> bool:
    """Return whether an error by itself ends no process: a warning, or one of a step of Slurm."""
    is_of_a_step = error.kind is ErrorKind.SLURM and has_role("no end of a step", error.line)
    return error.level < LogLevel.UNSTATED or is_of_a_step


def _ends_by_its_form(error: ParsedError) -> bool:
    """Return whether the kernel, a driver or Slurm printed an error, or a parser of arguments."""
    is_of_system = error.kind in {ErrorKind.KERNEL, ErrorKind.NVRM, ErrorKind.SLURM}
    return is_of_system or _ARGPARSE.match(error.line) is not None


def _is_of_a_sandbox(error: ParsedError) -> bool:
    """Return whether a program failed that lies in a folder of Python's tempfile.

    Tools write programs of a model there to run them.
    """
    first = error.frames[0] if error.frames else None
    return first is not None and _SANDBOX.match(first.file) is not None


def _begins_a_program(error: ParsedError) -> bool:
    """Return whether a traceback begins where a program does: nobody has caught it."""
    first = error.frames[0].function if error.frames else ""
    return first in {"<module>", "_run_module_as_main", "_run_code"}


def _is_hydras(error: ParsedError) -> bool:
    """Return whether hydra prints a traceback, from the job's own function on: it ends then."""
    announced = any("Error executing job" in line for line in error.before[-3:])
    return bool(error.frames) and announced


def first_of(candidates_: Iterable[Candidate]) -> Candidate | None:
    """Return the earliest of some candidates: by time where all logs state it, else by place."""
    firsts: dict[int, Candidate] = {}
    for candidate in candidates_:
        known = firsts.get(candidate.log)
        if known is None or candidate.place < known.place:
            firsts[candidate.log] = candidate
    if not firsts:
        return None
    if len(firsts) > 1 and all(one.error.time is not None for one in firsts.values()):
        return min(firsts.values(), key=lambda one: (one.error.time or 0.0, one.log))
    if len(firsts) > 1 and all(one.at is not None for one in firsts.values()):
        return min(firsts.values(), key=lambda one: (one.at or 0.0, one.log))
    return min(firsts.values(), key=lambda one: one.place)
