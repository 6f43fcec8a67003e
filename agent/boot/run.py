"""`run`: from the plan to the outcome, with everything taken down at the end."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base.errors import AgentError, PreflightError
from agent.base.outcome import BEFORE_ALL, Kind, Outcome
from agent.boot import planning
from agent.boot.left_behind import left_behind, run_to_go_on_with
from agent.boot.node_run import WRITE_LIMIT, NodeRun
from agent.checks import Level
from agent.node.process_limits import no_room
from agent.plan.make_plan import new_run_id
from agent.plan.plan import RAY, log_root
from agent.record.log import configure, disk, say
from agent.record.outcome_file import FILE as OUTCOME
from agent.record.outcome_file import write_outcome
from agent.record.run_folder import RunFolder
from agent.runtime import orphans, parent
from agent.runtime.exiting import in_time
from agent.settings.jobs import launcher
from agent.settings.redact import redactor_for
from agent.work.job import jobs_own

_ANSWERS_WITHIN = 20.0
"""A network disk that was not used for long may take a while."""

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.boot.left_behind import LeftBehind
    from agent.boot.run_keeper import RunKeeper
    from agent.plan.plan import Plan
    from agent.record.run_choice import Chosen
    from agent.settings.redact import Redactor


def run(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Boot this node and live its story; raises SettingsError before anything is touched."""
    started = time.monotonic()
    plan = planning.plan_of(environ, command)
    topology = plan.topology
    redactor = redactor_for(environ, plan.settings, plan.told_by_file)
    configure(plan.settings.log, environ, redactor, topology.node_name)
    root, name = log_root(plan.settings), topology.node_name
    _refuse_a_stalled_disk(root)
    if topology.owns_machine:
        _refuse_another_run(root, name)
    if parent.former():
        from agent.boot import held  # noqa: PLC0415 - most agents have no former one

        decided = held.verdict(root, name)
        if decided is not None:
            return held.again(decided, stays=plan.on_done == "hold")
    names = (RAY, *(spec.name for spec in plan.possible_services))
    if topology.is_head:
        chosen, own = _chosen_run(root, plan, redactor)
        folder = RunFolder(root, chosen.run_id, name, link=False)  # once its port is its own
        left = left_behind(folder, names)
        keeper = _keeper(root, plan, chosen, own, left)
        if left is not None and keeper.has_old_ray:
            left.end_ray()
        node_run = NodeRun(plan, redactor, folder, started, keeper.run_id, left)
        outcome = _live(node_run, keeper)
        keeper.close()
        attempts = keeper.attempts
    else:
        run_id = run_to_go_on_with(root, name)
        folder = RunFolder(root, run_id, name) if run_id else RunFolder.waiting(root, name)
        node_run = NodeRun(plan, redactor, folder, started, run_id, left_behind(folder, names))
        outcome, attempts = _live(node_run, None), ()
    told = (outcome, attempts, node_run.outages, node_run.bundle or "")
    write = partial(write_outcome, folder.path, *told)
    if not in_time(WRITE_LIMIT, write):
        disk.tell(OUTCOME, "a write does not end")
    node_run.close()
    return outcome


def _refuse_a_stalled_disk(root: Path) -> None:
    """Try to make the folder of all runs: where that does not end, nothing else would."""

    def make() -> None:
        with suppress(OSError):  # what cannot be made, the run folder tells
            root.mkdir(parents=True, exist_ok=True)
            os.utime(root)

    if not in_time(_ANSWERS_WITHIN, make):
        raise PreflightError(
            f"AGENT_LOG_DIR={root} does not answer",
            why=f"a write to its disk takes longer than {_ANSWERS_WITHIN:g} s",
            remedy="Mend that disk or mount it anew, or choose another in AGENT_LOG_DIR",
            culprit="AGENT_LOG_DIR",
        )


def _refuse_another_run(root: Path, node: str) -> None:
    """Let a second agent on this node say whose node it is, before it touches anything."""
    from agent.record.node_record import foreign  # noqa: PLC0415 - only in containers of our own

    other = foreign(root, "", node)
    if other is not None and other.agent_lives:
        raise PreflightError(
            other.sentence(), remedy="Stop that agent (SIGTERM), or wait for its end", culprit="run"
        )


