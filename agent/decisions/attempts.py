"""Attempts at the job: how one ends, retries, and attempts without progress."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import field

from agent.base import ends, times
from agent.base.ends import Kind, Outcome, name_of_code, shell_code
from agent.base.value import RunTime, Seconds, Value

if TYPE_CHECKING:
    from collections.abc import Sequence


_SETUP_FAILURE = "RUNTIME_ENV_SETUP_FAILURE"
_SETUP_WORDS = re.compile(
    r"runtime_env setup failed|failed to set up (the )?runtime", re.IGNORECASE
)
"""The message of Ray before 2.43, which has no error type."""
_AGENT_WORDS = re.compile(
    r"runtime env agent (network error|timed out)|connect to (the )?runtime env agent"
    r"|fate shares with the agent",
    re.IGNORECASE,
)
"""Messages of Ray 2.60 when its own runtime_env process fails, not the runtime_env."""
_MEMORY_WORDS = re.compile(r"OutOfMemoryError|\bout of memory\b|low on memory", re.IGNORECASE)
"""The messages of Ray's OOM killer, CUDA and the C library."""


class FailureCause(Value):
    """The cause of a job's failure in its output, if it is none that a loss leads to."""

    key: str
    text: str
    node: str = ""  # the node that it lies on, if known
    is_permanent: bool = False  # whether another try on the same node cannot help
    needs_step: bool = False  # it says something about the job only with the step at which it was


class JobReport(Value):
    """The status of the job, from Ray or from torchrun's shares."""

    status: str
    message: str = ""
    driver_exit_code: int | None = None
    error_type: str = ""
    place: str = ""  # the process that failed, if known
    memory: str = ""  # what the kernel's OOM killer did just before, or ''
    cause: FailureCause | None = None
    ended_ago: Seconds = 0.0  # how long before the report the job ended, by Ray's clock

    @property
    def has_begun(self) -> bool:
        """Return whether Ray has started the job."""
        return self.status != "PENDING"

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self.status in {"SUCCEEDED", "FAILED", "STOPPED"}

    @property
    def first_message_line(self) -> str:
        """Return the first line of the message."""
        lines = self.message.strip().splitlines()
        return lines[0] if lines else "no message"

    @property
    def ran_out_of_memory(self) -> bool:
        """Return whether it failed for lack of memory."""
        return not self.succeeded and bool(self.memory or _MEMORY_WORDS.search(self.message))

    @property
    def succeeded(self) -> bool:
        """Return whether it ended with success."""
        return self.status == "SUCCEEDED"

    @property
    def blames_runtime_env(self) -> bool:
        """Return whether the runtime_env itself is the reason that it could not be set up."""
        if _AGENT_WORDS.search(self.message):
            return False
        if self.error_type:
            return _SETUP_FAILURE in self.error_type.upper()
        return bool(_SETUP_WORDS.search(self.message))


def verdict_of(report: JobReport, loss: str = "") -> Outcome:
    """Return the outcome of the run for the end of its job; `loss` names a node lost before."""
    after = f"; before that, {loss}" if loss else ""

    # Ray's word alone: it succeeded, or it was stopped.
    if report.succeeded:
        return ends.JOB_SUCCEEDED.outcome(before=after)
    if report.status == "STOPPED":
        return ends.JOB_STOPPED.outcome(before=after)

    # The driver's exit code, which becomes the run's.
    code = shell_code(report.driver_exit_code) if report.driver_exit_code else 0
    if code and report.ran_out_of_memory:
        details = f": {report.memory}" if report.memory else ""
        return ends.JOB_OUT_OF_MEMORY.outcome(code=code, details=details, before=after)
    if code:
        name = name_of_code(code)
        place = f" ({report.place})" if report.place else ""
        message = f": {report.first_message_line}" if report.place and report.message else ""
        return ends.JOB_FAILED.outcome(
            code=code, code_name=name, place=place, message=message, before=after
        )

    # Without a code, the reason that Ray gives.
    if report.blames_runtime_env:
        return ends.JOB_REFUSED_BY_RAY.outcome(evidence=report.first_message_line)
    if report.ran_out_of_memory:
        evidence = report.memory or report.first_message_line
        return ends.OUT_OF_MEMORY.outcome(evidence=f"{evidence}{after}")
    return ends.FAILED_WITHOUT_CODE.outcome(evidence=report.first_message_line, before=after)


