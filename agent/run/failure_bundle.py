"""The failure bundle: logs and records of a failed run in one archive (record/bundle.py).

1. A failing run begins to stop: the head asks for the tails of the workers' logs (`request_logs`).
2. Everything has stopped: the head writes the bundle with the parts of all nodes. A worker whose
   goodbye the head did not take, or an agent whose role was ended by an exception, writes one of
   its own node.
"""

from __future__ import annotations

import json
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import STARTING
from agent.base.text import shown_path
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import NodeState
from agent.decisions.shared import QuestionKind
from agent.plan.plan import AGENT_LOG, JOB_LOG
from agent.plan.show import render
from agent.port.status_model import Reader
from agent.record import bundle, events, node_record, outcome_file, run_record
from agent.record.background import in_thread, run_within
from agent.record.bundle import BundlePart
from agent.record.event_filter import without_addresses
from agent.record.files import numbered_names, safe_name
from agent.record.log import say
from agent.record.log_dir import log_dir
from agent.run.diagnose import RAY_LOGS, ray_log_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.node.facts import Facts
    from agent.port.reports import Reports
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun


_MOST_OF_MAIN_LOG = 2 << 20
_MOST_OF_OTHER_LOG = 512 << 10
"""Most bytes of the agent's and the job's log, and of any other log in the run folder."""
_CAUSE_FILE = "cause.txt"
_DRIVERS = 3
_MOST_ASKED = 64  # number of workers whose logs are requested when the job is stopped


def request_logs(run: NodeRun, before: h.HeadPhase, state: h.HeadState, reports: Reports) -> None:
    """Ask for the tails of the workers' logs when a failing run begins to stop.

    Some of the workers may be killed before they send a goodbye. Of services those are asked for
    that have ended, and are not ready since.
    """
    begins_to_stop = state.phase is h.HeadPhase.STOPPING and before is not h.HeadPhase.STOPPING
    verdict = state.outcome
    if not begins_to_stop or verdict is None or not verdict.is_failure:
        return

    names = ("agent",) if run.plan.own_ray is None else ("agent", "ray")
    present = (worker for worker in state.fleet.workers.values() if not worker.has_left)
    ended = [key for key, item in state.services.by_key.items() if item.last_end]
    ended += state.services.abandoned
    for worker in islice(present, _MOST_ASKED):
        services = (name for node, name in ended if node == worker.key)
        for name in (*names, *sorted(services)):
            reports.ask(worker.key, QuestionKind.LOG, name)


class Bundled(NamedTuple):
    """An outcome that names its failure bundle."""

    outcome: Outcome
    name: str = ""  # of the bundle's file; '' if there is none


async def make_bundle(
    run: NodeRun,
    outcome: Outcome,
    workers: Iterable[BundlePart] | None = None,
    *,
    page: str = "",
) -> Bundled:
    """Write a bundle as `write_bundle` does, without blocking the event loop."""
    write = partial(write_bundle, run, outcome, workers, page=page)
    limit = run.plan.budget.bundle + times.BUNDLE_EXTRA + times.WAIT_READ
    made = await in_thread(write, limit)
    return write() if made is None else made  # no thread can be started


