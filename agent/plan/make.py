"""Makes the plan: every decision that is possible before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.errors import Problem, SettingsError
from agent.base.ports import DEFAULTS, conflicts_of, port_conflicts, port_map, single_ports
from agent.base.text import own_command
from agent.checks import misspelling_findings, run_checks
from agent.checks.finding import CheckedNode
from agent.checks.job_needs import job_program, placeholder_slips, recipe_findings
from agent.frameworks.recipe import JobBasis, NodeSize
from agent.job import services as work
from agent.job.checkpoints import folder_of
from agent.job.job import COMMAND, PLACEHOLDERS, Job, plan_recipe, recipe_input, version_of
from agent.job.torchrun_command import Torchrun, gpus_of, processes
from agent.node.facts import visible_devices
from agent.plan import plan as planned
from agent.plan.plan import Listener, Plan, PlannedProcess, address_of, log_root, stop_budget
from agent.plan.ray_start import OwnRay
from agent.plan.waits import planned_waits
from agent.platforms.rank_variables import GivenRay
from agent.settings.jobs import TORCHRUN, launcher, recipe_info
from agent.settings.rules import TEMP_DIR, reward_listener

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.ports import Ports
    from agent.job.job import RecipeJob
    from agent.job.services import PrepareStep, ServicesFile, ServiceSpec
    from agent.node.facts import Facts
    from agent.node.upload import UploadSize
    from agent.plan.plan import Launch
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
) -> Plan:
    """Make the plan of this node; `basis` is what its recipe is sized by."""
    settings = loaded.settings
    platform = topology.platform
    services = (
        () if topology.is_idle else all_services(settings, loaded.command, file, platform.ports)
    )
    if settings.expected_workers is None:  # nodes that only run a service are no workers
        workers = topology.expected_workers - len(service_only_ranks(services))
        topology = replace(topology, expected_workers=max(0, workers))
    is_head = topology.is_head
    rank = topology.own_rank
    here = tuple(s for s in services if s.where.includes(rank, is_head=is_head))
    node = CheckedNode(facts, settings, topology)
    all_steps = _steps(node, file, tuple(spec for spec in here if spec.alone))
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, platform.ports)
    budget = stop_budget(settings.stop_grace)
    launch: Launch
    if topology.given_ray is not None:
        launch = topology.given_ray
    elif launcher(settings) == TORCHRUN:
        count = processes(gpus_of(settings, facts.gpus, environ), settings)
        launch = Torchrun(facts.job_python, ports.gcs, count, budget.job - 1.0)
    else:
        allotted = replace(facts, cpus=min(facts.cpus, platform.cpus or facts.cpus))
        session = temp_dir(facts, platform.job_id)
        launch = OwnRay(settings, allotted, ports, session, platform.memory)
    effective = replace(node, settings=with_reward(settings, file))
    recipe = _planned_recipe(effective, loaded.command, basis)
    is_restarted = platform.restarts_containers and facts.is_first_process
    plan = Plan(
        settings=settings,
        topology=topology,
        facts=facts,
        environ=environ,
        command=loaded.command,
        address=address_of(topology, settings, facts),
        ports=ports,
        launch=launch,
        job=_planned_job(node, loaded.command, recipe, runtime_env, upload),
        recipe_env={} if recipe is None else recipe.env,
        steps=tuple(s for s in all_steps if s.where.includes(rank, is_head=is_head)),
        all_steps=all_steps,
        services=here,
        possible_services=tuple(
            s for s in services if s in here or (rank is None and s.where.kind == "rank")
        ),
        all_services=services,
        budget=budget,
        on_done=settings.on_done or ("hold" if is_restarted else "exit"),
    )
    return replace(
        plan,
        processes=tuple(_processes(plan)),
        waits=tuple(planned_waits(plan)),
        listeners=tuple(_listeners(plan)),
        findings=(
            *misspelling_findings(loaded.misspelled),
            *run_checks(facts, settings, topology),
            *job_program(node),
            *placeholder_slips(_texts_with_placeholders(plan)),
            *(
                recipe_findings(recipe.known, node, plan.job.checkpoints)
                if recipe and plan.job
                else ()
            ),
        ),
        notes=(*loaded.ignored, *_notes(plan)),
    )


def _planned_recipe(
    node: CheckedNode, command: tuple[str, ...] | None, basis: JobBasis
) -> RecipeJob | None:
    """Plan the recipe, on every node for its variables; raises SettingsError if no nodes fit it."""
    settings = node.settings
    topology = node.topology
    facts = node.facts
    known = recipe_info(settings, command)
    if known is None or topology.is_idle:
        return None
    version, version_warning = version_of(known, facts.framework)
    gpus = facts.gpus if settings.num_gpus is None else settings.num_gpus
    cpus = settings.num_cpus or min(facts.cpus, topology.platform.cpus or facts.cpus)
    memory = topology.platform.memory or facts.memory
    nodes = (NodeSize(gpus, cpus, memory, facts.gpu_memory),) * (topology.expected_workers + 1)
    folder = checkpoint_folder(settings, command)
    given = recipe_input(known, settings, version, folder, facts.job_python, nodes)
    seen = replace(
        given,
        is_nearest=bool(version_warning),
        columns=facts.data_columns,
        infiniband=bool(facts.rdma),
        platform=topology.platform.name,
        basis=basis,
    )
    return plan_recipe(known, seen)


def _planned_job(
    node: CheckedNode,
    command: tuple[str, ...] | None,
    recipe: RecipeJob | None,
    runtime_env: dict[str, object],
    upload: UploadSize | None,
) -> Job | None:
    """Return the job; None without one, and on a worker where Ray runs it."""
    folder = checkpoint_folder(node.settings, command)
    if not folder or not (node.topology.is_head or launcher(node.settings) == TORCHRUN):
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


def _texts_with_placeholders(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for word in (*(plan.command or ()), *plan.settings.job_args):
        yield "the job's command", word, PLACEHOLDERS
    commands = {step.name: step.command for step in plan.all_steps}
    commands |= {spec.name: spec.asked for spec in plan.all_services}
    for name, command in commands.items():
        yield f"the command of {name}", command, work.NODE_PLACEHOLDERS


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


def _steps(
    node: CheckedNode, file: ServicesFile, alone: tuple[ServiceSpec, ...]
) -> tuple[PrepareStep, ...]:
    settings = node.settings
    topology = node.topology
    facts = node.facts
    if topology.is_idle:
        return ()
    fetch: tuple[PrepareStep, ...] = ()
    named = (word for spec in alone for word in (*(spec.argv or ()), *spec.after))
    # a node that only runs services needs no model, unless one of them depends on it
    is_wanted = not alone or any(work.MODEL in word for word in named)
    if is_wanted and (topology.given_ray is None or topology.given_ray.session is not None):
        fetch = work.model_fetch(settings, facts.ray, is_here=facts.model_is_here)
    return work.prepare_steps(settings, (*fetch, *file.steps))


def _processes(plan: Plan) -> Iterator[PlannedProcess]:
    """Yield the agent's own processes here; not torchrun, which the head orders after the joins."""
    topology = plan.topology
    facts = plan.facts
    launch = plan.launch
    if plan.joins_cluster and isinstance(launch, OwnRay | GivenRay):
        if isinstance(launch, OwnRay):
            argv = launch.command(is_head=topology.is_head)
            yield PlannedProcess(planned.RAY, "ray", argv, planned.RAY_LOG)
        if topology.is_head:
            bridge = own_command(facts.ray.executable, "ray-bridge", launch.gcs, launch.dashboard)
            label = "watch" if plan.job is None else "submit"
            yield PlannedProcess(planned.BRIDGE, label, tuple(bridge), "ray-bridge.log")
    if plan.settings.preflight is not None and topology.given_ray is None:
        argv = (
            *(facts.job_python, str(ALL_REDUCE_PROGRAM)),
            *("--address", work.HEAD_IP, "--port", str(plan.ports.last_worker)),
            *("--node", "{rank}", "--gpus", GPUS, "--within", f"{times.ALL_REDUCE:g}"),
            *("--out", "{log_dir}/" + PREFLIGHT_RESULT),
            *(("--host",) if topology.is_head else ()),
        )
        yield PlannedProcess(planned.ALL_REDUCE, "before", argv, planned.PREFLIGHT_LOG)


