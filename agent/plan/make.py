"""Makes the plan: every decision that is possible before anything starts."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.errors import Problem, SettingsError
from agent.base.ports import Ports, conflicts_of, port_map
from agent.base.text import own_command
from agent.checks import misspelling_findings, run_checks
from agent.checks.finding import CheckedNode, Finding
from agent.checks.recipe import job_program, placeholder_slips, recipe_findings
from agent.node.facts import supports_token_auth, visible_devices
from agent.plan.listeners import listeners, port_clashes, ports_here
from agent.plan.plan import (
    ALL_REDUCE,
    BRIDGE,
    PREFLIGHT_LOG,
    RAY,
    RAY_LOG,
    Plan,
    PlannedProcess,
    address_of,
    log_root,
)
from agent.plan.ray_start import OwnRay
from agent.plan.waits import planned_waits, stop_budget
from agent.settings.jobs import TORCHRUN, known_job, launcher
from agent.settings.ray_args import TEMP_DIR, VARIABLE
from agent.topology.platforms import GivenRay
from agent.work.checkpoints import folder_of
from agent.work.job import (
    COMMAND,
    PLACEHOLDERS,
    Job,
    RecipeJob,
    plan_recipe,
    recipe_input,
    version_of,
)
from agent.work.recipes.recipe import JobBasis, NodeSize, UnknownVersionError
from agent.work.services import (
    HEAD_IP,
    MODEL,
    NO_FILE,
    NODE_PLACEHOLDERS,
    REWARD,
    fetch_note,
    fetch_steps,
    prepare_steps,
    reward_service,
)
from agent.work.torchrun import Torchrun, gpus_of, processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.node.facts import Facts
    from agent.node.upload import UploadSize
    from agent.plan.plan import Launch
    from agent.settings.jobs import KnownJob
    from agent.settings.load import Loaded
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology
    from agent.work.services import PrepareStep, ServicesFile, ServiceSpec


ALL_REDUCE_PROGRAM = Path(__file__).parents[1] / "bundled" / "all_reduce.py"
PREFLIGHT_RESULT = "preflight.json"
GPUS = "{gpus}"
"""Placeholder for the GPUs of every node, known once all have joined."""


def _size_of(settings: Settings, topology: Topology, facts: Facts) -> NodeSize:
    gpus = facts.gpus if settings.num_gpus is None else settings.num_gpus
    cpus = settings.num_cpus or min(facts.cpus, topology.platform.cpus or facts.cpus)
    return NodeSize(gpus, cpus, topology.platform.memory or facts.memory, facts.gpu_memory)


def _planned_recipe(
    loaded: Loaded, topology: Topology, facts: Facts, basis: JobBasis
) -> RecipeJob | None:
    """Plan the recipe for the expected nodes; raises SettingsError if no cluster fits it.

    Every node plans it, since each sets the recipe's environment variables.
    """
    settings, known = loaded.settings, known_job(loaded.settings, loaded.command)
    if known is None or topology.is_idle:
        return None
    try:
        version = version_of(known, facts.framework).version
    except UnknownVersionError:  # a check reports it and refuses the run
        version = version_of(known, None).version
    folder = checkpoint_folder(settings, loaded.command)
    nodes = (_size_of(settings, topology, facts),) * (topology.expected_workers + 1)
    given = recipe_input(known, settings, version, folder, facts.job_python, nodes)
    seen = replace(given, columns=facts.data_columns, infiniband=bool(facts.rdma), basis=basis)
    return plan_recipe(known, seen)


def _planned_job(
    loaded: Loaded,
    topology: Topology,
    recipe: RecipeJob | None,
    runtime_env: dict[str, object],
    upload: UploadSize | None,
) -> Job | None:
    """Return the job; None without one, and on a worker where Ray runs it."""
    settings, command = loaded.settings, loaded.command
    if not topology.is_head and launcher(settings, command) != TORCHRUN:
        return None
    folder = checkpoint_folder(settings, command)
    if command is not None:
        return Job(COMMAND, command, runtime_env, folder, upload=upload)
    if recipe is None:
        return None
    argv = () if recipe.expected_command is None else recipe.expected_command.argv
    return Job(recipe.known.name, argv, runtime_env, folder, recipe, upload)


def _recipe_notes(known: KnownJob, settings: Settings, topology: Topology) -> Iterator[str]:
    given = topology.given_ray
    if known.reward == "unused" and settings.reward not in {None, "off"}:
        yield f"{known.name} calls no reward server; yours runs beside it"
    if given is not None and known.framework:
        whose = f"{given.owner}'s pods need this pod's image, and its disk for checkpoints"
        yield f"{whose}: the job names its Python and the agent's files by their paths"


def checkpoint_folder(settings: Settings, command: tuple[str, ...] | None) -> str:
    """Return the absolute folder for the job's checkpoints, or '' without a job."""
    known = known_job(settings, command)
    if command is None and known is None:
        return ""
    name = COMMAND if known is None else known.name
    logs = str(log_root(settings).absolute())
    return str(Path(folder_of(settings, logs, name, command)).expanduser())


