"""Silent workers: found by their connection, probed once, and named with the evidence."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import anyio
import pytest
from aiohttp import web
from msgspec.structs import replace

from agent.base.ports import port_map
from agent.bridge.child import enable_keepalive
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import NodeState
from agent.decisions.stall import Stalled
from agent.port.client import KeepaliveConnector
from agent.port.node_network import bind
from agent.processes.waiting import NotYet, until
from agent.run.silent_nodes import watch_silent_workers
from support.groups import UP, a_goal, left, says
from support.heads import (
    PAIR,
    RAY_UP,
    TICK,
    History,
    StopJob,
    Trace,
    goal,
    job,
    nodes,
    reported,
)
from support.histories import PAIR_RUNS, Case, Logged, Row, play
from support.report_histories import BYE, LATE, POD1, CountingHead

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable, Coroutine

SILENT = h.WorkerSilent("agent2", "connection refused by 10.0.0.2:8266", ray_answers=False)
AGENT_ONLY = replace(SILENT, ray_answers=True)
WAITS = replace(POD1, ip="127.0.0.1", items=(RAY_UP,), news=0, hold=LATE)


def state_of(trace: Trace) -> NodeState:
    """Return the second node's state."""
    worker = trace.state.fleet.workers["agent2"]
    return worker.state(counts=worker.ip in trace.state.fleet.alive)


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ([(1, reported(2, "joining Ray", joined=False))], NodeState.BOOTING),
        ([(1, reported(2, "joining Ray", joined=False)), (2, SILENT)], NodeState.SILENT),
        (PAIR, NodeState.JOINED),
        ([*PAIR, (9, AGENT_ONLY)], NodeState.SILENT),
        ([*PAIR, (9, SILENT)], NodeState.LOST),
        ([*PAIR, (9, nodes(dead=(2,)))], NodeState.LOST),
        ([*PAIR, (9, SILENT), (12, reported(2))], NodeState.JOINED),
        ([*PAIR, (9, reported(2, has_left=True))], NodeState.LEFT),
        ([*PAIR, (9, reported(2, has_left=True)), (10, SILENT)], NodeState.LEFT),
    ],
)
def test_how_a_node_stands(history: History, state: NodeState) -> None:
    """One state per node, as in the status."""
    assert state_of(Trace(goal(1), history)) is state


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ([(3.0, says(2, "pending", "pending"))], NodeState.JOINED),
        ([(3.0, says(2, "ready", "ready"))], NodeState.JOINED),
        ([(3.0, says(2, "ready", "ready")), (9, AGENT_ONLY)], NodeState.SILENT),
        ([(3.0, left(2))], NodeState.LEFT),
    ],
)
def test_how_a_node_of_a_group_stands(history: History, state: NodeState) -> None:
    """It joins no Ray, and is part of the run as soon as it reports; its members have states."""
    assert state_of(Trace(a_goal(), [*UP, *history])) is state


def test_the_silence_of_a_node_without_ray_names_none() -> None:
    """It is of a group that joins no Ray."""
    trace = Trace(a_goal(), [*UP, (3.0, says(2, "ready", "ready")), (9, SILENT)])
    assert trace.log.splitlines()[-1].endswith(f"pod2) is silent, {SILENT.evidence}")


def test_a_dead_node_does_not_count_for_its_successor() -> None:
    """GCS lists it for a while: only another Ray node ID proves that the new one has joined."""
    again = h.WorkerReported(replace(reported(2).worker, key="another"))
    boots = h.WorkerReported(replace(again.worker, items=()))
    trace = Trace(goal(1), [*PAIR, (9, SILENT), (10, boots), (10, h.WorkerReplaced("agent2"))])
    trace.take(again, 12)
    trace.take(nodes(2), 13)
    assert trace.state.fleet.alive == {}
    head, old = nodes(2).nodes
    new = replace(old, node_id="new")
    trace.take(h.RaySeen((head, old, new)), 14)
    assert trace.state.fleet.alive == {"10.0.0.2": "pod2"}
    trace.take(h.RaySeen((head, replace(old, alive=False), new)), 15)
    assert trace.state.fleet.alive == {"10.0.0.2": "pod2"}
    assert trace.state.fleet.dead_node_ids == frozenset()


def test_who_was_only_cut_off_counts_with_the_same_node() -> None:
    """Its agent reports again, and its Ray never stopped."""
    trace = Trace(goal(1), [*PAIR, (9, SILENT), (10, nodes(2)), (12, reported(2)), (13, nodes(2))])
    assert trace.state.fleet.alive == {"10.0.0.2": "pod2"}