def _notes(plan: Plan) -> Iterator[str]:
    settings = plan.settings
    topology = plan.topology
    facts = plan.facts
    given = topology.given_ray
    most = settings.max_hours
    price = settings.price_per_hour
    if given is not None and topology.is_head:
        whose = f"the job's environment is that of {given.owner}'s pods"
        there = "WANDB_API_KEY, NCCL_* and RAY_JOB_STOP_WAIT_TIME_S (else a stop has 3 s)"
        yield f"{whose}: set {there} there"
    elif given is None:
        if settings.wandb_api_key is None:
            what = "has this machine's `wandb login`" if facts.wandb_login else "stays offline"
            yield f"WANDB_API_KEY is not set: W&B {what}"
        hidden = visible_devices(plan.environ, facts.gpu_maker, facts.ray.version)[1]
        if hidden:
            yield hidden
        if most is not None and topology.is_head:
            nodes = topology.expected_workers + 1
            cost = f", at most ${most * price * nodes:.2f} for {nodes} node(s)" if price else ""
            yield f"AGENT_MAX_HOURS={most:g}: then the job is stopped{cost}"


_EVERYWHERE = "every interface (Ray's choice)"
_NEAR = f"{work.NODE_IP}, 127.0.0.1"
_ONLY_HEAD = "head: no agent runs on the nodes of a platform's Ray"


