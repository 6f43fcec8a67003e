"""Makes the plan: every decision that is possible before anything starts.

First what runs where: services, prepare steps and the program that starts the job's processes.
Then the job, sized for the expected nodes. From these follow the agent's own processes, the waits,
the ports and the findings, which are shown, checked and run as the plan has them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.errors import Problem, SettingsError
from agent.base.ports import port_map
from agent.base.text import own_command
from agent.checks import misspelling_findings, run_checks
from agent.checks.finding import CheckedNode, Finding, Level
from agent.checks.job_needs import (
    SERVICE_GPUS,
    command_sizes,
    job_program,
    job_script,
    placeholder_slips,
    recipe_findings,
    unasked_framework,
    unexpanded_variables,
)
from agent.frameworks.recipe import JobBasis
from agent.job import services as work
from agent.job.gpu_split import JOB_GPUS, split_gpus
from agent.job.job import PLACEHOLDERS
from agent.job.node_command import NODE_PLACEHOLDERS, NodeCommand
from agent.job.share import processes
from agent.job.torchrun_command import Torchrun
from agent.node.facts import visible_devices
from agent.plan import plan as process_names
from agent.plan.listeners import listeners_of
from agent.plan.node_price import NodePrice
from agent.plan.plan import Plan, PlannedProcess, address_of, stop_budget
from agent.plan.plan_job import gpus_of_nodes, plan_job, plan_recipe_job
from agent.plan.plan_services import (
    all_services,
    plan_steps,
    with_reward,
)
from agent.plan.ray_start import OwnRay
from agent.plan.waits import planned_waits
from agent.platforms.rank_variables import GivenRay
from agent.settings.jobs import DEFAULT, NODE, TORCHRUN, launcher
from agent.settings.rules import TEMP_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.ports import Ports
    from agent.job.compile_caches import CompileCaches
    from agent.job.gpu_split import GpuSplit
    from agent.job.job import RecipeJob
    from agent.job.services import ServicesFile, ServiceSpec
    from agent.node.facts import Facts, UploadSize
    from agent.plan.plan import Launch, StopBudget
    from agent.platforms.resolve import Topology
    from agent.settings.load import Loaded
    from agent.settings.model import Settings


ALL_REDUCE_PROGRAM = Path(__file__).parents[1] / "bundled" / "all_reduce.py"
PREFLIGHT_RESULT = "preflight.json"
GPUS = "{gpus}"  # placeholder for the GPUs of every node, known once all have joined


def make_plan(  # noqa: PLR0913 - all inputs of a plan
    loaded: Loaded,
    topology: Topology,
    facts: Facts,
    environ: Mapping[str, str],
    runtime_env: dict[str, object],
    file: ServicesFile = work.NO_FILE,
    upload: UploadSize | None = None,
    basis: JobBasis = JobBasis(),  # noqa: B008 - a value
    caches: CompileCaches | None = None,
) -> Plan:
    """Make the plan of this node; `basis` is what its recipe is sized by."""
    settings = loaded.settings
    platform = topology.platform

    # Which services has the run, and which has this node?
    services: tuple[ServiceSpec, ...] = ()
    if not topology.is_idle:
        services = all_services(settings, loaded.command, file, platform.ports)
    topology = _without_service_nodes(topology, settings, services)
    rank = topology.own_rank
    is_head = topology.is_head
    split = split_gpus(services, settings, facts, environ, rank, is_head=is_head)
    at_this_rank = tuple(spec for spec in services if spec.where.includes(rank, is_head=is_head))
    own_group = settings.group or platform.group
    at_any_rank = tuple(
        spec
        for spec in services
        if spec in at_this_rank or (rank is None and spec.where.may_include(own_group))
    )
    here = split.members(at_this_rank)
    possible = split.members(at_any_rank)

    # Which steps come before them?
    node = CheckedNode(facts, settings, topology)
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, platform.ports)
    alone = tuple(spec for spec in at_this_rank if spec.alone)
    all_steps = plan_steps(node, file, alone, caches)
    steps = tuple(step for step in all_steps if step.where.includes(rank, is_head=is_head))

    # What starts the job's processes, and within which time do they stop?
    budget = stop_budget(settings.stop_grace)
    launch = _launch(node, split, ports, budget)

    # What is the job?
    effective = replace(node, settings=with_reward(settings, file))
    expected = gpus_of_nodes(split, topology, services, file.groups)
    recipe = plan_recipe_job(effective, loaded.command, basis, expected, services)
    job = plan_job(node, loaded.command, recipe, runtime_env, upload)

    # A container that its platform would start again is held.
    is_restarted = platform.restarts_containers and facts.is_first_process
    on_done = settings.on_done or ("hold" if is_restarted else "exit")

    plan = Plan(
        settings=settings,
        topology=topology,
        facts=facts,
        environ=environ,
        command=loaded.command,
        address=address_of(topology, settings, facts),
        ports=ports,
        launch=launch,
        gpu_split=split,
        expected_gpus=expected,
        job=job,
        recipe_env={} if recipe is None else recipe.env,
        steps=steps,
        all_steps=all_steps,
        services=here,
        possible_services=possible,
        all_services=services,
        groups=file.groups,
        budget=budget,
        on_done=on_done,
        caches=caches,
    )
    return replace(
        plan,
        processes=tuple(_processes(plan)),
        waits=tuple(planned_waits(plan)),
        listeners=tuple(listeners_of(plan)),
        findings=tuple(_findings(plan, node, recipe, loaded.misspelled)),
        notes=(*loaded.notes, *_notes(plan)),
    )


def _without_service_nodes(
    topology: Topology, settings: Settings, services: tuple[ServiceSpec, ...]
) -> Topology:
    """Count no node as a worker that only runs a service.

    EXPECTED_WORKERS counts the nodes of groups, and none that has a service of its own rank alone.
    """
    alone = work.service_only_ranks(services)
    if settings.expected_workers is not None:
        of_groups = tuple(spec for spec in services if spec.where.kind == "group")
        alone = work.service_only_ranks(of_groups)
    return replace(topology, expected_workers=max(0, topology.expected_workers - len(alone)))


def _launch(node: CheckedNode, split: GpuSplit, ports: Ports, budget: StopBudget) -> Launch:
    """Return what starts the job's processes: a launcher on every node, or a Ray."""
    settings = node.settings
    facts = node.facts
    platform = node.topology.platform
    if platform.given_ray is not None:
        return platform.given_ray
    here = processes(len(split.of_job()), settings)
    if launcher(settings) == TORCHRUN:
        return Torchrun(
            python=facts.job_python,
            port=ports.gcs,
            processes=here,
            stop_within=budget.job - 1.0,
        )
    if launcher(settings) == NODE:
        return NodeCommand(port=ports.gcs, processes=here, stop_within=budget.job - 1.0)
    return OwnRay(
        settings=settings,
        facts=replace(facts, cpus=min(facts.cpus, platform.cpus or facts.cpus)),
        ports=ports,
        session=temp_dir(facts, platform.job_id),
        allotted_memory=platform.memory,
        gpus=_gpus_for_ray(settings, split),
    )


