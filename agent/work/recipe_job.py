"""A recipe's job: made for what is there, at the plan for a guess of it, at the end for real."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.value import dataclass
from agent.work.checkpoints import Mark
from agent.work.recipes import recipe_of
from agent.work.recipes.recipe import Asked, Command, MisfitError, NodeSize
from agent.work.recipes.versions import Chosen, UnknownVersionError, choose, listed, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Framework
    from agent.settings import Settings
    from agent.settings.jobs import KnownJob
    from agent.work.recipes.recipe import Version

_PLENTY = 1 << 20
"""CPUs of which no recipe needs more."""
_SHAPES = tuple(
    (NodeSize(gpus, _PLENTY),) * nodes for gpus in (1, 2, 4, 8, 16) for nodes in (1, 2, 4, 8, 16)
)
"""Clusters of which one at least suits whatever can be run at all."""


@dataclass(frozen=True)
class RecipeJob:
    """What a recipe's command is made from, and what it would be as far as can be told now."""

    known: KnownJob
    asked: Asked
    """With the nodes that are expected."""
    guess: Command | None
    """The command for these; None where it does not fit them."""
    misfit: str = ""
    """Why not."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What it needs in the environment of every node, where no size decides that."""

    def command(self, nodes: tuple[NodeSize, ...]) -> Command:
        """Make the command for what joined; raises MisfitError."""
        return recipe_of(self.known).make(replace(self.asked, nodes=nodes))


def world_size(nodes: tuple[NodeSize, ...]) -> int:
    """Return how many processes train: one on each GPU, or where there is none, on each node."""
    return sum(node.gpus for node in nodes) or len(nodes)


def mark_of(recipe: RecipeJob, world_size: int) -> Mark:
    """Return what says whose a job's checkpoints are."""
    asked, known = recipe.asked, recipe.known
    version, parallel = written(asked.version), asked.tensor_parallel
    return Mark(known.name, known.framework, version, asked.model, world_size, parallel)


def version_of(known: KnownJob, framework: Framework | None) -> Chosen:
    """Return the version whose flags are right: by what is installed, else the newest known.

    Raises UnknownVersionError where no known one stands for what is installed.
    """
    versions = recipe_of(known).VERSIONS
    if not versions:
        return Chosen(())
    if framework is None or not framework.folder:
        return Chosen(versions[-1])
    if not framework.version and len(versions) == 1:
        return Chosen(versions[0])  # a frozen fork, which tells none
    if not framework.version:
        raise UnknownVersionError(f"it does not tell its version; known are {listed(versions)}")
    return choose(versions, framework.version)


def asked_of(  # noqa: PLR0913 - all that a recipe rests on
    known: KnownJob,
    settings: Settings,
    version: Version,
    checkpoints: str,
    python: str,
    nodes: tuple[NodeSize, ...],
) -> Asked:
    """Return what the settings ask of a recipe on these nodes."""
    return Asked(
        recipe=known.name,
        nodes=nodes,
        version=version,
        model=settings.model or "",
        train_data=settings.train_data or "",
        eval_data=settings.eval_data or "",
        checkpoints=checkpoints,
        tensor_parallel=settings.tensor_parallel,
        args=settings.job_args,
        scores=scores(known, settings),
        wandb=settings.wandb_api_key is not None,
        python=python,
    )


def scores(known: KnownJob, settings: Settings) -> bool:
    """Say whether a reward server scores: where the recipe needs one, or may and was given one."""
    asked_for = settings.reward is not None and settings.reward != "off"
    return known.reward == "needed" or (known.reward == "possible" and asked_for)


def planned(known: KnownJob, asked: Asked) -> RecipeJob:
    """Make the job for the nodes that are expected; raises SettingsError where no nodes would do.

    Where these do not fit, others may join that do: only then it is too late.
    """
    recipe = recipe_of(known)
    try:
        guess = recipe.make(asked)
    except MisfitError as error:
        other = next(filter(None, (_made(known, asked, nodes) for nodes in _SHAPES)), None)
        if other is None:
            got = f"{known.name}, which cannot be made: {error}"
            raise SettingsError((Problem("AGENT_JOB", got, "settings that go together"),)) from None
        return RecipeJob(known, asked, None, str(error), other.env)
    return RecipeJob(known, asked, guess, env=guess.env)


def _made(known: KnownJob, asked: Asked, nodes: tuple[NodeSize, ...]) -> Command | None:
    try:
        return recipe_of(known).make(replace(asked, nodes=nodes))
    except MisfitError:
        return None
