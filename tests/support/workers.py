"""Histories of events, and their traces, for tests of the worker's decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.ends import Outcome
from agent.decisions import worker
from agent.decisions.shared import (
    RAY,
    SHARE,
    ItemReport,
    ItemsReported,
    LogLine,
    NodeWanted,
    Publish,
    Step,
    StopAsked,
    Tick,
    Want,
    WorkerAction,
    kept_or_next,
)
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.job.groups import is_kept_from_ray
from agent.job.services import ON_EVERY, PrepareStep
from agent.plan import waits as wait_keys
from support.heads import RETRIEVER_SPEC, lost, ready

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.base.ends import Outcome
    from agent.job.share import ShareArgs, ShareEnd

TICK, TERM, INT = Tick(), StopAsked(15), StopAsked(2)
STEP = PrepareStep("AGENT_PREPARE_EACH", "fetch", ON_EVERY, 7200.0, "AGENT_WAIT_PREPARE")
LIMITS = {
    wait_keys.HEAD: 100.0,
    wait_keys.JOIN: 120.0,
    wait_keys.FENCE: 48.0,
    wait_keys.SILENT_HEAD: 60.0,
}
History = list[tuple[float, w.WorkerEvent]]
RAY_UP = ready(RAY)
DOWN = lost(RAY, "exit code 1")
SILENT = w.HeadSilent("connection refused by 10.0.0.1:8266 for 9 s")


def goal(*, prepare: bool = False, stays: bool = False) -> w.WorkerGoal:
    """Return a goal with distinct timeouts."""
    return w.WorkerGoal("pod0", LIMITS, (STEP,) if prepare else (), (RETRIEVER_SPEC,), stays)


def replied(  # noqa: PLR0913 - what a head may say
    epoch: int | None = 1,
    phase: str = "booting",
    *,
    ready: bool = True,
    ip: str = "10.0.0.1",
    verdict: Outcome | None = None,
    refusal: str = "",
    held: bool = False,
    run: str = "run",
) -> w.HeadSpoke:
    """Return the event of a head's reply; without an epoch, of its GCS."""
    return w.HeadSpoke(ip, epoch, ready, phase, verdict, refusal, held, run_id=run)


class Began(WorkerAction):
    """A service or prepare step that this node is to run from now on."""

    name: str
    generation: int = 1


class Ended(WorkerAction):
    """One that it is to run no longer."""

    name: str


def wanted(revision: int, *names: str, by: str = "head1", generation: int = 1) -> w.HeadSpoke:
    """Return the event of a reply that says what the head wants here."""
    wants = dict.fromkeys(names, Want(generation))
    return replace(replied(ready=False), wanted=NodeWanted(by, revision, wants))


def wanted_share(
    revision: int, share: ShareArgs, attempt: int = 1, by: str = "head1"
) -> w.HeadSpoke:
    """Return the event of a reply by which the head wants this node's share of the job."""
    wants = {SHARE: Want(attempt, share)}
    return replace(replied(), wanted=NodeWanted(by, revision, wants))


def share_over(attempt: int, end: ShareEnd, *, was_stopped: bool = False) -> ItemsReported:
    """Return the event that this node's share of the job has ended."""
    step = Step.LOST if end.code else Step.READY
    item = ItemReport(SHARE, step, end.words, attempt, was_stopped=was_stopped, share=end)
    return ItemsReported((item,))


