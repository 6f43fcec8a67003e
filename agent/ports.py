"""The port map of a node: fixed numbers below the range from which kernels hand out ports."""

from __future__ import annotations

from dataclasses import dataclass, fields

DEFAULT_GCS = 6379
DEFAULT_DASHBOARD = 8265
DEFAULT_AGENT = 8266
_WORKERS = (10_002, 19_999)
_CLIENT = 10_001


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


def port_map(gcs: int | None, dashboard: int | None, agent: int | None) -> Ports:
    """Lay out the ports: Ray's inner ones follow the agent's own, so one number moves them all."""
    base = agent or DEFAULT_AGENT
    return Ports(
        gcs=gcs or DEFAULT_GCS,
        dashboard=dashboard or DEFAULT_DASHBOARD,
        agent=base,
        node_manager=base + 1,
        object_manager=base + 2,
        dashboard_agent=base + 3,
        dashboard_agent_grpc=base + 4,
        runtime_env_agent=base + 5,
        metrics=base + 6,
        client=_CLIENT,
        first_worker=_WORKERS[0],
        last_worker=_WORKERS[1],
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