def _chosen_run(root: Path, plan: Plan, redactor: Redactor) -> tuple[Chosen, str]:
    """Find the run that this head goes on with, or a new one; with its fingerprint."""
    from agent.record.run_choice import choose_run  # noqa: PLC0415 - see below
    from agent.record.run_record import fingerprint  # noqa: PLC0415 - same

    argv, recipe = jobs_own(plan.job)
    own = fingerprint(argv, launcher(plan.settings, plan.command), recipe, redactor.clean)
    node = plan.topology.node_name
    claim = plan.topology.claim
    # A platform that starts containers again is no person who wants a new run.
    retries = None if claim.restarts else plan.settings.job_retries
    resumed = run_to_go_on_with(root, node)
    chosen = choose_run(
        root, claim.run_id, own, new_run_id, node=node, retries=retries, resumed=resumed
    )
    if chosen.notes:
        more = f" (and {len(chosen.notes) - 1} more)" if len(chosen.notes) > 1 else ""
        say(f"{chosen.notes[-1]}{more}")
    if claim.run_id is not None and chosen.before is None and plan.settings.job_retries:
        say(f"run {chosen.run_id} begins: {root} holds no record of it to go on from")
    if chosen.before is not None and chosen.before.attempts:
        say(f"run {chosen.run_id} goes on: attempts so far: {len(chosen.before.attempts)}")
    return chosen, own


def _keeper(
    root: Path, plan: Plan, chosen: Chosen, fingerprint: str, left: LeftBehind | None
) -> RunKeeper:
    """Keep the record of the run from now on."""
    from agent.boot.run_keeper import RunKeeper  # noqa: PLC0415 - a worker needs none of it

    replaces_agent = left is not None
    survives = (left is not None and left.has_ray) or plan.topology.given_ray is not None
    memory = "" if left is None else left.out_of_memory
    return RunKeeper(
        *(root, fingerprint, chosen),
        job_survives=survives,
        replaces_agent=replaces_agent,
        memory=memory,
    )


def _live(node_run: NodeRun, keeper: RunKeeper | None) -> Outcome:
    """Live the story to its end, whatever that is; nothing of ours is left then."""
    plan = node_run.plan
    orphans.become_subreaper()
    say(f"pod-agent on {plan.topology.claim.platform}: {plan.topology.sentence()}")
    for note in plan.notes:
        say(note)
    for finding in plan.findings:
        if finding.level is Level.WARN:
            say(finding.sentence(), "warning")
    try:
        outcome = anyio.run(_story, node_run, keeper)
    except Exception as failure:  # noqa: BLE001 - whatever it is must end with a code and a cause
        error = _agent_error_in(failure)
        orphans.kill_descendants()
        outcome = _bundled(node_run, bug(failure) if error is None else error.outcome())
    from agent.record.events import Ended  # noqa: PLC0415 - Ray's start need not wait for it

    node_run.record(Ended(round(node_run.now(), 3)))
    return outcome


def _bundled(node_run: NodeRun, outcome: Outcome) -> Outcome:
    from agent.boot.failure import bundled_at_once  # noqa: PLC0415 - only where a run has failed

    return bundled_at_once(node_run, outcome)


def bug(failure: Exception) -> Outcome:
    """Log an exception; return the outcome that asks for a report."""
    for line in "".join(traceback.format_exception(failure)).splitlines():
        say(line, "error")
    remedy = "Please report it with agent.log"
    return Outcome(Kind.BUG, 70, f"a bug in the agent: {_in_one_line(failure)}", remedy=remedy)


def _in_one_line(failure: BaseException) -> str:
    """Return an exception's type and the first line of its message; of a group, its first one's."""
    inner = getattr(failure, "exceptions", ())
    if inner:
        return _in_one_line(inner[0])
    message = str(failure).strip().splitlines()
    return ": ".join([type(failure).__name__, *message[:1]])


async def _story(node_run: NodeRun, keeper: RunKeeper | None) -> Outcome:
    if keeper is not None:
        from agent.boot import head_start  # noqa: PLC0415 - a worker needs none of it

        return await head_start.run(node_run, keeper)
    if node_run.plan.topology.is_idle:
        return _idle(node_run.plan)
    from agent.boot import worker  # noqa: PLC0415 - a head needs none of it

    return await worker.run(node_run)


def _idle(plan: Plan) -> Outcome:
    """Leave a node alone that needs no agent, with 0: what is run after us must go on."""
    given = plan.topology.given_ray
    owner = "the platform" if given is None else given.owner
    reason = f"nothing to do on this worker: {owner} starts Ray here, and the job ends elsewhere"
    return Outcome(Kind.DONE, 0, reason, BEFORE_ALL)


def _agent_error_in(failure: BaseException) -> AgentError | None:
    """Find our own error in a failure: task groups wrap what their tasks raise."""
    if isinstance(failure, AgentError):
        return failure
    inner = getattr(failure, "exceptions", ())
    found = next(filter(None, map(_agent_error_in, inner)), None)
    return found or (None if inner else no_room("a helper of this run", failure))
