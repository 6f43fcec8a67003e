"""Explain why a run failed, and collect logs and records in a failure bundle."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import STARTING, Kind
from agent.decisions.attempts import FailureCause
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import NodeState
from agent.decisions.shared import OrderKind
from agent.diagnosis.find_cause import (
    ACTOR_WITHOUT_A_WORD,
    Again,
    Diagnosis,
    Log,
    Weight,
    diagnose_logs,
)
from agent.node.read import free_at
from agent.plan.plan import AGENT_LOG, BRIDGE, JOB_LOG, RAY_LOG
from agent.plan.show import render
from agent.record import bundle, events, node_record, run_folder, run_record
from agent.record.background import in_thread, run_within
from agent.record.bundle import BundlePart
from agent.record.files import numbered_names, read_end, safe_name
from agent.record.log import say
from agent.record.log_dir import log_dir
from agent.run.node_run import without_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.base.ends import Outcome
    from agent.bridge.link import RayLink
    from agent.node.facts import Facts
    from agent.port.reports import Reports
    from agent.record.run_record import AttemptRecord
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun


_TAIL = 256 << 10  # bytes read from the end of each log
_FULL_BELOW = 1 << 20
_EXPLAINED_KINDS = (Kind.JOB_FAILED, Kind.UNAVAILABLE, Kind.LOST)
RAY_LOGS = (
    *("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err", "runtime_env_agent.log"),
    *("dashboard_agent.log", "dashboard.log"),
)
"""Ray's log files that may show why it ended."""


_ACTOR_ID = r"^\s+actor_id: ([0-9a-f]{32})$"  # an actor's id in the error of one that died
_MOST_ACTORS = 2


async def explain_end(
    run: NodeRun, outcome: Outcome, elsewhere: Elsewhere | None = None
) -> Outcome:
    """Add the cause in this node's logs, and in those of other nodes, to an outcome's remedy."""
    if outcome.kind not in _EXPLAINED_KINDS:
        return outcome
    if outcome.kind is not Kind.JOB_FAILED or elsewhere is None:
        elsewhere = Elsewhere()
    own = await in_thread(partial(_read_logs, run, outcome.kind), times.CAUSE_SEARCH) or []
    logs = [*own, *elsewhere.logs]
    found = await in_thread(partial(diagnose_logs, logs), times.CAUSE_SEARCH)
    actors = re.findall(_ACTOR_ID, own[0].text, re.MULTILINE) if own else []
    is_vague = found is None or found.key in {"", ACTOR_WITHOUT_A_WORD}
    if actors and is_vague and elsewhere.link is not None:
        ids = [*dict.fromkeys(actors)][:_MOST_ACTORS]
        for one in await elsewhere.link.dead_actors(ids, times.DEAD_ACTORS):
            node = elsewhere.nodes.get(one["ip"], "")
            title = f"the log of actor {one['id'][:8]}"
            logs.append(Log(node, title, one["text"]))
        found = await in_thread(partial(diagnose_logs, logs), times.CAUSE_SEARCH) or found
    if found is None:
        return outcome
    found = replace(found, node=elsewhere.nodes.get(found.ip, "") or found.node)
    remedy = await in_thread(partial(_remedy, run, outcome.kind, found)) or ""
    remedy = run.redactor.clean(remedy)
    if not remedy or remedy in outcome.remedy:
        return outcome
    return replace(outcome, remedy=". ".join(filter(None, (remedy, outcome.remedy))))


async def find_cause(run: NodeRun, output: Path, elsewhere: Elsewhere) -> FailureCause | None:
    """Return the cause in a failed attempt's output, unless the loss of a node leads to it."""

    def search() -> Diagnosis:
        text = (read_end(output, _TAIL) or b"").decode(errors="replace")
        return diagnose_logs([Log("", output.name, text), *elsewhere.logs])

    found = await in_thread(search, times.CAUSE_SEARCH)
    row = None if found is None else found.row
    if found is None or row is None or row.weight < Weight.CAUSE:
        return None
    if row.after_loss or row.again is Again.YES:
        return None
    node = elsewhere.nodes.get(found.ip, "") or found.node
    cause = run.redactor.clean(found.cause)
    return FailureCause(row.key, cause, node, row.again is Again.NO)


