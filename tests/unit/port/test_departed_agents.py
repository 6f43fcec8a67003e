"""The number of agents that a head stores: all that take part, and the last that departed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import asdict, replace

from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import Worker
from agent.decisions.head.head_decide import is_worker_needed
from agent.decisions.head.losses import MAX_NODES_BY_NAME, record_fleet
from agent.decisions.shared import SAMPLE, Answer, ItemReport, Step
from agent.plan import waits as wait_keys
from agent.port.protocol import Bye, Hello, Reply, Report, WorkerStats
from agent.port.reports import Expected, Reports, TooManyAgentsError
from agent.record.summary import Timeline
from support.heads import (
    NODES,
    PAIR,
    RAY_UP,
    RETRIEVER,
    REWARD,
    TICK,
    Trace,
    accepted,
    goal,
    nodes,
    ready,
)
from support.shares import by_torchrun
from support.worlds import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.head.head_goal import HeadGoal

FIRST = Reply(1, "run", "running", ray_ready=True, head_ip="10.0.0.1", news=0)
BYE = Bye("asked to stop by SIGTERM", "the last line")
KEPT = 60
"""The most agents of these heads."""
PODS = KEPT * 4 // 3
WORD = ItemReport(RETRIEVER, Step.READY)


class Fleet:
    """A head's port and decisions, to which pods connect with ever new names."""

    def __init__(self, of: HeadGoal, most: int = KEPT) -> None:
        limits = {**of.limits, wait_keys.WORKERS: 1e9, wait_keys.HEAD: 1e9}
        self.scenario, self.now = Trace(replace(of, facts=MACHINE, limits=limits), []), 0.0
        self.timeline = Timeline()
        self.take(ready(REWARD))
        self.names: tuple[str, ...] = ()
        expected = Expected(None, "", "", "")
        self.reports = Reports(
            *(FIRST, expected, self.take, self._clock),
            keep_ranks=self._keep,
            most=most,
            is_needed=lambda key: is_worker_needed(self.scenario.state, key, self.now),
        )

    def _clock(self) -> float:
        return self.now

    def _keep(self, names: tuple[str, ...]) -> None:
        self.names = names

    def take(self, event: h.HeadEvent) -> None:
        """Apply an event to the decisions."""
        self.scenario.take(event, self.now)
        self.timeline.add(event, self.scenario.state, self.now)

    async def pod(self, n: int, *, leaves: Callable[[int], bool] = bool) -> None:
        """Let a pod join, report everything possible, and depart, with a goodbye or without."""
        key, ip = f"agent<{n}>", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
        self.now += 10.0
        hello = Hello(f"pod<{n}>", None, facts=MACHINE)
        report = Report(key, ip, "following the head", hello=hello, items=(WORD, RAY_UP))
        stats = WorkerStats(progress={"fetch": "40%"})
        await self.reports.handle(replace(report, stats=stats))
        self.take(h.RaySeen((*nodes().nodes, replace(NODES[2], node_id=f"id{n}", ip=ip))))
        beat = replace(report, hello=None, answers=(Answer(SAMPLE, "", "", 1.0, 9),))
        self.now += 5.0
        self.take(TICK)
        await self.reports.handle(beat)
        if leaves(n):
            await self.reports.handle(replace(beat, bye=BYE, logs={"agent": "the end"}))
        else:
            self.take(h.WorkerSilent(key, "connection refused"))
        self.take(nodes())

    def known(self) -> dict[str, set[str]]:
        """Return the agents and pods that each part of the head stores, by its own name."""
        parts = {**asdict(self.scenario.state), **vars(self.reports), **vars(self.timeline)}
        parts["names"] = self.names
        return {name: {*re.findall(r"<(\d+)>", repr(part))} for name, part in parts.items()}


@pytest.mark.parametrize(
    "of", [goal(1, services=(RETRIEVER,), job=False), goal(9, services=(REWARD,)), by_torchrun(1)]
)
def test_pods_that_come_and_go(of: HeadGoal) -> None:
    """Data by an agent's or a node's name does not grow with the number of former pods."""

    async def come_and_go() -> Fleet:
        fleet = Fleet(of)
        for n in range(PODS):
            await fleet.pod(n, leaves=lambda n: n % 2 == 0)
        return fleet

    fleet = anyio.run(come_and_go)
    counts = {name: len(found) for name, found in fleet.known().items()}
    assert {name: n for name, n in counts.items() if n > KEPT} == {}
    assert counts["_agents"] > KEPT // 10
    latest = {f"agent<{n}>" for n in range(PODS - KEPT, PODS)}
    assert fleet.reports.byes.keys() - fleet.scenario.state.shares.by_node.keys() <= latest


