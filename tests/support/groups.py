"""Runs with a group of two nodes, of two engines each, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.head_goal import HeadGoal
from agent.decisions.shared import Answered, ItemReport, Step
from agent.job.front_protocol import FrontStatus, SlotStatus
from agent.job.groups import NodeGroup
from agent.job.services import ServiceSpec, TcpProbe, Where, front_port
from support.heads import LIMITS, SUBMITTED, job, nodes, ray_open, reported

if TYPE_CHECKING:
    from agent.job.services import Weights

UP = [(1.0, ray_open()), (2.0, nodes())]
GROUP = NodeGroup("rollout", 2, min=2, first_rank=1)
ENGINE = ServiceSpec(
    "engine",
    "serve {port}",
    ("serve", "{port}"),
    TcpProbe(31_000),
    100.0,
    "within",
    where=Where("group", 1, "rollout", 2),
    restarts=2,
    essential=False,
    port=31_000,
    alone=True,
    gpus=4,
)


def a_goal(group: NodeGroup = GROUP, weights: Weights | None = None) -> HeadGoal:
    """Return the goal of a run with a head, and two nodes of two engines each."""
    spec = replace(ENGINE, weights=weights, front=22_000 if weights == "sglang" else 0)
    return HeadGoal(
        limits=LIMITS,
        job_stop_grace=16.0,
        retries=1,
        services=(spec,),
        groups=(group,),
        listed=frozenset({"engine"}),
    )


def says(
    node: int, *steps: str, generation: int = 1, at: float = 0.0, agent: int = 0
) -> h.WorkerReported:
    """Return a report of a node of the group, with the step of each of its members.

    `agent` is the number of the one that follows its first agent.
    """
    items = tuple(
        ItemReport(f"engine.{n}", Step(step), "", generation, is_running=step != "lost")
        for n, step in enumerate(steps)
    )
    event = reported(node, joined=False, rank=node - 1, items=items, reported_at=at)
    worker = replace(event.worker, members={"engine": 2})
    return h.WorkerReported(replace(worker, key=f"agent{agent}") if agent else worker)


def left(node: int) -> h.WorkerReported:
    """Return the goodbye of a node of the group."""
    return h.WorkerReported(replace(says(node, "ready", "ready").worker, has_left=True))


def front(
    *states: str, generations: tuple[int, ...] = (1, 1, 1, 1), version: str = "7"
) -> Answered:
    """Return what the front sees of the members, in order; `wedged` is one that hangs."""
    spec = a_goal(weights="sglang").services[0]
    ports = [front_port(spec, rank, index) for rank in (1, 2) for index in (0, 1)]
    seen = tuple(
        h.SeenMember(port, generation, "down" if state == "wedged" else state)
        if state != "wedged"
        else h.SeenMember(port, generation, "serving", why="no answer", is_wedged=True)
        for port, generation, state in zip(ports, generations, states, strict=True)
    )
    return Answered(h.FrontSeen("engine", seen, version))


def ends_with(node: int, evidence: str, generation: int = 1) -> h.WorkerReported:
    """Return a report of a node whose two members have ended."""
    items = tuple(
        ItemReport(f"engine.{n}", Step.LOST, evidence, generation, output="a line") for n in (0, 1)
    )
    event = reported(node, joined=False, rank=node - 1, items=items)
    return h.WorkerReported(replace(event.worker, members={"engine": 2}))


FIRST_NODE = [(3.0, says(2)), (3.5, says(2, "ready", "ready"))]
READY = [*FIRST_NODE, (4.0, says(3)), (4.5, says(3, "ready", "ready"))]
RUNS = [*READY, (5.0, SUBMITTED), (6.0, job("RUNNING"))]


def status_of_front(*requests: int) -> FrontStatus:
    """Return what a front replies whose members have got so many requests."""
    members = tuple(
        SlotStatus(22_000 + n, 1, "serving", "7", count, 0, 0, 0, "", is_wedged=False)
        for n, count in enumerate(requests)
    )
    return FrontStatus(members, "7", held=0, since=0.0, is_paused=False)
