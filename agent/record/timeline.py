"""When what happened on the head and its nodes: phases with their beginnings.

The decisions need none of it; it is kept for those who look at a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.head import state as h
from agent.decisions.items import HERE, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.head.state import HeadEvent, HeadState, Worker
    from agent.decisions.items import Item, ItemWord

MOST = 32
"""So many phases of a node are kept: the first one and the last ones."""
MOST_FORMER = 256
"""So many nodes whose agents were replaced, the last ones."""
MOST_ITEMS = 64
"""So many services and steps of a node."""
_OF_A_SERVICE = {Step.PENDING: "starting", Step.READY: "ready", Step.LOST: "down"}
_OF_A_STEP = {Step.PENDING: "running", Step.READY: "done", Step.LOST: "failed"}
_RAY = "Ray"


@dataclass(frozen=True)
class Span:
    """A phase and when it began; the next one's beginning is its end."""

    phase: str
    start: float


class Timeline:
    """Notes what an event changed; what it costs does not grow with the number of nodes."""

    def __init__(self) -> None:
        self.phases: list[Span] = []
        self.nodes: dict[str, list[Span]] = {}
        """By a worker's agent."""
        self.names: dict[str, tuple[str, int | None]] = {}
        """Name and rank of each worker's agent."""
        self.items: dict[str, dict[str, list[Span]]] = {}
        """What runs there, by node and name: services, prepare steps, and the head's Ray."""
        self.former: dict[str, list[Span]] = {}
        """Phases of agents that were replaced, by the name of their node."""

    def note(self, event: HeadEvent, state: HeadState, now: float) -> None:
        """Look at what an event may have changed; `state` is the one that follows it."""
        self.entered(state.phase.value, state.since)
        if not state.goal.by_torchrun:
            self._enter_item(HERE, _RAY, _OF_A_SERVICE[state.ray.step], now)
        if isinstance(event, h.WorkerReported):
            self._note_worker(event.worker, state, now)
        elif isinstance(event, h.WorkerSilent) and event.key in self.nodes:
            _enter(self.nodes[event.key], "silent", now)
        elif isinstance(event, h.WorkerReplaced):
            self._replaced(event.key)
        elif isinstance(event, h.ServiceReady | h.ServiceWaits | h.ServiceGone):
            item = state.services.get((event.node, event.name))
            if item is not None:
                self._note_service(event.node, event.name, item, now)
        elif isinstance(event, h.StepOver) and event.node == HERE:
            self._note_own_step(event, state, now)

    def note_steps(self, key: str, steps: Mapping[str, Step], now: float) -> None:
        """Note how the prepare steps of a worker stand, those that it runs unasked included."""
        for name, step in steps.items():
            self._enter_item(key, name, _OF_A_STEP[step], now)

    def entered(self, phase: str, now: float) -> None:
        """Note that the head is in a phase."""
        _enter(self.phases, phase, now)

    def heard(self, worker: Worker, now: float) -> None:
        """Note what a worker's agent said of itself."""
        self.names[worker.key] = (worker.name, worker.number)
        spans = self.nodes.setdefault(worker.key, [])
        _enter(spans, "left" if worker.gone else worker.phase, now)

    def service(self, node: str, name: str, *, is_up: bool, now: float) -> None:
        """Note that a service answers, or that it does not."""
        self._enter_item(node, name, _OF_A_SERVICE[Step.READY if is_up else Step.LOST], now)

    def _note_worker(self, worker: Worker, state: HeadState, now: float) -> None:
        self.heard(worker, now)
        for word in worker.items:
            self._note_word(worker.key, word, state, now)

    def _note_word(self, key: str, word: ItemWord, state: HeadState, now: float) -> None:
        item = state.services.get((key, word.name))
        if item is not None:
            self._note_service(key, word.name, item, now)

    def _note_service(self, node: str, name: str, item: Item, now: float) -> None:
        known = name in self.items.get(node, ())
        if node == HERE and not known:
            self._enter_item(node, name, _OF_A_SERVICE[Step.PENDING], item.began)
        self._enter_item(node, name, _OF_A_SERVICE[item.step], now)

    def _note_own_step(self, over: h.StepOver, state: HeadState, now: float) -> None:
        """Note the beginning and the end of a step of the head's."""
        item = state.steps.get((HERE, over.name))
        began = 0.0 if item is None else item.began
        self._enter_item(HERE, over.name, _OF_A_STEP[Step.PENDING], began)
        how = Step.LOST if over.failure else Step.READY
        self._enter_item(HERE, over.name, _OF_A_STEP[how], now)

    def _enter_item(self, node: str, name: str, phase: str, now: float) -> None:
        items = self.items.setdefault(node, {})
        if name in items or len(items) < MOST_ITEMS:
            _enter(items.setdefault(name, []), phase, now)

    def _replaced(self, key: str) -> None:
        spans = self.nodes.pop(key, [])
        self.items.pop(key, None)
        name, _ = self.names.pop(key, ("", None))
        if not spans:
            return
        self.former[name] = [*self.former.pop(name, []), *spans][-MOST:]
        if len(self.former) > MOST_FORMER:
            del self.former[next(iter(self.former))]


def _enter(spans: list[Span], phase: str, now: float) -> None:
    if spans and spans[-1].phase == phase:
        return
    spans.append(Span(phase, now))
    if len(spans) > MOST:
        del spans[1]