_LONGEST_TEMP_DIR = 107 - 62


def new_run_id() -> str:
    """Return an id for a run without one from the platform."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


def make_plan(  # noqa: PLR0913 - all inputs of a plan
    loaded: Loaded,
    topology: Topology,
    facts: Facts,
    environ: Mapping[str, str],
    runtime_env: dict[str, object],
    file: ServicesFile = NO_FILE,
    upload: UploadSize | None = None,
    basis: JobBasis = JobBasis(),  # noqa: B008 - a value
) -> Plan:
    """Make the plan of this node; `basis` is what its recipe is sized by."""
    settings, platform = loaded.settings, topology.platform
    services = () if topology.is_idle else all_services(settings, loaded.command, file)
    topology = without_service_nodes(topology, settings, services)
    is_head, rank = topology.is_head, topology.own_rank
    here = tuple(s for s in services if s.where.includes(rank, is_head=is_head))
    alone = tuple(spec for spec in here if spec.alone)
    all_steps = _steps(settings, topology, file, facts, alone)
    steps = tuple(s for s in all_steps if s.where.includes(rank, is_head=is_head))
    has_ray = not alone
    ports = _ports(settings, topology, loaded.command)
    guarded = settings.ray_auth_token is not None and supports_token_auth(facts.ray.version)
    ray = OwnRay(
        settings,
        replace(facts, cpus=min(facts.cpus, platform.cpus or facts.cpus)),
        ports,
        temp_dir(facts, platform.job_id),
        settings.dashboard_host or ("0.0.0.0" if guarded else "127.0.0.1"),  # noqa: S104 - guarded
        platform.memory,
    )
    torchrun = _torchrun(settings, facts, ports, environ)
    launch: Launch = topology.given_ray or torchrun or ray
    effective = replace(loaded, settings=with_reward(settings, file))
    is_restarted = platform.restarts_containers and facts.is_first_process
    recipe = _planned_recipe(effective, topology, facts, basis)
    job = _planned_job(effective, topology, recipe, runtime_env, upload)
    for_recipe: tuple[Finding, ...] = ()
    recipe_notes: list[str] = []
    if job is not None and job.recipe is not None:
        known = job.recipe.known
        for_recipe = recipe_findings(
            known, CheckedNode(facts, effective.settings, topology), job.checkpoints
        )
        recipe_notes = [*_recipe_notes(known, effective.settings, topology)]
    return Plan(
        settings=settings,
        topology=topology,
        facts=facts,
        environ=environ,
        command=loaded.command,
        address=address_of(topology, settings, facts),
        ports=ports,
        launch=launch,
        job=job,
        recipe_env={} if recipe is None else recipe.env,
        steps=steps,
        all_steps=all_steps,
        services=here,
        possible_services=tuple(s for s in services if s.where.may_include(rank, is_head=is_head)),
        all_services=services,
        processes=(
            *_processes(launch, topology, facts, has_job=job is not None, has_ray=has_ray),
            *_preflight(settings, topology, facts, ports),
        ),
        budget=stop_budget(settings.stop_grace),
        waits=tuple(planned_waits(settings, topology, all_steps, services, job)),
        listeners=listeners(settings, topology, here, ray, guarded=guarded, has_ray=has_ray),
        findings=(
            *misspelling_findings(loaded.misspelled),
            *run_checks(facts, settings, topology),
            *job_program(CheckedNode(facts, settings, topology)),
            *placeholder_slips(_texts_with_placeholders(effective, all_steps, services)),
            *for_recipe,
        ),
        notes=(
            *loaded.ignored,
            *platform.notes,
            *filter(None, _notes(settings, topology, facts, environ)),
            *recipe_notes,
        ),
        on_done=settings.on_done or ("hold" if is_restarted else "exit"),
    )


def _texts_with_placeholders(
    loaded: Loaded, steps: tuple[PrepareStep, ...], services: tuple[ServiceSpec, ...]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the commands of the user, each with its source and its placeholders."""
    for word in loaded.command or ():
        yield "the command after --", word, PLACEHOLDERS
    for word in loaded.settings.job_args:
        yield "AGENT_JOB_ARGS", word, PLACEHOLDERS
    for step in steps:
        yield f"the command of {step.name}", step.command, NODE_PLACEHOLDERS
    for spec in services:
        yield f"the command of {spec.name}", spec.asked, NODE_PLACEHOLDERS


