"""Lost and silent nodes: how they are noticed, how they stand, and what follows for the job."""

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
from agent.decisions.head.fleet import Fleet, RayNode
from agent.decisions.stall import Stalled
from agent.port.client import KeepaliveConnector
from agent.port.node_network import bind
from agent.processes.waiting import NotYet, until
from agent.run.silent_nodes import probe_nodes, watch_silent_workers
from support.event_words import cases
from support.groups import a_goal, left, says
from support.heads import HEAD, NODES, RAY_UP, StopJob, Trace, goal, reported
from support.histories import Case, head_after, play
from support.report_histories import BYE, LATE, POD1, CountingHead

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable, Coroutine

QUIET = "the job shows no sign of work for 30 min"
STALLED = Stalled(
    1, QUIET, "rank 1 on pod2 is in `load` (data.py:7)", "lost", cause_key="quiet: load data.py"
)
FELL = "the mean reward fell from 0.6 to 0 in one step, at step 41: the judge did not answer"
NEW = RayNode("id2b", NODES[2].ip)
BARE = {n: replace(NODES[n], gpus=0.0) for n in (2, 3)}
OTHER = replace(reported(2).worker, key="another")
WORDS = {
    "group": a_goal(),
    "sized": replace(goal(1, retries=1), is_sized_to_nodes=True),
    "came back": "pair | 9 pod2 silent: refused | 30 pod2 joined | 31 job RUNNING",
    # Node 3 is one more than is needed; Ray misses it 15 s later
    "spare is cut": "1 pod3 joined | 1.5 pod3 silent: timed out | 1.7 nodes 2 3 | 2 pod2 joined",
    "three": (
        "2 pod2 joined | 2 pod3 joined | 3 nodes 2 3 -> submit run-1 | 5 accepted | 6 job RUNNING"
    ),
    "nodes 2 3, 3 without GPUs": h.RaySeen((HEAD, NODES[2], BARE[3])),
    "nodes 3 without GPUs": h.RaySeen((HEAD, BARE[3])),
    "nodes 2 3 without GPUs": h.RaySeen((HEAD, *BARE.values())),
    "nodes 2 without GPUs": h.RaySeen((HEAD, BARE[2])),
    "nodes with two Rays of pod2": h.RaySeen((HEAD, NODES[2], NEW)),
    "nodes with the later Ray of pod2": h.RaySeen((HEAD, NEW)),
    "nodes, its old Ray dead": h.RaySeen((HEAD, replace(NODES[2], alive=False), NEW)),
    "another agent of pod2": h.WorkerReported(replace(OTHER, items=())),
    "another agent of pod2 joined": h.WorkerReported(OTHER),
    "pod2 leaves": left(2),
    "pod2 loads": says(2, "pending", "pending"),
    "pod2 works": says(2, "ready", "ready"),
    "rewards are lost": Stalled(
        1, FELL, then="retry", setting="AGENT_ON_STALL", is_without_reward=True
    ),
    "stalled": STALLED,
    "stalled of attempt 2": replace(STALLED, attempt=2),
    "stalled of attempt 2, to stop": replace(STALLED, attempt=2, then="stop"),
    "stalled, to log": replace(STALLED, then="log"),
    "stalled, to retry": replace(STALLED, then="retry"),
    "stalled, to stop": replace(STALLED, then="stop"),
}

