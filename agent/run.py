"""`run`: from the plan to the outcome, with everything taken down at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from agent import start
from agent.boot.stage import Stage
from agent.errors import AgentError
from agent.folder import RunFolder
from agent.log import configure, say
from agent.outcome import Outcome
from agent.plan import log_root, new_run_id
from agent.redact import redactor_for
from agent.runtime import orphans

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(environ: Mapping[str, str], command: list[str] | None) -> Outcome:
    """Boot this node and live its story; raises SettingsError before anything is touched."""
    started = time.monotonic()
    plan = start.plan_of(environ, command)
    topology = plan.topology
    redactor = redactor_for(environ, plan.settings)
    configure(plan.settings.log, environ, redactor, topology.node_name)
    root, run_id = log_root(plan.settings), topology.run_id or new_run_id()
    if topology.is_head:
        folder = RunFolder(root, run_id, topology.node_name, redactor)
    else:
        folder = RunFolder.waiting(root, topology.node_name, redactor)
    stage = Stage(plan, redactor, folder, started)
    orphans.become_subreaper()
    say(f"pod-agent on {topology.platform}: {topology.sentence()}")
    for note in plan.notes:
        say(note)
    for finding in plan.findings:
        if finding.level.value == "warn":
            say(finding.sentence(), "warning")
    try:
        outcome = anyio.run(_story, stage, run_id)
    except Exception as failure:
        error = _agent_error_in(failure)
        clean_up()
        if error is None:
            raise
        outcome = Outcome(
            error.kind, error.exit_code, error.reason, "starting", error.culprit, error.remedy
        )
    stage.record("end", seconds=round(stage.now(), 3))
    outcome.write(folder.path)
    return outcome


async def _story(stage: Stage, run_id: str) -> Outcome:
    if stage.plan.topology.is_head:
        from agent.boot import head  # noqa: PLC0415 - a worker needs none of it

        return await head.run(stage, run_id)
    from agent.boot import worker  # noqa: PLC0415 - a head needs none of it

    return await worker.run(stage)


def _agent_error_in(failure: BaseException) -> AgentError | None:
    """Find our own error in a failure: task groups wrap what their tasks raise."""
    if isinstance(failure, AgentError):
        return failure
    inner = getattr(failure, "exceptions", ())
    return next(filter(None, map(_agent_error_in, inner)), None)


def clean_up() -> None:
    """End every descendant, after an error."""
    orphans.kill_descendants()
