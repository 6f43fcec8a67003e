"""Errors in the output of a running job: reported once, as a cause once they ended it.

An error is a cause if it ended its process by its form, if a line behind it shows that a process
ended, or if the job has stopped since. All else the job may go on from: it is seen. What comes
first in the order of the end is reported likewise, whatever it is, once something has ended or
stopped. Before that an exception or a crash that no row explains is seen, and no line by itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.shared import Known
from agent.diagnosis.errors.causal_order import (
    STEPS_OF_OTHERS,
    Role,
    Standing,
    candidates,
    shows_an_end,
)
from agent.diagnosis.errors.log_parser import LogParser
from agent.diagnosis.errors.parsed_error import ErrorKind
from agent.diagnosis.find_cause import UNKNOWN, what_led_to
from agent.diagnosis.order import Explained, Rung, explained, first_cause, is_noise, rung_of
from agent.diagnosis.rows import Weight, explain, known_signs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.diagnosis.errors.causal_order import Candidate
    from agent.diagnosis.errors.log_parser import ParsedLog
    from agent.diagnosis.rows import Row

_NO_ROW = f"an error whose cause is {UNKNOWN}"
_LOOK = "Look at it and at the lines before it"
_LARGEST_ZONE = 14 * 3_600  # seconds that local time may differ
_LINES = {ErrorKind.PLAIN, ErrorKind.JSON, ErrorKind.SHELL}
"""Lines by themselves, which programs print in passing, too."""
_NATIVE = {ErrorKind.KERNEL, ErrorKind.NVRM, ErrorKind.CPP}
_MOST_ERRORS = 100  # that are kept of a running job's output
_LOOK_AGAIN = 50  # lines after which errors are looked at once more, then after twice as many


class LiveErrors:
    """Reads an attempt's output, and returns each row's error once as seen, and once as cause."""

    def __init__(self, began: float | None = None) -> None:
        """`began` is when the attempt did, in seconds since 1970."""
        earliest = None if began is None else _within_year(began) - _LARGEST_ZONE
        self._parser = LogParser(signs=known_signs(), most=_MOST_ERRORS, began=earliest)
        self._seen: set[str] = set()
        self._causes: dict[str, int] = {}  # the steps before each, by the row's key
        self._has_unknown = False  # whether an error without a row was reported as an end
        self._unknown_rung: Rung | None = None  # the strongest of those that were seen
        self._read_up_to = -1  # the number of the last error that was looked at
        self._changes = -1
        self._known: dict[tuple[int, int], Explained] = {}
        self._gap = _LOOK_AGAIN
        self._look_at = 0  # the number of lines at which errors are looked at once more
        self.first: Known | None = None  # the cause if the job ended now, known or not
        self.open_keys: frozenset[str] = frozenset()  # rows of errors that nothing survived so far

    def read(self, lines: Iterable[str], *, has_stopped: bool = False) -> list[Known]:
        """Read lines; return what is new: noise, symptoms, errors seen, and causes.

        `has_stopped`: the job makes no steps any more, or nothing at all.
        """
        self._parser.read(lines)
        if self._parser.is_within and not has_stopped:
            return []  # a part of a traceback may show another cause than the whole
        return self._look(has_stopped=has_stopped)

    def close(self) -> list[Known]:
        """Return what is new at the end of the output, whose last error may be cut off."""
        return self._look(has_stopped=False)

    def _look(self, *, has_stopped: bool) -> list[Known]:
        """Look at the errors so far, if they may have changed."""
        is_changed = self._parser.changes != self._changes
        is_due = bool(self._known) and self._parser.lines >= self._look_at
        if not is_changed and not is_due and not has_stopped:
            return []
        self._gap = _LOOK_AGAIN if is_changed else 2 * self._gap
        self._look_at = self._parser.lines + self._gap
        self._changes = self._parser.changes
        log = self._parser.result()
        possible = candidates([log])
        found = [candidate for candidate in possible if candidate.standing < Standing.QUOTED]
        known = [self._explained(candidate) for candidate in found]
        known = [one for one in known if not is_noise(one)]
        rows = [error.row for error in known if error.candidate.standing < Standing.SURVIVED]
        self.open_keys = frozenset(row.key for row in rows if row is not None)

        # What has ended something?
        new = self._side_lines(log)
        first = first_cause(known)
        if first is not None:
            first = what_led_to(first, possible)
        self.first = None if first is None else _reported(first, is_seen=True)
        if first is not None:
            has_ended = log.last_end > first.number or _is_an_end(first)
            has_ended = has_ended or _is_followed_by_an_end(first, found)
            new += self._of_the_first(first, has_ended=has_ended, has_stopped=has_stopped)

        # What else does a row explain?
        for error in known:
            if error.row is None or error.row.key in self._seen:
                continue
            if not error.row.is_live and error.candidate.standing is not Standing.FATAL:
                continue  # jobs print it in passing
            self._seen.add(error.row.key)
            new.append(_reported(error, is_seen=True))
        return new

    def _of_the_first(self, first: Explained, *, has_ended: bool, has_stopped: bool) -> list[Known]:
        """Return what is new about the error that counts first if the job ends now."""
        row = first.row
        if row is None:
            return self._unknown(first, has_ended=has_ended, has_stopped=has_stopped)
        if not has_ended and not has_stopped:
            return []
        if first.weight >= Weight.CAUSE and (has_ended or row.is_live):
            return self._cause(first, row)
        if row.key in self._seen:
            return []
        self._seen.add(row.key)
        return [_reported(first, is_seen=True)]

    def _cause(self, first: Explained, row: Row) -> list[Known]:
        """Return a cause that has ended something, once."""
        if row.key in self._causes:
            return []
        self._causes[row.key] = self._parser.steps
        self._seen.add(row.key)
        return [_reported(first, is_seen=False)]

    def _unknown(self, first: Explained, *, has_ended: bool, has_stopped: bool) -> list[Known]:
        """Return an error that no row explains: once as what ended something, else as seen.

        One with a stronger sign is seen anew. A line by itself is for an end, or a stop.
        """
        rung = rung_of(first, has_end=has_ended)
        if rung is None:
            return []
        kind = first.candidate.error.kind
        is_exception = kind is ErrorKind.PYTHON and rung <= Rung.FAILED
        is_end = is_exception and (has_ended or has_stopped)
        if is_end:
            is_new = not self._has_unknown
        else:
            is_by_itself = kind in _LINES or (kind is ErrorKind.SLURM and rung is not Rung.ENDED)
            is_shown = has_ended or has_stopped or not is_by_itself
            is_new = self._unknown_rung is None or rung < self._unknown_rung
            is_new = is_new and is_shown and not self._is_a_seen_symptom(first)
        if not is_new:
            return []
        self._has_unknown = self._has_unknown or is_end
        self._unknown_rung = rung if self._unknown_rung is None else min(rung, self._unknown_rung)
        return [_reported(first, is_seen=not is_end)]

    def _is_a_seen_symptom(self, first: Explained) -> bool:
        """Return whether an error was reported as what many causes lead to."""
        found = explain(first.candidate.error, "symptom")
        return found is not None and found[0].key in self._seen

    @property
    def named_keys(self) -> frozenset[str]:
        """Return the rows of the causes that no steps have followed since."""
        steps = self._parser.steps
        return frozenset(
            key for key, before in self._causes.items() if steps - before < STEPS_OF_OTHERS
        )

    def _explained(self, candidate: Candidate) -> Explained:
        """Return the row that explains an error, looked up once."""
        key = candidate.whole.number, sum(len(part.text) for part in candidate.whole.chain())
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 2 * _MOST_ERRORS:
                self._known.clear()
            known = explained(candidate)
            self._known[key] = known
            return known
        now = replace(known.candidate, standing=candidate.standing, went_on=candidate.went_on)
        return replace(known, candidate=now)

    def _side_lines(self, log: ParsedLog) -> list[Known]:
        """Return the new noise and symptoms, each row once."""
        lines = []
        last = self._read_up_to
        for occurrence in log.occurrences:
            error = occurrence.error
            if error.number <= self._read_up_to or occurrence.is_quoted:
                continue
            last = max(last, error.number)
            found = explain(error, "noise", "symptom")
            if found is None or found[0].key in self._seen or not found[0].is_live:
                continue
            row, cause = found
            self._seen.add(row.key)
            known = Known(row.key, error.line, cause.sentence, cause.remedy, rank=error.rank)
            is_noise = row.kind == "noise"
            lines.append(replace(known, is_noise=is_noise, is_symptom=not is_noise))
        self._read_up_to = last
        return lines


def _within_year(seconds: float) -> float:
    """Return a time in seconds since its year began."""
    at = time.gmtime(seconds)
    return (at.tm_yday - 1) * 86_400.0 + at.tm_hour * 3_600 + at.tm_min * 60 + at.tm_sec


def _is_an_end(first: Explained) -> bool:
    """Return whether an error ended a process by its form.

    A traceback from the start of a program may be a tool's; if it is the job's, its end follows.
    """
    candidate = first.candidate
    if candidate.error.kind is ErrorKind.SLURM:  # it may state a kill of a helper
        return first.row is not None and first.row.is_end_of_job
    is_native = candidate.error.kind in _NATIVE or shows_an_end(candidate.whole)
    return candidate.standing is Standing.FATAL and is_native


def _is_followed_by_an_end(first: Explained, found: Iterable[Candidate]) -> bool:
    """Return whether a line behind an error shows that a process ended."""
    return any(
        candidate.role is not Role.ORIGINAL
        and candidate.whole.number > first.number
        and shows_an_end(candidate.whole)
        for candidate in found
    )


def _reported(known: Explained, *, is_seen: bool) -> Known:
    """Return an error as it is reported, with what stands before its line."""
    error = known.candidate.error
    prefix = error.printed.removesuffix(error.line) if error.printed.endswith(error.line) else ""
    key = UNKNOWN if known.row is None else known.row.key
    whole = known.candidate.whole
    return Known(
        key=key,
        line=error.line or error.printed,
        cause=_NO_ROW if known.cause is None else known.cause.sentence,
        what_to_do=_LOOK if known.cause is None else known.cause.remedy,
        rank=next((part.rank for part in whole.chain() if part.rank is not None), None),
        is_seen=is_seen,
        prefix=prefix,
    )