def write_bundle(
    run: NodeRun,
    outcome: Outcome,
    workers: Iterable[BundlePart] | None = None,
    *,
    page: str = "",
) -> Bundled:
    """Write a bundle if the run failed; return the outcome with the bundle's path.

    `workers` are the parts about the workers, `page` is the cause with the lines that show it. A
    thread writes it and is abandoned at the limit.
    """
    if not outcome.is_failure or outcome.phase == STARTING:
        return Bundled(outcome)  # a start that failed has no logs

    # The outcome in the bundle names the bundle.
    path = bundle.new_bundle(run.folder.path, time.time())
    scope = "this node" if workers is None else "all nodes"
    hint = f"The logs of {scope} are in {path}"
    hinted = replace(outcome, remedy=". ".join(filter(None, (outcome.remedy, hint))))
    text = outcome_file.outcome_text(hinted, run.facts, path.name)

    # The most important parts come first: the time or the size may not allow all.
    def parts() -> Iterator[BundlePart]:
        node = bundle_folder(run)
        folder = run.folder.path
        most = _MOST_OF_MAIN_LOG
        yield BundlePart(_CAUSE_FILE, page)
        yield BundlePart(outcome_file.OUTCOME_FILE, text)
        yield BundlePart("plan.txt", render(run.plan, run.redactor))
        facts = _facts(run.plan.facts, run.redactor.clean)
        yield BundlePart(f"{node}/facts.json", facts)
        yield from local_logs(run)
        yield from workers or ()
        yield BundlePart(f"{node}/{events.EVENTS_FILE}", folder / events.EVENTS_FILE, most)
        yield BundlePart(f"{node}/{node_record.NODE_FILE}", folder / node_record.NODE_FILE)
        yield BundlePart(run_record.RUN_FILE, folder.parent / run_record.RUN_FILE, most)

    # A stalled disk costs no more than the limit.
    budget = run.plan.budget.bundle
    until = time.monotonic() + budget
    limit = budget + times.BUNDLE_EXTRA
    fault = run_within(limit, lambda: bundle.make(path, parts(), run.redactor.clean, until))
    if fault == "":
        say(shown_path(path), subject="bundle")
        return Bundled(hinted, path.name)
    why = fault or f"the disk took longer than {limit:g} s"
    say(f"no failure bundle in {path.parent}: {why}", "warning")
    return Bundled(outcome)


def bundle_folder(run: NodeRun) -> str:
    """Return the name of this node's folder in a bundle."""
    return safe_name(run.plan.topology.node_name)


def local_logs(run: NodeRun) -> Iterator[BundlePart]:
    """Yield the logs in this node's run folder, and those of its Ray."""
    folder = run.folder.path
    node = bundle_folder(run)
    for name in (AGENT_LOG, JOB_LOG):
        yield BundlePart(f"{node}/{name}", folder / name, _MOST_OF_MAIN_LOG)
    for name in log_dir.names(folder):
        if name.endswith(".log") and name not in {AGENT_LOG, JOB_LOG}:
            yield BundlePart(f"{node}/{name}", folder / name, _MOST_OF_OTHER_LOG)

    # Ray's own logs, and those of the last drivers.
    logs = ray_log_folder(run)
    if logs is None:
        return
    drivers = sorted(logs.glob("job-driver-*.log"), key=lambda path: path.stat().st_mtime)
    for path in (*(logs / name for name in RAY_LOGS), *drivers[-_DRIVERS:]):
        yield BundlePart(f"{node}/ray/{path.name}", path)


def parts_of_workers(
    run: NodeRun, status: RunStatus, state: h.HeadState, reports: Reports
) -> Iterator[BundlePart]:
    """Yield the workers' logs and reports; workers without a goodbye come first."""
    # The head's view of all nodes.
    whole = status.with_private(status.status(Reader.ALL))
    yield BundlePart("status.json", _to_json(to_builtins(whole)))
    yield BundlePart("findings.json", _to_json(to_builtins(status.findings())))

    # One folder for each worker.
    fleet = state.fleet
    taken = {bundle_folder(run)}
    for worker in sorted(fleet.workers.values(), key=lambda worker: worker.key in reports.byes):
        key = worker.key
        bye = reports.byes.get(key)
        folder = next(n for n in numbered_names(safe_name(worker.name)) if n not in taken)
        taken.add(folder)

        stage = NodeState.LEFT if bye else worker.state(counts=fleet.counts(worker))
        report = {
            "state": stage.value,
            "goodbye": None if bye is None else bye.cause,
            "seconds_ago": round(run.now() - worker.last_report_at, 1),
            **to_builtins(worker),
        }
        yield BundlePart(f"{folder}/last-report.json", _to_json(report))

        logs = ((name, text) for (sender, name), text in reports.logs.items() if sender == key)
        for name, text in logs:
            yield BundlePart(f"{folder}/{name}{'' if '.' in name else '.log'}", text)
        if key in fleet.facts:
            yield BundlePart(f"{folder}/facts.json", _facts(fleet.facts[key], run.redactor.clean))


def _to_json(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=1, default=str)


def _facts(facts: Facts, clean: Callable[[str], str]) -> str:
    return _to_json(events.fields_of(without_addresses(facts), clean))
