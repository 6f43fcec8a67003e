"""Checks of a recipe's job: its framework, and the disk that its checkpoints are to lie on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level
from agent.work.recipe_job import version_of
from agent.work.recipes import recipe_of
from agent.work.recipes.versions import UnknownVersionError, listed, written

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.settings.jobs import KnownJob
    from agent.topology.resolve import Topology

FRAMEWORK = "framework"
CHECKPOINTS = "checkpoints"
_GIB = 1 << 30
_OF_THE_WEIGHTS = 7
"""Weights of 2 bytes, and beside them the optimizer's 12: a copy and two moments of 4 each."""
OF_A_RECIPE = (FRAMEWORK, CHECKPOINTS)


def framework(
    known: KnownJob, facts: Facts, settings: Settings, topology: Topology
) -> tuple[Finding, ...]:
    """Without its framework a job fails after the whole boot; of another version, perhaps later."""
    found = facts.framework
    if not known.framework or found is None or not topology.is_head:
        return ()
    if not found.folder:
        return (_missing(known, facts, settings, topology),)
    try:
        chosen = version_of(known, found)
    except UnknownVersionError as error:
        what = f"{known.framework} in {found.folder} is not one that {known.name} can use: {error}"
        remedy = "Install one of these, or give the command of your own after --"
        return (Finding(FRAMEWORK, Level.FAIL, what, remedy),)
    if chosen.warning:
        what = f"{known.framework} {chosen.warning}"
        remedy = "If it refuses an argument, give the command of your own after --"
        return (Finding(FRAMEWORK, Level.WARN, what, remedy),)
    told = f"{known.framework} {found.version}".strip()
    return (Finding(FRAMEWORK, Level.OK, f"{told} in {found.folder}"),)


def _missing(known: KnownJob, facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """Say that there is none, where nothing of this run could still bring it."""
    what = f"{known.framework} is not installed for {facts.job_python}"
    may_come = (
        settings.runtime_env,
        settings.working_dir,
        settings.prepare,
        settings.prepare_each,
        settings.services,
    )
    elsewhere = topology.given_ray is not None
    versions = recipe_of(known).VERSIONS
    if elsewhere or any(may_come):
        newest = f": the arguments are those of {written(versions[-1])}" if versions else ""
        remedy = "Put the same version here, so that the arguments are its own"
        return Finding(FRAMEWORK, Level.WARN, f"{what} here{newest}", remedy if versions else "")
    which = f" ({listed(versions)})" if versions else ""
    remedy = f"Install it there{which}, or start the agent in its checkout"
    return Finding(FRAMEWORK, Level.FAIL, what, remedy)


def own_disk(facts: Facts, folder: str) -> tuple[Finding, ...]:
    """What lies on a container's own disk is gone with it, and no other node sees it."""
    mount = facts.checkpoints
    if mount is None or not mount.is_containers_own:
        return ()
    what = f"{folder} lies on no volume ({mount.kind} at {mount.folder}): it goes with this pod"
    remedy = "Set AGENT_CHECKPOINTS to a folder of a volume that all nodes share"
    return (Finding(CHECKPOINTS, Level.WARN, what, remedy),)


def room_for_two(facts: Facts, folder: str) -> tuple[Finding, ...]:
    """A run that cannot write its second checkpoint stops hours after the first."""
    free, wanted = facts.checkpoints_free, 2 * _OF_THE_WEIGHTS * facts.model_bytes
    if free is None or free >= wanted:
        return ()
    what = (
        f"{folder}: {free // _GIB} GiB free; two checkpoints of this model's weights "
        f"({facts.model_bytes / _GIB:.1f} GiB) with their optimizer may take {wanted // _GIB}"
    )
    remedy = "Set AGENT_CHECKPOINTS to a larger disk, or have the recipe keep fewer"
    return (Finding(CHECKPOINTS, Level.WARN, what, remedy),)
