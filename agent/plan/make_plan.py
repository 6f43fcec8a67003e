"""How the plan is made: every decision that can be taken before anything starts."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.errors import Problem, SettingsError
from agent.base.own_command import own_command
from agent.base.ports import Ports, port_map
from agent.checks import about_names, examine
from agent.checks.job_checks import job_program
from agent.node.ray_versions import honours_token
from agent.node.visible_devices import devices
from agent.plan.address import address_of
from agent.plan.listeners import listeners, port_clashes
from agent.plan.plan import BRIDGE, RAY, RAY_LOG, Plan, PlannedProcess
from agent.plan.planned_job import planned_job
from agent.plan.ray_start import OwnRay
from agent.plan.services import (
    all_services,
    is_here,
    may_be_here,
    with_reward,
    without_alone,
)
from agent.plan.stop_budget import share
from agent.plan.waits import planned_waits
from agent.settings.jobs import TORCHRUN, launcher
from agent.settings.ray_args import TEMP_DIR, VARIABLE
from agent.topology.given_ray import GivenRay
from agent.work import model
from agent.work.prepare import prepare_steps
from agent.work.services_asked import NO_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts
    from agent.node.upload import Upload
    from agent.plan.plan import Launch
    from agent.plan.torchrun import Torchrun
    from agent.settings import Loaded, Settings
    from agent.topology.resolve import Topology
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec
    from agent.work.services_asked import ServicesFile


_LONGEST_TEMP_DIR = 107 - 62


def new_run_id() -> str:
    """Make an id for a run that no platform names."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


def make_plan(  # noqa: PLR0913 - all that is known before anything starts
    loaded: Loaded,
    topology: Topology,
    facts: Facts,
    environ: Mapping[str, str],
    runtime_env: dict[str, object],
    file: ServicesFile = NO_FILE,
    upload: Upload | None = None,
) -> Plan:
    """Decide everything that can be decided now."""
    settings, claim = loaded.settings, topology.claim
    services = () if topology.is_idle else all_services(settings, loaded.command, facts, file)
    topology = without_alone(topology, settings, services)
    here = tuple(s for s in services if is_here(s.where, topology))
    alone = tuple(spec for spec in here if spec.alone)
    all_steps = _steps(settings, topology, file, facts, alone)
    steps = tuple(step for step in all_steps if is_here(step.where, topology))
    has_ray = not alone
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
    torchrun = _torchrun(settings, facts, ports, environ)
    launch: Launch = topology.given_ray or torchrun or ray
    judged = replace(loaded, settings=with_reward(settings, file))
    planned = planned_job(judged, topology, facts, runtime_env)
    job = planned.job
    if job is not None and upload is not None:
        job = replace(job, upload=upload)
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
        recipe_env={} if planned.recipe is None else planned.recipe.env,
        steps=steps,
        all_steps=all_steps,
        services=here,
        possible_services=tuple(s for s in services if may_be_here(s.where, topology)),
        all_services=services,
        processes=(
            *_processes(launch, topology, facts, has_job=job is not None, has_ray=has_ray),
            *_preflight(settings, topology, facts, ports),
        ),
        budget=share(settings.stop_grace),
        waits=planned_waits(settings, topology, all_steps, services, has_job=job is not None),
        listeners=listeners(settings, topology, here, ray, guarded=guarded, has_ray=has_ray),
        findings=(
            *examine(facts, settings, topology),
            *job_program(facts, settings, topology),
            *planned.findings,
            *about_names(loaded.slips),
        ),
        notes=(
            *loaded.notes,
            *claim.notes,
            *_notes(settings, topology, facts, environ),
            *planned.notes,
        ),
        on_done=settings.on_done or _default_on_done(topology, facts),
    )


