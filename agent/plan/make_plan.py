"""How the plan is made: every decision that can be taken before anything starts."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.base.own_command import own_command
from agent.base.ports import Ports, port_map
from agent.checks import about_names, examine
from agent.checks.job_checks import job_program
from agent.node.ray_versions import honours_token
from agent.plan.address import address_of
from agent.plan.listeners import listeners, port_clashes
from agent.plan.plan import BRIDGE, RAY, Plan, PlannedProcess
from agent.plan.ray_start import OwnRay
from agent.plan.stop_budget import share
from agent.plan.waits import planned_waits
from agent.work.job import job_of
from agent.work.prepare import prepare_steps
from agent.work.services import reward_service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts
    from agent.plan.plan import Launch
    from agent.settings import Loaded, Settings
    from agent.topology.resolve import Topology
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec
    from agent.work.where import Where


def new_run_id() -> str:
    """Make an id for a run that no platform names."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


def make_plan(
    loaded: Loaded,
    topology: Topology,
    facts: Facts,
    environ: Mapping[str, str],
    runtime_env: dict[str, object],
) -> Plan:
    """Decide everything that can be decided now."""
    settings, claim = loaded.settings, topology.claim
    all_services = _services(settings, topology, loaded.command, facts)
    services = tuple(s for s in all_services if _is_here(s.where, topology))
    steps = _steps(settings, topology)
    ports = _ports(settings, topology, loaded.command)
    guarded = settings.ray_auth_token is not None and honours_token(facts.ray.version)
    ray = OwnRay(
        settings,
        replace(facts, cpus=min(facts.cpus, claim.cpus or facts.cpus)),
        ports,
        temp_dir(facts, claim.job_id),
        settings.dashboard_host or ("0.0.0.0" if guarded else "127.0.0.1"),  # noqa: S104 - guarded
        claim.memory,
    )
    launch: Launch = topology.given_ray or ray
    job = job_of(settings, loaded.command, runtime_env, facts.ray.executable)
    job = job if topology.is_head else None
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
        steps=steps,
        services=services,
        all_services=all_services,
        processes=_processes(launch, topology, facts, has_job=job is not None),
        budget=share(settings.stop_grace),
        waits=planned_waits(settings, topology, steps, all_services, has_job=job is not None),
        listeners=listeners(settings, topology, services, ray, guarded=guarded),
        findings=(
            *examine(facts, settings, topology),
            *job_program(facts, settings, topology),
            *about_names(loaded.slips),
        ),
        notes=(*loaded.notes, *claim.notes, *_notes(settings, topology, facts)),
        on_done=settings.on_done or _default_on_done(topology, facts),
    )


def temp_dir(facts: Facts, job_id: str | None = None) -> str:
    """Return Ray's temp dir: ours alone, on a shared host this job's alone.

    It is short, since socket paths end at 107 bytes, 62 of which Ray's session needs.
    """
    return f"{private_folder(facts, job_id)}/ray"


def private_folder(facts: Facts, job_id: str | None = None) -> str:
    """Return the folder around Ray's temp dir, which nobody else may enter.

    Ray opens its temp dir to everybody at each start (mode 0777, 2.40 to 2.60), so that dir itself
    could not keep others out.
    """
    user = "" if facts.uid == 0 else f"-{facts.uid}"
    job = "" if job_id is None else f"-j{job_id}"
    return f"/tmp/pod-agent{user}{job}"


def _services(
    settings: Settings, topology: Topology, command: tuple[str, ...] | None, facts: Facts
) -> tuple[ServiceSpec, ...]:
    """Return the services of the whole run, in the order in which they are shown."""
    if topology.is_idle:
        return ()
    return tuple(filter(None, (reward_service(settings, command, facts.ray.executable),)))


def _steps(settings: Settings, topology: Topology) -> tuple[PrepareStep, ...]:
    """Return the prepare steps of this node, in the order in which it runs them."""
    if topology.is_idle:
        return ()
    return tuple(step for step in prepare_steps(settings) if _is_here(step.where, topology))


def _is_here(where: Where, topology: Topology) -> bool:
    return where.includes(topology.claim.rank, is_head=topology.is_head)


def _processes(
    launch: Launch, topology: Topology, facts: Facts, *, has_job: bool
) -> tuple[PlannedProcess, ...]:
    """Return what this node starts for its own: its Ray, and on the head the bridge to Ray."""
    if topology.is_idle:
        return ()
    ray: tuple[PlannedProcess, ...] = ()
    if isinstance(launch, OwnRay):
        argv = launch.command(is_head=topology.is_head)
        ray = (PlannedProcess(RAY, "ray", argv, "ray-start.log"),)
    if not topology.is_head:
        return ray
    bridge = own_command(facts.ray.executable, "ray-bridge", launch.gcs, launch.dashboard)
    label = "submit" if has_job else "watch"
    return (*ray, PlannedProcess(BRIDGE, label, tuple(bridge), "ray-bridge.log"))


def _ports(settings: Settings, topology: Topology, command: tuple[str, ...] | None) -> Ports:
    """Lay out the ports from where the platform begins, and keep them clear of each other."""
    base = topology.claim.ports
    clashes = port_clashes(settings, command, base, topology.given_ray)
    if clashes:
        raise SettingsError(clashes)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base)


def _default_on_done(topology: Topology, facts: Facts) -> str:
    return "hold" if topology.claim.restarts and facts.is_first_process else "exit"


def _notes(settings: Settings, topology: Topology, facts: Facts) -> tuple[str, ...]:
    given = topology.given_ray
    if topology.is_idle:
        return ()
    if given is not None:
        whose = f"the job's environment is that of {given.owner}'s pods"
        there = "WANDB_API_KEY and NCCL_* belong there"
        grace = "RAY_JOB_STOP_WAIT_TIME_S on the head's (without it a stopped job has 3 s)"
        elsewhere = "AGENT_PREPARE runs in this pod, not on Ray's head: on a shared disk it helps"
        notes = (f"{whose}: {there}, {grace}",)
        return (*notes, elsewhere) if settings.prepare and given.session is None else notes
    if settings.wandb_api_key is None and facts.wandb_login:
        return ("WANDB_API_KEY is not set: W&B has this machine's `wandb login`",)
    if settings.wandb_api_key is None:
        return ("WANDB_API_KEY is not set: W&B stays offline",)
    return ()
