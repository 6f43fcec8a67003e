"""The ports of jobs that share a host differ from each other and from the kernel's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from agent.base.ports import DEFAULTS, Ports, port_map, ports_for_job
from agent.plan.listeners import port_clashes
from agent.plan.make import temp_dir
from agent.platforms import rank_variables
from agent.platforms.resolve import port_base
from agent.settings import load
from support.captured import plan_of, read
from support.free_ports import conflicts_in
from support.worlds import our_ray

JOB = st.integers(1, 2**32)


def ports_of(job: int) -> Ports:
    """Return the ports of a job where nothing was set by hand."""
    return port_map(None, None, None, ports_for_job(job))


def single(ports: Ports) -> set[int]:
    """Return the ports that must be had, without ranges."""
    ranges = ("_worker", "_front", "given")
    return {n for name, n in asdict(ports).items() if not name.endswith(ranges)}


def workers(ports: Ports) -> range:
    """Return the range of which any port will do."""
    return range(ports.first_worker, ports.last_worker + 1)


@given(JOB)
def test_the_ports_of_a_job_differ_and_are_not_the_kernels(job: int) -> None:
    """All ports of a job differ, and lie between the reserved and the ephemeral ones."""
    ports = ports_of(job)
    assert conflicts_in(ports, ports.reward) == []
    assert len(single(ports)) == 11
    everything = {*single(ports), *workers(ports)}
    assert min(everything) >= 1024
    assert max(everything) < 32_768


@given(JOB, st.integers(1, 999))
def test_two_jobs_on_one_host_share_no_port(job: int, apart: int) -> None:
    """Ids less than 1000 apart share no port; if not a multiple of 10, no worker's either."""
    one, other = ports_of(job), ports_of(job + apart)
    assert not single(one) & single(other)
    assert not single(one) & set(workers(other))
    if apart % 10:
        assert not set(workers(one)) & set(workers(other))


@given(JOB, JOB)
def test_two_jobs_share_all_ports_or_none(one: int, other: int) -> None:
    """They share all if 1000 divides the difference of their ids, else none."""
    met = single(ports_of(one)) & single(ports_of(other))
    assert len(met) == (11 if (one - other) % 1000 == 0 else 0)


def test_what_is_set_by_hand_wins() -> None:
    """A port set by hand stands; the others stay the job's."""
    environ, facts = read("slurm-head")
    assert plan_of(environ, facts).ports == ports_of(4711)
    by_hand = {**environ, "AGENT_RAY_PORT": "6379", "AGENT_PORT": "8266"}
    ports = plan_of(by_hand, facts).ports
    assert (ports.gcs, ports.agent, ports.node_manager) == (6379, 8266, 8267)
    assert ports.dashboard == ports_of(4711).dashboard


def test_a_port_by_hand_that_meets_the_jobs_own_is_refused() -> None:
    """A conflict with a shifted port is reported as any other."""
    environ, _ = read("slurm-head")
    taken = ports_of(4711).agent
    settings = load({**environ, "AGENT_RAY_PORT": str(taken)}).settings
    (problem,) = port_clashes(settings, None, ports_for_job(4711), None)
    assert f"gcs and agent on {taken}" in problem.sentence()


@pytest.mark.parametrize("platform", ["slurm", "skypilot"])
def test_head_and_workers_agree(platform: str) -> None:
    """A worker computes the same ports as its head."""
    head, worker = (plan_of(*read(f"{platform}-{role}")) for role in ("head", "worker"))
    assert head.ports == worker.ports != port_map(None, None, None)
    assert our_ray(head).session == our_ray(worker).session


def test_skypilots_ray_keeps_its_ports() -> None:
    """None of ours is one of SkyPilot's Ray's, whose workers take 11002 to 19999."""
    ports = port_map(None, None, None, rank_variables.SKYPILOT_PORTS)
    theirs = {6380, 8266, 8076, 10_001, 52_365, *range(11_002, 20_000)}
    assert not (single(ports) | set(workers(ports))) & theirs
    assert conflicts_in(ports, 5000) == []
    assert port_map(None, None, 9300, rank_variables.SKYPILOT_PORTS).node_manager == 9301


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("slurm-worker", ports_for_job(4711)),
        ("skypilot-head", rank_variables.SKYPILOT_PORTS),
        ("dstack-head", DEFAULTS),
        ("slurm-two-tasks-refused", DEFAULTS),
    ],
)
def test_status_asks_the_same_port(name: str, base: object) -> None:
    """`status` finds the agent where this environment's agent listens."""
    environ, _ = read(name)
    assert port_base(environ, load(environ).settings) == base


@given(st.integers(0, 2**32 - 1), st.one_of(st.none(), JOB))
def test_rays_temp_dir_is_this_jobs_and_short(uid: int, job: int | None) -> None:
    """A socket's path ends at 107 bytes, of which Ray's session needs 62."""
    facts = replace(read("slurm-head")[1], uid=uid)
    path = temp_dir(facts, None if job is None else str(job))
    assert len(path) + 62 <= 107
    assert path.startswith("/tmp/pod-agent")
    assert path != temp_dir(facts, "0")
    assert path != temp_dir(replace(facts, uid=uid + 1), None if job is None else str(job))


def test_the_bundled_reward_server_moves_with_its_job() -> None:
    """Two jobs on one host have two ports; a port by hand, or a server of one's own, stays."""
    environ, facts = read("slurm-head")
    bundled = {**environ, "AGENT_JOB": "rehearsal"}
    plan = plan_of(bundled, facts)
    (server,) = plan.services
    assert server.port == ports_for_job(4711).reward != 5000
    assert f":{server.port}/" in server.url
    assert str(server.port) in (server.argv or ())
    assert any(one.port == str(server.port) for one in plan.listeners)
    assert ports_for_job(4712).reward != ports_for_job(4711).reward
    by_hand = plan_of({**bundled, "AGENT_REWARD_PORT": "5005"}, facts)
    assert by_hand.services[0].port == 5005
    own = plan_of({**bundled, "AGENT_REWARD": "python serve.py --port 5000"}, facts)
    assert own.services[0].port == 5000
