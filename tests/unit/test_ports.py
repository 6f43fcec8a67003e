"""Ports: one map for all nodes, free of collisions."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.ports import collisions, port_map

PORT = st.integers(1024, 65_535)


def test_the_contracts_defaults() -> None:
    """GCS 6379, dashboard 8265, agent 8266; Ray's inner ports follow the agent's own."""
    ports = port_map(None, None, None)
    assert (ports.gcs, ports.dashboard, ports.agent) == (6379, 8265, 8266)
    assert (ports.node_manager, ports.metrics) == (8267, 8272)
    assert collisions(ports, 5000) == []


def test_the_defaults_lie_below_the_kernels_own_range() -> None:
    """No port may be one that Linux hands out by itself, which begins at 32768."""
    assert max(asdict(port_map(None, None, None)).values()) < 32_768


@pytest.mark.parametrize(
    ("gcs", "dashboard", "agent", "reward", "words"),
    [
        (8265, None, None, None, "gcs and dashboard on 8265"),
        (None, None, 8265, None, "dashboard and agent on 8265"),
        (None, None, 8264, None, "dashboard and node manager on 8265"),
        (10_001, None, None, None, "gcs and client on 10001"),
        (None, 10_002, None, None, "dashboard on 10002, inside 10002-19999"),
        (None, None, 19_999, None, "agent on 19999, inside 10002-19999"),
        (None, None, 65_535, None, "node manager on 65536, above 65535"),
        (None, None, None, 8270, "dashboard agent grpc and reward server on 8270"),
    ],
)
def test_a_collision_names_both(
    gcs: int | None, dashboard: int | None, agent: int | None, reward: int | None, words: str
) -> None:
    """Two listeners on one port, or one in Ray's range, are told with the port."""
    told = collisions(port_map(gcs, dashboard, agent), reward)
    assert [line for line in told if line.startswith(words)]


@given(PORT, PORT, PORT, PORT)
def test_no_collision_means_none(gcs: int, dashboard: int, agent: int, reward: int) -> None:
    """Where nothing is told, all ports differ, exist, and keep out of the workers' range."""
    ports = port_map(gcs, dashboard, agent)
    numbers = [*asdict(ports).values(), reward]
    clear = [n for n in numbers if not ports.first_worker <= n <= ports.last_worker]
    fine = len(set(clear)) == len(numbers) - 2 and max(numbers) <= 65_535
    assert (collisions(ports, reward) == []) == fine
