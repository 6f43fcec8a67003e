"""Ports: one map for all nodes, free of collisions."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from agent.base.errors import PreflightError, SettingsError
from agent.base.ports import port_map, single_ports
from agent.cli.command_line import main
from agent.node.read import taken_ports
from agent.plan.listeners import port_clashes
from agent.platforms.resolve import detect_platform
from agent.port.node_network import bind
from agent.run import plan_input
from support.captured import changed, plan_of, read
from support.free_ports import conflicts_in
from support.worlds import settings_of

PORT = st.integers(1024, 65_535)


def test_the_contracts_defaults() -> None:
    """GCS 6379, dashboard 8265, agent 8266; Ray's inner ports follow the agent's own."""
    ports = port_map(None, None, None)
    assert (ports.gcs, ports.dashboard, ports.agent) == (6379, 8265, 8266)
    assert (ports.node_manager, ports.metrics) == (8267, 8272)
    assert conflicts_in(ports, 5000) == []


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
    """Two listeners on one port, or one in Ray's range, are named with the port."""
    found = conflicts_in(port_map(gcs, dashboard, agent), reward)
    assert [line for line in found if line.startswith(words)]


@given(PORT, PORT, PORT, PORT)
def test_no_collision_means_none(gcs: int, dashboard: int, agent: int, reward: int) -> None:
    """Without a conflict all ports differ, exist, and lie outside the range of the workers."""
    ports = port_map(gcs, dashboard, agent)
    numbers = [*single_ports(ports).values(), reward]
    clear = [n for n in numbers if not ports.first_worker <= n <= ports.last_worker]
    fine = len(set(clear)) == len(numbers) and max(numbers) <= 65_535
    assert (conflicts_in(ports, reward) == []) == fine


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"AGENT_PORT": "8265"}, "dashboard and agent on 8265"),
        ({"AGENT_RAY_PORT": "10001"}, "gcs and client on 10001"),
        ({"AGENT_PORT": "9999"}, "client and object manager on 10001"),
        ({"AGENT_REWARD_PORT": "8266"}, "agent and reward server on 8266"),
        ({"AGENT_REWARD_PORT": "6379"}, "gcs and reward server on 6379"),
        ({"AGENT_REWARD_PORT": "12000"}, "which Ray's workers use"),
    ],
)
def test_a_port_that_meets_a_default_is_refused(environ: dict[str, str], words: str) -> None:
    """A port that is one of the defaults is reported under the names of all port variables."""
    with pytest.raises(SettingsError) as caught:
        plan_input.plan_from_environment(environ, None)
    reported = caught.value.problems
    assert "AGENT_RAY_PORT + AGENT_DASHBOARD_PORT" in reported[0].variable
    assert words in " ".join(problem.got for problem in reported)


@pytest.mark.parametrize("name", ["AGENT_REWARD_PORT", "AGENT_DASHBOARD_PORT"])
def test_under_slurm_the_default_ports_are_free(name: str) -> None:
    """The job's id shifts the ports, so 6379 may be set for another listener."""
    environ, facts = read("slurm-head")
    plan = plan_of({**environ, name: "6379"}, facts)
    assert 6379 in (plan.settings.reward_port, plan.settings.dashboard_port)
    assert port_clashes(plan.settings, None, plan.topology.platform.ports, None) == ()


def test_beside_a_ray_elsewhere_its_ports_are_free() -> None:
    """In a RayJob's submitter only agent and reward server listen: those two must differ."""
    environ, facts = read("kuberay-submitter-head")
    given = detect_platform(environ, settings_of(environ)).given_ray
    base = plan_of(environ, facts).topology.platform.ports
    free = {**environ, "AGENT_REWARD_PORT": "6379"}
    assert port_clashes(settings_of(free), None, base, given) == ()
    met = {**environ, "AGENT_REWARD_PORT": "8266"}
    (problem,) = port_clashes(settings_of(met), None, base, given)
    assert problem.got == "agent and reward server on 8266"


def test_ports_are_reported_together_with_the_topology() -> None:
    """A contradiction of roles and a port conflict are reported at once."""
    environ = changed("dstack-head", {"RAY_WORKER": "1", "AGENT_REWARD_PORT": "6379"})
    with pytest.raises(SettingsError) as caught:
        plan_input.plan_from_environment(environ, None)
    reported = " ".join(problem.sentence() for problem in caught.value.problems)
    assert "gcs and reward server on 6379" in reported
    assert "RAY_WORKER=1" in reported


def test_a_taken_port_of_the_agent_names_its_process() -> None:
    """`run` says who has it, as the check of the other ports does."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(PreflightError) as caught:
            bind("127.0.0.1", other.getsockname()[1])
        sentence = caught.value.sentence()
    assert "Address already in use" in sentence
    assert f"(pid {os.getpid()})" in sentence


def test_plan_names_a_taken_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `run` refuses, `plan` shows, with the process."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("AGENT_DASHBOARD_PORT", str(port))
        assert main(["plan", "--", "true"]) == 0
        shown = capsys.readouterr().out
        assert f"FAIL ports: taken: {port} by " in shown
        assert f"(pid {os.getpid()})" in shown
    assert main(["plan", "-v", "--", "true"]) == 0
    assert f"taken: {port}" not in capsys.readouterr().out


def test_ports_of_processes_that_run_removes_are_free() -> None:
    """A stale Ray's ports are no problem: `run` removes it first."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert taken_ports([port], leaving=[os.getpid()]) == {}
        assert [*taken_ports([port], leaving=[1])] == [port]
