"""Groups on a platform: the ports of fronts and members, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ports import DEFAULTS, port_map, ports_for_job, single_ports
from agent.job.services import ServiceSpec, TcpProbe, control_port, digest, service_of
from agent.job.services_file import parse
from agent.plan.make import make_plan
from agent.plan.plan import RAY
from agent.plan.plan_services import service_problems, with_places
from agent.plan.show import summary
from agent.platforms.rank_variables import SKYPILOT_PORTS
from agent.platforms.resolve import Topology, resolve
from agent.settings import load
from support.worlds import MACHINE

if TYPE_CHECKING:
    from agent.plan.plan import Plan

FILE = """
[groups.rollout]
nodes = 4
[services.engine]
where = "rollout"
gpus = 1
weights = "sglang"
command = "serve {port}"
ready.tcp = "{port}"
"""
DSTACK = {"DSTACK_NODES_NUM": "8", "DSTACK_MASTER_NODE_IP": "10.0.0.5", "DSTACK_NODE_RANK": "0"}
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "8",
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "10.0.0.5\n" + "\n".join(f"10.0.1.{n}" for n in range(7)),
}
POD = {"EXPECTED_WORKERS": "7", "HEAD_POD_ID": "a", "RUNPOD_POD_ID": "b"}
NODES = "n[0-7]"
SLURM = {
    "SLURM_JOB_ID": "70203",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": NODES,
    "SLURM_STEP_NODELIST": NODES,
    "SLURM_STEP_ID": "0",
}
PLATFORMS = [DSTACK, SKYPILOT, SLURM]


def topology_of(environ: dict[str, str]) -> Topology:
    """Return where this node is by the platform's variables."""
    return resolve(environ, load(environ, ["true"]).settings, MACHINE)


def placed(environ: dict[str, str], text: str = FILE) -> dict[str, ServiceSpec]:
    """Return the services of a run by name, which must have no problem."""
    environ = {**environ, "AGENT_SERVICES": "s.toml"}
    settings = load(environ, ["true"]).settings
    topology = topology_of(environ)
    read, wrong = parse(text, "s.toml", settings)
    file = with_places(read, topology, settings)
    found = [*wrong, *service_problems(settings, ("true",), topology, file)]
    assert [problem.sentence() for problem in found] == []
    return {spec.name: spec for spec in file.services}


def refused(environ: dict[str, str], text: str) -> list[str]:
    """Return the problems of groups that a node reports."""
    environ = {**environ, "AGENT_SERVICES": "s.toml"}
    settings = load(environ, ["true"]).settings
    topology = topology_of(environ)
    read, wrong = parse(text, "s.toml", settings)
    assert wrong == []
    file = with_places(read, topology, settings)
    found = service_problems(settings, ("true",), topology, file)
    return [problem.sentence() for problem in found]


def front_ports(spec: ServiceSpec) -> range:
    """Return the ports of a service's front, its control port included."""
    return range(spec.front, control_port(spec) + 1)


@pytest.mark.parametrize("environ", PLATFORMS)
def test_a_fronts_ports_are_no_others(environ: dict[str, str]) -> None:
    """They are neither those of Ray and agent nor in the range of Ray's workers or the kernel's."""
    engine = placed(environ)["engine"]
    ports = topology_of(environ).platform.ports
    own = port_map(None, None, None, ports)
    taken = {*single_ports(own).values(), *range(own.first_worker, own.last_worker + 1)}
    assert engine.port is not None
    given = range(engine.port, engine.port + 16)
    assert not taken & {*front_ports(engine), *given}
    assert not {*given} & {*front_ports(engine), ports.reward}
    assert max(*given, *front_ports(engine)) < 32_768


def test_a_front_leaves_out_what_is_set_by_hand() -> None:
    """A port that the user has set, or that a service on the head has, is not one of its."""
    there = '[services.cache]\ncommand = "serve"\nready.tcp = 22090\n'
    engine = placed({**DSTACK, "AGENT_PORT": "22010"}, FILE + there)["engine"]
    assert not {*range(22_010, 22_017), 22_090} & {*front_ports(engine)}


