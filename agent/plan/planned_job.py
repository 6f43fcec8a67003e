"""The job as it can be planned: a command is known, a recipe's is a guess until nodes joined."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.plan.plan import log_root
from agent.settings.jobs import known_job, launcher
from agent.work.checkpoint_path import folder_of
from agent.work.job import COMMAND, Job

if TYPE_CHECKING:
    from agent.checks import Finding
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.settings.load import Loaded
    from agent.topology.resolve import Topology
    from agent.work.recipe_job import RecipeJob


@dataclass(frozen=True)
class PlannedJob:
    """What is decided of the job before anything starts."""

    job: Job | None
    """None where none was asked for, and on a worker that starts no share of it."""
    recipe: RecipeJob | None = None
    """On every node, since each sets what the recipe needs in its environment."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def planned_job(
    loaded: Loaded, topology: Topology, facts: Facts, runtime_env: dict[str, object]
) -> PlannedJob:
    """Plan the job that was asked for; raises SettingsError where a recipe can never be made."""
    settings, command = loaded.settings, loaded.command
    known = known_job(settings, command)
    folder = checkpoint_folder(settings, command)
    has_part = topology.is_head or launcher(settings, command) == "torchrun"
    if command is not None and has_part:
        return PlannedJob(Job(COMMAND, command, runtime_env, folder))
    if known is None or topology.is_idle:
        return PlannedJob(None)
    from agent.plan import planned_recipe  # noqa: PLC0415 - a command needs none of it

    recipe = planned_recipe.recipe_of(known, settings, topology, facts, folder)
    if not has_part:
        return PlannedJob(None, recipe)
    argv = () if recipe.guess is None else recipe.guess.argv
    found = planned_recipe.findings(known, facts, settings, topology, folder)
    job = Job(known.name, argv, runtime_env, folder, recipe)
    return PlannedJob(job, recipe, found, planned_recipe.notes(known, settings, topology))


def checkpoint_folder(settings: Settings, command: tuple[str, ...] | None) -> str:
    """Return the absolute folder for the job's checkpoints; '' where there is no job."""
    known = known_job(settings, command)
    if command is None and known is None:
        return ""
    name = COMMAND if known is None else known.name
    logs = str(log_root(settings).absolute())
    return str(Path(folder_of(settings, logs, name, command)).expanduser())
