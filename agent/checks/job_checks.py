"""Checks of the job: is its program here, where nothing of this run could still bring it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

JOB = "job"


def job_program(facts: Facts, settings: Settings, topology: Topology) -> tuple[Finding, ...]:
    """A program that is not there is found after the whole boot, by a bare 127."""
    may_come = (
        settings.runtime_env,
        settings.working_dir,
        settings.prepare,
        settings.prepare_each,
        settings.services,
    )
    elsewhere = not topology.is_head or topology.given_ray is not None
    if not facts.program_fault or elsewhere or any(may_come):
        return ()
    remedy = (
        "Correct the command after --, put its program on PATH, or have it brought by "
        "AGENT_PREPARE or AGENT_WORKING_DIR"
    )
    return (Finding(JOB, Level.FAIL, f"the program after --: {facts.program_fault}", remedy),)
