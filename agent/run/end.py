"""The end of a run on this node: all ways lead through `end_run`.

What ended it, and who calls `end_run`:
- the role, after it has stopped all that it had started, and before it closes its port: callers get
  the verdict for as long as the pod is held (`end_role`, in head.py and worker.py);
- an exception in the role, which becomes an outcome here (`end_failed_role`);
- a run that was decided before this agent started: by a killed agent, or in an earlier container;
- a refusal, or a bug, before there was a run folder (`end_refused`);
- one kill of the agent too many, after which it only records that (`end_given_up`).

`end_run` writes the failure bundle, records the outcome for those that come later, and on the head
has the user notified. Then it answers one question: does the container exit, or is it held or
stopped? A verdict holds or stops it as AGENT_ON_DONE says; so does any other end that the
platform's next restart would only repeat.
"""

from __future__ import annotations

import traceback
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import ends, times
from agent.base.errors import AgentError, innermost
from agent.decisions.shared import StopAsked
from agent.node.limits import process_limit_error
from agent.plan.plan import log_root
from agent.platforms.rank_variables import group_member, own_pod
from agent.processes import parent, process
from agent.record import run_record
from agent.record.background import in_thread, run_within
from agent.record.events import Ended
from agent.record.log import configure, disk_alarm, say
from agent.record.node_record import folder_of
from agent.record.outcome_file import OUTCOME_FILE, facts_of, outcome_text, write_outcome
from agent.run.effects import REAL
from agent.run.restarts import Container, Restarts, hold_by_setting, settings_digest
from agent.settings.load import settings_for_end
from agent.settings.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.plan.plan import Plan
    from agent.run.effects import Processes
    from agent.run.failure_bundle import Bundled
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore
    from agent.run.takeover import KilledAgent


async def end_run(  # noqa: PLR0913 - what only some ends have
    outcome: Outcome,
    container: Container,
    *,
    bundle: Callable[[Outcome], Awaitable[Outcome]] | None = None,
    record: Callable[[Outcome], object] | None = None,
    notify: Callable[[Outcome], Awaitable[None]] | None = None,
    stopped: Callable[[], Awaitable[object]] | None = None,
    others: Sequence[tuple[str, int]] = (),
) -> Outcome:
    """End the run on this node; return the outcome, which may name a bundle.

    `bundle` writes the failure bundle, `record` the outcome, and `notify` sends it to the user, if
    this end has them. A container is held until `stopped` returns, or until a signal; the agents at
    `others` stop before it.
    """
    # Evidence first: the outcome names the bundle.
    if bundle is not None:
        outcome = await bundle(outcome)

    # Then the record: the pod may be stopped, or its platform may end it, at any time from now on.
    if record is not None:
        record(outcome)
    if notify is not None:
        await notify(outcome)

    # Does the container exit?
    if outcome.holds_pod:
        must_hold = container.on_done != "exit"
    else:
        must_hold = container.restarts.would_repeat()
    if must_hold:
        await container.hold(outcome, container, stopped, others)
    return outcome


# --- the role has ended --------------------------------------------------------------------------


async def write_outcome_early(run: NodeRun, outcome: Outcome) -> None:
    """Write the outcome before its evidence; `end_role` writes it again, with the bundle's name."""
    limit = disk_alarm.patience(times.STALLED_DISK)
    if not await in_thread(partial(run.write_outcome, outcome), limit):
        disk_alarm.report_hang(OUTCOME_FILE)


async def end_role(
    run: NodeRun,
    outcome: Outcome,
    *,
    bundle: Callable[[Outcome], Awaitable[Bundled]] | None = None,
    next_event: Callable[[], Awaitable[object]] | None = None,
    others: Sequence[tuple[str, int]] = (),
) -> Outcome:
    """End the run after its role has stopped all that it had started.

    A role that still serves its port gives its `next_event`, which may be a request to stop.
    """
    bundle_name = ""

    async def write_bundle(outcome: Outcome) -> Outcome:
        nonlocal bundle_name
        if bundle is None:
            return outcome
        bundled = await bundle(outcome)
        bundle_name = bundled.name
        return bundled.outcome

    def record(outcome: Outcome) -> None:
        limit = disk_alarm.patience(times.STALLED_DISK)
        if not run_within(limit, partial(run.write_outcome, outcome, bundle_name)):
            disk_alarm.report_hang(OUTCOME_FILE)

    async def notify(outcome: Outcome) -> None:
        if run.notifies:
            run.send_end(outcome)
            await run.notifier.finish()

    stopped = None if next_event is None else partial(_stop_request, next_event)
    return await end_run(
        outcome,
        run.container,
        bundle=write_bundle,
        record=record,
        notify=notify,
        stopped=stopped,
        others=others,
    )


async def _notify(plan: Plan, clean: Callable[[str], str], run_id: str, outcome: Outcome) -> None:
    """Send the end of a run that has no role which could."""
    if plan.settings.notify is None or not plan.topology.is_head:
        return
    from agent.run.notify import Notifier  # noqa: PLC0415 - only an end notifies

    notifier = Notifier(plan, clean, lambda: run_id)
    notifier.send_end(outcome, 0.0)
    await notifier.finish()


