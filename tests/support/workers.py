"""Histories of events, and their traces, for tests of the worker's decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.ends import Outcome
from agent.decisions import worker
from agent.decisions.shared import (
    LogLine,
    StopAsked,
    Tick,
)
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.job.services import ON_EVERY, PrepareStep
from agent.plan import waits as wait_keys
from support.heads import RETRIEVER_SPEC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.base.ends import Outcome

TICK, TERM, INT = Tick(), StopAsked(15), StopAsked(2)
STEP = PrepareStep("AGENT_PREPARE_EACH", "fetch", ON_EVERY, 7200.0, "AGENT_WAIT_PREPARE")
LIMITS = {
    wait_keys.HEAD: 100.0,
    wait_keys.JOIN: 120.0,
    wait_keys.FENCE: 48.0,
    wait_keys.SILENT_HEAD: 60.0,
}
History = list[tuple[float, w.WorkerEvent]]
DOWN = w.RayExited("exit code 1")
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


class WorkerTrace:
    """The state of a worker after a history of events, and all its actions."""

    def __init__(
        self,
        of: w.WorkerGoal,
        history: Iterable[tuple[float, w.WorkerEvent]],
        kept: w.WorkerState | None = None,
    ) -> None:
        self.state = replace(kept, goal=of).with_surviving_ray() if kept else worker.first_state(of)
        self.now = 0.0
        self.actions: list[w.WorkerAction] = []
        for at, event in history:
            self.take(event, at)

    def take(self, event: w.WorkerEvent, at: float) -> None:
        """Apply one event."""
        self.now = at
        self.state, actions = worker.decide(self.state, event, at)
        self.actions += actions
        if isinstance(event, Tick):  # otherwise the worker would tick without end
            then = worker.deadline(self.state)
            assert then is None or then > at, f"{worker.pending_waits(self.state)}: {then} at {at}"

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


GOAL = goal()
JOINED: History = [(2.0, replied()), (8.0, w.RayUp())]