def _torchrun(
    settings: Settings, facts: Facts, ports: Ports, environ: Mapping[str, str]
) -> Torchrun | None:
    if launcher(settings, None) != TORCHRUN:
        return None
    count = processes(gpus_of(settings, facts.gpus, environ), settings)
    return Torchrun(facts.job_python, ports.gcs, count, stop_budget(settings.stop_grace).job - 1.0)


def temp_dir(facts: Facts, job_id: str | None = None) -> str:
    """Return Ray's temp dir, which only this user, and on a shared host only this job, uses.

    Socket paths have at most 107 bytes, 62 of which Ray's session needs.
    """
    path = f"{private_folder(facts, job_id)}/ray"
    if len(os.fsencode(path)) > _LONGEST_TEMP_DIR:
        expected = f"a path shorter by {len(os.fsencode(path)) - _LONGEST_TEMP_DIR}: Ray's sockets "
        given = f"{TEMP_DIR}={facts.temp}, below which Ray's sessions would be in {path}"
        expected += "lie below it, and their paths end at 107 bytes"
        raise SettingsError((Problem(VARIABLE, given, expected),))
    return path


def private_folder(facts: Facts, job_id: str | None = None) -> str:
    """Return the private folder that contains Ray's temp dir.

    Ray sets the mode of its temp dir to 0777 at each start (2.40 to 2.60), so the folder around it
    has to keep other users out.
    """
    user = "" if facts.uid == 0 else f"-{facts.uid}"
    job = "" if job_id is None else f"-j{job_id}"
    return f"{facts.temp.rstrip('/')}/pod-agent{user}{job}"


def _steps(
    settings: Settings,
    topology: Topology,
    file: ServicesFile,
    facts: Facts,
    alone: tuple[ServiceSpec, ...],
) -> tuple[PrepareStep, ...]:
    """Return the prepare steps of the run, including this node's fetch of the model.

    A node that only runs a service needs no model, unless the service depends on it.
    """
    if topology.is_idle:
        return ()
    fetch: tuple[PrepareStep, ...] = ()
    named = (word for spec in alone for word in (*(spec.argv or ()), *spec.after))
    wanted = not alone or any(MODEL in word for word in named)
    its_disk = topology.given_ray is None or topology.given_ray.session is not None
    if wanted and its_disk:
        fetch = fetch_steps(settings, facts.ray, is_here=facts.model_is_here)
    return prepare_steps(settings, (*fetch, *file.steps))