def test_workers_need_not_know_a_fronts_ports() -> None:
    """A head whose own ports differ agrees with its workers about their services."""
    one = placed(DSTACK)
    other = placed({**DSTACK, "AGENT_PORT": "22010"})
    assert one["engine"].front != other["engine"].front
    assert digest(one.values()) == digest(other.values())


def test_two_groups_have_fronts_apart() -> None:
    """The second front begins after the first one's control port."""
    more = FILE.replace("rollout", "judges").replace("engine", "judge")
    found = placed(DSTACK, FILE + more.replace("nodes = 4", "nodes = 1"))
    assert not {*front_ports(found["engine"])} & {*front_ports(found["judge"])}


@pytest.mark.parametrize("apart", [1, 2, 3, 7])
def test_jobs_with_neighboring_ids_have_ports_apart(apart: int) -> None:
    """Two jobs of Slurm on one host share none where their ids are near."""
    one = placed(SLURM)["engine"]
    other = placed({**SLURM, "SLURM_JOB_ID": str(70203 + apart)})["engine"]
    assert not {*front_ports(one)} & {*front_ports(other)}
    assert one.port is not None
    assert other.port is not None
    assert abs(one.port - other.port) >= 64
    assert other.ready == TcpProbe(other.port)


def planned(environ: dict[str, str], text: str = FILE) -> Plan:
    """Return the plan of a node of a run with a group."""
    environ = {**environ, "AGENT_SERVICES": "s.toml"}
    loaded = load(environ, ["true"])
    topology = topology_of(environ)
    read, _ = parse(text, "s.toml", loaded.settings)
    file = with_places(read, topology, loaded.settings)
    return make_plan(loaded, topology, MACHINE, environ, {}, file)


@pytest.mark.parametrize(
    ("own", "joins"),
    [
        ({**DSTACK, "DSTACK_NODE_RANK": "3"}, 1),
        ({**DSTACK, "DSTACK_NODE_RANK": "7"}, 0),
        ({**POD, "AGENT_GROUP": "trainer"}, 1),
        ({**POD, "AGENT_GROUP": "rollout"}, 0),
    ],
)
def test_a_node_outside_ray_does_not_start_one(own: dict[str, str], joins: int) -> None:
    """The plan of a group's node has no Ray, by rank or by the group's name: no wait, no port."""
    made = planned(own)
    (waits,) = [line.text for line in summary(made) if line.label.startswith("waits")]
    assert waits.count("Ray on this node to join") == joins
    assert [process.name for process in made.processes].count(RAY) == joins
    assert any("Ray" in listener.who for listener in made.listeners) == bool(joins)


@pytest.mark.parametrize(
    ("named", "services"),
    [
        ({}, {"engine", "judge"}),
        ({"AGENT_GROUP": "rollout"}, {"engine"}),
        ({"AGENT_GROUP": "trainer"}, set()),
    ],
)
def test_a_node_that_names_its_group_runs_its_services_alone(
    named: dict[str, str], services: set[str]
) -> None:
    """Before the head gives ranks a node without a name may be of any group."""
    judges = '[groups.judges]\nnodes = 1\n[services.judge]\nwhere = "judges"\ncommand = "j"\n'
    made = planned({**POD, **named, "AGENT_NUM_GPUS": "2"}, f'{FILE}\n{judges}ready.log = "up"\n')
    assert {service_of(spec.name) for spec in made.possible_services} == services


def test_a_trainer_on_the_head_alone() -> None:
    """The job waits for the nodes of the groups' services, not for workers."""
    environ = {"RUNPOD_POD_ID": "head", "HEAD_POD_ID": "head", "EXPECTED_WORKERS": "4"}
    waits = [wait.what for wait in planned(environ).waits if wait.key == "workers"]
    assert waits == ["the nodes of engine"]


def test_the_ports_of_a_front_are_shown_with_who_may_use_them() -> None:
    """The agent's orders need a key; a trainer's requests, as those to an engine, nothing."""
    made = planned(DSTACK)
    shown = {(one.port, one.bind, one.guard) for one in made.listeners if "engine" in one.who}
    assert shown == {
        ("22000-22063", "{node_ip}, 127.0.0.1", "none"),
        ("22064", "127.0.0.1", "key"),
    }


