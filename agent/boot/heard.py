"""What the head has heard of its workers, for whoever looks at a failure: words, facts, logs.

A worker sends the ends of its logs with its goodbye. One that may die without a goodbye is asked
for them before: where it complains, and where its head is about to stop the job.
"""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.boot.news import without_addresses
from agent.decisions.head import state as h
from agent.decisions.head.state import Phase
from agent.decisions.head.workers import NodeState
from agent.decisions.items import Step
from agent.decisions.shared import OrderKind
from agent.record.files import numbered, safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun
    from agent.boot.torchrun_head import TorchrunLink
    from agent.boot.watched import Watched
    from agent.bridge.link import RayLink
    from agent.control.protocol import Bye
    from agent.control.reports import Reports
    from agent.decisions.head.state import HeadEvent, HeadState, Worker
    from agent.node.facts import Facts
    from agent.record.bundle import Part
    from agent.record.run_record import Attempt

    Link = RayLink | TorchrunLink

LEFT = NodeState.LEFT
_MOST_COMPLAINTS = 8
"""So many complaints of one worker have its logs sent."""
_MOST_ASKED = 64
"""So many workers are asked when the job is stopped."""


class Heard:
    """Has workers send the ends of their logs while they can, and keeps what they said."""

    def __init__(self, run: NodeRun, watched: Watched) -> None:
        self._run = run
        self._watched = watched
        self._complaints: dict[str, list[str]] = {}

    def note(self, event: HeadEvent, before: Phase, state: HeadState, reports: Reports) -> None:
        """Ask for logs where what has happened may soon be hard to tell."""
        if isinstance(event, h.WorkerReplaced):
            self._complaints.pop(event.key, None)
        if isinstance(event, h.WorkerReported):
            for name in self._worth_a_look(event.worker):
                reports.order(event.worker.key, OrderKind.SEND_LOG, name)
        if state.phase is Phase.STOPPING and before is not Phase.STOPPING and _is_failing(state):
            there = (worker for worker in state.fleet.workers.values() if not worker.gone)
            for worker in islice(there, _MOST_ASKED):
                for name in ("agent", *self._rays):
                    reports.order(worker.key, OrderKind.SEND_LOG, name)

    @property
    def _rays(self) -> tuple[str, ...]:
        return () if self._run.plan.own_ray is None else ("ray",)

    async def watch(
        self,
        reports: Reports,
        link: Link,
        look: Callable[[], HeadState],
        tell: Callable[[HeadEvent], None],
    ) -> None:
        """Look for a job that shows no sign of work, for as long as the run lives."""
        from agent.boot.stall import StallWatch  # noqa: PLC0415 - while Ray boots

        await StallWatch(self._run, reports, self._watched, link, look, tell).run()

    def _worth_a_look(self, worker: Worker) -> tuple[str, ...]:
        """Name the logs that may tell of a worker's complaint, where that is a new one."""
        lost = [word for word in worker.items if word.step is Step.LOST]
        told_now = (worker.error, *(f"{one.name}: {one.evidence}" for one in lost))
        complaint = "; ".join(filter(None, told_now))
        gist = re.sub(r"\d+", "", complaint)
        told = self._complaints.setdefault(worker.key, [])
        if worker.gone or not gist or gist in told or len(told) >= _MOST_COMPLAINTS:
            return ()
        told.append(gist)
        return ("agent", *(self._rays if worker.error else ()), *(one.name for one in lost))

    # --- for the bundle -------------------------------------------------------------------------

    async def bundled(
        self, end: Outcome, attempts: Sequence[Attempt], state: HeadState, reports: Reports
    ) -> Outcome:
        """Leave a bundle of it where the run has failed; return the end with word of that."""
        if not end.is_worth_a_bundle:
            return end
        from agent.boot.failure import bundled  # noqa: PLC0415 - only where a run has failed

        return await bundled(self._run, end, attempts, self.parts(state, reports))

    def parts(self, state: HeadState, reports: Reports) -> Iterator[Part]:
        """Yield what was heard, of the nodes that are in trouble first."""
        from agent.boot.failure import own_name  # noqa: PLC0415 - only where a run has failed
        from agent.record.bundle import Part  # noqa: PLC0415 - same

        clean, now, taken = self._run.redactor.clean, self._run.now(), {own_name(self._run)}
        watched = self._watched
        yield Part("status.json", lambda: _dumped({**watched.status(), **watched.more()}))
        yield Part("findings.json", lambda: _dumped(watched.findings()))
        logs: dict[str, list[tuple[str, str]]] = {}
        for (key, name), text in reports.logs.items():
            logs.setdefault(key, []).append((name, text))
        workers = state.fleet.workers.values()
        for worker in sorted(workers, key=lambda one: one.key in reports.byes):
            folder = next(n for n in numbered(safe(worker.name)) if n not in taken)
            taken.add(folder)
            bye = reports.byes.get(worker.key)
            stands = worker.state(counts=state.fleet.counts(worker)) if bye is None else LEFT
            yield Part(f"{folder}/last-heard.txt", last_heard(worker, stands, now, bye))
            for name, text in logs.get(worker.key, ()):
                yield Part(f"{folder}/{name}{'' if '.' in name else '.log'}", text)
            facts = state.fleet.facts.get(worker.key)
            if facts is not None:
                yield Part(f"{folder}/facts.json", partial(_facts, facts, clean))


def last_heard(worker: Worker, stands: NodeState, now: float, bye: Bye | None = None) -> str:
    """Say what a worker's agent said last, as far as that matters to a person."""
    lines = {
        "node": f"{worker.place} at {worker.ip or 'an unknown address'}",
        "state": stands.value,
        "its last word": "" if bye is None else bye.cause,
        "heard": f"{max(0.0, now - worker.heard):.1f} s before the end" if bye is None else "",
        "phase": worker.phase,
        "detail": worker.detail,
        "silent": worker.silent,
        "refused": worker.refused,
        "last error": worker.error,
        "runs": listed(f"{one.name} ({one.step.value}) {one.evidence}" for one in worker.items),
    }
    if worker.part is not None:
        lines["its share of the job"] = f"{worker.part.end}"
    return "\n".join(f"{name}: {text}" for name, text in lines.items() if text) + "\n"


def _is_failing(state: HeadState) -> bool:
    return state.verdict is not None and state.verdict.is_failure


def _dumped(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=1, default=str)


def _facts(facts: Facts, clean: Callable[[str], str]) -> str:
    from agent.record import codec  # noqa: PLC0415 - as above

    return _dumped(codec.fields_of(without_addresses(facts), clean))
