"""The place of an agent: its address and its rank; refused agents and spares change no run."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.attempts import Attempt
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import Worker
from agent.decisions.shared import RAY, ItemReport, Step
from agent.decisions.worker.worker_state import HeadSpoke
from agent.job.services import Where
from agent.port.protocol import Applied, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from support import report_histories as histories
from support.agent_ports import JSON, served_port
from support.heads import (
    PREPARED,
    RAY_UP,
    RETRIEVER,
    RETRIEVER_SPEC,
    SUBMITTED,
    TICK,
    SaveJob,
    StopJob,
    Trace,
    goal,
    job,
    nodes,
    ready,
    reported,
)
from support.linked_worker import Link
from support.report_histories import BYE, FIRST, HELLO, CountingHead
from support.served import ask
from support.shares import by_torchrun

POD1 = replace(histories.POD1, phase="following the head", items=(RAY_UP,))
EVIL = replace(POD1, id="evil", ip="10.6.6.6", items=())


async def follow(head: CountingHead, count: int = 99) -> None:
    """Report as a registered agent does: again after each reply."""
    applied = Applied()
    for _ in range(count):
        held = replace(POD1, hello=None, applied=applied, hold=10.0)
        held = replace(held, news=head.reports._reply.news)  # noqa: SLF001 - as the client has it
        wanted = (await head.reports.handle(held)).wanted
        if wanted is not None:
            applied = Applied(wanted.by, wanted.revision)


async def following(head: CountingHead, *reports: Report) -> list[Reply]:
    """Return the replies to reports, while agent1 goes on reporting; then its connection breaks."""
    await head.reports.handle(POD1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, head)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            replies = [await head.reports.handle(report) for report in reports]
        tasks.cancel_scope.cancel()
    return replies


@pytest.mark.parametrize(
    "evil",
    [
        replace(EVIL, ip="10.0.0.2", hello=replace(HELLO, name="evil", rank=7)),
        replace(EVIL, ip="10.0.0.2", bye=BYE),
        EVIL,
        replace(EVIL, bye=BYE, hello=replace(HELLO, name="evil")),
    ],
)
def test_an_address_and_a_rank_keep_their_agent(evil: Report) -> None:
    """A later agent with the address or rank of one that reports is refused."""
    head = CountingHead()
    (reply,) = anyio.run(following, head, evil)
    assert "pod1 (10.0.0.2) still reports; end one of the two; if this one is of" in reply.refusal
    assert {(worker.key, worker.items) for worker in head.received} == {("agent1", (RAY_UP,))}
    assert head.replaced == []


def test_a_refused_agent_takes_no_address() -> None:
    """An agent of another version keeps a real worker's agent where it is, its goodbye as well."""
    head = CountingHead()
    old = replace(EVIL, ip="10.0.0.2", hello=replace(HELLO, ray="2.50.0"))
    first, _ = anyio.run(following, head, old, replace(old, hello=None, bye=BYE))
    assert "version mismatch" in first.refusal
    assert head.replaced == []


def test_a_successor_on_the_same_node() -> None:
    """An agent whose connection broke is replaced at once."""
    head = CountingHead()

    async def scenario() -> None:
        await following(head)
        with anyio.fail_after(times.RECONNECT + 1):
            reply = await head.reports.handle(replace(POD1, id="agent2"))
        assert (reply.refusal, reply.wants_hello) == ("", False)

    anyio.run(scenario)
    assert head.replaced == ["agent1"]


