"""The ports of a node: fixed numbers below the kernel's ephemeral range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BACKLOG = 1024  # Callers of an HTTP server that the kernel keeps until they are accepted


class Ports(Value):
    """Every port that a node listens on, including Ray's internal ones."""

    gcs: int = 6379
    dashboard: int = 8265
    agent: int = 8266
    client: int = 10_001
    first_worker: int = 10_002
    last_worker: int = 19_999
    reward: int = 5000  # the bundled reward server's
    # Of groups: the range of the fronts on the head, and the first port that `{port}` is
    first_front: int = 22_000
    last_front: int = 30_999
    given: int = 31_000
    # Ray's internal ports, which follow the agent's: one number moves them all
    node_manager: int = 8267
    object_manager: int = 8268
    dashboard_agent: int = 8269
    dashboard_agent_grpc: int = 8270
    runtime_env_agent: int = 8271
    metrics: int = 8272


DEFAULTS = Ports()
_INTERNAL = Ports.__struct_fields__[10:]


def port_map(
    gcs: int | None, dashboard: int | None, agent: int | None, base: Ports = DEFAULTS
) -> Ports:
    """Return the ports of a node: those that are set, else those of its platform."""
    own = agent or base.agent
    internal = {name: own + step for step, name in enumerate(_INTERNAL, start=1)}
    return replace(
        base, gcs=gcs or base.gcs, dashboard=dashboard or base.dashboard, agent=own, **internal
    )


def ports_for_job(job_id: int) -> Ports:
    """Return a block of ports for a job, so that jobs on one host do not conflict.

    Ids that agree in the last digit share the range of Ray's workers, where Ray skips ports in
    use. Ids that agree in the last three conflict: the check of free ports refuses the second job.
    The ports of groups differ for ids that are near: there are too few for all.
    """
    block = 20_000 + job_id % 1000 * 10
    workers = 10_000 + job_id % 10 * 1000
    return Ports(
        gcs=block,
        dashboard=block + 1,
        client=block + 2,
        agent=block + 3,  # Ray's internal ports follow, up to the end of the block
        first_worker=workers,
        last_worker=workers + 999,
        reward=30_000 + job_id % 1000,
        first_front=20_000 + job_id % 10 * 500,  # fronts leave out the job's own block
        last_front=29_999,
        given=31_000 + job_id % 8 * 192,
    )


def single_ports(ports: Ports) -> dict[str, int]:
    """Return the port of every listener of agent and Ray, without ranges and services."""
    others = {"first_worker", "last_worker", "reward", "first_front", "last_front", "given"}
    return {
        name.replace("_", " "): port for name, port in asdict(ports).items() if name not in others
    }


def port_conflicts(ports: Mapping[str, int], workers: tuple[int, int] | None) -> Iterator[str]:
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