def _gpus_for_ray(settings: Settings, split: GpuSplit) -> str:
    """Return how many GPUs Ray is given; '' where all of them are its own, and it counts them."""
    if split.waits_for_rank:
        return JOB_GPUS
    if split.job_environment():
        return str(len(split.of_job()))
    return "" if settings.num_gpus is None else str(settings.num_gpus)


def temp_dir(facts: Facts, job_id: str | None = None) -> str:
    """Return Ray's temp dir, which only this user, and on a shared host only this job, uses."""
    path = f"{private_folder(facts, job_id)}/ray"
    too_long = len(os.fsencode(path)) + 62 - 107  # a session needs 62 of a socket path's 107 bytes
    if too_long > 0:
        expected = f"a path shorter by {too_long}: those of Ray's sockets below end at 107 bytes"
        raise SettingsError((Problem("AGENT_RAY_ARGS", f"{TEMP_DIR}={facts.temp}", expected),))
    return path


def private_folder(facts: Facts, job_id: str | None = None) -> str:
    """Return the private folder that contains Ray's temp dir.

    Ray sets the mode of its temp dir to 0777 at each start (2.40 to 2.60), so the folder around it
    has to keep other users out.
    """
    user = "" if facts.uid == 0 else f"-{facts.uid}"
    job = "" if job_id is None else f"-j{job_id}"
    return f"{facts.temp.rstrip('/')}/pod-agent{user}{job}"


