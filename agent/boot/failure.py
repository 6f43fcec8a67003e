"""What a failed run leaves to look at: one bundle in this node's folder, and word of its place."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from agent.boot.explained import OF_RAY, logs_of_ray
from agent.boot.news import without_addresses
from agent.plan.plan import AGENT_LOG, JOB_LOG
from agent.record import codec, events, node_record, outcome_file, run_record, trace
from agent.record.bundle import Bundle, Part
from agent.record.files import safe
from agent.record.log import say
from agent.runtime.exiting import in_time
from agent.runtime.last_words import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun
    from agent.record.run_record import Attempt

_OWN, _OTHERS = 2 << 20, 512 << 10
"""Bytes of the agent's and the job's log, and of any other in the run folder."""
_MOST_LOGS = 64
_DRIVERS = 3
_LATE = 1.0
"""So much longer than the thread has for it the end waits for it."""


async def bundled(
    run: NodeRun,
    outcome: Outcome,
    attempts: Sequence[Attempt] = (),
    more: Iterable[Part] = (),
) -> Outcome:
    """Leave a bundle where a run has failed; return the outcome with word of it."""
    if not outcome.is_worth_a_bundle:
        return outcome
    whose = "all nodes" if run.plan.topology.is_head else "this node"
    making = _Making(run, outcome, attempts, more, whose)
    await in_thread(making.run, making.limit + _LATE)
    return making.outcome()


def bundled_at_once(run: NodeRun, outcome: Outcome) -> Outcome:
    """Do the same where no loop runs any more, unless it was done."""
    if not outcome.is_worth_a_bundle or run.bundle is not None:
        return outcome
    making = _Making(run, outcome, (), (), "this node")
    in_time(making.limit + _LATE, making.run)
    return making.outcome()


class _Making:
    """One bundle in the making."""

    def __init__(
        self,
        run: NodeRun,
        end: Outcome,
        attempts: Sequence[Attempt],
        more: Iterable[Part],
        whose: str,
    ) -> None:
        self._run = run
        self._bundle = Bundle(run.folder.path, time.time())
        told = f"The logs of {whose} are in {self._bundle.path}"
        self._before = end
        self._end = replace(end, remedy=". ".join(filter(None, (end.remedy, told))))
        self._attempts = attempts
        self._more = more
        self.limit = run.plan.budget.bundle

    def run(self) -> str:
        """Make it; for a thread of its own, which may be left behind."""
        until = time.monotonic() + self.limit
        try:
            self._bundle.make(self._parts(), self._run.redactor.clean, until)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run's end must not hang on it
            self._bundle.fault = f"{type(error).__name__}: {error}"
        return ""

    def outcome(self) -> Outcome:
        """Return the end with word of the bundle, or say why there is none."""
        if self._bundle.give_up():
            self._run.bundle = self._bundle.path.name
            return self._end
        self._run.bundle = ""
        why = self._bundle.fault or f"the disk took longer than {self.limit + _LATE:g} s"
        say(f"no failure bundle in {self._bundle.path.parent}: {why}", "warning")
        return self._before

    def _parts(self) -> Iterator[Part]:
        """Yield what belongs into it, the most telling first."""
        run, name = self._run, self._bundle.path.name
        told = (self._end, self._attempts, run.outages, name)
        yield Part(outcome_file.FILE, lambda: outcome_file.text_of(*told))
        yield Part("plan.txt", self._plan)
        yield Part(f"{own_name(run)}/facts.json", self._facts)
        yield from own_logs(run)
        yield from self._more
        yield from own_records(run)

    def _plan(self) -> str:
        from agent.plan.show import render  # noqa: PLC0415 - the only run that shows its plan

        return render(self._run.plan, self._run.redactor)

    def _facts(self) -> str:
        facts = without_addresses(self._run.plan.facts)
        return json.dumps(codec.fields_of(facts, self._run.redactor.clean), indent=1)


def own_name(run: NodeRun) -> str:
    """Return the name under which a bundle has what is this node's."""
    return safe(run.plan.topology.node_name)


def own_logs(run: NodeRun) -> Iterator[Part]:
    """Yield this node's logs, whoever wrote them: those in its folder, and its Ray's."""
    folder, node = run.folder.path, own_name(run)
    for name in (AGENT_LOG, JOB_LOG):
        yield Part(f"{node}/{name}", folder / name, _OWN)
    others = [path for path in folder.glob("*.log") if path.name not in {AGENT_LOG, JOB_LOG}]
    for path in _newest(others, _MOST_LOGS):
        yield Part(f"{node}/{path.name}", path, _OTHERS)
    logs = logs_of_ray(run)
    if logs is not None:
        drivers = _newest(logs.glob("job-driver-*.log"), _DRIVERS)
        for path in (*(logs / name for name in OF_RAY), *drivers):
            yield Part(f"{node}/ray/{path.name}", path)


def own_records(run: NodeRun) -> Iterator[Part]:
    """Yield what this node has noted of the run."""
    folder, node = run.folder.path, own_name(run)
    yield Part(f"{node}/{events.FILE}", folder / events.FILE, _OWN)
    yield Part(f"{node}/{node_record.FILE}", folder / node_record.FILE)
    for name in (run_record.FILE, trace.FILE):
        yield Part(name, folder.parent / name, _OWN)


def _newest(paths: Iterable[Path], most: int) -> list[Path]:
    def age(path: Path) -> float:
        try:
            return -path.stat().st_mtime
        except OSError:
            return 0.0

    return [*islice(sorted(paths, key=age), most)]