def test_a_front_that_hangs_is_found_within_half_a_minute() -> None:
    """All samples and weight syncs wait for it, without a limit."""
    (front,) = (spec for spec in planned(DSTACK).services if spec.is_front)
    check = front.asked_again
    assert check is not None
    assert check.misses * (check.every + check.within) <= 30


@pytest.mark.parametrize("ports", [DEFAULTS, SKYPILOT_PORTS, ports_for_job(70203)])
def test_too_many_nodes_for_the_ports_are_refused(ports: object) -> None:
    """The remedy is fewer nodes."""
    environ = {**DSTACK, "DSTACK_NODES_NUM": "701", "AGENT_SERVICES": "s.toml"}
    settings = load(environ, ["true"]).settings
    topology = topology_of(environ)
    topology = replace(topology, platform=replace(topology.platform, ports=ports))
    read, _ = parse(FILE.replace("nodes = 4", "nodes = 700"), "s.toml", settings)
    file = with_places(read, topology, settings)
    (problem,) = service_problems(settings, ("true",), topology, file)
    assert "fewer nodes in the groups" in problem.sentence()


def test_more_members_than_there_can_be_are_refused() -> None:
    """`min` counts for each service of the group: one without gpus has one member a node."""
    judge = '[services.judge]\ncommand = "serve"\nready.tcp = 9000\nwhere = "rollout"\n'
    text = FILE.replace("nodes = 4", "nodes = 4\nmin = 6") + judge
    (problem,) = refused(DSTACK, text)
    assert "[groups.rollout] min: got 6, though judge has at most 4 member(s)" in problem
    (problem,) = refused(DSTACK, FILE.replace("nodes = 4", "nodes = 4\nmin = 65"))
    assert "expected at most 64" in problem


def test_a_minimum_of_workers_that_counts_groups_is_refused() -> None:
    """AGENT_MIN_WORKERS is about the trainer's workers: three of eight nodes, beside the head."""
    partial = {"AGENT_PARTIAL": "proceed", "AGENT_MIN_WORKERS": "4", "EXPECTED_WORKERS": "7"}
    (problem,) = refused({**DSTACK, **partial}, FILE)
    assert problem.startswith("AGENT_MIN_WORKERS: got 4, of 3 worker(s) in no group")
    assert refused({**DSTACK, **partial, "AGENT_MIN_WORKERS": "3"}, FILE) == []


def test_a_worker_needs_the_number_of_nodes() -> None:
    """The ranks of groups follow from it: without it a worker would differ from its head."""
    worker = {"RUNPOD_POD_ID": "b", "HEAD_POD_ID": "a"}
    for nodes in (1, 4):
        (problem,) = refused(worker, FILE.replace("nodes = 4", f"nodes = {nodes}"))
        assert problem.startswith("EXPECTED_WORKERS: got nothing, on a worker of a run with groups")


def test_too_many_nodes_in_groups_are_one_problem() -> None:
    """Nothing that follows from it is reported beside it."""
    (problem,) = refused(DSTACK, FILE.replace("nodes = 4", "nodes = 8"))
    assert "got 8 node(s) in groups, of 8 in all" in problem


def test_the_head_is_a_node_of_the_trainer() -> None:
    """Its role may be set against the platform's rank."""
    head = {"RAY_WORKER": "0", "AGENT_HEAD": "10.0.0.5", **DSTACK, "DSTACK_NODE_RANK": "6"}
    (problem,) = refused(head, FILE)
    assert "[groups.rollout]: got the head, rank 6, as a node of rollout" in problem


def test_all_members_of_a_node_are_in_its_report() -> None:
    """A report has 64 items: a service with GPUs counts as often as it may fit."""
    more = "".join(f'[prepare.p{n}]\ncommand = "make"\n' for n in range(35))
    (problem,) = refused(DSTACK, FILE + more)
    assert "services and prepare steps on one node" in problem
    assert refused(DSTACK, FILE + more.partition("[prepare.p33]")[0]) == []
