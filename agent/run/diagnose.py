"""Explain why a run failed: search the logs of this node and of others for the cause.

1. An attempt of the job has failed: `find_cause` searches its output, for the decision whether
   another attempt may help.
2. A service has failed: `cause_of_program` searches its last output, for the line about its
   restart.
3. The run has failed: `explain_end` searches this node's logs, what other nodes' shares of the job
   wrote, and, where an actor died without a word, that actor's log. The cause becomes part of the
   outcome's remedy.
The rules for this are in diagnosis/.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agent.base.ends import Kind
from agent.checks.package_pairs import misfits
from agent.decisions.attempts import FailureCause
from agent.diagnosis.searched_log import Log
from agent.frameworks import framework_named
from agent.node.read import free_at
from agent.plan.plan import BRIDGE, JOB_LOG, RAY_LOG
from agent.record.background import in_thread
from agent.record.files import read_end_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ends import Outcome
    from agent.bridge.link import RayLink
    from agent.decisions.shared import Known
    from agent.diagnosis.find_cause import Diagnosis
    from agent.run.node_run import NodeRun

CAUSE_SEARCH = 10.0  # For the search of the logs, whose bytes are bounded, on a machine under load.
_PROGRAM_SEARCH = 2.0  # For the same in the last output of a service, which then is started again.
_DEAD_ACTORS = 6.0  # For Ray to return why actors died, and the ends of their logs.
RAY_LOGS = (
    *("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err", "runtime_env_agent.log"),
    *("dashboard_agent.log", "dashboard.log"),
)
"""Ray's log files that may show why it ended."""
_JOB_TAIL = 5 << 20  # bytes read from the end of the job's output: a search takes about a second
_TAIL = 256 << 10  # the same of each other log, and of the output where the search took too long
_MOST_READ = _JOB_TAIL + (2 << 20)  # bytes of all logs together
_FULL_BELOW = 1 << 20  # free bytes
_EXPLAINED_KINDS = (Kind.JOB_FAILED, Kind.UNAVAILABLE, Kind.LOST)
_ACTOR_ID = r"^\s+actor_id: ([0-9a-f]{32})$"  # an actor's id in the error of one that died
_MOST_ACTORS = 2


class ExplainedEnd(NamedTuple):
    """An outcome with its cause."""

    outcome: Outcome
    page: str = ""  # the cause, and the lines that show it; '' without one


class Elsewhere(NamedTuple):
    """Where else than in this node's logs the cause of a failed job may be."""

    logs: tuple[Log, ...] = ()  # what other nodes' shares printed about a cause
    nodes: Mapping[str, str] = MappingProxyType({})  # the workers' names by address
    link: RayLink | None = None
    first_at: float | None = None  # when the first cause in this node's output arrived
    named: tuple[Known, ...] = ()  # causes in this node's output that were known as it ran


async def explain_end(
    run: NodeRun, outcome: Outcome, elsewhere: Elsewhere | None = None
) -> ExplainedEnd:
    """Add the cause in this node's logs, and in those of other nodes, to an outcome's remedy."""
    diagnosis = await diagnose_end(run, outcome, elsewhere)
    return await with_cause(run, outcome, diagnosis)


async def diagnose_end(
    run: NodeRun, outcome: Outcome, elsewhere: Elsewhere | None = None
) -> Diagnosis | None:
    """Return the cause that the logs of this node, and of others, show; None without one."""
    if outcome.kind not in _EXPLAINED_KINDS:
        return None
    if outcome.kind is not Kind.JOB_FAILED or elsewhere is None:
        elsewhere = Elsewhere()
    return await _diagnose(run, outcome.kind, elsewhere)