def _listeners(plan: Plan) -> Iterator[Listener]:
    topology = plan.topology
    settings = plan.settings
    ports = plan.ports
    ray = plan.own_ray
    if topology.is_idle:
        return
    is_ours = plan.joins_cluster and topology.given_ray is None
    of_ranks = Listener("any", "ranks of torch (NCCL, gloo)", f"{work.NODE_IP}'s interface", "none")
    if is_ours and plan.torchrun is not None:
        if topology.is_head:
            everywhere = "every interface (torch's)"
            yield Listener(str(ports.gcs), "torchrun's rendezvous", everywhere, "none")
        yield of_ranks
    elif is_ours and ray is not None:
        guard = "token" if ray.is_guarded else "none"
        of_head = (
            (ports.gcs, "Ray GCS", _EVERYWHERE),
            (ports.dashboard, "Ray dashboard", ray.dashboard_host),
            (ports.client, "Ray client", _NEAR),
        )
        on_every_node = (
            (ports.node_manager, "Ray node manager", _EVERYWHERE),
            (ports.object_manager, "Ray object manager", _EVERYWHERE),
            (ports.dashboard_agent, "Ray dashboard agent", _NEAR),
            (ports.dashboard_agent_grpc, "Ray dashboard agent (gRPC)", _EVERYWHERE),
            (ports.runtime_env_agent, "Ray runtime_env agent", work.NODE_IP),
            (f"{ports.first_worker}-{ports.last_worker}", "Ray workers", _EVERYWHERE),
        )
        for port, who, bind in (*(of_head if topology.is_head else ()), *on_every_node):
            yield Listener(str(port), who, bind, guard)
        yield Listener(str(ports.metrics), "Ray metrics", _EVERYWHERE, "none (read only)")
    for spec in plan.services:
        if spec.port is not None:
            its_guard = "none (scores only)" if spec.url else "as its command has it"
            yield Listener(str(spec.port), spec.name, spec.bind, its_guard)
    if is_ours and settings.preflight is not None:
        if topology.is_head:  # the last port of Ray's workers, which Ray uses last
            store = str(ports.last_worker)
            yield Listener(store, "store of AGENT_PREFLIGHT", work.NODE_IP, "none")
        yield of_ranks
    own_guard = "none" if settings.ray_auth_token is None else "token"
    yield Listener(str(ports.agent), "agent", f"{work.NODE_IP} and 127.0.0.1", own_guard)