STATES = cases(
    """\
a node that boots [1 worker]
    1 pod2 reports | stands booting | 2 pod2 silent: refused | stands silent
a node that has joined [1 worker]
    pair | stands joined | 9 nodes dead 2 | stands lost
a node whose agent alone is silent [1 worker]
    pair | 9 pod2 silent, its Ray answers: refused | stands silent
a node that is silent [1 worker]
    pair | 9 pod2 silent: refused | stands lost | 12 pod2 joined | stands joined
a node that has left [1 worker]
    pair | 9 pod2 joined, has left | stands left | 10 pod2 silent: refused | stands left
# It joins no Ray, and is part of the run as soon as it reports; its members have states
a node of a group [group]
    1 Ray opens | 2 nodes | 3 pod2 loads -> start engine.0 on agent2 & start engine.1 on agent2
    stands joined | 3.5 pod2 works | stands joined | 9 pod2 silent, its Ray answers: refused
    stands silent
a node of a group that leaves [group]
    1 Ray opens | 2 nodes | 3 pod2 leaves | stands left
the silence of a node without Ray names none [group]
    1 Ray opens | 2 nodes | 3 pod2 works -> start engine.0 on agent2 & start engine.1 on agent2
    9 pod2 silent: refused | once pod2) is silent, refused | not logged its Ray
    not logged nor does
a silence is logged once, and again only if the sources report something else [1 worker]
    pair | 9 pod2 silent: no answer | 10 pod2 silent: no answer | 11 pod2 silent: no answer
    once pod2 is silent, no answer; nor does its Ray answer | not logged its Ray still answers
    12 pod2 silent, its Ray answers: no answer
    once pod2 is silent, no answer; its Ray still answers
# GCS lists it for a while: only another Ray node ID proves that the new one has joined
a dead node does not count for its successor [1 worker]
    pair | 9 pod2 silent: refused | 10 another agent of pod2 | 10 pod2 replaced
    12 another agent of pod2 joined | 13 nodes 2 | alive nothing | 14 nodes with two Rays of pod2
    alive pod2 | 15 nodes, its old Ray dead | alive pod2
# Its Ray never stopped
a node that was only cut off counts with the same node [1 worker]
    pair | 9 pod2 silent: refused | 10 nodes 2 | 12 pod2 joined | 13 nodes 2 | alive pod2
""",
    WORDS,
)
SILENCES = cases(
    """\
rewards that are lost as a service fails cost the attempt [1 worker]
    pair | 9 rewards are lost -> stop run-1
    10 job STOPPED -> end 75: …the judge did not answer (AGENT_ON_STALL)
    log the judge did not answer (AGENT_ON_STALL): stopping the job
# Its grace counts from there, although GCS still lists it; a report ends it
a lost worker is named before GCS misses it [1 worker]
    pair | 9 pod2 silent: refused | 9.5 nodes 2 | 20 pod2 joined | 69 tick
    log pod2 is silent, refused; nor does its Ray | log pod2 left Ray
    log the job is stopped unless it is back within 60 s | log all needed nodes are back
a node that GCS loses while its agent reports is named [1 worker]
    pair | 9 nodes dead 2 | log pod2 left Ray
a worker that lost only its agent still serves: no node is missing [1 worker]
    pair | 9 pod2 silent, its Ray answers: refused | 100 job RUNNING | 200 job RUNNING
    log its Ray still answers
a worker that stays away costs the attempt [1 worker]
    pair | 9 pod2 silent: refused | 68.9 tick | 69 tick -> stop run-1
    70 job STOPPED -> end 75: …pod2 …silent since: refused…
# What is out of reach has ended the first attempt by then
a spare joins the next attempt, and is unused until then [1 worker, 1 retry]
    pair | 8 pod3 joined | 8 nodes 2 3 | 9 pod2 silent: refused
    10 job FAILED 1 -> start Ray, generation 2 | 19 nodes 3 | 68.9 tick | 69 tick -> submit run-2
    log pod3 is one more than the running attempt needs: unused until another
    log attempt 2 of 2: lost a needed node (pod2; | log ; 2 of 2 node(s)
# As many are there as the job needs, and it hangs without the one that it had
a spare that was there before does not stand in [1 worker, 1 retry]
    pair | 8 pod3 joined | 8 nodes 2 3 | 9 pod2 silent: refused | 68 nodes 3 | 69 tick -> stop run-1
    70 job STOPPED -> start Ray, generation 2
    log pod3 is one more than the running attempt needs: unused until another
    log attempt 1 of 2 is lost: lost a needed node (pod2;
a spare that comes later does not stand in [1 worker, 1 retry]
    pair | 9 pod2 silent: refused | 12 pod3 joined | 12 nodes 2 3 | 68 nodes 3
    69 tick -> stop run-1 | 70 job STOPPED -> start Ray, generation 2
    log pod3 is one more than the running attempt needs: unused until another
    log attempt 1 of 2 is lost: lost a needed node (…pod2 …
""",
    WORDS,
)
STALLS = cases(
    """\
# The node came back in time, and its actors did not
a stall after a loss is that loss [1 worker, 1 retry]
    came back | 130 stalled -> stop run-1 | 135 job STOPPED -> start Ray, generation 2
    log … since the loss of pod2 (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7): stopping
        the job
a stall after a loss, and no retry is left [1 worker]
    came back | 130 stalled -> stop run-1
    135 job STOPPED
        -> end 75: … since the loss of pod2 (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7)
a stall ends nothing where no node was lost [1 worker, 1 retry]
    pair | 41 stalled
a stall of another attempt ends nothing [1 worker, 1 retry]
    came back | 41 stalled of attempt 2
a stall of another attempt ends nothing, whatever is to follow [1 worker, 1 retry]
    pair | 41 stalled of attempt 2, to stop
a stall that is only logged ends nothing [1 worker, 1 retry]
    pair | 41 stalled, to log
a stall that is to be retried is a loss [1 worker, 1 retry]
    pair | 40 stalled, to retry -> stop run-1 | 45 job STOPPED -> start Ray, generation 2
    log attempt 1 of 2 is lost: … (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7)
a stall that is to be retried, and no retry is left [1 worker]
    pair | 40 stalled, to retry -> stop run-1
    45 job STOPPED -> end 75: … (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7)
AGENT_ON_STALL=stop ends the run, whatever retries are left [1 worker, 1 retry]
    pair | 40 stalled, to stop -> stop run-1
    45 job STOPPED -> end 75: … (AGENT_STALL): rank 1 on pod2 is in `load` (data.py:7)
a job that succeeds before its stop was not stalled [1 worker, 1 retry]
    pair | 40 stalled, to stop -> stop run-1 | 41 job SUCCEEDED 0 -> end 0: the job succeeded
""",
    WORDS,
)
# Nodes that Ray lists though they are dead: no job begins on them, and none goes unnoticed
DEAD_NODES = cases(
    """\
# Ray would start parts of the job there: it would fail, or hang without a loss
no job is submitted before Ray has dropped a dead node [1 worker]
    spare is cut | waits waiting for Ray to drop pod3, Ray lists it, and … (75 s left)
    17 nodes 2, dead 3 -> submit run-1
a node whose agent said goodbye [1 worker]
    1 pod3 reports, has left | 1.5 nodes 2 3 | 2 pod2 joined | 3 nodes 2 -> submit run-1
a node whose Ray is started again [1 worker]
    1 pod3 reports | 1.5 nodes 2 3 | 2 pod2 joined | 3 nodes 2 -> submit run-1
# An agent runs one Ray: of two at its address, one is dead
a former Ray of a node that is back [1 worker]
    1 pod2 joined | 2 nodes with two Rays of pod2
    9 nodes with the later Ray of pod2 -> submit run-1
two Rays by hand are two nodes [1 worker]
    1 nodes with two Rays of pod2 -> submit run-1
# After as long as GCS may take to report a loss the job begins; the loss counts then
a node that Ray never drops ends no run [1 worker, 1 retry]
    spare is cut | 76.7 tick -> submit run-1 | 80 accepted | 90 nodes 2, dead 3
    95 job FAILED 1 -> start Ray, generation 2 | log attempt 1 of 2 is lost: …pod3
nothing begins on it without a job [1 worker, no job]
    spare is cut | waits nothing
# Ray uses any node that joins
a listed node that goes is a loss, though nobody counted it [1 retry]
    alone | 6 pod2 joined | 7 nodes 2 | 8 nodes dead 2 | 20 job FAILED 1 -> start Ray, generation 2
    log attempt 1 of 2 is lost: …pod2 was lost
it is, though its agent has not reported that it joined [1 retry]
    alone | 6 pod2 reports | 7 nodes 2 | 8 nodes dead 2 | 20 job FAILED 1 -> start Ray, generation 2
    log attempt 1 of 2 is lost: …pod2 was lost
# The job's processes on its former Ray are gone
a node that is back before Ray missed it is a loss [1 worker, 1 retry]
    1 nodes 2 -> submit run-1 | 5 accepted | 6 pod2 joined | 8 nodes with two Rays of pod2
    lost nothing | 20 nodes with the later Ray of pod2 | lost pod2 | phase running
of two Rays by hand the loss of one is none [1 worker, 1 retry]
    1 nodes 2 -> submit run-1 | 5 accepted | 8 nodes with two Rays of pod2
    20 nodes with the later Ray of pod2 | lost nothing | phase running
# It is back on another Ray since; what fails later is the job's own
a loss that counted does not count again when Ray misses it [1 worker, 1 retry]
    1 nodes 2 -> submit run-1 | 1.5 pod2 joined | 5 accepted | 100 pod2 reports
    103 nodes with two Rays of pod2 | 103.5 pod2 joined | 115 nodes with the later Ray of pod2
    170 job FAILED 1 -> ask the nodes
    185 tick -> end 1: the job failed with exit code 1; before that, lost a needed node…
nor if it was cut off [1 worker, 1 retry]
    1 nodes 2 -> submit run-1 | 1.5 pod2 joined | 5 accepted | 100 pod2 silent: timed out
    100 pod2 reports | 103 nodes with two Rays of pod2 | 103.5 pod2 joined
    115 nodes with the later Ray of pod2 | 170 job FAILED 1 -> ask the nodes
    185 tick -> end 1: the job failed with exit code 1; before that, lost a needed node…
""",
    WORDS,
)
# The workers that an attempt requires are those that it is sized for
REQUIRED = cases(
    """\
# More than expected: one of them is lost for good, and the job does not hang
a sized attempt requires each worker that it counts [sized]
    three | 9 nodes 2, dead 3 | log lost a needed node (1 of 2 joined; pod3 last reported
    68 job RUNNING | 69 nodes 2 -> stop run-1 | 70 job STOPPED -> start Ray, generation 2
    log attempt 1 of 2 is lost: lost a needed node (1 of 2 | 75 nodes 2 | 75 pod2 joined | 79.9 tick
    129 tick -> submit run-2
more workers than a command without a size needs are spares [1 worker]
    three | 9 nodes 2, dead 3 | phase running | short nothing
# If any node has GPUs, a worker outside the size is a spare
a node without GPUs is no part of a size in GPUs [sized]
    2 pod2 joined | 2 pod3 joined | 3 nodes 2 3, 3 without GPUs -> submit run-1 | 5 accepted
    6 job RUNNING | 9 nodes 2 | short nothing
a node with GPUs is [sized]
    2 pod2 joined | 2 pod3 joined | 3 nodes 2 3, 3 without GPUs -> submit run-1 | 5 accepted
    6 job RUNNING | 9 nodes 3 without GPUs | short since 9
# No spare can be distinguished from them
as many as were expected are required whatever they have [sized]
    2 pod2 joined | 2 pod3 joined | 3 nodes 2 3 without GPUs -> submit run-1 | 5 accepted
    9 nodes 2 without GPUs | short since 9
""",
    WORDS,
)


