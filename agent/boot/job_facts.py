"""What a recipe's job must know of this machine: its framework, and its folder for checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level
from agent.plan.planned_job import checkpoint_folder
from agent.runtime.exiting import in_time
from agent.settings.jobs import known_job

if TYPE_CHECKING:
    from agent.node.facts import Facts, Mount
    from agent.plan.plan import Plan
    from agent.settings.load import Loaded
    from agent.topology.resolve import Topology
    from agent.work.checkpoints import Held

_DISK_LIMIT = 2.0
"""Longest that a disk that stalls may hold up the start; the run asks it again."""


def with_job(facts: Facts, loaded: Loaded, topology: Topology) -> Facts:
    """Add what the recipe that was asked for rests on, where one was and it needs any."""
    settings = loaded.settings
    known = known_job(settings, loaded.command)
    if known is None or not known.framework or topology.is_idle:
        return facts
    from agent.node import framework  # noqa: PLC0415 - most runs need none of it
    from agent.node.disks import free_at, weights_in  # noqa: PLC0415 - same
    from agent.node.mounts import mount_of  # noqa: PLC0415 - same

    starts_in = settings.working_dir or "."
    found = framework.find(known.framework, facts.job_python, starts_in)
    facts = replace(facts, framework=found)
    mounts: list[Mount | None] = []
    sizes: list[tuple[int | None, int]] = []
    folder = checkpoint_folder(settings, loaded.command)
    in_time(_DISK_LIMIT, lambda: mounts.append(mount_of(folder)))
    if mounts:
        facts = replace(facts, checkpoints=mounts[0])
        in_time(_DISK_LIMIT, lambda: sizes.append((free_at(folder), weights_in(settings.model))))
    if sizes:
        facts = replace(facts, checkpoints_free=sizes[0][0], model_bytes=sizes[0][1])
    return facts


def about_checkpoints(plan: Plan) -> tuple[Finding, ...]:
    """Find what forbids the job to use its folder for checkpoints, or soon will."""
    job = plan.job
    if job is None or job.recipe is None or not job.recipe.known.framework:
        return ()
    from agent.checks.recipe_checks import CHECKPOINTS  # noqa: PLC0415 - as above
    from agent.record.checkpoint_folder import look  # noqa: PLC0415 - same
    from agent.work.checkpoints import REMEDY, why_not, why_not_resized  # noqa: PLC0415 - same
    from agent.work.recipe_job import mark_of, world_size  # noqa: PLC0415 - same

    held: list[Held] = []
    in_time(_DISK_LIMIT, lambda: held.append(look(job.checkpoints)))
    if not held:
        return ()
    ours = mark_of(job.recipe, world_size(job.recipe.asked.nodes))
    why, level = why_not(held[0], ours), Level.FAIL
    if not why:  # what joins decides
        why, level = why_not_resized(held[0], ours), Level.WARN
    return (Finding(CHECKPOINTS, level, f"{job.checkpoints}: {why}", REMEDY),) if why else ()