def _processes(plan: Plan) -> Iterator[PlannedProcess]:
    """Yield the agent's own processes here; not a share, which the head wants after the joins."""
    topology = plan.topology
    facts = plan.facts
    launch = plan.launch

    # Ray, and the bridge to it on the head.
    if plan.joins_cluster and isinstance(launch, OwnRay | GivenRay):
        if isinstance(launch, OwnRay):
            argv = launch.command(is_head=topology.is_head)
            yield PlannedProcess(process_names.RAY, "ray", argv, process_names.RAY_LOG)
        if topology.is_head:
            bridge = own_command(facts.ray.executable, "ray-bridge", launch.gcs, launch.dashboard)
            label = "watch" if plan.job is None else "submit"
            yield PlannedProcess(process_names.BRIDGE, label, tuple(bridge), "ray-bridge.log")

    # The model's files are read into the page cache, unless the job runs on other machines.
    has_job_here = not isinstance(launch, GivenRay) or launch.session is not None
    model = plan.settings.model
    if model is not None and plan.joins_cluster and has_job_here:
        yield PlannedProcess(
            process_names.READ_AHEAD,
            "ahead",
            tuple(own_command(sys.executable, "read-ahead", *work.model_words(plan.settings))),
            process_names.READ_AHEAD_LOG,
        )

    # The all-reduce over all nodes before the job; the head hosts its store.
    if plan.settings.preflight is not None and topology.given_ray is None:
        argv = (
            *(facts.job_python, str(ALL_REDUCE_PROGRAM)),
            *("--address", work.HEAD_IP, "--port", str(plan.ports.last_worker)),
            *("--node", "{rank}", "--gpus", GPUS, "--within", f"{times.ALL_REDUCE:g}"),
            *("--out", "{log_dir}/" + PREFLIGHT_RESULT),
        )
        if topology.is_head:
            argv = (*argv, "--host")
        yield PlannedProcess(process_names.ALL_REDUCE, "before", argv, process_names.PREFLIGHT_LOG)


def _findings(
    plan: Plan, node: CheckedNode, recipe: RecipeJob | None, misspelled: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield the findings; misspelled names come first, since they may explain all others.

    Those about the job come before those about the machine: a wrong path ends it for certain.
    """
    yield from misspelling_findings(misspelled)
    if recipe is not None and plan.job is not None:
        yield from recipe_findings(recipe.known, node, plan.job.checkpoints)
    yield from job_program(node)
    yield from job_script(node)
    if plan.topology.is_head:
        yield from unasked_framework(plan.job)
    yield from placeholder_slips(_texts_with_placeholders(plan))
    if plan.topology.is_head and plan.job is not None:
        nodes = plan.trainer_nodes
        yield from unexpanded_variables(plan.job.argv)
        yield from command_sizes(plan.job.argv, nodes, plan.gpus)
    key, asked = plan.gpu_split.fault()
    if key:
        remedy = "Ask for fewer, or let the service run on a node that has them (`where`)"
        yield Finding(SERVICE_GPUS, Level.FAIL, f"AGENT_SERVICES {key}: {asked}", remedy)
    if plan.caches is not None and plan.caches.why_not_kept:
        what = f"AGENT_CACHE_DIR: {plan.caches.why_not_kept}: nothing will be kept"
        yield Finding("compile caches", Level.WARN, what, "Set it to a folder of a volume, or off")
    yield from run_checks(plan.facts, plan.settings, plan.topology)


def _texts_with_placeholders(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each text in which placeholders are filled in, with its source and what it may have."""
    known: tuple[str, ...] = PLACEHOLDERS
    if launcher(plan.settings) == NODE:
        known = (*PLACEHOLDERS, *NODE_PLACEHOLDERS)
    for word in (*(plan.command or ()), *plan.settings.job_args):
        yield "the job's command", word, known
    commands = {step.name: step.command for step in plan.all_steps}
    commands |= {spec.name: spec.asked for spec in plan.all_services}
    for name, command in commands.items():
        yield f"the command of {name}", command, work.NODE_PLACEHOLDERS


def _notes(plan: Plan) -> Iterator[str]:
    settings = plan.settings
    topology = plan.topology
    facts = plan.facts
    given = topology.given_ray
    if given is not None:
        if topology.is_head:
            whose = f"the job's environment is that of {given.owner}'s pods"
            there = "WANDB_API_KEY, NCCL_* and RAY_JOB_STOP_WAIT_TIME_S (else a stop has 3 s)"
            yield f"{whose}: set {there} there"
        return

    is_rehearsal = plan.command is None and settings.job in {None, DEFAULT}  # it has no W&B
    if settings.wandb_api_key is None and not is_rehearsal:
        what = "has this machine's `wandb login`" if facts.wandb_login else "stays offline"
        yield f"WANDB_API_KEY is not set: W&B {what}"

    hidden_devices = visible_devices(plan.environ, facts.gpu_maker, facts.ray.version)[1]
    if hidden_devices:
        yield hidden_devices

    hours = settings.max_hours
    price = settings.price_per_hour
    if hours is not None and topology.is_head:
        nodes = plan.nodes
        cost = ""
        if price:
            cost = f", at most ${NodePrice(price).cost(hours, nodes):.2f} for {nodes} node(s)"
        yield f"AGENT_MAX_HOURS={hours:g}: then the job is stopped{cost}"

    limit = settings.max_cost
    if limit is not None and topology.is_head:
        lasts = "after RunPod has given the price of this pod"
        if price is not None:
            nodes = plan.nodes
            lasts = f"after {NodePrice(price).hours(limit, nodes):.1f} h of {nodes} node(s)"
        yield f"AGENT_MAX_COST={limit:g}: then the job is stopped, {lasts}"