class WorkerTrace:
    """The state of a worker after a history of events, and all its actions."""

    def __init__(
        self,
        of: w.WorkerGoal,
        history: Iterable[tuple[float, w.WorkerEvent]],
        kept: w.WorkerState | None = None,
    ) -> None:
        first = worker.first_state(of)
        self.state = replace(kept, goal=of).with_surviving_ray(1) if kept else first
        self.now = 0.0
        self.actions: list[w.WorkerAction] = []
        survived = {item.name: item for item in self.state.items}
        self.items = {**{name: began(name) for name in worker.wanted_here(self.state)}, **survived}
        if self.items and not kept:
            self.take(ItemsReported(()), 0.0)
        for at, event in history:
            self.take(event, at)

    def take(self, event: w.WorkerEvent, at: float) -> None:
        """Apply one event; what is published begins and ends at once, as by an executor."""
        self.now = at
        before = self.state
        if isinstance(event, ItemsReported):
            event = self._reported(event)
        if isinstance(event, w.HeadSpoke) and event.epoch is not None and not event.held:
            event = self._with_ray(event, event.epoch)
        self.state, actions = worker.decide(before, event, at)
        for action in actions:
            self.actions += self._published(before) if isinstance(action, Publish) else [action]
        if any(isinstance(action, Publish) for action in actions):
            self.take(ItemsReported(()), at)
        if isinstance(event, Tick):  # otherwise the worker would tick without end
            then = worker.deadline(self.state)
            assert then is None or then > at, f"{worker.pending_waits(self.state)}: {then} at {at}"

    def _with_ray(self, event: w.HeadSpoke, epoch: int) -> w.HeadSpoke:
        """Return a reply that wants this node's Ray, as the head does; it may be no news."""
        state = self.state
        rank = state.rank if event.rank is None else event.rank
        goal = state.goal
        is_outside = is_kept_from_ray(goal.groups, goal.group, rank)
        joins = not (goal.by_shares or is_outside or rank in goal.service_only_ranks)
        known = state.wanted or NodeWanted("head1", 0, {})
        wanted = event.wanted or replace(known, by="head of the trace", revision=known.revision + 1)
        if not wanted.is_later_than(state.wanted) or not joins:
            return event
        wants = {name: want for name, want in (wanted.wants or {}).items() if name != RAY}
        generation = kept_or_next(state.ray, epoch)
        runs = state.ray is not None and state.ray.generation == generation
        if runs or event.ray_ready:
            wants[RAY] = Want(generation)
        if event.wanted is None and wants == (known.wants or {}):
            return event
        return replace(event, wanted=replace(wanted, wants=wants))

    def _reported(self, event: ItemsReported) -> ItemsReported:
        """Return a complete report: the items of an event, and those known before.

        A generation of 0 is the one that runs; a service that is ready runs on.
        """
        for item in event.items:
            known = self.items.get(item.name, item)
            generation = item.generation or known.generation or 1
            serves = item.step is Step.READY and item.name not in {
                step.name for step in self.state.goal.steps
            }
            serves = serves and item.share is None
            is_running = item.is_running or serves
            self.items[item.name] = replace(item, generation=generation, is_running=is_running)
        return ItemsReported((*self.items.values(),))

    def _published(self, before: w.WorkerState) -> list[w.WorkerAction]:
        """Return what begins and ends by what this node is to run now."""
        now, was = worker.wanted_here(self.state), worker.wanted_here(before)
        done: list[w.WorkerAction] = []
        for name in [name for name in was if name not in now]:
            if self.items[name].is_running:
                done.append(Ended(name))
                stopped = began(name, self.items[name].generation, Step.LOST)
                self.items[name] = replace(stopped, is_running=False, was_stopped=True)
        for name, want in now.items():
            known = self.items.get(name)
            if known is None or want.generation > known.generation:
                done.append(Began(name, want.generation))
                self.items[name] = began(name, want.generation)
        return done

    def finish(self, steps: int = 50) -> bool:
        """Tick at each deadline; return whether none is left."""
        for _ in range(steps):
            then = worker.deadline(self.state)
            if then is None or self.state.phase is WorkerPhase.LEAVING:
                return True
            self.take(TICK, max(self.now, then))
        return False

    @property
    def effects(self) -> list[w.WorkerAction]:
        """All actions except log lines."""
        return [action for action in self.actions if not isinstance(action, LogLine)]

    @property
    def log(self) -> str:
        """All log lines."""
        return "\n".join(a.sentence for a in self.actions if isinstance(a, LogLine))

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes; more than one is an error."""
        return [action.outcome for action in self.actions if isinstance(action, w.EndWorker)]


def began(name: str, generation: int = 1, step: Step = Step.PENDING) -> ItemReport:
    """Return the report of something that runs and is not ready."""
    return ItemReport(name, step, "", generation, is_running=True)


GOAL = goal()
JOINED: History = [(2.0, replied()), (8.0, RAY_UP)]