def _preflight(
    settings: Settings, topology: Topology, facts: Facts, ports: Ports
) -> tuple[PlannedProcess, ...]:
    """Return the process of the all-reduce before the job, if AGENT_PREFLIGHT is set."""
    if settings.preflight is None or topology.given_ray is not None:
        return ()
    argv = (
        *(facts.job_python, str(ALL_REDUCE_PROGRAM)),
        *("--address", HEAD_IP, "--port", str(ports.last_worker)),
        *("--node", "{rank}", "--gpus", GPUS, "--within", f"{times.ALL_REDUCE:g}"),
        *("--out", "{log_dir}/" + PREFLIGHT_RESULT),
        *(("--host",) if topology.is_head else ()),
    )
    return (PlannedProcess(ALL_REDUCE, "before", argv, PREFLIGHT_LOG),)


def _processes(
    launch: Launch, topology: Topology, facts: Facts, *, has_job: bool, has_ray: bool
) -> tuple[PlannedProcess, ...]:
    """Return the agent's own processes here: Ray, and on the head the bridge to Ray.

    torchrun is not among them: the head orders it once all nodes have joined.
    """
    if topology.is_idle or not has_ray or not isinstance(launch, OwnRay | GivenRay):
        return ()
    ray: tuple[PlannedProcess, ...] = ()
    if isinstance(launch, OwnRay):
        argv = launch.command(is_head=topology.is_head)
        ray = (PlannedProcess(RAY, "ray", argv, RAY_LOG),)
    if not topology.is_head:
        return ray
    bridge = own_command(facts.ray.executable, "ray-bridge", launch.gcs, launch.dashboard)
    label = "submit" if has_job else "watch"
    return (*ray, PlannedProcess(BRIDGE, label, tuple(bridge), "ray-bridge.log"))


def _ports(settings: Settings, topology: Topology, command: tuple[str, ...] | None) -> Ports:
    """Return the ports of this node; raises SettingsError where they conflict."""
    base = topology.platform.ports
    problems = port_clashes(settings, command, base, topology.given_ray)
    if problems:
        raise SettingsError(problems)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base)


def _notes(
    settings: Settings, topology: Topology, facts: Facts, environ: Mapping[str, str]
) -> Iterator[str]:
    given = topology.given_ray
    if topology.is_idle:
        return
    if given is not None:
        whose = f"the job's environment is that of {given.owner}'s pods"
        there = "WANDB_API_KEY and NCCL_* belong there"
        grace = "RAY_JOB_STOP_WAIT_TIME_S on the head's (without it a stopped job has 3 s)"
        yield f"{whose}: {there}, {grace}"
        if settings.prepare and given.session is None:
            yield "AGENT_PREPARE runs in this pod, not on Ray's head: on a shared disk it helps"
        return
    if settings.wandb_api_key is None:
        what = "has this machine's `wandb login`" if facts.wandb_login else "stays offline"
        yield f"WANDB_API_KEY is not set: W&B {what}"
    yield visible_devices(environ, facts.gpu_maker, facts.ray.version)[1]
    yield fetch_note(settings, facts.ray, is_here=facts.model_is_here)
    most, price = settings.max_hours, settings.price_per_hour
    if most is not None and topology.is_head:
        nodes = topology.expected_workers + 1
        cost = "" if price is None else f", at most ${most * price * nodes:.2f} for {nodes} node(s)"
        yield f"AGENT_MAX_HOURS={most:g}: then the job is stopped{cost}"


def all_services(
    settings: Settings, command: tuple[str, ...] | None, file: ServicesFile
) -> tuple[ServiceSpec, ...]:
    """Return the services of the whole run, in the order in which they are shown."""
    reward = reward_service(with_reward(settings, file), command)
    if file.reward is not None and reward is not None:
        fields = file.reward_fields
        reward = replace(reward, **{**fields, "env": (*reward.env, *fields.get("env", ()))})
    return (*filter(None, (reward,)), *file.services)