_MOST_IN_VAIN = 3
_FEW_RETRIES = 2
"""Somebody who sets AGENT_JOB_RETRIES above this wants many attempts, short ones as well."""


class Attempt(Value):
    """The present attempt at the job; until it is submitted, the next one."""

    id: str = ""  # in Ray: `<run id>-<number>`, unless a given Ray's owner set the first
    number: int = 1
    submitted: RunTime | None = None  # when it was submitted; None until then
    start: str = ""  # the same in UTC
    required: int = 0  # how many workers it needs
    workers: Mapping[str, str] = field(default_factory=dict)
    """Its workers at submission, address to name; empty if a killed agent left no record."""
    nodes: tuple[str, ...] = ()  # all workers that took part, by name: Ray may use any that joins
    lost_workers: Mapping[str, str] = field(default_factory=dict)  # those lost, rejoined or not
    lost_nodes: tuple[str, ...] = ()  # all nodes that were lost while it ran, by name
    announced_nodes: tuple[str, ...] = ()  # those that their platform takes away, by name
    dead_node_ids: frozenset[str] = frozenset()  # of silent nodes, which GCS may still list
    checkpoint: int | None = None  # the step of the newest checkpoint when it began, if known
    engines: Mapping[str, int] = field(default_factory=dict)
    """The generations of engines that got its weights from the trainer alone, by `NODE/NAME`."""
    stall_key: str = ""  # the cause of the stall that it is ended for, if it is
    signaled: bool = False  # the agent sent SIGTERM to the driver: exit code 0 is no success

    @property
    def is_submitted(self) -> bool:
        """Return whether it was submitted, or is about to be."""
        return self.submitted is not None

    def is_announced_loss(self, end: Outcome | None = None) -> bool:
        """Return whether it is lost, or will be, by announced losses of nodes alone."""
        is_by_node = end is None or end.culprit == ends.NODE_TAKEN.culprit
        known = set(self.announced_nodes)
        return bool(known) and is_by_node and known.issuperset(self.lost_nodes)

    def own_cause(self, end: Outcome, report: JobReport | None) -> FailureCause | None:
        """Return why it was lost if the job itself is the cause; None after a loss from outside.

        Without a known line in its output that is where it stalled. A job that failed without an
        exit code is no cause: whoever killed its driver or its supervisor may be outside.
        """
        if report is not None and report.cause is not None:
            return report.cause
        if end.culprit != "job" or self.lost_nodes or not self.stall_key:
            return None
        return FailureCause(self.stall_key, end.reason, needs_step=True)


class EndedAttempt(Value):
    """An attempt that is over; `start` and `end` are UTC, ISO 8601."""

    number: int
    id: str
    start: str
    end: str
    reason: str = ""
    exit_code: int | None = None
    seconds: float | None = None  # how long it ran; None if no record has that
    checkpoint: int | None = None  # the step of the newest checkpoint when it began, if known
    last_step: int | None = None  # the last step that it made, if known
    nodes: tuple[str, ...] = ()  # the workers that took part, by name
    epoch: int = 0  # of the Ray on which it ran
    announced: bool = False  # whether it was lost by announced losses of nodes alone
    cause: FailureCause | None = None  # why it was lost, if the job itself is the cause
    plain: str = ""  # the reason without words of logs

    @property
    def tried(self) -> LostAttempt:
        """Return it as input to the decision about the next one."""
        return LostAttempt(
            math.inf if self.seconds is None else self.seconds,
            self.reason,
            self.checkpoint,
            self.cause,
            self.announced,
            self.last_step,
        )


class LostAttempt(Value):
    """A lost attempt, as input to the decision about the next one."""

    seconds: float  # how long it ran
    reason: str = ""
    checkpoint: int | None = None  # the step of the newest checkpoint when it began
    cause: FailureCause | None = None  # of its own; None if it was lost from outside
    announced: bool = False  # true if only nodes were lost that had announced it
    last_step: int | None = None  # the last step that it made, if known


MOST_ANNOUNCED = 10  # so many announced losses of a run do not count against AGENT_JOB_RETRIES


def count_losses(tried: Sequence[LostAttempt]) -> int:
    """Return how many of these attempts count against AGENT_JOB_RETRIES."""
    return len(tried) - min(MOST_ANNOUNCED, sum(attempt.announced for attempt in tried))


