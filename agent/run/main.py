"""The verb `run`: make the plan, run the role, write the outcome."""

from __future__ import annotations

import secrets
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import ends, times
from agent.base.errors import AgentError, PreflightError, innermost
from agent.checks import NAMES
from agent.checks.finding import Level
from agent.decisions.shared import StopAsked
from agent.job.job import job_identity
from agent.node.limits import process_limit_error
from agent.plan.plan import RAY, log_root
from agent.platforms.rank_variables import group_member, own_pod
from agent.processes import parent, process, signals
from agent.processes.waiting import Inbox
from agent.record import run_record
from agent.record.background import run_within
from agent.record.events import Ended
from agent.record.log import configure, disk_alarm, say
from agent.record.log_dir import log_dir
from agent.record.memory import record_memory
from agent.record.node_record import folder_of
from agent.record.run_folder import (
    OUTCOME_FILE,
    RunFolder,
    former_outages,
    outcome_text,
    write_outcome,
)
from agent.run import make_ready, plan_input
from agent.run.node_run import NodeRun
from agent.run.restarts import Restarts, finished_before, settings_digest
from agent.run.run_keeper import RunKeeper
from agent.run.takeover import find_killed_agent, find_surviving_processes
from agent.settings.jobs import launcher
from agent.settings.load import settings_for_end
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.checks.finding import Finding
    from agent.decisions.head.head_state import HeadEvent
    from agent.plan.plan import Plan
    from agent.run.head import HeadAgent
    from agent.settings.model import Settings


