"""The order of errors by how strongly a log shows that each is the first cause.

Who ended counts before who went on, an exception before a line of a logger or of a script, and what
a row explains before what follows from it. Among equals the first in time counts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.diagnosis.cause import Cause
from agent.diagnosis.errors.causal_order import (
    Candidate,
    Role,
    Standing,
    first_of,
    is_of_native_code,
)
from agent.diagnosis.errors.forms import COMPILER
from agent.diagnosis.errors.parsed_error import ErrorKind, LogLevel, ParsedError
from agent.diagnosis.rows import Row, Weight, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LINES = {ErrorKind.PLAIN, ErrorKind.JSON}
_NEAR = 60  # lines between the last words of a process and the error of another one
_FEW = 2  # ordinary lines
_WENT_ON = 20  # ordinary lines of the process that printed what Slurm says of a step's memory


class Rung(IntEnum):
    """How strongly a log shows that an error is the first cause; the least counts first."""

    ROOT = 0
    ENDED = 1
    FAILED = 2
    SAID = 3
    LONG_GONE = 4
    WEAK = 5
    FOLLOWED = 6
    COMMAND = 7
    LOGGED = 8
    LEFT = 9
    PASSED_ON = 10
    LIKELY = 11
    CLEAN_UP = 12


REASONS = {
    Rung.ROOT: "hardware, kernel or scheduler did it: often printed last, and explains the rest",
    Rung.ENDED: "it ended its process by its form: a crash, a traceback that nobody caught",
    Rung.FAILED: "an exception, or an error that a row explains",
    Rung.SAID: "a plain line that a row explains",
    Rung.LONG_GONE: "an exception that a row explains: its process printed much more, and ended",
    Rung.WEAK: "a row explains it as what most causes lead to",
    Rung.FOLLOWED: "it follows from the end of another process",
    Rung.COMMAND: "a command of a script that a row explains: scripts go on, and clean up",
    Rung.LOGGED: "a logger's error that no row explains",
    Rung.LEFT: "a row explains how a process ended, and not why",
    Rung.PASSED_ON: "it only states that something else failed",
    Rung.LIKELY: "a line that begins like an error, or a command's, which no row explains",
    Rung.CLEAN_UP: "a command of a script behind another error: scripts go on, and clean up",
}
"""Why an error stands where it does."""


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


def explained(candidate: Candidate, *, of_ray: bool = False) -> Explained:
    """Return the row that explains most of an error's chain, its main part first."""
    best = Explained(candidate)
    main = candidate.error
    for error in (main, *(part for part in candidate.whole.chain() if part is not main)):
        found = explain(error, "noise", "cause", of_ray=of_ray)
        if found is not None and (best.row is None or found[0].weight > best.weight):
            best = Explained(replace(candidate, error=error), *found)
    return best


def is_noise(known: Explained) -> bool:
    """Return whether the table calls a line harmless: it is never the answer."""
    return known.row is not None and known.row.kind == "noise"


def is_marked(error: ParsedError) -> bool:
    """Return whether an error has the form of one, or states its level; others need a row."""
    return error.kind is not ErrorKind.PLAIN or error.level > LogLevel.UNSTATED


def rung_of(known: Explained, *, has_end: bool) -> Rung | None:
    """Return the rung of an error; None if it can be no cause."""
    candidate = known.candidate
    error = candidate.error
    weight = None if known.row is None else known.row.weight
    is_fatal = candidate.standing is Standing.FATAL
    is_command = _is_command(candidate)
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


def ranked(known: Sequence[Explained]) -> list[tuple[Explained, Rung | None]]:
    """Return errors with their rungs; a command behind another error of its log cleans up."""
    has_end = any(map(passes_on, known))
    rungs = [rung_of(one, has_end=has_end) for one in known]
    begun: dict[int, int] = {}  # the first line of another error, by log
    for one, rung in zip(known, rungs, strict=True):
        if rung is not None and (one.row is not None or not _is_command(one.candidate)):
            log = one.candidate.log
            begun[log] = min(one.number, begun.get(log, one.number))
    return [
        (one, rung if rung is None or not _cleans_up(one, begun) else Rung.CLEAN_UP)
        for one, rung in zip(known, rungs, strict=True)
    ]


def _cleans_up(one: Explained, begun: Mapping[int, int]) -> bool:
    """Return whether a command of a script stands behind another error of its log.

    What a shell says of a program that was killed is about the one before it.
    """
    is_behind = begun.get(one.candidate.log, one.number) < one.number
    is_own = one.candidate.role is not Role.WRAPPER
    return is_behind and is_own and _is_command(one.candidate)


