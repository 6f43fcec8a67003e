"""The receipt of this run: the head looks at what the run does, and records it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_decide as head
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.receipt import Meter, RunActivity
from agent.job.job import prints_steps
from agent.plan import waits as planned
from agent.record.node_record import Moment
from agent.record.run_record import SavedMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.checks.finding import Finding
    from agent.decisions.head.head_state import HeadState
    from agent.decisions.receipt import ReceiptStatus
    from agent.job.progress import Progress
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore

_FOR_OTHERS = {
    *(planned.WORKERS, planned.NODE, planned.REPORTS, planned.DEAD_NODES),
    *(planned.CLEAR, planned.UNREACHABLE, planned.PAUSE),
}
"""Waits for workers, for the end of a lost attempt, and for the pause after it."""
_JOB_PHASES = {
    *(HeadPhase.SUBMITTING, HeadPhase.RUNNING, HeadPhase.JUDGING, HeadPhase.STOPPING),
    HeadPhase.RESUMING,
}


class RunReceipt:
    """Counts the time of the run, the time of its earlier agents included."""

    def __init__(
        self,
        run: NodeRun,
        store: RunStore,
        get_state: Callable[[], HeadState],
        get_progress: Callable[[], Progress | None],
    ) -> None:
        self._run = run
        self._store = store
        self._get_state = get_state
        self._get_progress = get_progress
        self._started = run.started  # on the machine's clock; the run's clock may stand still
        self._seen: tuple[object, ...] = ()
        self._stalls: tuple[Finding, ...] = ()
        former = store.former_meter(run.now())
        meter = Meter() if former is None else former
        job = run.plan.job
        self._meter = replace(meter, prints_steps=job is not None and prints_steps(job))

    def look(self, stalls: tuple[Finding, ...]) -> None:
        """Look at what the run does; `stalls` are the stalls that were found so far."""
        state = self._get_state()
        is_stalled = _has_new(self._stalls, stalls)
        self._stalls = stalls
        activity = activity_of(state, self._get_progress(), self._later, is_stalled=is_stalled)
        self._meter = self._meter.at_moment(activity, self._now())
        self._seen = _changes_of(state)

    def look_at_change(self, stalls: tuple[Finding, ...]) -> None:
        """Look at the run, and record it, if its phase, attempt or a wait for a group changed."""
        if self._seen != _changes_of(self._get_state()):
            self.look(stalls)
            self.save()

    def to_status(self) -> ReceiptStatus:
        """Return the receipt so far."""
        self.look(self._stalls)
        verdict = self._get_state().durable.verdict
        has_succeeded = verdict is not None and verdict.exit_code == 0
        receipt = self._meter.receipt(self._now(), has_succeeded=has_succeeded)
        return receipt.to_status(self.price())

    def save(self) -> None:
        """Record it for the next agent of this run, and for `explain`."""
        saved = SavedMeter(Moment.before(self._now()), self._meter, self.price())
        self._store.measure(receipt=saved)

    def price(self) -> float | None:
        """Return the dollars an hour of all nodes; None if not known."""
        goal = self._get_state().goal
        return None if goal.price is None else goal.price.cost(1.0, goal.nodes)

    def _now(self) -> float:
        return self._later(self._run.now())

    def _later(self, at: float) -> float:
        """Return a time of the run's clock with all times in which that clock stood still."""
        return at + self._run.started - self._started


def _changes_of(state: HeadState) -> tuple[object, ...]:
    return state.phase, state.attempt.number, _group_waited_for(state)


def _group_waited_for(state: HeadState) -> str:
    """Return the first group of which nothing serves while the job runs; '' without one."""
    if state.phase is not HeadPhase.RUNNING:
        return ""
    shortages = state.durable.shortages
    open_ones = (one for one in shortages if one.until is None and one.nothing_since is not None)
    return next((one.group for one in open_ones), "")


def _has_new(before: tuple[Finding, ...], after: tuple[Finding, ...]) -> bool:
    """Return whether a stall was found; one that is said to have gone on is no new one."""
    return len(after) > len(before) or after[:-1] != before[:-1]


def activity_of(
    state: HeadState,
    progress: Progress | None,
    to_clock: Callable[[float], float] = float,
    *,
    is_stalled: bool = False,
) -> RunActivity:
    """Return what a run does, by its head's state and its job's progress."""
    phase = state.phase
    number = state.attempt.number
    if phase is HeadPhase.LEAVING:
        return RunActivity("hold")
    if phase is HeadPhase.BOOTING:
        waits = head.pending_waits(state)
        is_waiting = bool(waits) and all(wait.key in _FOR_OTHERS for wait in waits)
        return RunActivity("wait" if is_waiting else "boot", number)
    if phase not in _JOB_PHASES or not state.goal.has_job:
        return RunActivity("training", number)

    # A job: its steps decide, once they are those of this attempt.
    group = _group_waited_for(state)
    if progress is None or progress.attempt != number:
        return RunActivity("job", number, is_stalled=is_stalled, waits_for=group)
    activity = RunActivity.of_job(number, progress)
    step_at = None if activity.step_at is None else to_clock(activity.step_at)
    return replace(activity, step_at=step_at, is_stalled=is_stalled, waits_for=group)
