"""The verb `run`: make the plan, run the role, write the outcome."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import ends, times
from agent.base.errors import AgentError, PreflightError, innermost
from agent.boot import make_ready, plan_input
from agent.boot.node_run import NodeRun, find_resumed_run, find_surviving_processes
from agent.boot.run_keeper import RunKeeper
from agent.checks import NAMES
from agent.checks.finding import Level
from agent.decisions.values import StopAsked
from agent.node.limits import process_limit_error
from agent.plan.make import new_run_id
from agent.plan.plan import RAY, log_root
from agent.record.events import Ended
from agent.record.files import access
from agent.record.log import configure, disk_alarm, say
from agent.record.node_record import find_running_agent, folder_of
from agent.record.run_folder import OUTCOME_FILE as OUTCOME
from agent.record.run_folder import RunFolder, read_outcome
from agent.record.run_record import choose_run, fingerprint
from agent.record.threads import run_within
from agent.runtime import descendants, parent, signals
from agent.runtime.waiting import Inbox
from agent.settings.jobs import launcher
from agent.settings.redact import redactor_for
from agent.work.job import job_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.base.outcome import Outcome
    from agent.boot.head import HeadAgent
    from agent.checks.finding import Finding
    from agent.decisions.head.state import HeadEvent
    from agent.plan.plan import Plan
    from agent.record.run_record import ChosenRun
    from agent.settings.redact import Redactor


def former_verdict(root: Path, node: str) -> Outcome | None:
    """Return the verdict of the killed agent that this one replaces; None if it had none."""
    folder = folder_of(root, node, parent.former_agents())
    return None if folder is None else read_outcome(folder)


def run_safely(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Run this node until the end; an exception before the run folder exists is an outcome, too."""
    try:
        return run(environ, command)
    except AgentError:
        raise
    except Exception as failure:  # noqa: BLE001 - a bug before the run folder exists
        return bug(failure)