def _is_command(candidate: Candidate) -> bool:
    """Return whether an error is one of a command of a script, which did not end by it."""
    error = candidate.error
    is_fatal = candidate.standing is Standing.FATAL
    return error.kind is ErrorKind.SHELL and not is_fatal and not COMPILER.match(error.line)


def first_cause(known: Sequence[Explained]) -> Explained | None:
    """Return the cause of all others: the earliest of those with the strongest evidence."""
    rungs: dict[Rung, list[Explained]] = {}
    for one, rung in ranked(known):
        if rung is not None:
            rungs.setdefault(rung, []).append(one)
    failed = [*rungs.get(Rung.ENDED, ()), *rungs.get(Rung.FAILED, ())]
    roots = [one for one in rungs.pop(Rung.ROOT, ()) if not _went_on_after(one, failed)]
    if roots:
        return _failed_before(earliest(roots), failed)
    first = earliest(rungs[min(rungs)]) if rungs else None
    if first is None or (first.row is not None and not _is_vague_crash(first)):
        return first
    return _printed_with(first, known, rungs) or first


def _is_vague_crash(known: Explained) -> bool:
    """Return whether a row only explains that native code crashed, not why."""
    return known.weight is Weight.WEAK and known.candidate.error.kind is ErrorKind.CPP


def _printed_with(
    first: Explained, known: Sequence[Explained], rungs: Mapping[Rung, list[Explained]]
) -> Explained | None:
    """Return what was printed with an error that says little by itself, and says more."""
    burst = [one for one in known if _is_of_burst(one, first)]
    logged = [one for one in rungs.get(Rung.LOGGED, ()) if one.number < first.number]
    if first.row is not None:
        native = [one for one in logged if is_of_native_code(one.candidate.error)]
        return earliest(one for one in native if one in burst)
    explaining = earliest(one for one in burst if one.row is not None)
    if explaining is not None:
        return explaining

    # No row explains any of them.
    others = logged if first.candidate.role is not Role.ORIGINAL else []
    if first.candidate.role is Role.WRAPPER:
        others = [*others, *rungs.get(Rung.LIKELY, ())]
    if first.candidate.error.kind is ErrorKind.CPP:
        failed = [one for one in rungs.get(Rung.FAILED, ()) if one.number < first.number]
        others = [one for one in failed if _is_same_process(one, first)]
    return earliest(one for one in others if one in burst)


def passes_on(known: Explained) -> bool:
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
    is_behind = one.number > first.number and error.kind is ErrorKind.PLAIN
    if is_same and is_behind and _is_uncaught(first):
        return False  # a script's, which goes on and cleans up
    if error.kind is ErrorKind.SHELL and first.candidate.error.kind is not ErrorKind.SHELL:
        is_before = one.number < first.number and first.candidate.role is not Role.ORIGINAL
        if not is_before or not is_same:
            return False
    return not is_same or abs(candidate.went_on - first.candidate.went_on) <= _FEW


def _is_uncaught(known: Explained) -> bool:
    """Return whether an exception ended its process: that prints no more behind it."""
    candidate = known.candidate
    return candidate.standing is Standing.FATAL and candidate.error.kind is ErrorKind.PYTHON


def _is_same_process(one: Explained, other: Explained) -> bool:
    """Return whether two errors are of one process, as far as prefixes show it."""
    former = one.candidate.error
    later = other.candidate.error
    return (former.pid, former.rank, former.actor) == (later.pid, later.rank, later.actor)


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
    return earliest([root, *failed])


def earliest(known: Iterable[Explained]) -> Explained | None:
    """Return the first in time of some errors."""
    every = [*known]
    first = first_of(error.candidate for error in every)
    return next((error for error in every if error.candidate is first), None)


def reason_of(known: Explained, rung: Rung | None) -> str:
    """Return why an error stands where it does among the others."""
    if rung is not None:
        return REASONS[rung]
    if is_noise(known):
        return "the table calls it harmless"
    return _LEFT_OUT.get(known.candidate.standing, "it has neither the form of an error nor a row")


_LEFT_OUT = {
    Standing.SURVIVED: "its process printed much behind it",
    Standing.QUOTED: "it stands in a text",
    Standing.IGNORED: "the program that printed it ignored it, or it is older than the log",
    Standing.OVERCOME: "steps followed, or another try of it",
}