QUIET = "the job shows no sign of work for 30 min"
STALLED = Stalled(
    1, QUIET, "rank 1 on pod2 is in `load` (data.py:7)", "lost", cause_key="quiet: load data.py"
)
WHY = f"{QUIET} (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7)"
SINCE = f"{QUIET} since the loss of pod2 (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7)"
CAME_BACK: list[Row] = [*PAIR_RUNS, (9, SILENT), (30, reported(2)), (31, job("RUNNING"))]
UNUSED = "pod3 is one more than the running attempt needs: unused until another"

FELL = "the mean reward fell from 0.6 to 0 in one step, at step 41: the judge did not answer"
WITHOUT_REWARD = Stalled(1, FELL, then="retry", setting="AGENT_ON_STALL", is_without_reward=True)

SILENCES: dict[str, Case] = {
    "rewards that are lost as a service fails cost the attempt": [
        goal(1),
        *PAIR_RUNS,
        (9, WITHOUT_REWARD, "stop run-1"),
        (10, job("STOPPED"), f"end 75: {FELL} (AGENT_ON_STALL)"),
        Logged(f"{FELL} (AGENT_ON_STALL): stopping the job"),
    ],
    # Its grace counts from there, although GCS still lists it; a report ends it
    "a lost worker is named before GCS misses it": [
        goal(1),
        *PAIR_RUNS,
        (9, SILENT),
        (9.5, nodes(2)),
        (20, reported(2)),
        (69, TICK),
        Logged("pod2 is silent, connection refused by 10.0.0.2:8266; nor does its Ray"),
        Logged("pod2 left Ray"),
        Logged("the job is stopped unless it is back within 60 s"),
        Logged("all needed nodes are back"),
    ],
    "a node that GCS loses while its agent reports is named": [
        goal(1),
        *PAIR_RUNS,
        (9, nodes(dead=(2,))),
        Logged("pod2 left Ray"),
    ],
    "a worker that lost only its agent still serves: no node is missing": [
        goal(1),
        *PAIR_RUNS,
        (9, AGENT_ONLY),
        (100, job("RUNNING")),
        (200, job("RUNNING")),
        Logged("its Ray still answers"),
    ],
    "a worker that stays away costs the attempt": [
        goal(1),
        *PAIR_RUNS,
        (9, SILENT),
        (68.9, TICK),
        (69, TICK, "stop run-1"),
        (70, job("STOPPED"), "end 75: …pod2 …silent since: connection refused…"),
    ],
    # What is out of reach has ended the first attempt by then
    "a spare joins the next attempt, and is unused until then": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (8, reported(3)),
        (8, nodes(2, 3)),
        (9, SILENT),
        (10, job("FAILED", 1), "start Ray, generation 2"),
        (19, nodes(3)),
        (68.9, TICK),
        (69, TICK, "submit run-2"),
        Logged(UNUSED),
        Logged("attempt 2 of 2: lost a needed node (pod2; "),
        Logged("; 2 of 2 node(s)"),
    ],
    # As many are there as the job needs, and it hangs without the one that it had
    "a spare that was there before does not stand in": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (8, reported(3)),
        (8, nodes(2, 3)),
        (9, SILENT),
        (68, nodes(3)),
        (69, TICK, "stop run-1"),
        (70, job("STOPPED"), "start Ray, generation 2"),
        Logged(UNUSED),
        Logged("attempt 1 of 2 is lost: lost a needed node (pod2; "),
    ],
    "a spare that comes later does not stand in": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (9, SILENT),
        (12, reported(3)),
        (12, nodes(2, 3)),
        (68, nodes(3)),
        (69, TICK, "stop run-1"),
        (70, job("STOPPED"), "start Ray, generation 2"),
        Logged(UNUSED),
        Logged("attempt 1 of 2 is lost: lost a needed node (…pod2 …"),
    ],
}