async def _diagnose(run: NodeRun, kind: Kind, elsewhere: Elsewhere) -> Diagnosis | None:
    """Return the cause that the logs show for an end of a kind."""
    # Does a log show the cause?
    own = await in_thread(partial(_read_logs, run, kind), CAUSE_SEARCH) or []
    own = [replace(log, at=elsewhere.first_at) for log in own]
    own_text = own[0].text if own else ""
    logs = [*_named_before(own_text, elsewhere.named), *own, *elsewhere.logs]
    diagnosis = await _search(logs)

    # Was the job only stopped, since something else is missing? Then its last words say nothing.
    is_of_job = diagnosis is not None and not diagnosis.key and diagnosis.log == JOB_LOG
    if kind is Kind.UNAVAILABLE and is_of_job:
        logs = [log for log in logs if log.name != JOB_LOG]
        diagnosis = await _search(logs)

    # Did an actor die without a word in the job's output? Then its own log may show more.
    actors = re.findall(_ACTOR_ID, own[0].text, re.MULTILINE) if own else []
    is_vague = diagnosis is None or not diagnosis.key
    if actors and is_vague and elsewhere.link is not None:
        logs += await _logs_of_actors(actors, elsewhere.link, elsewhere.nodes)
        diagnosis = await _search(logs) or diagnosis
    if diagnosis is None:
        return None
    node = elsewhere.nodes.get(diagnosis.ip, "") or diagnosis.node
    return replace(diagnosis, node=node)


async def cause_so_far(run: NodeRun, elsewhere: Elsewhere) -> str:
    """Return what the end of a job that makes no progress would say now; '' for nothing."""
    diagnosis = await _diagnose(run, Kind.JOB_FAILED, elsewhere)
    return "" if diagnosis is None else run.redactor.clean(diagnosis.remedy())


async def cause_of_program(name: str, output: str) -> str:
    """Return the known cause in the last output of a program that has failed; '' without one.

    It quotes nothing of the output, and has no numbers: programs that fail alike have it in common.
    """
    if not output.strip():
        return ""
    log = Log("", f"{name}.log", output, program=name)
    diagnosis = await in_thread(partial(search_logs, [log]), _PROGRAM_SEARCH)
    row = None if diagnosis is None else diagnosis.row
    if row is None or row.kind != "cause":
        return ""
    return row.key if "{" in row.cause else row.cause


async def with_cause(run: NodeRun, outcome: Outcome, diagnosis: Diagnosis | None) -> ExplainedEnd:
    """Add a cause to an outcome's remedy, unless that says it already."""
    if diagnosis is None:
        return ExplainedEnd(outcome)
    page = run.redactor.clean(diagnosis.page())
    remedy = await in_thread(partial(_remedy, run, outcome.kind, diagnosis)) or ""
    remedy = run.redactor.clean(remedy)
    if remedy and remedy not in outcome.remedy:
        remedies = filter(None, (remedy, outcome.remedy))
        outcome = replace(outcome, remedy=". ".join(remedies))
    return ExplainedEnd(outcome, page)


async def find_cause(run: NodeRun, output: Path, elsewhere: Elsewhere) -> FailureCause | None:
    """Return the cause in a failed attempt's output, unless the loss of a node leads to it."""

    def read() -> Log:
        data, first_line = read_end_from(output, _JOB_TAIL)
        text = data.decode(errors="replace")
        return Log("", output.name, text, at=elsewhere.first_at, first_line=first_line)

    own = await in_thread(read, CAUSE_SEARCH)
    if own is None:
        return None
    named = _named_before(own.text, elsewhere.named)
    diagnosis = await _search([*named, own, *elsewhere.logs])
    if diagnosis is None or diagnosis.row is None:
        return None

    # A weak cause, or one that follows from a lost node, decides nothing about another attempt.
    row = diagnosis.row
    if not row.decides_retry:
        return None
    node = elsewhere.nodes.get(diagnosis.ip, "") or diagnosis.node
    cause = run.redactor.clean(diagnosis.cause)
    return FailureCause(row.key, cause, node, row.forbids_retry)


def search_logs(logs: list[Log]) -> Diagnosis:
    """Return the cause that logs show, by the rules for known errors: only a failure needs them."""
    from agent.diagnosis.find_cause import diagnose_logs  # noqa: PLC0415 - see above

    return diagnose_logs(logs)


async def _search(logs: list[Log]) -> Diagnosis | None:
    """Return the cause in some logs, in the ends of them where a slow machine takes too long."""
    diagnosis = await in_thread(partial(search_logs, logs), CAUSE_SEARCH)
    if diagnosis is not None or all(len(log.text) <= _TAIL for log in logs):
        return diagnosis
    ends = [replace(log, text=log.text[-_TAIL:], first_line=None) for log in logs]
    return await in_thread(partial(search_logs, ends), CAUSE_SEARCH)


