"""The durable state of a run: the part of the head's state that its next agent needs.

`decide` changes it like any other part of the state. The parent process keeps each change in its
memory before anything else is done: an agent that is killed while it acts leaves its decision. On
the disk, which only a loss of the parent needs, it is awaited where others act on it
(`must_be_on_disk`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from signal import SIGINT, SIGTERM
from typing import Any, TypeVar, Union, get_args, get_origin

from msgspec.structs import fields, replace

from agent.base import ends
from agent.base.ends import Outcome
from agent.base.text import seconds_between
from agent.base.value import RunTime, Value
from agent.decisions.attempts import (
    Attempt,
    EndedAttempt,
    JobReport,
    LostAttempt,
    is_loss,
    may_be_retried,
    submission_id_of,
)
from agent.decisions.shared import Outage, Shortage

V = TypeVar("V", bound=Value)


class Losses(Value):
    """What the present attempt has lost."""

    below_required_since: RunTime | None = None  # since when fewer workers than required count
    last: str = ""  # the last loss of a node while the job ran, as text
    last_at: RunTime | None = None  # when that was


class Stop(Value):
    """The stop of a job, and the outcome to end with once it has stopped."""

    outcome: Outcome
    began_at: RunTime  # its limit counts from this time


class StepHolder(Value):
    """A worker, by name, that is wanted to run a prepare step on a disk."""

    step: str
    disk: str  # the one on which the step's marker lies
    node: str


class Durable(Value):
    """What the next agent of a run must have, and what it decides on."""

    run_id: str
    fingerprint: str = ""  # of the job and its settings
    epoch: int = 0  # the number of the Ray cluster; a later cluster has a higher one
    replaces_ray: bool = False  # the Ray of this epoch is not started yet: an older one may run
    head: str = ""  # the name of the head's node
    ended: tuple[EndedAttempt, ...] = ()
    attempt: Attempt = Attempt()
    losses: Losses = Losses()
    stop: Stop | None = None  # the job is being stopped
    verdict: Outcome | None = None  # the outcome of the run; workers may not have received it yet
    outages: tuple[Outage, ...] = ()  # when services did not answer, the newest last
    shortages: tuple[Shortage, ...] = ()  # when too few members of groups served, the newest last
    holders: tuple[StepHolder, ...] = ()  # the workers that may run a step on a disk

    @property
    def open_attempt(self) -> Attempt | None:
        """Return the attempt that was submitted, or is about to be, and has no end."""
        return self.attempt if self.attempt.is_submitted else None

    @property
    def tried(self) -> tuple[LostAttempt, ...]:
        """Return the lost attempts for the retry decisions; a signal is no loss."""
        return tuple(one.tried for one in self.ended if (one.exit_code or 0) <= _SIGNALED)

    @property
    def is_over(self) -> bool:
        """Return whether no later head may resume the run, though this one may not have exited yet.

        The job's own end, and a stop by hand, are final. After a loss, or a stop by a scheduler,
        the run may be resumed.
        """
        end = self.verdict
        return end is not None and (end.is_jobs_verdict or end.exit_code in {0, 128 + SIGINT})

    @property
    def has_outdated_ray(self) -> bool:
        """Return whether a Ray that runs is to be replaced, or has run an attempt that is over."""
        is_between = bool(self.ended) and not self.attempt.is_submitted
        return self.replaces_ray or (is_between and self.ended[-1].epoch == self.epoch)

    def outages_of(self, service: str, node: str) -> tuple[Outage, ...]:
        """Return the outages of a service on a node, by the node's name."""
        return tuple(one for one in self.outages if (one.service, one.node) == (service, node))

    def shortage_of(self, service: str) -> Shortage | None:
        """Return the shortage of a group's service that lasts; None without one."""
        open_ones = (one for one in self.shortages if one.until is None)
        return next((one for one in open_ones if one.service == service), None)

    def with_shortage(self, shortage: Shortage) -> Durable:
        """Return it with a new shortage, or with the present form of one that lasts."""
        before = self.shortage_of(shortage.service)
        if before is None:
            return replace(self, shortages=(*self.shortages, shortage)[-_MOST_SHORTAGES:])
        shortages = tuple(shortage if one == before else one for one in self.shortages)
        return replace(self, shortages=shortages)

    def without_shortage(self, now: float) -> Durable:
        """Return it with all shortages over: between attempts nothing of a group is missed."""
        shortages = tuple(one.over(now) if one.until is None else one for one in self.shortages)
        return replace(self, shortages=shortages)

    def before_attempt(self, required: int, fixed_id: str | None = None) -> Durable:
        """Return it with the next attempt, not submitted yet; what the last one lost is forgotten.

        `fixed_id` is the id that is set for the first attempt, if any.
        """
        number = self.ended[-1].number + 1 if self.ended else 1
        id_ = submission_id_of(self.run_id, number, fixed_id)
        attempt = Attempt(id_, number, required=required)
        return replace(self, attempt=attempt, losses=Losses(), stop=None)

    def with_end(
        self, end: Outcome, at: str, seconds: float | None = None, report: JobReport | None = None
    ) -> Durable:
        """Return it with the end of its open attempt, if there is one; `at` is UTC.

        `report` is Ray's last, if the attempt is lost.
        """
        attempt = self.open_attempt
        if attempt is None:
            return self
        code = end.exit_code
        if end.culprit in ends.LIMITS_OF_RUN:  # stopped, not lost: no retry is used
            code = 128 + SIGTERM
        ended = EndedAttempt(
            attempt.number,
            attempt.id,
            attempt.start,
            at,
            end.reason,
            code,
            seconds=seconds,
            checkpoint=attempt.checkpoint,
            nodes=attempt.nodes,
            epoch=self.epoch,
            announced=is_loss(end) and attempt.is_announced_loss(end),
            cause=attempt.own_cause(end, report) if is_loss(end) else None,
            plain=end.plain,
        )
        over = replace(attempt, submitted=None)
        return replace(self, ended=(*self.ended, ended), attempt=over)

    def with_epoch(self, utc: float) -> Durable:
        """Return it with the epoch of the Ray that is about to start, at this time in UTC."""
        return replace(self, epoch=max(self.epoch + EPOCH_STEP, int(utc * 1000)))

    def starting_ray(self, head: str, utc: float) -> Durable:
        """Return it for an agent of this node that starts a Ray of its own."""
        return replace(self.with_epoch(utc), head=head, replaces_ray=False)


