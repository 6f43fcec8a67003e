"""The ports that a node listens on: process, address and protection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.ports import port_conflicts, port_map, port_map_conflicts
from agent.base.text import is_public
from agent.base.value import Value
from agent.settings.jobs import launcher
from agent.settings.rules import port_problems, reward_port
from agent.work.where import NODE_IP

if TYPE_CHECKING:
    from agent.base.errors import Problem
    from agent.base.ports import PortBase, Ports
    from agent.plan.ray_start import OwnRay
    from agent.settings.model import Settings
    from agent.topology.claim import GivenRay
    from agent.topology.resolve import Topology
    from agent.work.services import ServiceSpec


class Listener(Value):
    """A port of this node: the process that listens, the address, and what guards it."""

    port: str
    who: str
    bind: str
    guard: str


def listeners(  # noqa: PLR0913 - everything that may listen
    settings: Settings,
    topology: Topology,
    services: tuple[ServiceSpec, ...],
    ray: OwnRay,
    *,
    guarded: bool,
    has_ray: bool = True,
) -> tuple[Listener, ...]:
    """Return the ports that this run opens, without those of a platform's Ray."""
    if topology.is_idle:
        return ()
    ports, guard = ray.ports, "token" if guarded else "none"
    ours = "none" if settings.ray_auth_token is None else "token"
    agent = Listener(str(ports.agent), "agent", f"{NODE_IP} and 127.0.0.1", ours)
    others = tuple(
        Listener(str(spec.port), spec.name, spec.bind, _guard_of(spec))
        for spec in services
        if spec.port is not None
    )
    if topology.given_ray is not None or not has_ray:
        return (*others, agent)
    if settings.preflight is not None:
        others = (*others, *_of_preflight(ports, topology))
    if launcher(settings, None) == "torchrun":
        return (*_of_torchrun(ports, topology), *others, agent)
    if topology.is_head:
        others = (*_head_of_ray(ports, ray.dashboard_host, guard), *others)
    return (*others, agent, *_node_of_ray(ports, guard))


def port_clashes(
    settings: Settings,
    command: tuple[str, ...] | None,
    base: PortBase,
    given: GivenRay | None = None,
) -> tuple[Problem, ...]:
    """Find port conflicts of this run.

    Beside a Ray on another machine only the agent and the reward server listen here; without Ray,
    torchrun uses the port of GCS.
    """
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    reward = reward_port(settings, command)
    if launcher(settings, None) == "torchrun":
        return port_problems(
            port_conflicts({"rendezvous": ports.gcs, "agent": ports.agent}, reward)
        )
    if given is not None and given.session is None:
        return port_problems(port_conflicts({"agent": ports.agent}, reward))
    return port_problems(port_map_conflicts(ports, reward))


def may_listen_on(address: str, settings: Settings) -> bool:
    """Return whether the agent's port may be open on an address: public only with a token."""
    allowed = settings.ray_auth_token is not None or settings.allow_insecure
    return allowed or not is_public(address)


def _guard_of(spec: ServiceSpec) -> str:
    return "none (scores only)" if spec.url else "as its command has it"


_EVERYWHERE = "every interface (Ray's choice)"


def _head_of_ray(ports: Ports, dashboard_host: str, guard: str) -> tuple[Listener, ...]:
    return (
        Listener(str(ports.gcs), "Ray GCS", _EVERYWHERE, guard),
        Listener(str(ports.dashboard), "Ray dashboard", dashboard_host, guard),
        Listener(str(ports.client), "Ray client", f"{NODE_IP}, 127.0.0.1", guard),
    )


def _of_torchrun(ports: Ports, topology: Topology) -> tuple[Listener, ...]:
    """Return the ports of torchrun and the ranks; torch has no tokens."""
    store = Listener(str(ports.gcs), "torchrun's rendezvous", "every interface (torch's)", "none")
    ranks = Listener("any", "ranks (NCCL, gloo)", f"{NODE_IP}'s interface", "none")
    return (store, ranks) if topology.is_head else (ranks,)


def _of_preflight(ports: Ports, topology: Topology) -> tuple[Listener, ...]:
    """Return what listens before the job, during the all-reduce.

    Its store uses the last port of Ray's workers, which Ray uses last.
    """
    store = Listener(str(ports.last_worker), "store of AGENT_PREFLIGHT", NODE_IP, "none")
    ranks = Listener("any", "ranks of AGENT_PREFLIGHT", f"{NODE_IP}'s interface", "none")
    return (store, ranks) if topology.is_head else (ranks,)


def _node_of_ray(ports: Ports, guard: str) -> tuple[Listener, ...]:
    near = f"{NODE_IP}, 127.0.0.1"
    workers = f"{ports.first_worker}-{ports.last_worker}"
    return (
        Listener(str(ports.node_manager), "Ray node manager", _EVERYWHERE, guard),
        Listener(str(ports.object_manager), "Ray object manager", _EVERYWHERE, guard),
        Listener(str(ports.dashboard_agent), "Ray dashboard agent", near, guard),
        Listener(str(ports.dashboard_agent_grpc), "Ray dashboard agent (gRPC)", _EVERYWHERE, guard),
        Listener(str(ports.runtime_env_agent), "Ray runtime_env agent", NODE_IP, guard),
        Listener(str(ports.metrics), "Ray metrics", _EVERYWHERE, "none (read only)"),
        Listener(workers, "Ray workers", _EVERYWHERE, guard),
    )
