"""Which node runs which service, and problems of a services file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.base.ports import port_map, single_ports
from agent.settings.jobs import TORCHRUN, launcher
from agent.work.services import REWARD, reward_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.ports import Ports
    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology
    from agent.work.services import ServicesFile, ServiceSpec
    from agent.work.where import Where


def all_services(
    settings: Settings, command: tuple[str, ...] | None, facts: Facts, file: ServicesFile
) -> tuple[ServiceSpec, ...]:
    """Return the services of the whole run, in the order in which they are shown."""
    row, python = file.reward, facts.ray.executable
    reward = reward_service(with_reward(settings, file), command, python)
    if row is not None and reward is not None:
        reward = row.apply_to(reward)
    return (*filter(None, (reward,)), *file.services)


def with_reward(settings: Settings, file: ServicesFile) -> Settings:
    """Replace AGENT_REWARD by `[services.reward]`, if the file has it."""
    row = file.reward
    return settings if row is None else replace(settings, reward=row.command or "builtin")


def own_rank(topology: Topology) -> int | None:
    """Return this node's rank; without ranks of the platform the head has 0."""
    rank = topology.platform.rank
    return 0 if rank is None and topology.is_head else rank


def is_here(where: Where, topology: Topology) -> bool:
    """Return whether something runs on this node."""
    return where.includes(own_rank(topology), is_head=topology.is_head)


def may_be_here(where: Where, topology: Topology) -> bool:
    """Return whether something may run on this node once the head has assigned its rank."""
    return where.may_include(own_rank(topology), is_head=topology.is_head)


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
    facts: Facts,
    file: ServicesFile,
) -> Iterator[Problem]:
    """Yield problems of the services file on this platform."""
    ports = port_map(
        settings.ray_port, settings.dashboard_port, settings.port, topology.platform.ports
    )
    services = all_services(settings, command, facts, file)
    most = _most_nodes(settings, topology, services)
    by_torchrun = launcher(settings, command) == TORCHRUN
    for spec in services:
        if spec.name == REWARD and file.reward is None:
            continue  # AGENT_REWARD is checked with the other variables
        where = _label(settings, spec)
        yield from _place_problems(where, spec, topology, most)
        yield from _port_problems(where, spec, topology, ports, by_torchrun=by_torchrun)
        others = services[: services.index(spec)]
        met = [o for o in others if o.port == spec.port and o.where.meets(spec.where)]
        if spec.port is not None and met:
            got = f"port {spec.port}, which {met[0].name} has on the same node"
            yield Problem(f"{where} ready", got, "a port of its own")
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
    if spec.alone and topology.is_head and own_rank(topology) == rank:
        expected = "the rank of another node: the head runs Ray"
        yield Problem(f"{where} alone", "true on the head's own rank", expected)


def _port_problems(
    where: str, spec: ServiceSpec, topology: Topology, ports: Ports, *, by_torchrun: bool
) -> Iterator[Problem]:
    given = topology.given_ray
    others = {"agent": ports.agent}
    workers = (0, -1)
    if by_torchrun:
        others["rendezvous"] = ports.gcs
    elif not spec.alone and (given is None or given.session is not None):
        others, workers = single_ports(ports), (ports.first_worker, ports.last_worker)
    met = next((name for name, number in others.items() if number == spec.port), None)
    if met is not None:
        whose = "torchrun's" if by_torchrun else "Ray's"
        got = f"port {spec.port}, which is the agent's own" if met == "agent" else None
        got = got or f"port {spec.port}, which is {whose} ({met})"
        yield Problem(f"{where} ready", got, "a port that nobody else has")
    elif spec.port is not None and workers[0] <= spec.port <= workers[1]:
        got = f"port {spec.port}, inside {workers[0]}-{workers[1]}, which Ray's workers use"
        yield Problem(f"{where} ready", got, "a port outside of that")


def _label(settings: Settings, spec: ServiceSpec) -> str:
    name = "reward" if spec.name == REWARD else spec.name
    return f"AGENT_SERVICES={settings.services} [services.{name}]"