STALLS: dict[str, Case] = {
    # The node came back in time, and its actors did not
    "a stall after a loss is that loss": [
        goal(1, retries=1),
        *CAME_BACK,
        (130, STALLED, "stop run-1"),
        (135, job("STOPPED"), "start Ray, generation 2"),
        Logged(f"{SINCE}: stopping the job"),
    ],
    "a stall after a loss, and no retry is left": [
        goal(1),
        *CAME_BACK,
        (130, STALLED, "stop run-1"),
        (135, job("STOPPED"), f"end 75: {SINCE}"),
    ],
    "a stall ends nothing where no node was lost": [goal(1, retries=1), *PAIR_RUNS, (41, STALLED)],
    "a stall of another attempt ends nothing": [
        goal(1, retries=1),
        *CAME_BACK,
        (41, replace(STALLED, attempt=2)),
    ],
    "a stall of another attempt ends nothing, whatever is to follow": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (41, replace(STALLED, attempt=2, then="stop")),
    ],
    "a stall that is only logged ends nothing": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (41, replace(STALLED, then="log")),
    ],
    "a stall that is to be retried is a loss": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (40, replace(STALLED, then="retry"), "stop run-1"),
        (45, job("STOPPED"), "start Ray, generation 2"),
        Logged(f"attempt 1 of 2 is lost: {WHY}"),
    ],
    "a stall that is to be retried, and no retry is left": [
        goal(1),
        *PAIR_RUNS,
        (40, replace(STALLED, then="retry"), "stop run-1"),
        (45, job("STOPPED"), f"end 75: {WHY}"),
    ],
    "AGENT_ON_STALL=stop ends the run, whatever retries are left": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (40, replace(STALLED, then="stop"), "stop run-1"),
        (45, job("STOPPED"), f"end 75: {WHY}"),
    ],
    "a job that succeeds before its stop was not stalled": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (40, replace(STALLED, then="stop"), "stop run-1"),
        (41, job("SUCCEEDED", 0), "end 0: the job succeeded"),
    ],
}


@pytest.mark.parametrize("case", (rows := SILENCES | STALLS).values(), ids=rows)
def test_what_follows_from_silence_and_stalls(case: Case) -> None:
    """A node that stays away costs the attempt, and so may a job without progress."""
    play(case)


def test_a_stall_is_saved_before_the_job_is_stopped() -> None:
    """The next agent goes on with the stop."""
    trace = Trace(goal(1, retries=1), [*PAIR, (40, replace(STALLED, then="retry"))])
    *before, stop = trace.actions
    assert stop == StopJob("run-1")
    saved = next(action for action in reversed(before) if isinstance(action, h.Persist))
    assert saved.must_be_on_disk
    assert saved.durable.stop is not None
    assert saved.durable.stop.outcome.reason == WHY
    assert saved.durable.attempt.stall_key == STALLED.cause_key


def test_the_end_by_a_stall_holds_the_pod_and_names_the_stacks() -> None:
    """A person has to look at them."""
    history: History = [*PAIR, (40, replace(STALLED, then="stop")), (45, job("STOPPED"))]
    (end,) = Trace(goal(1), history).outcomes
    assert (end.exit_code, end.culprit, end.holds_pod) == (75, "job", True)
    assert end.remedy == (
        "All stacks are in stacks-1.log in the head's run folder. Remove the cause and run again; "
        "the job resumes from its newest checkpoint, if it has one"
    )


def test_the_setting_of_a_stall_is_in_its_parenthesis() -> None:
    """The sentence has one parenthesis, and names the setting whose limit is over."""
    what = "the job has made no step for 12 min since step 41"
    event = replace(
        STALLED, what=what, usual="usually 3 min", then="stop", setting="AGENT_FIRST_STEP"
    )
    trace = Trace(goal(1), [*PAIR, (40, event)])
    trace.take(job("STOPPED"), 45)
    (end,) = trace.outcomes
    reason = f"{what} (usually 3 min, AGENT_FIRST_STEP): rank 1 on pod2 "
    assert end.reason.startswith(reason)
    assert end.plain == f"{what} (usually 3 min, AGENT_FIRST_STEP)"


# --- how it is noticed -------------------------------------------------------------------------


def watched(
    counter: CountingHead, port: int
) -> tuple[Callable[[], Coroutine[None, None, None]], list[h.WorkerSilent]]:
    """Return a watch of agents at a port, and its events."""
    silent: list[h.WorkerSilent] = []
    ports = replace(port_map(None, None, None), agent=port, node_manager=port)
    return partial(watch_silent_workers, counter.reports, ports, silent.append), silent


async def until_told(silent: list[h.WorkerSilent]) -> None:
    """Wait for a word."""

    async def look() -> bool | NotYet:
        return True if silent else NotYet()

    await until(look, 8.0, longest=0.05)