def run_safely(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Run this node until the end; an exception before the run folder exists is an outcome, too."""
    record_memory.attach(parent.unsaved_records)
    try:
        if parent.gave_up_after is not None:
            return _record_given_up(environ, command, *parent.gave_up_after)
        return run(environ, command)
    except AgentError as error:
        _after_refusal(environ, command, error.outcome())
        raise
    except Exception as failure:  # noqa: BLE001 - a bug before the run folder exists
        outcome = bug(failure)
        _after_refusal(environ, command, outcome)
        return outcome


def run(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Run this node until the end; raise SettingsError before anything is changed."""
    started = time.monotonic()
    plan = plan_input.plan_from_environment(environ, command)
    topology, node, platform = plan.topology, plan.topology.node_name, plan.topology.platform
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    log_dir.allow(plan.settings.log_mode)
    configure(plan.settings.log, environ, redactor, node)
    _warn(finding for finding in plan.findings if finding.check == NAMES)  # they may explain all
    root = log_root(plan.settings)
    _check_log_dir(root)
    argv, recipe = job_identity(plan.job)
    own = run_record.fingerprint(argv, launcher(plan.settings), recipe, redactor.clean)
    restarts_all = platform.restarts_containers or platform.restarts_groups  # whatever the code
    restarts = Restarts(
        *(root, node, settings_digest(environ, command)),
        is_on=plan.facts.is_first_process and restarts_all,
        holds=plan.on_done != "exit",
        longest=times.ATTEMPT_SHORT + sum(wait.seconds for wait in plan.waits),
    )
    killed = find_killed_agent(root, node)
    decided = killed.outcome
    resumed = killed.run_id
    if decided is not None:
        say("the agent was killed when its run was over: its verdict stands", "warning")
    elif not plan.settings.rerun and not parent.former_agents:
        decided = finished_before(plan, own, restarts)
    if decided is not None:
        if plan.on_done != "exit" and decided.holds_pod:
            _hold(plan.settings, environ, plan.on_done, decided)
        return decided
    if topology.is_head:
        chosen = _chosen_run(root, plan, own, resumed)
        folder = RunFolder(root, chosen.run_id, node, link=False)  # linked once the port is open
    else:
        chosen, run_id = None, resumed
        former = run_id or run_record.run_to_return_to(root, topology.platform.run_id, node)
        folder = RunFolder(root, former, node)
    names = (RAY, *(spec.name for spec in plan.possible_services))
    left, keeper = find_surviving_processes(folder, names), None
    if chosen is not None:
        keeps_ray = left is not None and left.has_ray
        keeper = RunKeeper(
            *(root, own, chosen),
            job_survives=keeps_ray or topology.given_ray is not None,
            replaces_agent=left is not None,
            own_epoch=0 if left is None else left.record.epoch,
            memory="" if left is None or keeps_ray else left.memory,
        )
        run_id = keeper.record.run_id
        if left is not None and keeper.has_outdated_ray:
            left.end_ray()
    node_run = NodeRun(plan, redactor, folder, started, run_id, left)
    node_run.final = restarts.final
    node_run.on_end = lambda end: restarts.record(node_run.run_id, end)
    outcome = _run_role(node_run, keeper)
    if keeper is not None:
        keeper.close()
    if not run_within(times.STALLED_DISK, partial(node_run.write_outcome, outcome)):
        disk_alarm.report(OUTCOME_FILE, "a write does not end")
    node_run.close()
    if not outcome.holds_pod and restarts.would_repeat():
        _hold(plan.settings, environ, plan.on_done, outcome)
    return outcome


def _record_given_up(
    environ: Mapping[str, str], command: list[str] | None, signal_name: str, kills: int
) -> Outcome:
    """Write outcome.json of a run whose agent was killed too often; start nothing."""
    outcome = ends.AGENT_KILLED.outcome(signal=signal_name, count=kills)
    plan = plan_input.plan_from_environment(environ, command)
    node, root = plan.topology.node_name, log_root(plan.settings)
    log_dir.allow(plan.settings.log_mode)
    configure(plan.settings.log, environ, redactor_for(environ, plan.settings), node)
    _check_log_dir(root)

    def write() -> bool:
        folder = folder_of(root, node, parent.former_agents)
        if folder is None:
            return True
        record = run_record.RunRecord.read(folder.parent / run_record.RUN_FILE)
        text = outcome_text(outcome)
        if isinstance(record, run_record.RunRecord) and record.head == node:
            text = outcome_text(outcome, record.attempts, former_outages(record, node))
        write_outcome(folder, text)
        return True

    run_within(times.STALLED_DISK, write)
    return outcome


def _after_refusal(environ: Mapping[str, str], command: list[str] | None, outcome: Outcome) -> None:
    """Hold or stop a pod that its platform would start again with the same refusal.

    The settings may be what is wrong, so those that say how to end are read one by one.
    """
    pod, member = own_pod(environ), group_member(environ)
    name = pod or member
    if name is None or not parent.is_init:
        return
    settings = settings_for_end(environ)
    on_done = settings.on_done or ("exit" if pod is None else "hold")
    redactor = redactor_for(environ, settings)
    configure(settings.log, environ, redactor, name)
    outcome = redactor.clean_fields(outcome)
    restarts = Restarts(
        *(log_root(settings), name, settings_digest(environ, command)),
        is_on=True,
        holds=on_done != "exit",
        longest=times.ATTEMPT_SHORT,
    )
    run_within(times.STALLED_DISK, partial(restarts.record, "", outcome))
    if restarts.would_repeat():
        _hold(settings, environ, on_done, outcome)


def _hold(settings: Settings, environ: Mapping[str, str], on_done: str, outcome: Outcome) -> None:
    from agent.run.holding import Held, hold_until_signal  # noqa: PLC0415 - see `_run_head`

    anyio.run(hold_until_signal, Held(settings, environ, on_done), outcome)


def _warn(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.level is Level.WARN:
            say(finding.sentence(), "warning")


def _check_log_dir(root: Path) -> None:
    """Make the folder of all runs, and write a file there; refuse a stalled disk."""

    def make() -> bool:
        with suppress(OSError):  # the run folder reports this error
            log_dir.guard(root)
        return True

    if not run_within(times.IDLE_DISK, make):
        what = f"AGENT_LOG_DIR={root} does not answer within {times.IDLE_DISK:g} s"
        remedy = "Repair or remount that disk, or set AGENT_LOG_DIR to another"
        raise PreflightError(what, remedy=remedy, culprit="AGENT_LOG_DIR")


def _chosen_run(root: Path, plan: Plan, own: str, resumed: str) -> run_record.ChosenRun:
    """Return the run that this head resumes, or a new one.

    `own` is the job's fingerprint, `resumed` the run of a killed agent that this one replaces.
    """
    node, claim = plan.topology.node_name, plan.topology.platform
    # A restart by the platform is no request for a new run.
    retries = None if claim.restarts_containers else plan.settings.job_retries

    def new_id() -> str:
        return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)

    chosen = run_record.choose_run(
        root, claim.run_id, own, new_id, node=node, retries=retries, resumed=resumed
    )
    if chosen.skipped:
        say(chosen.skipped)
    if claim.run_id is not None and chosen.before is None and plan.settings.job_retries:
        say(f"run {chosen.run_id} begins: {root} has no record of it to continue")
    if chosen.before is not None and chosen.before.attempts:
        say(f"run {chosen.run_id} continues, attempts so far: {len(chosen.before.attempts)}")
    return chosen


def _run_role(node_run: NodeRun, keeper: RunKeeper | None) -> Outcome:
    """Run the head or the worker; an exception becomes an outcome, and all children are ended."""
    plan = node_run.plan
    parent.become_subreaper()
    say(f"pod-agent on {plan.topology.platform.name}: {plan.topology.sentence()}")
    for note in plan.notes:
        say(note)
    _warn(finding for finding in plan.findings if finding.check != NAMES)
    try:
        outcome = anyio.run(_run_in_loop, node_run, keeper)
    except Exception as failure:  # noqa: BLE001 - whatever it is must end with a code and a cause
        error = _agent_error_in(failure)
        process.kill(process.list_descendants())
        outcome = bug(failure) if error is None else error.outcome()
        from agent.run.diagnose import write_bundle  # noqa: PLC0415 - see `_run_head`

        outcome = write_bundle(node_run, outcome)
    node_run.record(Ended(round(node_run.now(), 3)))
    return outcome


def bug(failure: Exception) -> Outcome:
    """Log an exception; return the outcome that asks for a bug report."""
    for line in "".join(traceback.format_exception(failure)).splitlines():
        say(line, "error")
    first = innermost(failure)
    message = str(first).strip().splitlines()
    return ends.BUG.outcome(error=": ".join([type(first).__name__, *message[:1]]))


async def _run_in_loop(node_run: NodeRun, keeper: RunKeeper | None) -> Outcome:
    if keeper is not None:
        return await _run_head(node_run, keeper)
    if node_run.plan.topology.is_idle:  # with 0: the container's next command must run
        given = node_run.plan.topology.given_ray
        return ends.IDLE_WORKER.outcome(owner="the platform" if given is None else given.owner)
    from agent.run.worker import WorkerAgent  # noqa: PLC0415 - see `_run_head`

    async with anyio.create_task_group() as tasks:
        outcome = await WorkerAgent(node_run, tasks).run()
        tasks.cancel_scope.cancel()
    return outcome


async def _run_head(node_run: NodeRun, keeper: RunKeeper) -> Outcome:
    """Start Ray, then run the head's event loop.

    All that `ray start` need not wait for is imported after it was launched: Ray takes a second to
    boot, while the event loop's modules take a quarter of a second of CPU, most of it for aiohttp.
    """
    node_run.attempts = lambda: keeper.record.attempts
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
        await tasks.start(signals.watch_signals, on_stop, on_notice, node_run.record_kill)
        started = await make_ready.start_head(node_run, keeper, stop_scope)
        if started is None:
            stop = await inbox.take(0)
            assert isinstance(stop, StopAsked)  # noqa: S101 - nothing else is sent before
            outcome = ends.stopped(stop.signum, expected=node_run.plan.job is None)
        else:
            from agent.run.head import HeadAgent  # noqa: PLC0415 - see above

            head = HeadAgent(node_run, tasks, keeper, started, inbox)
            for signum in early_notices:
                head.on_notice(signum)
            outcome = await head.run()
        tasks.cancel_scope.cancel()
    return outcome


def _agent_error_in(failure: BaseException) -> AgentError | None:
    """Return the agent's own error in an exception: task groups wrap it."""
    if isinstance(failure, AgentError):
        return failure
    inner = getattr(failure, "exceptions", ())
    found = next(filter(None, map(_agent_error_in, inner)), None)
    return found or (None if inner else process_limit_error("a helper of this run", failure))