def _named_before(text: str, named: tuple[Known, ...]) -> list[Log]:
    """Return the causes that were named before the part of the output that is read."""
    return [
        Log("", JOB_LOG, f"{known.prefix}{known.line}", at=known.at)
        for known in named
        if known.line not in text
    ]


async def _logs_of_actors(actors: list[str], link: RayLink, nodes: Mapping[str, str]) -> list[Log]:
    """Return the logs of the first dead actors, by their ids."""
    ids = [*dict.fromkeys(actors)][:_MOST_ACTORS]
    logs = []
    for actor in await link.dead_actors(ids, _DEAD_ACTORS):
        node = nodes.get(actor["ip"], "")
        title = f"the log of actor {actor['id'][:8]}"
        logs.append(Log(node, title, actor["text"]))
    return logs


def _remedy(run: NodeRun, kind: Kind, diagnosis: Diagnosis) -> str:
    """Return what to do: that Ray's disk is full counts before what is written about it."""
    if run.plan.job is not None:
        framework = framework_named(run.plan.job.framework)
        diagnosis = replace(diagnosis, what_to_do=framework.in_own_words(diagnosis.what_to_do))
    if kind is Kind.JOB_FAILED:
        suspect = "" if diagnosis.row else _suspect(run)
        return ". ".join(filter(None, (diagnosis.remedy(), suspect)))

    # Is Ray's disk full?
    path = run.plan.facts.temp
    free = None
    if run.plan.own_ray is not None and diagnosis.key in {"", "disk full"}:
        free = free_at(path)
    if free is not None and free < _FULL_BELOW:
        return (
            f"the disk of {path}, where Ray keeps its sessions, is full. Free some space there, or "
            "move Ray's sessions (AGENT_RAY_ARGS=--temp-dir=/larger)"
        )
    return diagnosis.remedy() if diagnosis.row else ""


def _suspect(run: NodeRun) -> str:
    """Return packages that are known not to fit each other, for a failure without a known cause."""
    pairs = misfits(run.plan.facts.ray)
    return f"first suspect: {pairs[0].what}. {pairs[0].remedy}" if pairs else ""


def _read_logs(run: NodeRun, kind: Kind) -> list[Log]:
    """Read the ends of the logs to search, in order of relevance.

    For a failed job only what its last attempt wrote counts: Ray's logs may be older. Of the logs
    in the run folder, to which several starts append, only what follows this start counts.
    """
    # Which logs?
    plan = run.plan
    job_log = run.folder.file(JOB_LOG)
    paths = [job_log]
    programs = {}
    if kind is not Kind.JOB_FAILED:
        logs_by_name = {service.name: service.log for service in plan.possible_services}
        logs_by_name |= {step.name: step.log for step in plan.steps}
        programs = {run.folder.file(log): name for name, log in logs_by_name.items()}
        names = [RAY_LOG, *(process.log for process in plan.processes if process.name == BRIDGE)]
        paths += [*programs, *map(run.folder.file, names)]
        ray_logs = ray_log_folder(run)
        if ray_logs is not None:
            paths += [ray_logs / name for name in RAY_LOGS]

    # What do they end with?
    logs = []
    room = _MOST_READ
    sizes = {run.folder.file(name): size for name, size in run.node.record.log_begins.items()}
    for path in paths:
        begins = run.output_begins if path == job_log else sizes.get(path, 0)
        most = _JOB_TAIL if path == job_log else _TAIL
        data, first_line = read_end_from(path, min(most, room), begins)
        room -= len(data)
        text = data.decode(errors="replace")
        program = programs.get(path, "")
        is_job = path == job_log
        logs.append(Log("", path.name, text, not is_job, program, first_line=first_line))
    return logs


def ray_log_folder(run: NodeRun) -> Path | None:
    """Return the log folder of this node's Ray; None where the agent does not start Ray."""
    ray = run.plan.own_ray
    return None if ray is None else Path(ray.session, "session_latest", "logs")
