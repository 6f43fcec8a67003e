"""The ports that a node listens on: process, address and protection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.ports import port_conflicts, port_map, single_ports
from agent.base.text import is_public
from agent.base.value import Value
from agent.settings.jobs import launcher
from agent.settings.rules import port_problems, reward_port
from agent.work.services import NODE_IP

if TYPE_CHECKING:
    from agent.base.errors import Problem
    from agent.base.ports import PortBase
    from agent.plan.ray_start import OwnRay
    from agent.settings.model import Settings
    from agent.topology.platforms import GivenRay
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
    own_guard = "none" if settings.ray_auth_token is None else "token"
    agent = Listener(str(ports.agent), "agent", f"{NODE_IP} and 127.0.0.1", own_guard)
    others = tuple(
        Listener(str(spec.port), spec.name, spec.bind, _guard_of(spec))
        for spec in services
        if spec.port is not None
    )
    if topology.given_ray is not None or not has_ray:
        return (*others, agent)
    if settings.preflight is not None:  # its store has the last port, which Ray uses last
        name = "AGENT_PREFLIGHT"
        others += _of_ranks(topology, ports.last_worker, f"store of {name}", NODE_IP, f"of {name}")
    if launcher(settings, None) == "torchrun":
        store, everywhere = "torchrun's rendezvous", "every interface (torch's)"
        return (*_of_ranks(topology, ports.gcs, store, everywhere, "(NCCL, gloo)"), *others, agent)
    of_head = (
        ("gcs", "Ray GCS", _EVERYWHERE),
        ("dashboard", "Ray dashboard", ray.dashboard_host),
        ("client", "Ray client", _NEAR),
    )
    rows = (*of_head, *_RAY) if topology.is_head else _RAY
    workers = f"{ports.first_worker}-{ports.last_worker}"
    return (
        *(Listener(str(getattr(ports, port)), who, bind, guard) for port, who, bind in rows),
        Listener(str(ports.metrics), "Ray metrics", _EVERYWHERE, "none (read only)"),
        Listener(workers, "Ray workers", _EVERYWHERE, guard),
        *others,
        agent,
    )


_EVERYWHERE = "every interface (Ray's choice)"
_NEAR = f"{NODE_IP}, 127.0.0.1"
_RAY = (
    ("node_manager", "Ray node manager", _EVERYWHERE),
    ("object_manager", "Ray object manager", _EVERYWHERE),
    ("dashboard_agent", "Ray dashboard agent", _NEAR),
    ("dashboard_agent_grpc", "Ray dashboard agent (gRPC)", _EVERYWHERE),
    ("runtime_env_agent", "Ray runtime_env agent", NODE_IP),
)
"""Ray's listeners on every node: the name of the port, process and address."""


def _of_ranks(
    topology: Topology, port: int, store: str, store_bind: str, ranks: str
) -> tuple[Listener, ...]:
    """Return the listeners of torch's ranks, and on the head of their store, without tokens."""
    rank = Listener("any", f"ranks {ranks}", f"{NODE_IP}'s interface", "none")
    return (Listener(str(port), store, store_bind, "none"), rank) if topology.is_head else (rank,)


def port_clashes(
    settings: Settings,
    command: tuple[str, ...] | None,
    base: PortBase,
    given: GivenRay | None = None,
) -> tuple[Problem, ...]:
    """Find port conflicts of this run."""
    single, workers = ports_here(settings, base, given)
    return port_problems(port_conflicts({**single, **reward_port(settings, command)}, workers))


def ports_here(
    settings: Settings, base: PortBase, given: GivenRay | None, *, joins_ray: bool = True
) -> tuple[dict[str, int], tuple[int, int] | None]:
    """Return the ports that a node listens on besides its services, and those of Ray's workers.

    Beside a Ray on another machine only the agent listens here; without Ray, torchrun uses the
    port of GCS.
    """
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    if launcher(settings, None) == "torchrun":
        return {"rendezvous": ports.gcs, "agent": ports.agent}, None
    if not joins_ray or (given is not None and given.session is None):
        return {"agent": ports.agent}, None
    return single_ports(ports), (ports.first_worker, ports.last_worker)


def may_listen_on(address: str, settings: Settings) -> bool:
    """Return whether the agent's port may be open on an address: public only with a token."""
    allowed = settings.ray_auth_token is not None or settings.allow_insecure
    return allowed or not is_public(address)


def _guard_of(spec: ServiceSpec) -> str:
    return "none (scores only)" if spec.url else "as its command has it"