def closed_port() -> int:
    """Return a closed port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_broken_connection_is_followed_by_one_question() -> None:
    """An agent whose held report broke off, and which does not answer, has fallen silent."""
    counter = CountingHead()
    watch, silent = watched(counter, closed_port())

    async def trace() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            with anyio.move_on_after(0.1):  # as aiohttp does where the peer is gone
                await counter.reports.handle(WAITS)
            await until_told(silent)
            tasks.cancel_scope.cancel()

    anyio.run(trace)
    assert [(one.key, one.ray_answers) for one in silent] == [("agent1", False)]
    assert "refused" in silent[0].evidence


def test_who_calls_again_at_once_is_not_asked() -> None:
    """An agent also breaks off a held report to send a newer one."""
    counter = CountingHead()
    watch, silent = watched(counter, closed_port())

    async def trace() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            with anyio.move_on_after(0.1):
                await counter.reports.handle(WAITS)
            await anyio.sleep(0.1)
            with anyio.move_on_after(1.5):
                await counter.reports.handle(replace(WAITS, hello=None))
            tasks.cancel_scope.cancel()

    anyio.run(trace)
    assert silent == []


def test_an_agent_is_asked_again_where_a_packet_is_lost() -> None:
    """Its first connection is never answered; the next one is, and it has not fallen silent."""
    counter, calls = CountingHead(), 0
    listener = bind("127.0.0.1", 0)

    async def livez(_request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls == 1:
            await anyio.sleep_forever()
        return web.Response()

    async def trace() -> None:
        app = web.Application()
        app.add_routes([web.get("/livez", livez)])
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        watch, silent = watched(counter, listener.getsockname()[1])

        async def asked_again() -> bool | NotYet:
            return True if calls > 1 else NotYet()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            with anyio.move_on_after(0.1):
                await counter.reports.handle(WAITS)
            await until(asked_again, 20.0, longest=0.05)
            await anyio.sleep(2.5)  # longer than silence would be listened to
            tasks.cancel_scope.cancel()
        await runner.cleanup()
        assert silent == []

    anyio.run(trace)
    assert calls == 2


def test_who_is_overdue() -> None:
    """Neither for held reports, nor for workers that left or were already reported."""
    counter = CountingHead()
    counter.take(replace(WAITS, hold=0.0))
    assert counter.reports.overdue() == []
    counter.now += 16
    assert counter.reports.overdue() == ["agent1"]
    agent = counter.reports.awaited("agent1")
    assert agent is not None
    agent.is_silent = True
    assert counter.reports.overdue() == []
    assert counter.reports.awaited("agent1") is None
    counter.take(replace(WAITS, hold=0.0, hello=None))
    counter.now += 16
    assert counter.reports.overdue() == ["agent1"]
    counter.take(replace(WAITS, hold=0.0, hello=None, bye=BYE))
    counter.now += 16
    assert (counter.reports.overdue(), counter.reports.awaited("agent1")) == ([], None)


def _asks(connection: TransportSocket | socket.socket) -> tuple[list[int], int]:
    """Return how the kernel looks after a connection, and after how many ms it gives up."""
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    found = [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    return found, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_the_kernel_probes_a_silent_connection() -> None:
    """A connection that the agent's port takes is dropped within 3 s of its peer's loss."""
    listener = bind("127.0.0.1", 0)
    listener.setblocking(True)  # noqa: FBT003 - the socket module's own signature
    with listener, socket.create_connection(listener.getsockname()):
        taken, _ = listener.accept()
        with taken:
            assert _asks(taken) == ([1, 1, 2], 3000)


def test_the_kernel_asks_on_a_workers_side_too() -> None:
    """A worker's own connection to its head, on which an answer is awaited, breaks as soon."""
    listener = bind("127.0.0.1", 0)

    async def begin(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await anyio.sleep_forever()
        return answer

    async def trace() -> tuple[list[int], int]:
        app = web.Application()
        app.add_routes([web.get("/", begin)])
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with (
            aiohttp.ClientSession(connector=KeepaliveConnector()) as session,
            session.get(url) as answer,
        ):
            assert answer.connection is not None
            transport = answer.connection.transport
            assert transport is not None
            found = _asks(transport.get_extra_info("socket"))
        await runner.cleanup()
        return found

    assert anyio.run(trace) == ([1, 1, 2], 3000)


def test_what_is_no_tcp_is_left_alone() -> None:
    """The bridge's hook sees every connection of its process."""
    with (
        socket.socket(socket.AF_INET) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        for one in (tcp, udp):
            enable_keepalive("socket.connect", (one, ("127.0.0.1", 9)))
        assert _asks(tcp) == ([10, 10, 2], 30000)
        enable_keepalive("open", ("file",))
