"""The place of an agent: its address and its rank; refused agents and spares change no run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.attempts import Attempt
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import Worker
from agent.decisions.shared import (
    RAY,
    ItemReport,
    Step,
)
from agent.decisions.worker.worker_state import HeadSpoke
from agent.job.services import Where
from agent.port.protocol import Applied, Bye, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from support.agent_ports import BEARER, JSON, served_port
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
from support.served import ask
from support.shares import by_torchrun
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
FIRST_WITH_PROOF = replace(FIRST, fingerprint="a proof of this run")
HELLO = Hello("pod1", 1, ray="2.60.0")
POD1 = Report("agent1", "10.0.0.2", "following the head", hello=HELLO, items=(RAY_UP,))
EVIL = replace(POD1, id="evil", ip="10.6.6.6", items=())


class Port:
    """A head's reports, of which one agent is held."""

    def __init__(self, *, has_token: bool = False) -> None:
        self.now = 100.0
        self.events: list[object] = []
        self.reports = Reports(
            *(FIRST, Expected("2.60.0", "", "", ""), self.events.append, lambda: self.now),
            has_token=has_token,
        )

    async def follow(self, report: Report, count: int = 99) -> None:
        """Report as an agent does that was registered: again after each reply."""
        applied = Applied()
        for _ in range(count):
            held = replace(report, hello=None, applied=applied, hold=10.0)
            held = replace(held, news=self.reports._reply.news)  # noqa: SLF001 - as the client has it
            wanted = (await self.reports.handle(held)).wanted
            if wanted is not None:
                applied = Applied(wanted.by, wanted.revision)

    @property
    def workers(self) -> list[Worker]:
        """Return the workers of all events."""
        return [one.worker for one in self.events if isinstance(one, h.WorkerReported)]