def submission_id_of(run_id: str, number: int, fixed: str | None = None) -> str:
    """Return an attempt's id in Ray; `fixed` is the one set for the first attempt, if any."""
    return fixed if fixed and number == 1 else f"{run_id}-{number}"


def _got_further(since: Sequence[LostAttempt], newest: int | None) -> bool:
    """Return whether one of these attempts made more steps than one before, or saved any."""
    saved = [*(attempt.checkpoint for attempt in since), newest]
    made = [attempt.last_step for attempt in since]
    if any(b is not None and (a is None or b > a) for a, b in pairwise(saved)):
        return True
    return any(a is not None and b is not None and b > a for a, b in pairwise(made))


def _where_same_cause(tried: Sequence[LostAttempt], newest: int | None) -> str:
    """Return where the last attempt failed by the same cause as one before; '' if it did not.

    Attempts in between that were lost from outside say nothing about the job.
    """
    own = [number for number, attempt in enumerate(tried) if attempt.cause is not None]
    if len(own) < 2 or own[-1] != len(tried) - 1:
        return ""
    former = tried[own[-2]]
    last = tried[-1]
    if former.cause is None or last.cause is None or former.cause.key != last.cause.key:
        return ""

    # At the same step? What was saved in between has not helped.
    if last.last_step is not None and last.last_step == former.last_step:
        return f"at step {last.last_step}"

    # Else two in a row, of which the second one got no further.
    if last.cause.needs_step or own[-2] != len(tried) - 2 or _got_further([former, last], newest):
        return ""
    return "without a newer checkpoint"


def is_loss(end: Outcome) -> bool:
    """Return whether an attempt with this end was lost."""
    return end.kind is Kind.LOST and not end.is_jobs_verdict and not end.is_superseded


def may_be_retried(end: Outcome) -> bool:
    """Return whether another attempt may follow one with this end."""
    return is_loss(end) and not end.attempts_are_used_up


def pause_after(tried: Sequence[LostAttempt]) -> float:
    """Return the seconds to wait before the next attempt: none after one that made progress.

    Attempts that are lost soon, one after the other, begin more and more slowly.
    """
    in_vain = _last_in_vain(tried)
    if not in_vain:
        return 0.0
    return min(times.LONGEST_RETRY_PAUSE, times.FIRST_RETRY_PAUSE * 2.0 ** min(in_vain - 1, 10))


def _last_in_vain(tried: Sequence[LostAttempt]) -> int:
    """Return how many of the last attempts were short, and made no step beyond those before."""
    furthest = 0
    in_vain = 0
    for attempt in tried:
        step = attempt.last_step or 0
        is_progress = step > furthest or attempt.seconds > times.ATTEMPT_SHORT
        furthest = max(furthest, step)
        if is_progress:
            in_vain = 0
        elif not attempt.announced:
            in_vain += 1
    return in_vain


def retries_exhausted(tried: Sequence[LostAttempt], retries: int) -> Outcome | None:
    """Return the end of a run whose lost attempts, of all its heads, used all retries; or None."""
    if not tried or count_losses(tried) <= retries:
        return None
    return ends.RETRIES_EXHAUSTED.outcome(
        last=tried[-1].reason, count=f"{len(tried)} attempt(s)", retries=retries
    )


def end_without_progress(
    tried: Sequence[LostAttempt], newest: int | None, retries: int
) -> Outcome | None:
    """Return the end of a run whose last attempts made no progress, or None.

    Two that the same cause ended at the same step are enough, whatever AGENT_JOB_RETRIES is. Where
    that is small, three short ones are enough, whatever ended them. `newest` is the step of the
    newest checkpoint now; without steps and checkpoints only time counts.
    """
    where = _where_same_cause(tried, newest)
    if where:
        cause = tried[-1].cause
        return ends.SAME_CAUSE.outcome(where=where, cause=cause.text if cause else "")

    # Were the last three short?
    if retries > _FEW_RETRIES:
        return None
    recent = tried[-_MOST_IN_VAIN:]
    are_short = all(attempt.seconds <= times.ATTEMPT_SHORT for attempt in recent)
    if len(recent) < _MOST_IN_VAIN or not are_short or _got_further(recent, newest):
        return None
    count = len(recent)
    minutes = round(times.ATTEMPT_SHORT / 60)
    return ends.NO_PROGRESS.outcome(count=count, minutes=minutes, last=recent[-1].reason)