@pytest.mark.parametrize("late", ["", "reports", "what is wanted"])
def test_an_agent_between_two_reports(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is not known whether the former one is gone, the later one is asked again.

    Reports that an ended agent sent while this head was stopped show no running one.
    """
    monkeypatch.setattr(times, "HOLDER_REPORTS", 0.05)
    head = CountingHead()
    successor = replace(POD1, id="agent2")

    async def scenario() -> None:
        await head.reports.handle(POD1)
        if late == "what is wanted":
            head.reports.want("agent1", {})
        async with anyio.create_task_group() as tasks:
            for number in (1, 2) if late else ():
                sent = replace(POD1, hello=None, sequence=number)
                tasks.start_soon(head.reports.handle, sent)
            reply = await head.reports.handle(successor)
        assert (reply.wants_hello, reply.refusal) == (True, "")
        head.now += times.AGENT_SILENT
        reply = await head.reports.handle(successor)
        assert (reply.wants_hello, reply.refusal) == (False, "")

    anyio.run(scenario)
    assert head.received[-1].key == "agent2"


def test_an_agent_whose_connection_broke_has_time_for_a_second_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it has reported again, it is not replaced for what its next report brings later."""
    monkeypatch.setattr(times, "RECONNECT", 0.05)
    head, replies = CountingHead(), list[Reply]()

    async def successor() -> None:
        replies.append(await head.reports.handle(replace(POD1, id="agent2")))

    async def scenario() -> None:
        await following(head)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(successor)
            await anyio.wait_all_tasks_blocked()
            wanted = (await head.reports.handle(replace(POD1, hello=None))).wanted
            assert wanted is not None
            await anyio.sleep(2 * times.RECONNECT)  # the round trip to its next report
            applied = Applied(wanted.by, wanted.revision)
            await head.reports.handle(replace(POD1, hello=None, applied=applied))

    anyio.run(scenario)
    assert "still reports" in replies[0].refusal
    assert head.replaced == []


def test_a_refused_agent_recalls_no_run() -> None:
    """It neither has the head adopt the run that it names, nor gets what names this one."""
    reports = Reports(
        replace(FIRST, fingerprint="a proof of this run"),
        Expected("2.60.0", "", "", ""),
        lambda _event: None,
        lambda: 100.0,
        on_recalled_run=lambda _hello, _epoch: pytest.fail("it is recalled"),
    )
    hello = Hello("evil", 1, ray="2.0.0", run_id="run-0", attempt=3, fingerprint="recorded")
    reply = anyio.run(reports.handle, replace(EVIL, hello=hello))
    assert (bool(reply.refusal), reply.fingerprint) == (True, "")


# --- the sender's address ------------------------------------------------------------------------


def post(number: int, report: Report, source: str) -> Reply:
    """Post a report from an address of this machine; return the reply."""
    return Reply.from_dict(ask(number, "POST", "/report", JSON, report.to_dict(), source).data)


@pytest.mark.parametrize("named", ["10.0.0.2", "127.0.0.1"])
def test_an_address_comes_from_the_connection(named: str) -> None:
    """Without a token a report from another address than it names is refused, with the remedy."""
    with served_port(None) as port:
        reply = post(port.number, replace(POD1, ip=named, bye=BYE), "127.6.6.6")
        assert f"address is {named}, and its report came from 127.6.6.6" in reply.refusal
        assert "set RAY_AUTH_TOKEN" in reply.refusal
        assert port.received == []
        own = replace(POD1, ip="", hello=Hello("pod1"))
        assert not post(port.number, own, "127.6.6.6").refusal
        (event,) = port.received
        assert isinstance(event, h.WorkerReported)
        assert event.worker.ip == "127.6.6.6"


@pytest.mark.parametrize("ip", ["127.5.5.5", "10.254.254.254"])
def test_a_worker_sends_from_its_own_address(ip: str) -> None:
    """The one with which it joins Ray; where it has no such address, the head refuses it."""
    with served_port(None) as port:
        worker = Link(port.number)
        worker.says = replace(POD1, ip=ip, hello=None)
        anyio.run(worker.run_until, HeadSpoke)
    spoke = next(event for event in worker.events if isinstance(event, HeadSpoke))
    assert ("its report came from 127.0.0.1" in spoke.refusal) == (ip != "127.5.5.5")


# --- decisions -----------------------------------------------------------------------------------


def spare(**more: object) -> h.WorkerReported:
    """Return a report of an agent of a rank that no node of the run has."""
    worker = Worker("evil", "evil", "10.6.6.6", rank=9, phase="x", last_report_at=4.0)
    return h.WorkerReported(replace(worker, **more))


def running(*earlier: tuple[float, h.HeadEvent]) -> Trace:
    """Return a head whose job runs on the head and one worker, with a retriever on each."""
    begun = [(1.0, event) for event in PREPARED]
    serves = reported(2, items=(ItemReport(RETRIEVER, Step.READY),))
    joined = [(2.0, reported(2)), (2.5, nodes(2)), (3.0, serves), (3.5, ready(RETRIEVER))]
    submitted = [(4.0, SUBMITTED), (5.0, job("RUNNING"))]
    trace = Trace(goal(1, services=(RETRIEVER,)), [*begun, *earlier, *joined, *submitted])
    assert trace.state.phase is h.HeadPhase.RUNNING
    return trace


def of_ray(generation: int) -> ItemReport:
    """Return the report of a Ray that runs."""
    return ItemReport(RAY, Step.READY, generation=generation, is_running=True)


LOST = ItemReport(RETRIEVER, Step.LOST, "no")
OF_A_SPARE = [
    spare(),
    spare(items=(LOST,)),
    spare(items=(ItemReport(RETRIEVER, Step.LOST, "no", 4), RAY_UP)),
    spare(notice=5.0, items=(RAY_UP,)),
    spare(name="pod2", notice=5.0),
    spare(items=(of_ray(1),), memory="killed"),
    spare(items=(RAY_UP, ItemReport("data", Step.PENDING))),
    spare(has_left=True, notice=0.0),
]


def test_a_spare_ends_no_run() -> None:
    """Whatever it reports, its services and its departure are not the run's."""
    trace = running()
    for number, event in enumerate(OF_A_SPARE):
        trace.take(event, 6.0 + number)
        trace.take(TICK, 6.5 + number)
    trace.take(TICK, 50.0)
    assert trace.outcomes == []
    assert trace.state.phase is h.HeadPhase.RUNNING
    assert trace.state.attempt.announced_nodes == ()
    assert not any(isinstance(deed, StopJob | SaveJob) for deed in trace.effects)


def test_a_spare_delays_no_boot() -> None:
    """Its service is not awaited."""
    trace = running((1.5, spare()))
    assert trace.state.services.by_key["evil", RETRIEVER].step is Step.PENDING


def test_a_further_worker_that_joined_ray_is_one_of_the_run() -> None:
    """A spare counts once GCS lists it: then its essential service is lost for good with it."""
    trace = running()
    gone = spare(items=(RAY_UP, LOST))
    in_ray = replace(nodes(2).nodes[-1], node_id="spare", ip="10.6.6.6")
    trace.take(spare(items=(RAY_UP,)), 6.0)
    trace.take(h.RaySeen((*nodes(2).nodes, in_ray)), 6.5)
    trace.take(gone, 7.0)
    assert trace.state.phase is h.HeadPhase.STOPPING


def test_a_refused_agent_changes_nothing() -> None:
    """Neither an address, nor leftovers, nor memory, nor a notice of it counts."""
    trace = running()
    before = trace.state
    for event in (
        spare(ip="10.0.0.2", rank=1, refused="version mismatch", memory="killed", notice=1.0),
        spare(ip="10.0.0.2", rank=1, refused="version mismatch", has_left=True),
    ):
        trace.take(event, 6.0)
        assert trace.state.fleet.alive == before.fleet.alive
        assert trace.state.fleet.agent_at == before.fleet.agent_at
    assert trace.state.phase is h.HeadPhase.RUNNING


def test_a_service_stays_where_it_is() -> None:
    """A later agent of its rank does not become its node while the first one reports."""
    spec = replace(RETRIEVER_SPEC, where=Where("rank", 1))
    trace = Trace(replace(goal(1), services=(spec,)), [(1.0, reported(2, rank=1))])
    later = spare(rank=1)
    trace.take(later, 2.0)
    assert trace.state.service_home(RETRIEVER) == "agent2"
    trace.take(h.WorkerSilent("agent2", "no answer"), 3.0)
    trace.take(later, 4.0)
    assert trace.state.service_home(RETRIEVER) == "evil"


def test_a_spare_gets_no_share_of_torchrun() -> None:
    """One of a further rank takes part only in place of an expected worker."""
    trace = Trace(by_torchrun(1), [(1.0, spare(items=(RAY_UP,)))])
    assert trace.state.phase is h.HeadPhase.BOOTING
    own = Worker("agent2", "pod2", "10.0.0.2", rank=1, last_report_at=2.0, items=(RAY_UP,))
    trace.take(h.WorkerReported(own), 2.0)
    assert [*trace.state.shares.by_node] == ["head", "agent2"]


def test_a_spare_says_nothing_about_leftovers() -> None:
    """Another attempt does not wait for it."""
    trace = Trace(goal(1, retries=1), [])
    attempt = Attempt("run-2", 2)
    trace.state = trace.state.with_durable(attempt=attempt).with_earlier(leftovers={"agent2": 1.0})
    trace.take(spare(items=(of_ray(1),)), 2.0)
    trace.take(spare(name="agent2"), 3.0)
    assert trace.state.earlier.leftovers == {"agent2": 1.0}
