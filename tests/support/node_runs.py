"""Runs of a node, for tests of what a node does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.record.run_folder import RunFolder
from agent.run.node_run import NodeRun
from agent.settings.redact import redactor_for
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.job.services import PrepareStep


def node_run_with(root: Path, steps: tuple[PrepareStep, ...]) -> NodeRun:
    """Return the run of a node with these steps."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0"}
    plan = replace(plan_of(environ, command=["true"]), steps=steps)
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    return NodeRun(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")
