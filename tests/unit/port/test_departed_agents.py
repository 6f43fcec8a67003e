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
from agent.port.reports import (
    BASE_LIMIT,
    Expected,
    Reports,
    TooManyAgentsError,
    agent_limit,
)
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
KEPT = agent_limit(1)
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


@pytest.mark.parametrize("expected", [0, 1, 5_000])
def test_the_limit_has_room_for_all_workers(expected: int) -> None:
    """Twice as many, since each may be replaced, and some more."""
    assert agent_limit(expected) >= max(BASE_LIMIT, 2 * expected)


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


def test_no_node_gets_the_rank_of_another_group() -> None:
    """Beyond the ranks of the group that it names it is a spare, whoever reports first."""
    expected = Expected(None, "", "", "", ranks_of={"pool": range(3, 5)})
    reports = Reports(FIRST, expected, lambda _: None, lambda: 0.0)

    def rank(name: str, group: str) -> int | None:
        hello = Hello(name, group=group)
        report = Report(f"of {name}", f"10.0.0.{ord(name)}", "joining", hello=hello)
        return anyio.run(reports.handle, report).rank

    assert [rank(name, "pool") for name in "ab"] == [3, 4]
    assert rank("c", "pool") == 5
    assert [rank(name, "trainer") for name in "def"] == [1, 2, 6]

    reports = Reports(FIRST, expected, lambda _: None, lambda: 0.0)
    assert [rank(name, "trainer") for name in "abc"] == [1, 2, 5]
    assert [rank(name, "pool") for name in "de"] == [3, 4]


class Ranks:
    """The ranks that a head gives to the nodes of a run: two of the trainer's, two of a pool."""

    def __init__(self) -> None:
        self.now = 0.0
        self.in_ray: set[str] = set()
        """The agents whose nodes are in Ray."""
        expected = Expected(None, "", "", "", ranks_of={"pool": range(3, 5)})
        self._reports = Reports(
            *(FIRST, expected, lambda _: None, lambda: self.now),
            is_in_ray=lambda key: key in self.in_ray,
        )

    def of(self, name: str, group: str = "") -> int | None:
        """Let a node report for the first time, or as another process; return its rank."""
        hello = Hello(name, group=group)
        report = Report(f"{name}@{self.now}", f"10.0.0.{ord(name)}", "joining", hello=hello)
        return anyio.run(self._reports.handle, report).rank

    def again(self, *names: str) -> list[int | None]:
        """Let nodes report again, half a minute later; return their ranks. Others are silent.

        `NAME@TIME` is the process of a node that first reported then, without it at 0.
        """
        self.now += 30.0
        keys = [name if "@" in name else f"{name}@0.0" for name in names]
        for key in self._reports.overdue():
            agent = self._reports.awaited(key)
            if agent is not None and key not in keys:
                agent.is_silent = True  # as its probe finds
        reports = [Report(key, f"10.0.0.{ord(key[0])}", "joining") for key in keys]
        return [anyio.run(self._reports.handle, report).rank for report in reports]


def test_a_replaced_node_gets_the_rank_of_the_gone_one() -> None:
    """Also if it names no group, where the trainer has all its nodes; and only once."""
    ranks = Ranks()
    assert [ranks.of(name) for name in "abcd"] == [1, 2, 3, 4]
    ranks.again("a", "b", "d")
    assert [ranks.of(name) for name in "ef"] == [3, 5]
    ranks.again("a", "d")
    assert ranks.of("g") == 6  # the trainer lacks one, too

    ranks = Ranks()
    assert [ranks.of(name, "pool") for name in "ab"] == [3, 4]
    ranks.again("b")
    assert [ranks.of(name, "pool") for name in "cd"] == [3, 5]


def test_a_spare_of_a_group_follows_a_node_that_goes() -> None:
    """With its next report, and says so; a spare that names no group stays with the trainer."""
    ranks = Ranks()
    assert [ranks.of(name, "pool") for name in "abc"] == [3, 4, 5]
    assert [ranks.of(name) for name in "de"] == [1, 2]
    assert ranks.of("f") == 6
    ranks.again("a", "d", "e", "f")
    assert ranks.again("a", "c") == [3, 4]
    assert ranks.again("a", "c") == [3, 4]
    assert ranks.of("g", "pool") == 5


@pytest.mark.parametrize("group", ["", "pool"])
def test_a_node_that_was_silent_takes_no_rank_from_another(group: str) -> None:
    """A spare or a new node has its rank: it becomes a spare until another rank is free."""
    ranks = Ranks()
    assert [ranks.of(name, "trainer") for name in "ab"] == [1, 2]
    assert [ranks.of(name, group) for name in "cd"] == [3, 4]
    ranks.again("a", "b", "d")
    assert ranks.of("e", group) == 3
    assert ranks.again("a", "b", "c", "d", "e@30.0") == [1, 2, 5, 4, 3]
    assert ranks.again("a", "b", "c", "d", "e@30.0") == [1, 2, 5, 4, 3]

    # The later holder of the rank has gone meanwhile, and comes back itself.
    ranks = Ranks()
    assert [ranks.of(name, "pool") for name in "abc"] == [3, 4, 5]
    assert ranks.again("b", "c") == [4, 3]
    assert ranks.again("b", "a") == [4, 3]
    assert ranks.again("b", "a", "c") == [4, 3, 5]


def test_after_a_pause_of_the_head_each_node_keeps_its_rank() -> None:
    """All reports are overdue then: a spare that reports first takes no rank."""
    ranks = Ranks()
    assert [ranks.of(name, "pool") for name in "abc"] == [3, 4, 5]
    assert ranks.again("c", "a", "b") == [5, 3, 4]


def test_a_node_without_a_group_that_came_too_early() -> None:
    """Its further rank is kept by its agent, and not by the next one of its node."""
    ranks = Ranks()
    assert [ranks.of(name) for name in "abcd"] == [1, 2, 3, 4]
    ranks.now = 10.0
    assert ranks.of("e") == 5
    assert ranks.again("a", "b", "c", "e@10.0") == [1, 2, 3, 5]
    ranks.now += 20.0
    ranks.again("a", "b", "c")
    assert ranks.of("e") == 4


def test_a_node_comes_back_in_another_group() -> None:
    """It gets no rank of the former one, also under its own name."""
    ranks = Ranks()
    groups = {"a": "trainer", "b": "trainer", "c": "pool", "d": "pool"}
    assert [ranks.of(*node) for node in groups.items()] == [1, 2, 3, 4]
    ranks.again("b", "c", "d")
    assert ranks.of("a", "pool") == 5
    ranks.again("b", "d")
    assert ranks.of("c", "trainer") == 6

    ranks = Ranks()
    assert [ranks.of(*node) for node in groups.items()] == [1, 2, 3, 4]
    ranks.again("a", "b", "d")
    assert ranks.of("c", "trainer") == 5
    assert ranks.of("e", "pool") == 3


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


def test_a_silent_node_that_is_in_ray_keeps_its_rank() -> None:
    """What the job has there goes on: a spare takes its rank once Ray has dropped it, too."""
    ranks = Ranks()
    assert [ranks.of(name, "pool") for name in "abc"] == [3, 4, 5]
    ranks.in_ray = {"a@0.0", "b@0.0"}
    assert ranks.again("b", "c") == [4, 5]
    assert ranks.again("b", "c") == [4, 5]
    ranks.in_ray = {"b@0.0"}
    assert ranks.again("b", "c") == [4, 3]