class Elsewhere(NamedTuple):
    """Where else than in this node's logs the cause of a failed job may be."""

    logs: tuple[Log, ...] = ()  # what other nodes' shares printed about a cause
    nodes: Mapping[str, str] = MappingProxyType({})  # the workers' names by address
    link: RayLink | None = None


def _remedy(run: NodeRun, kind: Kind, found: Diagnosis) -> str:
    """Return what to do: that Ray's disk is full counts before what is written about it."""
    if kind is Kind.JOB_FAILED:
        return found.remedy()
    path = run.plan.facts.temp
    is_vague = found.key in {"", "disk full"}
    free = free_at(path) if is_vague and run.plan.own_ray is not None else None
    if free is not None and free < _FULL_BELOW:
        return (
            f"the disk of {path}, where Ray keeps its sessions, is full. Free some space there, or "
            "move Ray's sessions (AGENT_RAY_ARGS=--temp-dir=/larger)"
        )
    return found.remedy() if found.row else ""


def _read_logs(run: NodeRun, kind: Kind) -> list[Log]:
    """Read the ends of the logs to search, in order of relevance.

    For a failed job only what its last attempt wrote counts: Ray's logs may be older.
    """
    plan = run.plan
    job_log = run.folder.file(JOB_LOG)
    paths = [job_log]
    if kind is not Kind.JOB_FAILED:
        names = [spec.log for spec in plan.possible_services]
        names += [step.log for step in plan.steps]
        names += [RAY_LOG, *(one.log for one in plan.processes if one.name == BRIDGE)]
        paths += map(run.folder.file, names)
        logs = ray_log_folder(run)
        paths += [] if logs is None else [logs / name for name in RAY_LOGS]
    found = []
    for path in paths:
        data = read_end(path, _TAIL, run.output_begins if path == job_log else 0) or b""
        found.append(Log("", path.name, data.decode(errors="replace"), path != job_log))
    return found


def ray_log_folder(run: NodeRun) -> Path | None:
    """Return the log folder of this node's Ray; None where the agent does not start Ray."""
    ray = run.plan.own_ray
    return None if ray is None else Path(ray.session, "session_latest", "logs")


_MOST_OF_MAIN_LOG = 2 << 20
_MOST_OF_OTHER_LOG = 512 << 10
"""Most bytes of the agent's and the job's log, and of any other log in the run folder."""
_DRIVERS = 3


async def make_bundle(
    run: NodeRun,
    outcome: Outcome,
    attempts: Sequence[AttemptRecord] = (),
    workers: Iterable[BundlePart] | None = None,
) -> Outcome:
    """Write a bundle as `write_bundle` does, without blocking the event loop."""
    write = partial(write_bundle, run, outcome, attempts, workers)
    limit = run.plan.budget.bundle + times.BUNDLE_EXTRA + times.WAIT_READ
    made = await in_thread(write, limit)
    return write() if made is None else made  # no thread can be started


def write_bundle(
    run: NodeRun,
    outcome: Outcome,
    attempts: Sequence[AttemptRecord] = (),
    workers: Iterable[BundlePart] | None = None,
) -> Outcome:
    """Write a bundle if the run failed; return the outcome with the bundle's path.

    `workers` are the parts about the workers. A thread writes it and is abandoned at the limit; a
    run gets one bundle.
    """
    if not outcome.is_failure or outcome.phase == STARTING or run.bundle is not None:
        return outcome  # a start that failed has no logs
    path = bundle.new_bundle(run.folder.path, time.time())
    budget = run.plan.budget.bundle
    scope = "this node" if workers is None else "all nodes"
    hint = f"The logs of {scope} are in {path}"
    hinted = replace(outcome, remedy=". ".join(filter(None, (outcome.remedy, hint))))
    about = (hinted, attempts, run.outages(), path.name)

    def parts() -> Iterator[BundlePart]:  # the most important first
        node = bundle_folder(run)
        folder = run.folder.path
        most = _MOST_OF_MAIN_LOG
        yield BundlePart(run_folder.OUTCOME_FILE, run_folder.outcome_text(*about))
        yield BundlePart("plan.txt", render(run.plan, run.redactor))
        facts = _facts(run.plan.facts, run.redactor.clean)
        yield BundlePart(f"{node}/facts.json", facts)
        yield from local_logs(run)
        yield from workers or ()
        yield BundlePart(f"{node}/{events.EVENTS_FILE}", folder / events.EVENTS_FILE, most)
        yield BundlePart(f"{node}/{node_record.NODE_FILE}", folder / node_record.NODE_FILE)
        yield BundlePart(run_record.RUN_FILE, folder.parent / run_record.RUN_FILE, most)

    until = time.monotonic() + budget
    limit = budget + times.BUNDLE_EXTRA
    fault = run_within(limit, lambda: bundle.make(path, parts(), run.redactor.clean, until))
    run.bundle = path.name if fault == "" else ""
    if run.bundle:
        return hinted
    why = fault or f"the disk took longer than {limit:g} s"
    say(f"no failure bundle in {path.parent}: {why}", "warning")
    return outcome


