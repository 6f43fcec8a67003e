"""The port map of a node: fixed numbers below the range from which kernels hand out ports."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class PortBase:
    """The numbers that a port map starts from, where nothing was set by hand."""

    gcs: int = 6379
    dashboard: int = 8265
    agent: int = 8266
    client: int = 10_001
    first_worker: int = 10_002
    last_worker: int = 19_999


DEFAULTS = PortBase()


@dataclass(frozen=True)
class Ports:
    """Every port that a node listens on, Ray's inner ones included."""

    gcs: int
    dashboard: int
    agent: int
    node_manager: int
    object_manager: int
    dashboard_agent: int
    dashboard_agent_grpc: int
    runtime_env_agent: int
    metrics: int
    client: int
    first_worker: int
    last_worker: int


def port_map(
    gcs: int | None, dashboard: int | None, agent: int | None, base: PortBase = DEFAULTS
) -> Ports:
    """Lay out the ports: Ray's inner ones follow the agent's own, so one number moves them all."""
    own = agent or base.agent
    return Ports(
        gcs=gcs or base.gcs,
        dashboard=dashboard or base.dashboard,
        agent=own,
        node_manager=own + 1,
        object_manager=own + 2,
        dashboard_agent=own + 3,
        dashboard_agent_grpc=own + 4,
        runtime_env_agent=own + 5,
        metrics=own + 6,
        client=base.client,
        first_worker=base.first_worker,
        last_worker=base.last_worker,
    )


_BLOCK = 10
_BLOCKS = 1000
_FIRST_BLOCK = 20_000
_WORKER_BLOCK = 1000
_WORKER_BLOCKS = 10
_FIRST_WORKER_BLOCK = 10_000


def shifted(job_id: int) -> PortBase:
    """Return a job's own block of ports, so that jobs that share a host keep clear of each other.

    Jobs whose ids differ in the last digit share nothing. Ids that agree in it, but not in the
    last three, share only the workers' range, of which Ray takes no port that is in use. Two jobs
    1000 ids apart would meet, and the second is told so: its ports are proved free at its start.
    """
    block = _FIRST_BLOCK + job_id % _BLOCKS * _BLOCK
    workers = _FIRST_WORKER_BLOCK + job_id % _WORKER_BLOCKS * _WORKER_BLOCK
    return PortBase(
        gcs=block,
        dashboard=block + 1,
        client=block + 2,
        agent=block + 3,  # the inner ones follow, up to the block's last
        first_worker=workers,
        last_worker=workers + _WORKER_BLOCK - 1,
    )


def collisions(ports: Ports, reward: int | None) -> list[str]:
    """Name every pair of listeners that would meet on one port."""
    single = {
        f.name.replace("_", " "): getattr(ports, f.name)
        for f in fields(ports)
        if not f.name.endswith("_worker")
    }
    if reward is not None:
        single["reward server"] = reward
    found = []
    names = list(single)
    for index, name in enumerate(names):
        number = single[name]
        found += [
            f"{other} and {name} on {number}" for other in names[:index] if single[other] == number
        ]
        if ports.first_worker <= number <= ports.last_worker:
            found.append(
                f"{name} on {number}, inside {ports.first_worker}-{ports.last_worker}, "
                "which Ray's workers use"
            )
        if number > 65_535:
            found.append(f"{name} on {number}, above 65535")
    return found
