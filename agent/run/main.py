"""The verb `run`: from the environment to the outcome of this node's run.

1. Plan: settings, platform, machine and job become a plan (plan_input.py). Whatever is refused here
   has changed nothing.
2. Already decided? A killed agent may have left the outcome of its run, and a restarted container
   finds the verdict of the one before (takeover.py, restarts.py).
3. Choose the run: a head resumes a run on its disk or begins one; a worker returns to its run, or
   gets the run's id in the head's first reply.
4. Take over the processes that a killed agent left in it (takeover.py).
5. Run the role, head.py or worker.py. An exception in it becomes an outcome.
6. End the run, before the role closes its port: write the failure bundle, record the outcome, and
   hold the pod if it must not be started again (end.py).
"""

from __future__ import annotations

import gc
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent import __version__
from agent.base import ends, times
from agent.base.errors import AgentError, PreflightError
from agent.checks import LOG_DIR, NAMES
from agent.checks.finding import Level
from agent.decisions.durable import Succession
from agent.decisions.shared import StopAsked
from agent.job.job import job_identity
from agent.plan.plan import RAY, log_root
from agent.processes import parent
from agent.processes.late_certificates import certificates_at_first_use
from agent.processes.waiting import Inbox
from agent.record import run_record
from agent.record.background import run_within
from agent.record.log import configure, say, say_title
from agent.record.log_dir import log_dir
from agent.record.memory import record_memory
from agent.record.run_folder import RunFolder
from agent.run import make_ready, plan_input
from agent.run.effects import REAL
from agent.run.end import (
    bug,
    close_records,
    end_failed_role,
    end_given_up,
    end_of_killed,
    end_refused,
    end_role,
    end_run,
)
from agent.run.node_run import NodeRun
from agent.run.restarts import container_of, finished_before
from agent.run.run_store import RunStore
from agent.run.takeover import KilledAgent, find_killed_agent, find_surviving_processes
from agent.settings.jobs import launcher
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.checks.finding import Finding
    from agent.decisions.head.head_state import HeadEvent
    from agent.plan.plan import Plan
    from agent.run.effects import Disk, Effects
    from agent.run.head import HeadAgent
    from agent.run.restarts import Container
    from agent.run.takeover import SurvivingProcesses
    from agent.run.worker import WorkerAgent
    from agent.settings.redact import Redactor


