"""The ports of this node: which process listens, on which address, and what guards it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.base.ports import port_conflicts, port_map, single_ports
from agent.job.services import NODE_IP, control_port
from agent.plan.page_address import proxied_ip
from agent.plan.plan import Listener
from agent.settings.jobs import runs_by_shares
from agent.settings.rules import reward_listener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.ports import Ports
    from agent.plan.plan import Plan
    from agent.plan.ray_start import OwnRay
    from agent.platforms.rank_variables import GivenRay
    from agent.settings.model import Settings

_EVERYWHERE = "every interface (Ray's choice)"
_NEAR = f"{NODE_IP}, 127.0.0.1"
_RANKS = Listener("any", "ranks of torch (NCCL, gloo)", f"{NODE_IP}'s interface", "none")


def listeners_of(plan: Plan) -> Iterator[Listener]:
    """Yield the listeners in the order in which `plan` shows them."""
    topology = plan.topology
    settings = plan.settings
    ports = plan.ports
    ray = plan.own_ray
    if topology.is_idle:
        return

    # The cluster, where the agent starts it: a launcher on every node or Ray.
    is_ours = plan.joins_cluster and topology.given_ray is None
    if is_ours and plan.share_launcher is not None:
        if topology.is_head:
            who, bind = plan.share_launcher.port_user
            yield Listener(str(ports.gcs), who, bind, "none")
        yield _RANKS
    elif is_ours and ray is not None:
        yield from _of_ray(ray, ports, is_head=topology.is_head)

    for spec in plan.services:
        if spec.is_front:
            yield Listener(str(spec.port), f"{spec.name}, for the agent", spec.bind, "key")
        elif spec.port is not None:
            guard = "none (scores only)" if spec.url else "as its command has it"
            yield Listener(str(spec.port), spec.name, spec.bind, guard)

    # The fronts on the head have a port for each member, which a trainer uses as an engine's.
    for spec in plan.all_services if topology.is_head else ():
        if spec.front:
            members = f"{spec.front}-{control_port(spec) - 1}"
            yield Listener(members, f"front of {spec.name}, a port a member", _NEAR, "none")

    # The all-reduce before the job: its store has the last port of Ray's workers, used last by Ray.
    if is_ours and settings.preflight is not None:
        if topology.is_head:
            store = str(ports.last_worker)
            yield Listener(store, "store of AGENT_PREFLIGHT", NODE_IP, "none")
        yield _RANKS

    own_guard = "none" if settings.ray_auth_token is None else "token"
    proxied = proxied_ip(plan)
    where = NODE_IP if proxied is None else f"{NODE_IP}, {proxied} (RunPod's proxy)"
    yield Listener(str(ports.agent), "agent", f"{where} and 127.0.0.1", own_guard)


def _of_ray(ray: OwnRay, ports: Ports, *, is_head: bool) -> Iterator[Listener]:
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
        (ports.runtime_env_agent, "Ray runtime_env agent", NODE_IP),
        (f"{ports.first_worker}-{ports.last_worker}", "Ray workers", _EVERYWHERE),
    )
    rows = (*of_head, *on_every_node) if is_head else on_every_node
    for port, who, bind in rows:
        yield Listener(str(port), who, bind, guard)
    yield Listener(str(ports.metrics), "Ray metrics", _EVERYWHERE, "none (read only)")


def port_clashes(
    settings: Settings, command: tuple[str, ...] | None, base: Ports, given: GivenRay | None
) -> tuple[Problem, ...]:
    """Find port conflicts of this run, as problems of the variables that set these ports."""
    single, workers = ports_here(settings, base, given)
    names = "AGENT_RAY_PORT + AGENT_DASHBOARD_PORT + AGENT_PORT + AGENT_REWARD_PORT"
    expected = "different ports; without these variables `plan` shows the defaults"
    conflicts = port_conflicts({**single, **reward_listener(settings, command, base)}, workers)
    return tuple(Problem(names, conflict, expected) for conflict in conflicts)


def ports_here(
    settings: Settings, base: Ports, given: GivenRay | None, *, joins_ray: bool = True
) -> tuple[dict[str, int], tuple[int, int] | None]:
    """Return the ports that a node listens on besides its services, and those of Ray's workers."""
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    if runs_by_shares(settings):
        return {"rendezvous": ports.gcs, "agent": ports.agent}, None
    is_without_ray = not joins_ray or (given is not None and given.session is None)
    if is_without_ray:
        return {"agent": ports.agent}, None
    return single_ports(ports), (ports.first_worker, ports.last_worker)
