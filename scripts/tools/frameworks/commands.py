"""The commands to check: each recipe's, for each set of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks import recipe_of
from agent.frameworks.recipe import JobBasis, MisfitError, ModelShape, NodeSize, RecipeInput
from agent.settings.jobs import RECIPES
from tools.frameworks.clusters import CLUSTERS, Nodes
from tools.frameworks.faults import Case

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.versions import Version
    from agent.frameworks.framework import Recipe
    from agent.settings.jobs import RecipeInfo

KNOWN_LATER = {
    "{reward_url}": "http://10.0.0.1:5000/get_reward",
    "{head_ip}": "10.0.0.1",
    "{rank}": "0",
    "{log_dir}": "/logs",
    "{addresses:engine|space}": "10.0.0.2:22000",
    "{addresses:engine|url|space}": "http://10.0.0.2:22000",
    "{address:router}": "10.0.0.1",
}
"""Values for the placeholders that only a run can fill."""
ENVIRONMENTS = {"prime-rl": "harbor"}
"""In place of data: an environment of the package verifiers."""
HOST = 2 << 40  # Bytes of a node, so that offloaded states fit
SEPARATE = ("asynchronous", (0, 9, 1), "trainer.v1.trainer_mode=separate_async")
FULLY_ASYNC = ("fully asynchronous", (0, 8), "async_training.staleness_threshold=0.5")
OPENRLHF = ("asynchronous", (0, 10, 2), "--train.async_enable")
ASYNCHRONOUS: Mapping[str, tuple[tuple[str, Version, str], ...]] = {
    "verl-grpo": (SEPARATE, FULLY_ASYNC),
    "verl-ppo": (SEPARATE,),
    "openrlhf-grpo": (OPENRLHF,),
    "openrlhf-ppo": (OPENRLHF,),
    "slime-grpo": (("asynchronous", (0,), "--train-async"),),
}
"""The ways to train asynchronously: a version since which there is one, and its argument."""
DENSE = ModelShape.from_name("Qwen3-8B")
SPARSE = ModelShape.from_name("Qwen3-30B-A3B")


@dataclass(frozen=True)
class Made:
    """A recipe's result for one set of nodes: a command, or the reason for none."""

    recipe: str
    nodes: str
    how: str
    case: Case | None
    misfit: str = ""


def recipes_of(framework: str) -> tuple[RecipeInfo, ...]:
    """List a framework's recipes."""
    return tuple(job for job in RECIPES if job.framework == framework)


def made(framework: str, version: Version) -> Iterator[Made]:
    """Make every command for a version of a framework."""
    for job in recipes_of(framework):
        recipe = recipe_of(job)
        for nodes in CLUSTERS:
            for how, asked in asking(job, version, nodes):
                yield make(recipe, asked, nodes, how)


def asking(job: RecipeInfo, version: Version, nodes: Nodes) -> Iterator[tuple[str, RecipeInput]]:
    """Yield the smallest and the largest set of inputs, and the smallest with each option."""
    evaluated = ENVIRONMENTS.get(job.name, "/data/test.parquet")
    for how, full in (("bare", False), ("full", True)):
        asked = RecipeInput(
            recipe=job.name,
            nodes=tuple(NodeSize(gpus, cpus) for gpus, cpus in nodes.sizes),
            version=version,
            model="Qwen/Qwen2.5-7B-Instruct",
            train_data=ENVIRONMENTS.get(job.name, "/data/train.parquet"),
            eval_data=evaluated if full or "AGENT_EVAL_DATA" in job.needs else "",
            checkpoints="/data/checkpoints",
            tensor_parallel=nodes.tensor_parallel,
            scores=job.reward == "needed" or (full and job.reward == "possible"),
            wandb=full,
        )
        yield how, asked
        for name, since, argument in ASYNCHRONOUS.get(job.name, ()):
            if not full and version >= since:
                yield name, replace(asked, args=(argument,))
        if not full and "AGENT_ROLLOUT" in job.takes:
            yield "sglang", replace(asked, rollout="sglang")
            yield "sglang with adapters", replace(asked, rollout="sglang", lora_rank=64)
        if "AGENT_BACKEND" in job.takes:
            yield from with_megatron(replace(asked, backend="megatron", tensor_parallel=None))


def with_megatron(asked: RecipeInput) -> Iterator[tuple[str, RecipeInput]]:
    """Yield a model without experts, and one with them, on GPUs of 80 GB."""
    nodes = tuple(replace(n, gpu_memory=80 if n.gpus else None, memory=HOST) for n in asked.nodes)
    for how, model in (("megatron", DENSE), ("megatron with experts", SPARSE)):
        yield how, replace(asked, nodes=nodes, basis=JobBasis(model))


def make(recipe: Recipe, asked: RecipeInput, nodes: Nodes, how: str) -> Made:
    """Make one command."""
    try:
        argv = [known(word) for word in recipe.make(asked).argv]
    except MisfitError as error:
        return Made(asked.recipe, nodes.name, how, None, str(error))
    at = 2 if argv[1] == "-m" else 1  # a module, or a script by its path
    name = f"{asked.recipe}, {nodes.name}, {how}"
    case = Case(name, tuple(argv[at + 1 :]), nodes.sizes, argv[at])
    return Made(asked.recipe, nodes.name, how, case)


def known(word: str) -> str:
    """Fill in the placeholders."""
    for placeholder, value in KNOWN_LATER.items():
        word = word.replace(placeholder, value)
    return word