def bundle_folder(run: NodeRun) -> str:
    """Return the name of this node's folder in a bundle."""
    return safe_name(run.plan.topology.node_name)


def local_logs(run: NodeRun) -> Iterator[BundlePart]:
    """Yield the logs in this node's run folder, and those of its Ray."""
    folder = run.folder.path
    node = bundle_folder(run)
    for name in (AGENT_LOG, JOB_LOG):
        yield BundlePart(f"{node}/{name}", folder / name, _MOST_OF_MAIN_LOG)
    names = [name for name in log_dir.names(folder) if name.endswith(".log")]
    for name in names:
        if name not in {AGENT_LOG, JOB_LOG}:
            yield BundlePart(f"{node}/{name}", folder / name, _MOST_OF_OTHER_LOG)
    logs = ray_log_folder(run)
    if logs is not None:
        drivers = sorted(logs.glob("job-driver-*.log"), key=lambda path: path.stat().st_mtime)
        for path in (*(logs / name for name in RAY_LOGS), *drivers[-_DRIVERS:]):
            yield BundlePart(f"{node}/ray/{path.name}", path)


_MOST_ASKED = 64  # number of workers whose logs are requested when the job is stopped


def request_logs(run: NodeRun, before: h.HeadPhase, state: h.HeadState, reports: Reports) -> None:
    """Order the tails of the workers' logs when a failing run begins to stop.

    Some of the workers may be killed before they send a goodbye.
    """
    begins_to_stop = state.phase is h.HeadPhase.STOPPING and before is not h.HeadPhase.STOPPING
    if not begins_to_stop or state.verdict is None or not state.verdict.is_failure:
        return
    present = (worker for worker in state.fleet.workers.values() if not worker.has_left)
    for worker in islice(present, _MOST_ASKED):
        for name in ("agent",) if run.plan.own_ray is None else ("agent", "ray"):
            reports.order(worker.key, OrderKind.SEND_LOG, name)


def parts_of_workers(
    run: NodeRun, status: RunStatus, state: h.HeadState, reports: Reports
) -> Iterator[BundlePart]:
    """Yield the workers' logs and reports; workers without a goodbye come first."""
    clean = run.redactor.clean
    now = run.now()
    taken = {bundle_folder(run)}
    fleet = state.fleet
    yield BundlePart("status.json", _to_json({**status.status(), **status.private_details()}))
    yield BundlePart("findings.json", _to_json(status.findings()))
    for worker in sorted(fleet.workers.values(), key=lambda one: one.key in reports.byes):
        key = worker.key
        bye = reports.byes.get(worker.key)
        folder = next(n for n in numbered_names(safe_name(worker.name)) if n not in taken)
        taken.add(folder)
        stage = NodeState.LEFT if bye else worker.state(counts=fleet.counts(worker))
        report = {
            "state": stage.value,
            "goodbye": None if bye is None else bye.cause,
            "seconds_ago": round(now - worker.last_report_at, 1),
            **to_builtins(worker),
        }
        yield BundlePart(f"{folder}/last-report.json", _to_json(report))
        logs = ((name, text) for (sender, name), text in reports.logs.items() if sender == key)
        for name, text in logs:
            yield BundlePart(f"{folder}/{name}{'' if '.' in name else '.log'}", text)
        if key in fleet.facts:
            yield BundlePart(f"{folder}/facts.json", _facts(fleet.facts[key], clean))


def _to_json(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=1, default=str)


def _facts(facts: Facts, clean: Callable[[str], str]) -> str:
    return _to_json(events.fields_of(without_addresses(facts), clean))