def with_reward(settings: Settings, file: ServicesFile) -> Settings:
    """Replace AGENT_REWARD by `[services.reward]`, if the file has it."""
    return settings if file.reward is None else replace(settings, reward=file.reward)


def service_only_ranks(services: tuple[ServiceSpec, ...]) -> frozenset[int]:
    """Return the ranks of nodes that only run a service and do not join Ray."""
    return frozenset(
        spec.where.rank for spec in services if spec.alone and spec.where.rank is not None
    )


def without_service_nodes(
    topology: Topology, settings: Settings, services: tuple[ServiceSpec, ...]
) -> Topology:
    """Subtract nodes that do not join Ray from the workers, unless EXPECTED_WORKERS is set."""
    if settings.expected_workers is not None:
        return topology
    left = max(0, topology.expected_workers - len(service_only_ranks(services)))
    return replace(topology, expected_workers=left)


def service_problems(
    settings: Settings,
    command: tuple[str, ...] | None,
    topology: Topology,
    file: ServicesFile,
) -> Iterator[Problem]:
    """Yield problems of the services file on this platform."""
    services = all_services(settings, command, file)
    most = _most_nodes(settings, topology, services)
    for at, spec in enumerate(services):
        if spec.name == REWARD and file.reward is None:
            continue  # AGENT_REWARD is checked with the other variables
        where = _label(settings, spec)
        yield from _place_problems(where, spec, topology, most)
        yield from _port_problems(settings, where, spec, topology, services[:at])
    given = topology.given_ray
    if given is not None:
        for step in file.steps:
            if step.where.kind != "head":
                label = f"AGENT_SERVICES={settings.services} [prepare.{step.name}] where"
                expected = f"head: no agent runs on {given.owner}'s nodes"
                yield Problem(label, step.where.kind, expected)


def _most_nodes(settings: Settings, topology: Topology, services: tuple[ServiceSpec, ...]) -> int:
    """Return how many nodes this run expects, including those that do not join Ray."""
    alone, workers = len(service_only_ranks(services)), topology.expected_workers
    return 1 + (max(workers, alone) if settings.expected_workers is None else workers + alone)


def _place_problems(
    where: str, spec: ServiceSpec, topology: Topology, most: int
) -> Iterator[Problem]:
    given, nodes, rank = topology.given_ray, topology.platform.nodes, spec.where.rank
    if given is not None and spec.where.kind != "head":
        expected = f"head: no agent runs on {given.owner}'s nodes"
        yield Problem(f"{where} where", spec.where.sentence(), expected)
    if rank is not None and nodes is not None and rank >= nodes:
        expected = f"a rank from 0 to {nodes - 1}"
        yield Problem(f"{where} where", f"rank {rank} of {nodes} node(s)", expected)
    if rank is not None and nodes is None and given is None and topology.is_head and rank >= most:
        expected = f"a rank from 0 to {most - 1}, or a larger EXPECTED_WORKERS"
        yield Problem(f"{where} where", f"rank {rank} of {most} expected node(s)", expected)
    if spec.alone and topology.is_head and topology.own_rank == rank:
        expected = "the rank of another node: the head runs Ray"
        yield Problem(f"{where} alone", "true on the head's own rank", expected)


def _port_problems(
    settings: Settings,
    where: str,
    spec: ServiceSpec,
    topology: Topology,
    earlier: tuple[ServiceSpec, ...],
) -> Iterator[Problem]:
    """Compare a service's port with those of its node and of the services before it."""
    if spec.port is None:
        return
    base, given = topology.platform.ports, topology.given_ray
    others, workers = ports_here(settings, base, given, joins_ray=not spec.alone)
    met = (one for one in earlier if one.where.meets(spec.where))
    others |= {f"service {one.name}": one.port for one in met if one.port}
    for got in conflicts_of(spec.name, spec.port, others, workers):
        yield Problem(f"{where} ready", got, "a free port")


def _label(settings: Settings, spec: ServiceSpec) -> str:
    name = "reward" if spec.name == REWARD else spec.name
    return f"AGENT_SERVICES={settings.services} [services.{name}]"