def test_who_is_there_stays() -> None:
    """A worker that takes part keeps all its data, however many others come and go."""

    async def trace() -> Fleet:
        fleet = Fleet(goal(1))
        stays = Report("agent1", "10.9.9.9", "following the head", epoch=1, items=(RAY_UP,))
        await fleet.reports.handle(replace(stays, hello=Hello("stays", None, facts=MACHINE)))
        there = replace(NODES[2], ip="10.9.9.9")
        for n in range(PODS):
            await fleet.pod(n)
            fleet.take(h.RaySeen((*nodes().nodes, there)))
        return fleet

    fleet = anyio.run(trace)
    assert fleet.scenario.state.fleet.alive == {"10.9.9.9": "stays"}
    assert fleet.scenario.state.fleet.facts["agent1"].hostname == MACHINE.hostname
    agent = fleet.reports.awaited("agent1")
    assert agent is not None
    assert agent.ip == "10.9.9.9"


def test_strangers_take_no_room_for_ever() -> None:
    """More than the limit wait until one of those is silent."""
    now, events, most = 0.0, list[object](), 20
    reports = Reports(FIRST, Expected(None, "", "", ""), events.append, lambda: now, most=most)

    async def hello(n: int) -> Reply:
        return await reports.handle(Report(f"agent{n}", "", "p", hello=Hello(f"pod{n}", n)))

    async def trace() -> None:
        nonlocal now
        for n in range(most):
            await hello(n)
        with pytest.raises(TooManyAgentsError):
            await hello(most)
        assert (await reports.handle(Report("agent0", "", "p"))).refusal == ""
        now = 60.0
        assert not (await hello(most)).wants_hello
        assert sum(isinstance(event, h.WorkerReplaced) for event in events) >= 1

    anyio.run(trace)


def test_what_a_run_needs_of_the_departed() -> None:
    """The result of its ranks, a place of a service, a process that may still run there."""
    worker = Worker("agent2", "pod2", "10.0.0.2", last_report_at=1.0, items=(RAY_UP,))
    gone = h.WorkerReported(replace(worker, has_left=True, last_report_at=2.0))
    trace = Trace(by_torchrun(1), [(1.0, h.WorkerReported(worker)), (2.0, accepted())])
    assert is_worker_needed(trace.state, "agent2", 500.0)  # it counts
    trace.take(gone, 3.0)
    assert is_worker_needed(trace.state, "agent2", 500.0)  # its share has no end yet
    assert not is_worker_needed(trace.state, "agent7", 500.0)
    trace = Trace(goal(2), [(1.0, h.WorkerReported(worker)), (2.0, gone)])
    assert not is_worker_needed(trace.state, "agent2", 3.0)
    silent = replace(worker, items=())
    trace = Trace(goal(2), [(1.0, h.WorkerReported(silent))])
    assert is_worker_needed(trace.state, "agent2", 60.0)  # AGENT_NODE_GRACE is not over
    assert not is_worker_needed(trace.state, "agent2", 61.0)


def test_ranks_are_given_again() -> None:
    """With all names in use, the first rank without a current owner is given again."""
    kept: list[tuple[str, ...]] = []
    reports = Reports(
        *(FIRST, Expected(None, "", "", ""), lambda _: None, lambda: 0.0),
        rank_names=("a", "b"),
        keep_ranks=kept.append,
        most=2,
    )

    def rank(name: str) -> int | None:
        report = Report(f"of {name}", f"10.0.0.{ord(name)}", "joining", hello=Hello(name))
        return anyio.run(reports.handle, report).rank

    assert [rank("b"), rank("c")] == [2, 1]
    assert kept == [("c", "b")]