async def _stop_request(next_event: Callable[[], Awaitable[object]]) -> None:
    while not isinstance(await next_event(), StopAsked):
        continue


async def end_failed_role(run: NodeRun, failure: Exception) -> Outcome:
    """End the run after an exception in its role: all children are killed."""
    from agent.run.failure_bundle import make_bundle  # noqa: PLC0415 - only a failed role needs it

    error = agent_error_in(failure)
    process.kill(run.effects.processes.descendants())
    outcome = bug(failure) if error is None else error.outcome()
    return await end_role(run, outcome, bundle=partial(make_bundle, run))


def close_records(run: NodeRun, store: RunStore | None) -> None:
    """Write the last records of a run that has ended, and release its folder."""
    run.record(Ended(round(run.now(), 3)))
    if store is not None:
        store.close()
    run.close()


def bug(failure: Exception) -> Outcome:
    """Log an exception; return the outcome that asks for a bug report."""
    for line in "".join(traceback.format_exception(failure)).splitlines():
        say(line, "error")
    first = innermost(failure)
    message = str(first).strip().splitlines()
    return ends.BUG.outcome(error=": ".join([type(first).__name__, *message[:1]]))


def agent_error_in(failure: BaseException) -> AgentError | None:
    """Return the agent's own error in an exception: task groups wrap it."""
    if isinstance(failure, AgentError):
        return failure
    wrapped = getattr(failure, "exceptions", ())
    for inner in wrapped:
        error = agent_error_in(inner)
        if error is not None:
            return error
    return None if wrapped else process_limit_error("a helper of this run", failure)


# --- no role was started -------------------------------------------------------------------------


def end_refused(environ: Mapping[str, str], command: list[str] | None, outcome: Outcome) -> None:
    """End a run that was refused before it had a folder.

    On a pod its platform would start it again, with the same refusal. The settings may be what is
    wrong, so those that say how to end are read one by one.
    """
    # Is this a pod that is started again whatever its exit code?
    pod = own_pod(environ)
    name = pod or group_member(environ)
    if name is None or not parent.is_init:
        return

    # Which of the settings can be read?
    settings = settings_for_end(environ)
    default = "exit" if pod is None else "hold"
    on_done = settings.on_done or default
    redactor = redactor_for(environ, settings)
    configure(settings.log, environ, redactor, name)

    # Record the refusal, which the next agent may repeat.
    restarts = Restarts(
        root=log_root(settings),
        node=name,
        digest=settings_digest(environ, command),
        is_on=True,
        holds=on_done != "exit",
        longest=times.ATTEMPT_SHORT,
    )

    def record(outcome: Outcome) -> None:
        run_within(times.STALLED_DISK, partial(restarts.record, "", outcome))

    container = Container(settings, environ, on_done, restarts, hold_by_setting)
    anyio.run(partial(end_run, redactor.clean_fields(outcome), container, record=record))


def end_given_up(plan: Plan, container: Container, signal_name: str, kills: int) -> Outcome:
    """End a run whose agent was killed too often: its folder gets the outcome."""
    node = plan.topology.node_name
    root = log_root(plan.settings)

    def record(outcome: Outcome) -> None:
        write = partial(_write_for_killed, root, node, container.killed_agents, outcome)
        run_within(times.STALLED_DISK, write)

    clean = redactor_for(container.environ, plan.settings).clean
    notify = partial(_notify, plan, clean, "")
    outcome = ends.AGENT_KILLED.outcome(signal=signal_name, count=kills)
    return anyio.run(partial(end_run, outcome, container, record=record, notify=notify))


async def end_of_killed(
    plan: Plan, container: Container, killed: KilledAgent, processes: Processes = REAL.processes
) -> Outcome:
    """End with the outcome of a killed agent, which may have decided it without writing it.

    It wrote it once it had stopped everything: otherwise that is done here.
    """
    outcome = killed.outcome
    assert outcome is not None  # noqa: S101 - its run was over
    if killed.wrote_outcome:
        return await end_run(outcome, container)

    # Its Ray, services and ranks may still run, and the pod may be held from now on.
    limit = plan.budget.services
    for name in await process.stop_descendants(limit, processes.descendants, processes.reap):
        say(f"had to kill {name}, which the killed agent left running", "warning")

    node = plan.topology.node_name
    root = log_root(plan.settings)

    def record(outcome: Outcome) -> None:
        container.restarts.record(killed.run_id, outcome)
        write = partial(_write_for_killed, root, node, container.killed_agents, outcome)
        run_within(times.STALLED_DISK, write)

    clean = redactor_for(container.environ, plan.settings).clean
    notify = partial(_notify, plan, clean, killed.run_id)
    return await end_run(outcome, container, record=record, notify=notify)


def _write_for_killed(root: Path, node: str, killed: tuple[int, ...], outcome: Outcome) -> None:
    """Write outcome.json in the folder of the killed agents, as they would have written it."""
    folder = folder_of(root, node, killed)
    if folder is None:
        return
    record = run_record.RunRecord.read(folder.parent / run_record.RUN_FILE)
    if isinstance(record, run_record.RunRecord) and record.durable.head == node:
        text = outcome_text(outcome, facts_of(record, node))
    else:
        text = outcome_text(outcome)
    write_outcome(folder, text)