def run_safely(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Run this node until the end; an exception before the run folder exists is an outcome, too."""
    record_memory.attach(parent.unsaved_records)
    try:
        return run(environ, command)
    except AgentError as error:
        end_refused(environ, command, error.outcome())
        raise
    except Exception as failure:  # noqa: BLE001 - a bug before the run folder exists
        outcome = bug(failure)
        end_refused(environ, command, outcome)
        return outcome


def run(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Run this node until the end; raise SettingsError before anything is changed."""
    started = time.monotonic()
    plan = plan_input.plan_from_environment(environ, command)
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    _open_log(plan, environ, redactor)
    container = container_of(plan, environ, command)

    # Was the agent killed too often?
    if parent.gave_up_after is not None:
        return end_given_up(plan, container, *parent.gave_up_after)

    # Which run was a killed agent in?
    killed = KilledAgent()
    if container.killed_agents:
        topology = plan.topology
        find = partial(find_killed_agent, is_head=topology.is_head)
        root = log_root(plan.settings)
        killed = anyio.run(find, root, topology.node_name, container.killed_agents)

    # Which run does this one take part in, or is that decided already?
    begun = begin(plan, redactor, container, killed, started)
    if isinstance(begun, DecidedRun):
        return anyio.run(begun.end)

    # Run the role, which ends the run.
    outcome = _run_role(*begun)
    close_records(*begun)
    return outcome


class Begun(NamedTuple):
    """A run that this node takes part in: `store` has its record, on a head."""

    node_run: NodeRun
    store: RunStore | None


class DecidedRun(NamedTuple):
    """A run that was decided before this agent started: `end` ends it here."""

    end: Callable[[], Awaitable[Outcome]]


def begin(  # noqa: PLR0913 - what an agent starts with
    plan: Plan,
    redactor: Redactor,
    container: Container,
    killed: KilledAgent,
    started: float,
    effects: Effects = REAL,
) -> Begun | DecidedRun:
    """Choose the run and take over what a killed agent left, unless the run is decided already."""
    # Is the run decided already?
    job = _fingerprint(plan, redactor)
    topology = plan.topology
    if killed.outcome is not None:
        say("the agent was killed when its run was over: its verdict stands", "warning")
        return DecidedRun(partial(end_of_killed, plan, container, killed, effects.processes))
    finished = _finished_before(plan, job, container)
    if finished is not None:
        # A stopped pod runs again only if a person starts it, who wants what is on its disk.
        if container.on_done == "stop-pod":
            container = container._replace(stays=times.STARTED_AGAIN)
        return DecidedRun(partial(end_run, finished, container))

    # Which run does this node work on?
    chosen = _choose_run(plan, job, killed) if topology.is_head else None
    folder = _run_folder(plan, chosen, killed)

    # Which processes of a killed agent go on in it?
    names = (RAY, *(service.name for service in plan.possible_services))
    surviving = find_surviving_processes(folder, names, container.killed_agents, effects.processes)
    store = None
    if chosen is not None:
        now = effects.clock() - started
        store = _open_store(plan, job, chosen, surviving, now, effects.disk)

    run_id = killed.run_id if store is None else store.durable.run_id
    node_run = NodeRun(
        *(plan, redactor, folder, started, run_id, surviving, effects),
        container=container,
        store=store,
    )
    return Begun(node_run, store)


# --- plan ----------------------------------------------------------------------------------------


def _open_log(plan: Plan, environ: Mapping[str, str], redactor: Redactor) -> None:
    """Log in this plan's form, and make the folder of all runs."""
    log_dir.allow(plan.settings.log_mode)
    # The streams of several nodes may be one, as under srun: a worker's lines name it.
    configure(
        plan.settings.log,
        environ,
        redactor,
        plan.topology.node_name,
        names_node=not plan.topology.is_head,
    )
    # A misspelled setting may explain whatever comes next.
    _warn(finding for finding in plan.findings if finding.check == NAMES)
    for finding in plan.failed():
        if finding.check == LOG_DIR:
            what = f"{LOG_DIR}={finding.what}"
            raise PreflightError(what, remedy=finding.remedy, culprit=LOG_DIR)
    _make_log_dir(log_root(plan.settings))


def _make_log_dir(root: Path) -> None:
    """Make the folder of all runs, and write a file there; refuse a stalled disk."""

    def make() -> bool:
        with suppress(OSError):  # the run folder reports this error
            log_dir.guard(root)
        return True

    if not run_within(times.IDLE_DISK, make):
        what = f"AGENT_LOG_DIR={root} does not answer within {times.IDLE_DISK:g} s"
        remedy = "Repair or remount that disk, or set AGENT_LOG_DIR to another"
        raise PreflightError(what, remedy=remedy, culprit="AGENT_LOG_DIR")


def _fingerprint(plan: Plan, redactor: Redactor) -> str:
    """Return the hash by which a run's record identifies the job."""
    argv, recipe = job_identity(plan.job)
    return run_record.fingerprint(argv, launcher(plan.settings), recipe, redactor.clean)


def _warn(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.level is Level.WARN:
            say(finding.sentence(), "warning")


# --- already decided? ----------------------------------------------------------------------------


def _finished_before(plan: Plan, job: str, container: Container) -> Outcome | None:
    """Return the outcome of a run that was over before this container started."""
    if plan.settings.rerun or container.killed_agents:
        return None
    return finished_before(plan, job, container.restarts)


# --- the run -------------------------------------------------------------------------------------


def _choose_run(plan: Plan, job: str, killed: KilledAgent) -> run_record.ChosenRun:
    """Return the run that this head resumes, or a new one; `job` is the job's fingerprint."""

    def new_id() -> str:
        return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)

    # A restart by the platform is no request for a new run.
    platform = plan.topology.platform
    retries = None if platform.restarts_containers else plan.settings.job_retries
    root = log_root(plan.settings)
    chosen = run_record.choose_run(
        root,
        platform.run_id,
        job,
        new_id,
        node=plan.topology.node_name,
        retries=retries,
        resumed=killed.run_id,
        job_outlives_agents=plan.topology.given_ray is not None,
    )

    # Why this run?
    if chosen.skipped:
        say(chosen.skipped, "warning" if chosen.is_unread else "debug")
    if chosen.lost_record:
        lost = f"run {chosen.run_id} continues without its record: {chosen.lost_record}"
        say(f"{lost}. Its newest job is followed", "warning")
    if platform.run_id is not None and chosen.before is None and plan.settings.job_retries:
        say(f"run {chosen.run_id} begins: {root} has no record of it to continue")
    attempts = () if chosen.before is None else run_record.outcomes_of(chosen.before.durable)
    if attempts:
        say(f"run {chosen.run_id} continues, attempts so far: {len(attempts)}")
    return chosen


def _run_folder(plan: Plan, chosen: run_record.ChosenRun | None, killed: KilledAgent) -> RunFolder:
    """Return this node's folder in the run; a worker without a run to return to has its own."""
    root = log_root(plan.settings)
    node = plan.topology.node_name
    if chosen is not None:
        # `latest` points to it once the port is open.
        return RunFolder(root, chosen.run_id, node, link=False)
    platform_run = plan.topology.platform.run_id
    former = killed.run_id or run_record.run_to_return_to(root, platform_run, node)
    return RunFolder(root, former, node)


def _open_store(  # noqa: PLR0913 - the run, and what is left of it here
    plan: Plan,
    job: str,
    chosen: run_record.ChosenRun,
    surviving: SurvivingProcesses | None,
    now: float,
    disk: Disk,
) -> RunStore:
    """Return the store of the run's record; end a surviving Ray that the record has no use for."""
    keeps_ray = surviving is not None and surviving.has_ray
    how = Succession(
        replaces_agent=surviving is not None,
        job_survives=keeps_ray or plan.topology.given_ray is not None,
        own_epoch=0 if surviving is None else surviving.record.epoch,
        memory="" if surviving is None or keeps_ray else surviving.memory,
    )
    store = RunStore(log_root(plan.settings), job, chosen, how, now=now, disk=disk)
    if surviving is not None and store.durable.has_outdated_ray:
        surviving.end_ray()
    return store


# --- the role ------------------------------------------------------------------------------------


def _run_role(node_run: NodeRun, store: RunStore | None) -> Outcome:
    """Run the head or the worker until the end of the run, which an exception is, too."""
    plan = node_run.plan
    parent.become_subreaper()
    say_title(_title(node_run))
    say(f"pod-agent on {plan.topology.platform.name}: {plan.topology.sentence()}", "debug")
    for note in plan.notes:
        say(note, is_timed=False)
    for finding in plan.findings:
        if finding.level is Level.WARN and finding.check != NAMES:
            say(finding.sentence(), "warning", is_timed=False)
    try:
        return anyio.run(run_in_loop, node_run, store)
    except Exception as failure:  # noqa: BLE001 - whatever it is must end with a code and a cause
        return anyio.run(end_failed_role, node_run, failure)


def _title(node_run: NodeRun) -> str:
    """Return the first line about a run: version, platform, this node and its role, the run."""
    topology = node_run.plan.topology
    nodes = node_run.plan.nodes
    role = f"head of {nodes}" if nodes > 1 else "head, alone"
    if not topology.is_head:
        place = "" if topology.own_rank is None else f", rank {topology.own_rank} of {nodes}"
        role = f"worker{place}"
    parts = [f"pod-agent {__version__}", topology.platform.name, f"{topology.node_name}, {role}"]
    if node_run.run_id:
        parts.append(f"run {node_run.run_id}")
    return " · ".join(parts)


async def run_in_loop(node_run: NodeRun, store: RunStore | None) -> Outcome:
    """Run the head or the worker in an event loop, until the end of the run."""
    if store is not None:
        return await _run_head(node_run, store)
    if node_run.plan.topology.is_idle:  # with 0: the container's next command must run
        given = node_run.plan.topology.given_ray
        owner = "the platform" if given is None else given.owner
        return await end_role(node_run, ends.IDLE_WORKER.outcome(owner=owner))
    async with anyio.create_task_group() as tasks:
        worker_agent = load_worker()
        _search_garbage()
        outcome = await worker_agent(node_run, tasks).run()
        tasks.cancel_scope.cancel()
    return outcome


async def _run_head(node_run: NodeRun, store: RunStore) -> Outcome:
    """Start Ray, then run the head's event loop."""
    # Signals may come before there is a head: a stop request ends the start, a notice is kept.
    inbox: Inbox[HeadEvent] = Inbox(node_run.redactor.clean_fields)
    stop_scope = anyio.CancelScope()
    head: HeadAgent | None = None
    early_notices: list[int] = []

    def on_stop(signum: int) -> None:
        inbox.put(StopAsked(signum))
        stop_scope.cancel()

    def on_notice(signum: int) -> None:
        if head is None:
            early_notices.append(signum)
        else:
            head.on_notice(signum)

    async with anyio.create_task_group() as tasks:
        watch_signals = node_run.effects.processes.watch_signals
        await tasks.start(watch_signals, on_stop, on_notice, node_run.record_kill)

        # Launch Ray first, then load the rest.
        started = await make_ready.start_head(node_run, store, stop_scope)
        if started is None:
            stop = await inbox.take(0)
            assert isinstance(stop, StopAsked)  # noqa: S101 - nothing else is sent before
            outcome = ends.stopped(stop.signum, expected=node_run.plan.job is None)
            outcome = await end_role(node_run, outcome, next_event=partial(inbox.take, None))
        else:
            head_agent = load_head()
            _search_garbage()
            head = head_agent(node_run, tasks, store, started, inbox)
            for signum in early_notices:
                head.on_notice(signum)
            outcome = await head.run()
        tasks.cancel_scope.cancel()
    return outcome


def load_head() -> type[HeadAgent]:
    """Import the head's event loop, which `ray start` need not wait for.

    Ray takes a second to boot, while these modules take 0.2 s of CPU, half of it for aiohttp.
    """
    with certificates_at_first_use():
        from agent.run.head import HeadAgent  # noqa: PLC0415 - as late as can be

    return HeadAgent


def _search_garbage() -> None:
    """Search for garbage more often from now on, but not in what is loaded: that stays."""
    gc.freeze()
    gc.set_threshold(50_000)


def load_worker() -> type[WorkerAgent]:
    """Import the worker's event loop."""
    with certificates_at_first_use():
        from agent.run.worker import WorkerAgent  # noqa: PLC0415 - a head needs none of it

    return WorkerAgent
