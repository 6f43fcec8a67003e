"""Attempts at the job: each has a number, an id that Ray knows it by, its reports and its end."""

from __future__ import annotations

from dataclasses import field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.decisions.verdict import JobReport

_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 300.0
_SHORT = 600.0
"""An attempt that was lost sooner than this, and saved nothing new, came to nothing."""
_MOST_IN_VAIN = 3


@dataclass(frozen=True)
class Attempt:
    """One attempt at the job."""

    id: str
    """What Ray knows it by: `<run id>-<number>`; a given Ray's owner may name the first one."""
    number: int = 1
    began: float = 0.0
    """Its deadlines count from here."""
    not_before: float = 0.0
    """It is submitted no earlier than this, so that losses in a row do not make a spin."""
    submitted: float | None = None
    """When it was handed to Ray; None until then."""
    heard: float = 0.0
    """When Ray spoke of it last."""
    report: JobReport | None = None
    ended: float | None = None
    end: Outcome | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    """Its workers as it was submitted, address to name: who joins later is none of them.

    Empty where an earlier agent submitted it, and had nothing to tell of it.
    """
    missed: Mapping[str, str] = field(default_factory=dict)
    """Those of them that were lost, be they back or not: address to name."""
    gone: tuple[str, ...] = ()
    """The nodes that were lost while it ran, by name."""
    nodes: tuple[str, ...] = ()
    """The workers that an earlier agent saw while it ran, by name; it may still run there."""
    checkpoint: int | None = None
    """The newest checkpoint's step when it began, as far as known."""
    doubt: str = ""
    """Which nodes of a given Ray did not answer after its job failed, and why."""
    signaled: bool = False
    """True once the agent itself sent SIGTERM to its driver: an exit code of 0 is no success then.
    """

    def heard_at(self, now: float, report: JobReport | None) -> Attempt:
        """Return it with Ray's newest word of it."""
        return replace(self, heard=now, report=report or self.report)

    def over(self, now: float, end: Outcome) -> Attempt:
        """Return it with its end."""
        return replace(self, ended=now, end=end)

    @property
    def tried(self) -> Tried:
        """Return what it counts for once it was lost."""
        began = self.began if self.submitted is None else self.submitted
        reason = "" if self.end is None else self.end.reason
        return Tried((self.ended or began) - began, reason, self.checkpoint)


@dataclass(frozen=True)
class DriverSignaled:
    """The agent itself sent SIGTERM to an attempt's driver, since Ray did not take its stop."""

    id: str


@dataclass(frozen=True)
class Tried:
    """An attempt that was lost, as it counts for those that may follow."""

    seconds: float
    """How long it ran."""
    reason: str = ""
    checkpoint: int | None = None
    """The newest checkpoint's step when it began."""


def id_of(run_id: str, number: int, fixed: str | None = None) -> str:
    """Return the id of a new attempt; `fixed` is what a given Ray's owner calls the first one."""
    return fixed if fixed and number == 1 else f"{run_id}-{number}"


def is_loss(end: Outcome) -> bool:
    """Say whether an attempt that ended so was lost, rather than over by itself or by wish."""
    return end.kind is Kind.LOST and not end.is_jobs_verdict and not end.is_superseded


def pause_after(losses: int) -> float:
    """Return how long to wait before the attempt that follows so many losses."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(losses - 1, 10))


def spent(tried: Sequence[Tried], retries: int) -> Outcome | None:
    """Return the end of a run after which no attempt may follow; None where one may.

    `tried` are all attempts so far that were lost, in their order, those of earlier heads too.
    """
    if not tried:
        return None
    last = tried[-1].reason
    if len(tried) > retries:
        count = "the only attempt was" if len(tried) == 1 else f"all {len(tried)} attempts were"
        reason = f"{last}; {count} lost, and AGENT_JOB_RETRIES={retries} allows no other"
        return _spent(reason, "Raise AGENT_JOB_RETRIES, or begin anew in another AGENT_LOG_DIR")
    return None


def in_vain(tried: Sequence[Tried], newest: int | None) -> Outcome | None:
    """Return the end of a run whose last attempts came to nothing, one like the other.

    `newest` is the step of the newest checkpoint now; where none is known, time alone tells.
    """
    recent = tried[-_MOST_IN_VAIN:]
    if len(recent) < _MOST_IN_VAIN or any(one.seconds > _SHORT for one in recent):
        return None
    steps = [*(one.checkpoint for one in recent), newest]
    if any(_is_newer(then, later) for then, later in pairwise(steps)):
        return None
    reason = f"no progress: {len(recent)} attempts in a row were lost within"
    remedy = "Find out what takes the nodes or Ray away; begin anew in another AGENT_LOG_DIR"
    each = f"{round(_SHORT / 60)} min each, without a newer checkpoint"
    return _spent(f"{reason} {each}, the last: {recent[-1].reason}", remedy)


def _is_newer(then: int | None, later: int | None) -> bool:
    return later is not None and (then is None or later > then)


def _spent(reason: str, remedy: str) -> Outcome:
    return Outcome(
        Kind.LOST, 75, reason, culprit="attempts", remedy=remedy, attempts_are_used_up=True
    )