EPOCH_STEP = 10_000
"""How much higher the next epoch is at least, where the clock has gone back.

A worker's Ray has the epoch's number as its first generation, and one more with each restart.
"""
_MOST_SHORTAGES = 100
_SIGNALED = 128  # exit codes above are those of a signal


def must_be_on_disk(before: Durable, after: Durable) -> bool:
    """Return whether the disk must have a change before anything else is done.

    Others act on such a change, or must not act on what was before.
    """
    return _acted_on(before) != _acted_on(after)


def _acted_on(durable: Durable) -> tuple[object, ...]:
    attempt = durable.attempt
    return (
        *(durable.run_id, durable.epoch, attempt.id, attempt.submitted, len(durable.ended)),
        *(durable.stop, durable.verdict, durable.holders),
    )


# --- the next agent -------------------------------------------------------------------------------


class Succession(Value):
    """How an agent comes to a run that an earlier one has left."""

    replaces_agent: bool = False  # it replaces a killed one, whose verdict stands
    job_survives: bool = False  # the job outlives its head: an open attempt is followed again
    own_epoch: int = 0  # the epoch of the killed agent by its node.json, if known
    memory: str = ""  # the out-of-memory evidence if Ray has ended since: it would run out again


def taken_over(left: Durable, how: Succession, at: str) -> Durable:
    """Return what an agent goes on with that finds this record of an earlier one; `at` is UTC."""
    # A killed agent's verdict stands. A user who starts a run again wants it to continue.
    durable = left
    if not how.replaces_agent:
        durable = replace(durable, verdict=None)
        if durable.stop is not None and not may_be_retried(durable.stop.outcome):
            durable = replace(durable, stop=None)

    # Did a later head write the record? Then that stands.
    if 0 < how.own_epoch < durable.epoch:
        evidence = "run.json has its epoch"
        later = ends.SUPERSEDED.outcome(run=durable.run_id, evidence=evidence)
        durable = replace(durable, epoch=how.own_epoch, verdict=later)
    if durable.open_attempt is None or how.job_survives:
        return durable

    # Its attempt was lost with it. Was its end decided while the job was stopped, or did it run out
    # of memory?
    end = None if left.stop is None else left.stop.outcome
    if end is None and how.memory:
        end = ends.OUT_OF_MEMORY.outcome(evidence=how.memory)
    verdict = durable.verdict
    if how.replaces_agent and end is not None and not may_be_retried(end):
        verdict = verdict or end
    seconds = seconds_between(durable.attempt.start, at)
    durable = durable.with_end(end or ends.HEAD_LOST.outcome(), at, seconds)
    return replace(durable, verdict=verdict, stop=None)


# --- another clock --------------------------------------------------------------------------------


def on_clock(value: V, by: float) -> V:
    """Return a value on a clock that began so many seconds earlier: its moments are later by that.

    A moment is a field that is declared as RunTime, at any depth. All else is no moment, durations
    and times in UTC among it.
    """
    moved = {
        name: _moved(getattr(value, name), kind, by) for name, kind in _fields(type(value)).items()
    }
    return replace(value, **moved)


def _moved(content: Any, kind: Any, by: float) -> Any:  # noqa: ANN401 - of a field of any type
    """Return the content of a field of this type, with its moments moved."""
    if content is None:
        return None
    if kind is RunTime:
        return content + by
    if isinstance(content, Value):
        return on_clock(content, by)
    if isinstance(content, tuple):
        item = get_args(kind)[0]
        return tuple(_moved(one, item, by) for one in content)
    if isinstance(content, Mapping):
        item = get_args(kind)[1]
        return {key: _moved(one, item, by) for key, one in content.items()}
    return content


@cache
def _fields(of: type[Value]) -> dict[str, Any]:
    """Return the fields of a type that are moments, or may have some, with their types."""
    kinds = {one.name: _without_none(one.type) for one in fields(of)}
    return {name: kind for name, kind in kinds.items() if _has_moments(kind)}


def _without_none(kind: Any) -> Any:  # noqa: ANN401 - a type of any form
    """Return the type of a field's content, if it has any."""
    if get_origin(kind) not in {Union, types.UnionType}:
        return kind
    others = [one for one in get_args(kind) if one is not type(None)]
    return others[0] if len(others) == 1 else kind


def _has_moments(kind: Any) -> bool:  # noqa: ANN401 - same
    """Return whether a type is a moment, or one of its parts is."""
    if kind is RunTime:
        return True
    if isinstance(kind, type) and issubclass(kind, Value):
        return bool(_fields(kind))
    return any(_has_moments(_without_none(one)) for one in get_args(kind))