@pytest.mark.parametrize(
    "case", (rows := STATES | SILENCES | STALLS | DEAD_NODES | REQUIRED).values(), ids=rows
)
def test_histories(case: Case) -> None:
    """A node that stays away costs the attempt, and so may a job without progress."""
    play(case)


def test_a_stall_is_saved_before_the_job_is_stopped() -> None:
    """The next agent goes on with the stop."""
    trace = head_after(goal(1, retries=1), "pair", (40, WORDS["stalled, to retry"]))
    *before, stop = trace.actions
    assert stop == StopJob("run-1")
    saved = next(action for action in reversed(before) if isinstance(action, h.Persist))
    assert saved.must_be_on_disk
    assert saved.durable.stop is not None
    assert saved.durable.stop.outcome.reason == f"{QUIET} (AGENT_STALL): {STALLED.suspects}"
    assert saved.durable.attempt.stall_key == STALLED.cause_key


def test_the_end_by_a_stall_holds_the_pod_and_names_the_stacks() -> None:
    """A person has to look at them."""
    trace = head_after(goal(1), "pair", (40, WORDS["stalled, to stop"]), "45 job STOPPED")
    (end,) = trace.outcomes
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
    (end,) = head_after(goal(1), "pair", (40, event), "45 job STOPPED").outcomes
    assert end.reason.startswith(f"{what} (usually 3 min, AGENT_FIRST_STEP): rank 1 on pod2 ")
    assert end.plain == f"{what} (usually 3 min, AGENT_FIRST_STEP)"