def run(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Run this node until the end; raise SettingsError before anything is changed."""
    started = time.monotonic()
    plan = plan_input.plan_from_environment(environ, command)
    topology = plan.topology
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    access.allow(plan.settings.log_mode)
    configure(plan.settings.log, environ, redactor, topology.node_name)
    _warn(finding for finding in plan.findings if finding.check == NAMES)  # they may explain all
    root, name = log_root(plan.settings), topology.node_name
    _refuse_a_stalled_disk(root)
    other = find_running_agent(root, name) if topology.owns_machine else ""
    if other:  # refused before anything is changed
        remedy = "Stop that agent (SIGTERM), or wait for its end"
        raise PreflightError(other, remedy=remedy, culprit="run")
    if parent.former_agents():
        decided = former_verdict(root, name)
        if decided is not None:
            say("the agent was killed when its run was over: its verdict stands", "warning")
            if plan.on_done != "exit" and decided.holds_pod:
                _hold(plan, decided)
            return decided
    names = (RAY, *(spec.name for spec in plan.possible_services))
    if topology.is_head:
        chosen, own = _chosen_run(root, plan, redactor)
        folder = RunFolder(root, chosen.run_id, name, link=False)  # linked once the port is open
        left = find_surviving_processes(folder, names)
        keeps_ray = left is not None and left.has_ray
        keeper = RunKeeper(
            *(root, own, chosen),
            job_survives=keeps_ray or plan.topology.given_ray is not None,
            replaces_agent=left is not None,
            memory="" if left is None else left.oom_evidence,
        )
        if left is not None and keeper.has_outdated_ray:
            left.end_ray()
        node_run = NodeRun(plan, redactor, folder, started, keeper.record.run_id, left)
        outcome = _run_role(node_run, keeper)
        keeper.close()
        attempts = keeper.record.attempts
    else:
        run_id = find_resumed_run(root, name)
        folder = RunFolder(root, run_id, name) if run_id else RunFolder.waiting(root, name)
        node_run = NodeRun(
            plan, redactor, folder, started, run_id, find_surviving_processes(folder, names)
        )
        outcome, attempts = _run_role(node_run, None), ()
    if not run_within(times.DISK_AT_END, partial(node_run.write_outcome, outcome, attempts)):
        disk_alarm.report(OUTCOME, "a write does not end")
    node_run.close()
    return outcome


def _hold(plan: Plan, outcome: Outcome) -> None:
    """Hold or stop the pod after a run of which nothing is left."""
    from agent.boot.holding import held_of, hold_until_signal  # noqa: PLC0415 - see `_run_head`

    anyio.run(hold_until_signal, held_of(plan), outcome)


def _warn(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.level is Level.WARN:
            say(finding.sentence(), "warning")


def _refuse_a_stalled_disk(root: Path) -> None:
    """Create the folder of all runs; refuse to run if its disk does not answer."""

    def make() -> bool:
        with suppress(OSError):  # the run folder reports this error
            root.mkdir(parents=True, exist_ok=True)
            os.utime(root)
        return True

    if not run_within(times.RUN_FOLDER_DISK, make):
        raise PreflightError(
            f"AGENT_LOG_DIR={root} does not answer",
            why=f"a write to its disk takes longer than {times.RUN_FOLDER_DISK:g} s",
            remedy="Repair or remount that disk, or set AGENT_LOG_DIR to another",
            culprit="AGENT_LOG_DIR",
        )


def _chosen_run(root: Path, plan: Plan, redactor: Redactor) -> tuple[ChosenRun, str]:
    """Return the run that this head resumes, or a new one; with the job's fingerprint."""
    argv, recipe = job_identity(plan.job)
    own = fingerprint(argv, launcher(plan.settings, plan.command), recipe, redactor.clean)
    node = plan.topology.node_name
    claim = plan.topology.platform
    # A restart by the platform is no request for a new run.
    retries = None if claim.restarts_containers else plan.settings.job_retries
    resumed = find_resumed_run(root, node)
    chosen = choose_run(
        root, claim.run_id, own, new_run_id, node=node, retries=retries, resumed=resumed
    )
    if chosen.skipped:
        more = f" (and {len(chosen.skipped) - 1} more)" if len(chosen.skipped) > 1 else ""
        say(f"{chosen.skipped[-1]}{more}")
    if claim.run_id is not None and chosen.before is None and plan.settings.job_retries:
        say(f"run {chosen.run_id} begins: {root} has no record of it to continue")
    if chosen.before is not None and chosen.before.attempts:
        say(f"run {chosen.run_id} continues, attempts so far: {len(chosen.before.attempts)}")
    return chosen, own


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
        descendants.kill_descendants()
        outcome = bug(failure) if error is None else error.outcome()
        from agent.boot.diagnose import write_bundle  # noqa: PLC0415 - see `_run_head`

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
    from agent.boot.worker import WorkerAgent  # noqa: PLC0415 - see `_run_head`

    async with anyio.create_task_group() as tasks:
        outcome = await WorkerAgent(node_run, tasks).run()
        tasks.cancel_scope.cancel()
    return outcome


async def _run_head(node_run: NodeRun, keeper: RunKeeper) -> Outcome:
    """Start Ray, then run the head's event loop.

    All that `ray start` need not wait for is imported after it was launched: Ray takes a second to
    boot, while the event loop's modules take a quarter of a second of CPU, most of it for aiohttp.
    """
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
        await tasks.start(signals.watch_signals, on_stop, on_notice)
        started = await make_ready.start_head(node_run, keeper, stop_scope)
        if started is None:
            stop = await inbox.take(0)
            assert isinstance(stop, StopAsked)  # noqa: S101 - nothing else is sent before
            outcome = ends.stopped(stop.signum, expected=node_run.plan.job is None)
        else:
            from agent.boot.head import HeadAgent  # noqa: PLC0415 - see above

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