def _torchrun(
    settings: Settings, facts: Facts, ports: Ports, environ: Mapping[str, str]
) -> Torchrun | None:
    """Return the torchrun of this node, where the job is started by it."""
    if launcher(settings, None) != TORCHRUN:
        return None
    from agent.plan.torchrun import Torchrun  # noqa: PLC0415 - most runs need none of it
    from agent.work.torchrun import gpus_of, processes  # noqa: PLC0415 - same

    count = processes(gpus_of(settings, facts.gpus, environ), settings)
    return Torchrun(facts.job_python, ports.gcs, count, share(settings.stop_grace).job - 1.0)


def temp_dir(facts: Facts, job_id: str | None = None) -> str:
    """Return Ray's temp dir: ours alone, on a shared host this job's alone.

    It is short, since socket paths end at 107 bytes, 62 of which Ray's session needs.
    """
    path = f"{private_folder(facts, job_id)}/ray"
    if len(os.fsencode(path)) > _LONGEST_TEMP_DIR:
        expected = f"a path shorter by {len(os.fsencode(path)) - _LONGEST_TEMP_DIR}: Ray's sockets "
        given = f"{TEMP_DIR}={facts.temp}, below which Ray's sessions would be in {path}"
        expected += "lie below it, and their paths end at 107 bytes"
        raise SettingsError((Problem(VARIABLE, given, expected),))
    return path


def private_folder(facts: Facts, job_id: str | None = None) -> str:
    """Return the folder around Ray's temp dir, which nobody else may enter.

    Ray opens its temp dir to everybody at each start (mode 0777, 2.40 to 2.60), so that dir itself
    could not keep others out.
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
    """Return the prepare steps of the run, with this node's own fetch of the model.

    The model is the job's, which does not run on a node that is there for a service only.
    """
    if topology.is_idle:
        return ()
    fetch: tuple[PrepareStep, ...] = ()
    named = (word for spec in alone for word in (*(spec.argv or ()), *spec.after))
    wanted = not alone or any(model.NAME in word for word in named)
    its_disk = topology.given_ray is None or topology.given_ray.session is not None
    if wanted and its_disk:
        fetch = model.fetch_steps(settings, facts.ray, is_here=facts.model_is_here)
    return prepare_steps(settings, (*fetch, *file.steps))


def _preflight(
    settings: Settings, topology: Topology, facts: Facts, ports: Ports
) -> tuple[PlannedProcess, ...]:
    """Return the program of the all-reduce before the job, where one was asked for."""
    if settings.preflight is None:
        return ()
    from agent.plan import preflight  # noqa: PLC0415 - most runs need none of it

    return preflight.processes(topology, facts, ports)


def _processes(
    launch: Launch, topology: Topology, facts: Facts, *, has_job: bool, has_ray: bool
) -> tuple[PlannedProcess, ...]:
    """Return what this node starts for its own: its Ray, and on the head the bridge to Ray.

    A torchrun is started when all are there, and by what the head then orders.
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
    """Lay out the ports from where the platform begins, and keep them clear of each other."""
    base = topology.claim.ports
    clashes = port_clashes(settings, command, base, topology.given_ray)
    if clashes:
        raise SettingsError(clashes)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, base)


def _default_on_done(topology: Topology, facts: Facts) -> str:
    return "hold" if topology.claim.restarts and facts.is_first_process else "exit"


def _notes(
    settings: Settings, topology: Topology, facts: Facts, environ: Mapping[str, str]
) -> tuple[str, ...]:
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
    gpus = devices(environ, facts.gpu_maker, facts.ray.version)
    hub = model.note(settings, facts.ray, is_here=facts.model_is_here)
    return tuple(filter(None, (_about_wandb(settings, facts), gpus.note, hub)))


def _about_wandb(settings: Settings, facts: Facts) -> str:
    if settings.wandb_api_key is not None:
        return ""
    if facts.wandb_login:
        return "WANDB_API_KEY is not set: W&B has this machine's `wandb login`"
    return "WANDB_API_KEY is not set: W&B stays offline"
