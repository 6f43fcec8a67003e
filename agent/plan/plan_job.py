"""The job of the plan: the recipe's command for the expected nodes, or the user's command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks.recipe import NodeSize
from agent.job.checkpoints import folder_of
from agent.job.job import COMMAND, Job, plan_recipe, recipe_input, version_of
from agent.job.recipe_services import generation_of
from agent.job.services import service_only_ranks
from agent.plan.plan import log_root
from agent.settings.jobs import recipe_info, runs_by_shares

if TYPE_CHECKING:
    from agent.checks.finding import CheckedNode
    from agent.frameworks.recipe import JobBasis
    from agent.job.gpu_split import GpuSplit
    from agent.job.groups import NodeGroup
    from agent.job.job import RecipeJob
    from agent.job.services import ServiceSpec
    from agent.node.facts import UploadSize
    from agent.platforms.resolve import Topology
    from agent.settings.model import Settings


def gpus_of_nodes(
    split: GpuSplit,
    topology: Topology,
    services: tuple[ServiceSpec, ...],
    groups: tuple[NodeGroup, ...] = (),
) -> tuple[int, ...]:
    """Return the job's GPUs of the head and of each expected worker, all of them like this node.

    The nodes of groups are not the trainer's.
    """
    head = 0
    if topology.is_head and topology.own_rank is not None:
        head = topology.own_rank

    # The workers have the lowest ranks that neither the head nor a node for a service only has.
    with_ray = [rank for group in groups if group.ray for rank in group.ranks]
    left_out = {head, *service_only_ranks(services), *with_ray}
    expected = topology.expected_workers - len(with_ray)
    workers = [rank for rank in range(expected + len(left_out)) if rank not in left_out]
    counts = [split.count_for(rank, is_head=False) for rank in workers[:expected]]
    return (split.count_for(head, is_head=True), *counts)


def plan_recipe_job(
    node: CheckedNode,
    command: tuple[str, ...] | None,
    basis: JobBasis,
    gpus: tuple[int, ...],
    services: tuple[ServiceSpec, ...],
) -> RecipeJob | None:
    """Plan the recipe; raise SettingsError if it does not fit the nodes, with these GPUs of each.

    Workers plan it, too: Ray on each node needs the recipe's environment variables.
    """
    settings = node.settings
    topology = node.topology
    platform = topology.platform
    facts = node.facts
    known = recipe_info(settings, command)
    if known is None or topology.is_idle:
        return None

    # All expected nodes are taken to be like this one.
    size = NodeSize(
        gpus=0,
        cpus=settings.num_cpus or min(facts.cpus, platform.cpus or facts.cpus),
        memory=platform.memory or facts.memory,
        gpu_memory=facts.gpu_memory,
    )
    nodes = tuple(replace(size, gpus=count) for count in gpus)

    version, version_warning = version_of(known, facts.framework)
    folder = checkpoint_folder(settings, command)
    asked = replace(
        recipe_input(known, settings, version, folder, facts.job_python, nodes),
        is_nearest=bool(version_warning),
        columns=facts.data_columns,
        infiniband=bool(facts.rdma),
        platform=platform.name,
        basis=basis,
        generation=generation_of(services),
    )
    return plan_recipe(known, asked)


def plan_job(
    node: CheckedNode,
    command: tuple[str, ...] | None,
    recipe: RecipeJob | None,
    runtime_env: dict[str, object],
    upload: UploadSize | None,
) -> Job | None:
    """Return the job; None without one, and on a worker where Ray runs it."""
    folder = checkpoint_folder(node.settings, command)
    is_started_here = node.topology.is_head or runs_by_shares(node.settings)
    if not folder or not is_started_here:
        return None
    if recipe is None:
        return Job(COMMAND, command or (), runtime_env, folder, upload=upload)
    argv = () if recipe.expected_command is None else recipe.expected_command.argv
    return Job(recipe.known.name, argv, runtime_env, folder, recipe, upload)


def checkpoint_folder(settings: Settings, command: tuple[str, ...] | None) -> str:
    """Return the absolute folder for the job's checkpoints, or '' without a job."""
    known = recipe_info(settings, command)
    if command is None and known is None:
        return ""
    name = COMMAND if known is None else known.name
    logs = str(log_root(settings).absolute())
    return str(Path(folder_of(settings, logs, name, command)).expanduser())