def port_clashes(
    settings: Settings, command: tuple[str, ...] | None, base: Ports, given: GivenRay | None
) -> tuple[Problem, ...]:
    """Find port conflicts of this run, as problems of the variables that set these ports."""
    single, workers = _ports_here(settings, base, given)
    names = "AGENT_RAY_PORT + AGENT_DASHBOARD_PORT + AGENT_PORT + AGENT_REWARD_PORT"
    expected = "different ports; without these variables `plan` shows the defaults"
    found = port_conflicts({**single, **reward_listener(settings, command, base)}, workers)
    return tuple(Problem(names, conflict, expected) for conflict in found)


def _ports_here(
    settings: Settings, base: Ports, given: GivenRay | None, *, joins_ray: bool = True
) -> tuple[dict[str, int], tuple[int, int] | None]:
    """Return the ports that a node listens on besides its services, and those of Ray's workers."""
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    if launcher(settings) == TORCHRUN:
        return {"rendezvous": ports.gcs, "agent": ports.agent}, None
    if not joins_ray or (given is not None and given.session is None):  # no Ray here
        return {"agent": ports.agent}, None
    return single_ports(ports), (ports.first_worker, ports.last_worker)


def all_services(
    settings: Settings,
    command: tuple[str, ...] | None,
    file: ServicesFile,
    base: Ports = DEFAULTS,
) -> tuple[ServiceSpec, ...]:
    """Return the services of the whole run, in the order in which they are shown."""
    reward = work.reward_service(with_reward(settings, file), command, base)
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


def service_problems(
    settings: Settings, command: tuple[str, ...] | None, topology: Topology, file: ServicesFile
) -> Iterator[Problem]:
    """Yield problems of the services file on this platform."""
    services = all_services(settings, command, file, topology.platform.ports)
    given = topology.given_ray
    workers = topology.expected_workers
    alone = len(service_only_ranks(services))
    # with the nodes that do not join Ray
    most = 1 + (max(workers, alone) if settings.expected_workers is None else workers + alone)
    most = topology.platform.nodes or most
    knows_nodes = topology.platform.nodes is not None or (given is None and topology.is_head)
    table = f"AGENT_SERVICES={settings.services}"
    for at, spec in enumerate(services):
        if spec.name == work.REWARD and file.reward is None:
            continue  # AGENT_REWARD is checked with the other variables
        where = f"{table} [services.{'reward' if spec.name == work.REWARD else spec.name}]"
        rank = spec.where.rank
        if given is not None and spec.where.kind != "head":
            yield Problem(f"{where} where", spec.where.sentence(), _ONLY_HEAD)
        if rank is not None and rank >= most and knows_nodes:
            expected = f"a rank from 0 to {most - 1}, or a larger EXPECTED_WORKERS"
            yield Problem(f"{where} where", f"rank {rank} of {most} node(s)", expected)
        if spec.alone and topology.is_head and topology.own_rank == rank:
            expected = "the rank of another node: the head runs Ray"
            yield Problem(f"{where} alone", "true on the head's own rank", expected)
        if spec.port is not None:
            base = topology.platform.ports
            others, of_workers = _ports_here(settings, base, given, joins_ray=not spec.alone)
            met = (one for one in services[:at] if one.where.meets(spec.where))
            others |= {f"service {one.name}": one.port for one in met if one.port}
            for got in conflicts_of(spec.name, spec.port, others, of_workers):
                yield Problem(f"{where} ready", got, "a free port")
    for step in file.steps:
        if given is not None and step.where.kind != "head":
            where = f"{table} [prepare.{step.name}] where"
            yield Problem(where, step.where.kind, _ONLY_HEAD)
