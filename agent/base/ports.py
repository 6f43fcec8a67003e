"""The ports of a node: fixed numbers below the kernel's ephemeral range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class PortBase(Value):
    """The default ports of a node; a platform may have others."""

    gcs: int = 6379
    dashboard: int = 8265
    agent: int = 8266
    client: int = 10_001
    first_worker: int = 10_002
    last_worker: int = 19_999


DEFAULTS = PortBase()


class Ports(PortBase, kw_only=True):
    """Every port that a node listens on, including Ray's internal ones."""

    node_manager: int
    object_manager: int
    dashboard_agent: int
    dashboard_agent_grpc: int
    runtime_env_agent: int
    metrics: int


def inner_ports(agent: int) -> dict[str, int]:
    """Return Ray's internal ports, which follow the agent's: one number moves them all."""
    names = Ports.__struct_fields__[len(PortBase.__struct_fields__) :]
    return {name: agent + step for step, name in enumerate(names, start=1)}


def port_map(
    gcs: int | None, dashboard: int | None, agent: int | None, base: PortBase = DEFAULTS
) -> Ports:
    """Return the ports of a node, with those that are set."""
    own = agent or base.agent
    chosen = {"gcs": gcs or base.gcs, "dashboard": dashboard or base.dashboard, "agent": own}
    return Ports(**{**asdict(base), **chosen, **inner_ports(own)})


def ports_for_job(job_id: int) -> PortBase:
    """Return a block of ports for a job, so that jobs on one host do not conflict.

    Ids that agree in the last digit share the range of Ray's workers, where Ray skips ports in
    use. Ids that agree in the last three conflict: the check of free ports refuses the second job.
    """
    block = 20_000 + job_id % 1000 * 10
    workers = 10_000 + job_id % 10 * 1000
    return PortBase(
        gcs=block,
        dashboard=block + 1,
        client=block + 2,
        agent=block + 3,  # Ray's internal ports follow, up to the end of the block
        first_worker=workers,
        last_worker=workers + 999,
    )


def single_ports(ports: Ports) -> dict[str, int]:
    """Return the port of every listener, without the range of Ray's workers."""
    others = asdict(ports)
    client = others.pop("client")  # last: messages name the later of two listeners last
    found = {**others, "client": client}.items()
    return {name.replace("_", " "): port for name, port in found if not name.endswith("_worker")}


def port_conflicts(
    ports: Mapping[str, int], workers: tuple[int, int] | None = None
) -> Iterator[str]:
    """Describe conflicts between ports, by listener, and with the range of Ray's workers."""
    others: dict[str, int] = {}
    for name, number in ports.items():
        yield from conflicts_of(name, number, others, workers)
        others[name] = number


def conflicts_of(
    name: str, number: int, others: Mapping[str, int], workers: tuple[int, int] | None
) -> Iterator[str]:
    """Describe the conflicts of one port with others and with the range of Ray's workers."""
    for other, its_number in others.items():
        if its_number == number:
            yield f"{other} and {name} on {number}"
    if workers is not None and workers[0] <= number <= workers[1]:
        yield f"{name} on {number}, inside {workers[0]}-{workers[1]}, which Ray's workers use"
    if number > 65_535:
        yield f"{name} on {number}, above 65535"
