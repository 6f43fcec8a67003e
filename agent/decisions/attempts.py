"""Attempts at the job: each has a number, an id that Ray knows it by, its reports and its end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind
from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.base.outcome import Outcome
    from agent.decisions.verdict import JobReport


@dataclass(frozen=True)
class Attempt:
    """One attempt at the job."""

    id: str
    """What Ray knows it by: `<run id>-<number>`, but where a given Ray's owner wants its own."""
    number: int = 1
    began: float = 0.0
    """Its deadlines count from here."""
    submitted: float | None = None
    """When it was handed to Ray; None until then."""
    heard: float = 0.0
    """When Ray spoke of it last."""
    report: JobReport | None = None
    ended: float | None = None
    end: Outcome | None = None

    def heard_at(self, now: float, report: JobReport | None) -> Attempt:
        """Return it with Ray's newest word of it."""
        return replace(self, heard=now, report=report or self.report)

    def over(self, now: float, end: Outcome) -> Attempt:
        """Return it with its end."""
        return replace(self, ended=now, end=end)


def id_of(run_id: str, number: int, fixed: str | None = None) -> str:
    """Return the id of an attempt; a given Ray's owner may look for the job by an id of its own."""
    return fixed or f"{run_id}-{number}"


def may_retry(attempt: Attempt, end: Outcome, retries: int) -> bool:
    """Say whether another attempt follows: after a loss only, and while there are any left."""
    return end.kind is Kind.LOST and not end.is_jobs_verdict and attempt.number <= retries