def test_who_ends_before_the_heads_pod() -> None:
    """All agents that answer, but those that are held until their cluster is deleted."""
    trace = Trace(goal(3), [(1.0, reported(n)) for n in (2, 3, 4)])
    trace.take(reported(5, refused="another Ray"), 2.0)
    fleet = trace.state.fleet
    assert [worker.name for worker in fleet.ending_before_head(())] == ["pod2", "pod3", "pod4"]
    assert [worker.name for worker in fleet.ending_before_head({"agent2", "agent4"})] == ["pod3"]


# --- how it is noticed -------------------------------------------------------------------------


WAITS = replace(POD1, ip="127.0.0.1", items=(RAY_UP,), news=0, hold=LATE)


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


def test_a_raylet_that_does_not_answer_is_named() -> None:
    """Of nodes at the ports that GCS lists; all raylets at one address must answer."""
    with socket.create_server(("127.0.0.1", 0)) as lives, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen
        open_port, closed = lives.getsockname()[1], dead.getsockname()[1]
        for ip in ("localhost", "127.0.0.1"):
            one = RayNode("a", "127.0.0.1", port=open_port)
            other = RayNode("b", ip, port=closed)
            asked = anyio.run(probe_nodes, "run-1", Fleet().with_ray_nodes((one, other)))
            assert list(asked.silent) == [ip]
            assert "refused" in asked.silent[ip]