def answered(port: Port, *reports: Report) -> list[Reply]:
    """Return the replies to reports, while agent1 goes on reporting."""
    replies = list[Reply]()

    async def scenario() -> None:
        await port.reports.handle(POD1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(port.follow, POD1)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(20):
                replies.extend([await port.reports.handle(report) for report in reports])
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    return replies


@pytest.mark.parametrize(
    "evil",
    [
        replace(EVIL, ip="10.0.0.2", hello=Hello("evil", 7, ray="2.60.0")),
        replace(EVIL, ip="10.0.0.2", bye=Bye("over")),
        EVIL,
        replace(EVIL, bye=Bye("over"), hello=Hello("evil", 1, ray="2.60.0")),
    ],
)
def test_an_address_and_a_rank_keep_their_agent(evil: Report) -> None:
    """A later agent with the address or rank of one that reports is refused."""
    port = Port()
    (reply,) = answered(port, evil)
    assert "pod1 (10.0.0.2) still reports; end one of the two; if this one is of" in reply.refusal
    assert {worker.key for worker in port.workers} == {"agent1"}
    assert all(worker.items == (RAY_UP,) for worker in port.workers)
    assert not any(isinstance(event, h.WorkerReplaced) for event in port.events)


def test_a_refused_agent_takes_no_address() -> None:
    """An agent of another version keeps a real worker's agent where it is, its goodbye as well."""
    port = Port()
    old = replace(EVIL, ip="10.0.0.2", hello=replace(HELLO, ray="2.50.0"))
    first, _ = answered(port, old, replace(old, hello=None, bye=Bye("over")))
    assert "version mismatch" in first.refusal
    assert not any(isinstance(event, h.WorkerReplaced) for event in port.events)


def test_a_successor_on_the_same_node() -> None:
    """An agent whose connection broke is replaced at once, one that is silent after its time."""
    port = Port()

    async def scenario() -> None:
        await port.reports.handle(POD1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(port.follow, POD1)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(times.RECONNECT + 1):
            reply = await port.reports.handle(replace(POD1, id="agent2"))
        assert (reply.refusal, reply.wants_hello) == ("", False)

    anyio.run(scenario)
    assert h.WorkerReplaced("agent1") in port.events


def test_an_agent_between_two_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is not known whether the former one is gone, the later one is asked again."""
    monkeypatch.setattr(times, "HOLDER_REPORTS", 0.05)
    port = Port()

    async def scenario() -> None:
        await port.reports.handle(POD1)
        reply = await port.reports.handle(replace(POD1, id="agent2"))
        assert (reply.wants_hello, reply.refusal) == (True, "")
        port.now += times.AGENT_SILENT
        reply = await port.reports.handle(replace(POD1, id="agent2"))
        assert (reply.wants_hello, reply.refusal) == (False, "")

    anyio.run(scenario)
    assert port.workers[-1].key == "agent2"


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_late_report_of_an_ended_agent(
    monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool
) -> None:
    """Reports that it sent while this head was stopped show no running agent at its address."""
    monkeypatch.setattr(times, "HOLDER_REPORTS", 0.05)
    port = Port()

    async def scenario() -> None:
        await port.reports.handle(POD1)
        if is_wanted:
            port.reports.want("agent1", {})
        async with anyio.create_task_group() as tasks:
            for number in (1, 2):
                late = replace(POD1, hello=None, sequence=number)
                tasks.start_soon(port.reports.handle, late)
            reply = await port.reports.handle(replace(POD1, id="agent2"))
        assert (reply.wants_hello, reply.refusal) == (True, "")

    anyio.run(scenario)


def test_an_agent_whose_connection_broke_has_time_for_a_second_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it has reported again, it is not replaced for what its next report brings later."""
    monkeypatch.setattr(times, "RECONNECT", 0.05)
    port, replies = Port(), list[Reply]()

    async def successor() -> None:
        replies.append(await port.reports.handle(replace(POD1, id="agent2")))

    async def scenario() -> None:
        await port.reports.handle(POD1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(port.follow, POD1)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(successor)
            await anyio.wait_all_tasks_blocked()
            wanted = (await port.reports.handle(replace(POD1, hello=None))).wanted
            assert wanted is not None
            await anyio.sleep(2 * times.RECONNECT)  # the round trip to its next report
            applied = Applied(wanted.by, wanted.revision)
            await port.reports.handle(replace(POD1, hello=None, applied=applied))

    anyio.run(scenario)
    assert "still reports" in replies[0].refusal
    assert h.WorkerReplaced("agent1") not in port.events


# --- the sender's address ------------------------------------------------------------------------


def post(number: int, report: Report, source: str) -> Reply:
    """Post a report from an address of this machine; return the reply."""
    return Reply.from_dict(ask(number, "POST", "/report", JSON, report.to_dict(), source).data)


@pytest.mark.parametrize("named", ["10.0.0.2", "127.0.0.1"])
def test_an_address_comes_from_the_connection(named: str) -> None:
    """Without a token a report from another address than it names is refused, with the remedy."""
    with served_port(None) as port:
        reply = post(port.number, replace(POD1, ip=named, bye=Bye("over")), "127.6.6.6")
        assert f"address is {named}, and its report came from 127.6.6.6" in reply.refusal
        assert "set RAY_AUTH_TOKEN" in reply.refusal
        assert port.received == []
        assert not post(port.number, replace(POD1, ip=""), "127.6.6.6").refusal
        (event,) = port.received
        assert isinstance(event, h.WorkerReported)
        assert event.worker.ip == "127.6.6.6"


@pytest.mark.parametrize("ip", ["127.5.5.5", "10.254.254.254"])
def test_a_worker_sends_from_its_own_address(ip: str) -> None:
    """The one with which it joins Ray; where it has no such address, the head refuses it."""

    async def scenario(worker: Link) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.link.run)
            await worker.last(HeadSpoke)
            tasks.cancel_scope.cancel()

    with served_port(None) as port:
        worker = Link(port.number)
        worker.says = replace(POD1, ip=ip, hello=None)
        anyio.run(scenario, worker)
    spoke = next(event for event in worker.events if isinstance(event, HeadSpoke))
    assert ("its report came from 127.0.0.1" in spoke.refusal) == (ip != "127.5.5.5")


# --- decisions -----------------------------------------------------------------------------------


def spare(**more: object) -> h.WorkerReported:
    """Return a report of an agent of a rank that no node of the run has."""
    worker = Worker("evil", "evil", "10.6.6.6", rank=9, phase="x", last_report_at=4.0)
    return h.WorkerReported(replace(worker, **more))


def running() -> Trace:
    """Return a head whose job runs on the head and one worker, with a retriever on each."""
    spec_goal = goal(1, services=(RETRIEVER,))
    serves = reported(2, items=(ItemReport(RETRIEVER, Step.READY),))
    begun = [(1.0, event) for event in PREPARED]
    joined = [(2.0, reported(2)), (2.5, nodes(2)), (3.0, serves), (3.5, ready(RETRIEVER))]
    return Trace(spec_goal, [*begun, *joined, (4.0, SUBMITTED)])


def of_ray(generation: int) -> ItemReport:
    """Return the report of a Ray that runs."""
    return ItemReport(RAY, Step.READY, generation=generation, is_running=True)


def of_a_spare(state: h.HeadState) -> Iterator[h.HeadEvent]:
    """Yield everything that a spare may report."""
    number = state.attempt.number
    lost = (ItemReport(RETRIEVER, Step.LOST, "no"),)
    yield spare()
    yield spare(items=lost)
    yield spare(items=(ItemReport(RETRIEVER, Step.LOST, "no", 4), RAY_UP))
    yield spare(notice=5.0, items=(RAY_UP,))
    yield spare(name="pod2", notice=5.0)
    yield spare(items=(of_ray(number),), memory="killed")
    yield spare(items=(RAY_UP, ItemReport("data", Step.PENDING)))
    yield spare(has_left=True, notice=0.0)


def test_a_spare_ends_no_run() -> None:
    """Whatever it reports, its services and its departure are not the run's."""
    trace = running()
    trace.take(job("RUNNING"), 5.0)
    assert trace.state.phase is h.HeadPhase.RUNNING
    for number, event in enumerate(of_a_spare(trace.state)):
        trace.take(event, 6.0 + number)
        trace.take(TICK, 6.5 + number)
    trace.take(TICK, 50.0)
    assert trace.outcomes == []
    assert trace.state.phase is h.HeadPhase.RUNNING
    assert trace.state.attempt.announced_nodes == ()
    assert not any(isinstance(deed, StopJob | SaveJob) for deed in trace.effects)


def test_a_spare_delays_no_boot() -> None:
    """Its service is not awaited."""
    begun = [(1.0, event) for event in PREPARED]
    serves = reported(2, items=(ItemReport(RETRIEVER, Step.READY),))
    joined = [(2.0, reported(2)), (2.5, nodes(2)), (3.0, serves), (3.5, ready(RETRIEVER))]
    trace = Trace(goal(1, services=(RETRIEVER,)), [*begun, (1.5, spare()), *joined])
    assert trace.state.phase is h.HeadPhase.SUBMITTING
    assert trace.state.services.by_key["evil", RETRIEVER].step is Step.PENDING


def test_a_further_worker_that_joined_ray_is_one_of_the_run() -> None:
    """A spare counts once GCS lists it: then its essential service is lost for good with it."""
    trace = running()
    trace.take(job("RUNNING"), 5.0)
    gone = spare(items=(RAY_UP, ItemReport(RETRIEVER, Step.LOST, "no")))
    of_ray = replace(nodes(2).nodes[-1], node_id="spare", ip="10.6.6.6")
    trace.take(spare(items=(RAY_UP,)), 6.0)
    trace.take(h.RaySeen((*nodes(2).nodes, of_ray)), 6.5)
    trace.take(gone, 7.0)
    assert trace.state.phase is h.HeadPhase.STOPPING


def test_a_refused_agent_changes_nothing() -> None:
    """Neither an address, nor leftovers, nor memory, nor a notice of it counts."""
    trace = running()
    trace.take(job("RUNNING"), 5.0)
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


# --- sizes ---------------------------------------------------------------------------------------


def test_one_goodbye_per_agent() -> None:
    """Further ones with other logs are not kept."""
    port = Port()
    leaves = replace(POD1, hello=None, bye=Bye("over", "the end"))

    async def scenario() -> None:
        await port.reports.handle(POD1)
        for number in range(20):
            await port.reports.handle(replace(leaves, logs={f"log{number}": "x" * 1000}))

    anyio.run(scenario)
    assert port.reports.logs == {("agent1", "log0"): "x" * 1000}
    assert [worker.has_left for worker in port.workers] == [False, True]


@pytest.mark.parametrize("part", ["[],", '{"a":1},', "1,", '"",'])
def test_a_report_of_very_many_values_is_not_parsed(part: str) -> None:
    """A body of 256 KiB would take 6 MiB."""
    body = json.dumps({**POD1.to_dict(), "ip": "", "more": []})
    full = body.replace('"more": []', f'"more": [{part * 40_000}1]')
    for token in (None, SECRET):
        with served_port(token) as port:
            headers = {**JSON, **BEARER}
            assert port.report(headers, body).status == 200
            refused = port.report(headers, full[: 1 << 18])
            assert (refused.status, "values" in refused.error) == (400, True)


def test_a_refused_agent_recalls_no_run() -> None:
    """It neither has the head adopt the run that it names, nor gets what names this one."""
    recalled: list[str] = []

    def recall(hello: Hello, _epoch: int) -> bool:
        recalled.append(hello.run_id)
        return True

    reports = Reports(
        FIRST_WITH_PROOF,
        Expected("2.60.0", "", "", ""),
        lambda _event: None,
        lambda: 100.0,
        has_token=False,
        on_recalled_run=recall,
    )
    hello = Hello("evil", 1, ray="2.0.0", run_id="run-0", attempt=3, fingerprint="recorded")
    reply = anyio.run(reports.handle, replace(EVIL, hello=hello))
    assert reply.refusal
    assert reply.fingerprint == ""
    assert recalled == []
