"""Machines and plans as values, for tests of pure functions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.job.services_file import parse
from agent.node.facts import MIB, Facts, RayPython
from agent.plan.make import make_plan
from agent.plan.plan_services import service_problems
from agent.platforms.resolve import Topology, resolve
from agent.settings import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.base.errors import Problem
    from agent.job.services import ServicesFile
    from agent.plan.plan import Plan
    from agent.plan.ray_start import OwnRay
    from agent.settings.load import Loaded
    from agent.settings.model import Settings

SECRET = "s3cr3t-0123456789abcdef"  # noqa: S105 - no secret of anybody's

MACHINE = Facts(
    hostname="node-a",
    interfaces={"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.5",)},
    ray=RayPython(sys.executable, "3.11.7", "2.60.0"),
    cpus=16,
    memory=64 * 1024 * MIB,
    shm=32 * 1024 * MIB,
    shm_free=32 * 1024 * MIB,
    temp_free=100 * 1024 * MIB,
    nofile_soft=1024,
    nofile_hard=1_048_576,
    default_source="10.0.0.5",
)
"""A healthy machine with one address."""

POD = replace(
    MACHINE,
    hostname="pod-host",
    interfaces={"lo": ("127.0.0.1",), "eth0": ("172.17.0.2",), "podnet1": ("10.1.0.10",)},
    default_source="172.17.0.2",
    is_first_process=True,
    gpus=8,
)
"""A RunPod pod: the default route uses eth0, the pods' network podnet1."""


def with_ray(facts: Facts, **changes: Any) -> Facts:  # noqa: ANN401 - any field of RayPython
    """Return a machine with another Ray."""
    return replace(facts, ray=replace(facts.ray, **changes))


def settings_of(environ: Mapping[str, str], command: list[str] | None = None) -> Settings:
    """Return the settings of a valid environment."""
    return load(environ, command).settings


def topology_of(environ: Mapping[str, str], facts: Facts = MACHINE) -> Topology:
    """Return the topology of a node with this environment."""
    return resolve(environ, settings_of(environ), facts)


def plan_of(
    environ: Mapping[str, str], facts: Facts = MACHINE, command: list[str] | None = None
) -> Plan:
    """Return the plan of a node with this environment."""
    loaded = load(environ, command)
    return make_plan(loaded, resolve(environ, loaded.settings, facts), facts, environ, {})


def services_in(
    environ: Mapping[str, str], text: str, command: Sequence[str] | None = ("true",)
) -> tuple[Loaded, ServicesFile]:
    """Return the settings of a run with this services file, and the file, which must be right."""
    loaded = load({**environ, "AGENT_SERVICES": "s.toml"}, command and [*command])
    file, problems = parse(text, "s.toml", loaded.settings)
    assert problems == []
    return loaded, file


def services_plan(
    environ: Mapping[str, str],
    text: str,
    facts: Facts = MACHINE,
    command: Sequence[str] | None = ("true",),
) -> Plan:
    """Return the plan of a node with a services file that must be right."""
    loaded, file = services_in(environ, text, command)
    topology = resolve(environ, loaded.settings, facts)
    return make_plan(loaded, topology, facts, environ, {}, file)


def services_refused(
    environ: Mapping[str, str], text: str, facts: Facts = MACHINE
) -> list[Problem]:
    """Return what is refused of a services file on this platform."""
    loaded, file = services_in(environ, text)
    topology = resolve(environ, loaded.settings, facts)
    return [*service_problems(loaded.settings, ("true",), topology, file)]


def our_ray(plan: Plan) -> OwnRay:
    """Return the plan's Ray start, for an agent that starts Ray."""
    assert plan.own_ray is not None
    return plan.own_ray
