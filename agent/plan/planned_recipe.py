"""A recipe's job as it can be planned: a guess, of nodes that are all like this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks import recipe_checks
from agent.work.recipe_job import asked_of, planned, version_of
from agent.work.recipes.recipe import NodeSize
from agent.work.recipes.versions import UnknownVersionError

if TYPE_CHECKING:
    from agent.checks import Finding
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.settings.jobs import KnownJob
    from agent.topology.resolve import Topology
    from agent.work.recipe_job import RecipeJob


def findings(
    known: KnownJob, facts: Facts, settings: Settings, topology: Topology, folder: str
) -> tuple[Finding, ...]:
    """Check what this machine has for a recipe."""
    found = recipe_checks.framework(known, facts, settings, topology)
    if not known.needs:
        return found
    disk = (*recipe_checks.own_disk(facts, folder), *recipe_checks.room_for_two(facts, folder))
    return (*found, *disk)


def size_of(settings: Settings, topology: Topology, facts: Facts) -> NodeSize:
    """Return what this node will bring to Ray."""
    gpus = facts.gpus if settings.num_gpus is None else settings.num_gpus
    cpus = settings.num_cpus or min(facts.cpus, topology.claim.cpus or facts.cpus)
    return NodeSize(gpus, cpus, topology.claim.memory or facts.memory)


def recipe_of(
    known: KnownJob, settings: Settings, topology: Topology, facts: Facts, folder: str
) -> RecipeJob:
    """Plan a recipe for the nodes that are expected; raises SettingsError where none would do."""
    try:
        version = version_of(known, facts.framework).version
    except UnknownVersionError:  # a check says so, and forbids the run
        version = version_of(known, None).version
    nodes = (size_of(settings, topology, facts),) * (topology.expected_workers + 1)
    python = facts.job_python
    return planned(known, asked_of(known, settings, version, folder, python, nodes))


def notes(known: KnownJob, settings: Settings, topology: Topology) -> tuple[str, ...]:
    """Say what a person should know of the recipe here."""
    given, found = topology.given_ray, []
    if known.reward == "unused" and settings.reward not in {None, "off"}:
        found.append(f"{known.name} asks no reward server; yours runs beside it")
    if given is not None and known.framework:
        whose = f"{given.owner}'s pods need this pod's image, and its disk for checkpoints"
        found.append(f"{whose}: the job names its Python and the agent's files by their paths")
    return tuple(found)