GIVEN = {
    "beyond the ranks of its group a node is a spare": "pool abc 345, trainer def 126",
    "whichever group reports first": "trainer abc 125, pool de 34",
    "a new node gets the rank of one of its group that has gone, once": (
        "pool ab 34, only b, pool cd 35"
    ),
    "also one that names no group, unless the trainer lacks a node, too": (
        "node abcd 1234, only abd, node ef 35, only ad, node g 6"
    ),
    "a spare of a group follows a node that goes, and one that names no group does not": (
        "pool abc 345, node def 126, only adef, only ac 34, only ac 34, pool g 5"
    ),
    "a node that was silent becomes a spare where a new one has its rank": (
        "trainer ab 12, pool cd 34, only abd, pool e 3, only abcde 12543, only abcde 12543"
    ),
    "also one that names no group": (
        "trainer ab 12, node cd 34, only abd, node e 3, only abcde 12543, only abcde 12543"
    ),
    "it follows the spare that had its rank, once that has gone": (
        "pool abc 345, only bc 43, only ba 43, only bac 435"
    ),
    "after a pause of the head all are overdue: a spare that reports first takes no rank": (
        "pool abc 345, only cab 534"
    ),
    "the further rank of a node that came too early is its agent's, not its next agent's": (
        "node abcd 1234, wait 10, node e 5, only abce 1235, wait 20, only abc, node E 4"
    ),
    "a node that comes back in another group gets no rank of the former one": (
        "trainer ab 12, pool cd 34, only bcd, pool A 5, only bd, trainer C 6"
    ),
    "nor does it keep that one from others": (
        "trainer ab 12, pool cd 34, only abd, trainer C 5, pool e 3"
    ),
    "a silent node that is in Ray keeps its rank, since what the job has there goes on": (
        "pool abc 345, ray ab, only bc 45, only bc 45, ray b, only bc 43"
    ),
}
"""Histories of a run with two nodes of a trainer and two of a pool.

`GROUP NODES RANKS`: these report first, and get these ranks; a `node` names no group, and a capital
letter is another process of its node. `only NODES RANKS`: half a minute later only they report.
"""


class Ranks:
    """The ranks that a head gives to the nodes of a run with groups."""

    def __init__(self) -> None:
        self._now = 0.0
        self._in_ray = ""
        expected = Expected(None, "", "", "", ranks_of={"pool": range(3, 5)})
        self._reports = Reports(
            *(FIRST, expected, lambda _: None, lambda: self._now),
            is_in_ray=lambda key: key in self._in_ray,
        )

    def apply(self, kind: str, nodes: str, ranks: str = "") -> None:
        """Apply a step, and check the ranks that follow from it."""
        if kind == "wait":
            self._now += float(nodes)
        elif kind == "ray":
            self._in_ray = nodes
        elif kind == "only":
            self._now += 30.0
            self._silence_others(nodes)
            assert ranks in {"", "".join(self._rank_of(node) for node in nodes)}
        else:
            group = kind.removeprefix("node")
            hellos = {node: Hello(node.lower(), group=group) for node in nodes}
            assert ranks == "".join(self._rank_of(*first) for first in hellos.items())

    def _silence_others(self, nodes: str) -> None:
        for key in self._reports.overdue():
            agent = self._reports.awaited(key)
            if agent is not None and key not in nodes:
                agent.is_silent = True  # as its probe finds

    def _rank_of(self, node: str, hello: Hello | None = None) -> str:
        report = Report(node, f"10.0.0.{ord(node.lower())}", "joining", hello=hello)
        return str(anyio.run(self._reports.handle, report).rank)


@pytest.mark.parametrize("history", GIVEN.values(), ids=GIVEN)
def test_which_rank_a_node_gets(history: str) -> None:
    """Where its platform gives it none."""
    ranks = Ranks()
    for step in history.split(", "):
        ranks.apply(*step.split())


def test_names_of_an_attempt() -> None:
    """The record keeps the nodes of the attempt that are present, and the latest of the others."""
    state = Trace(goal(1), PAIR).state
    for n in range(0, MAX_NODES_BY_NAME + 2_000, 1_000):
        alive = {"10.9.9.9": "stays", **{str(one): f"pod{one}" for one in range(n, n + 1_000)}}
        after = replace(state, fleet=replace(state.fleet, alive=alive))
        state = record_fleet(after, h.Turn(state, TICK, 1.0))
    names = state.attempt.nodes
    assert len(names) == MAX_NODES_BY_NAME
    assert {"stays", f"pod{MAX_NODES_BY_NAME + 1_999}"} <= {*names}
    assert "pod0" not in names
