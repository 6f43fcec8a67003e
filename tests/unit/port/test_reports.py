"""The head's reports: received, answered with news and wants, and the farewell at the end."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.shared import (
    QuestionKind,
    Want,
)
from agent.port.protocol import Applied, Bye, Reply, Report
from agent.port.reports import Expected, Reports
from support.report_histories import BYE, FIRST, HELLO, LATE, POD1, CountingHead
from support.worlds import MACHINE

POD2 = Report("agent2", "10.0.0.3", "joining Ray", hello=replace(HELLO, name="pod2", rank=2))
BEAT = replace(POD1, hello=None)
DONE = Outcome(Kind.DONE, 0, "the job succeeded")
SOON = 0.05


def test_a_report_becomes_an_event_and_is_answered() -> None:
    """A first report is answered at once, and the head's decisions get the worker's data."""
    counter = CountingHead()
    assert anyio.run(counter.reports.handle, replace(POD1, hold=LATE)) == FIRST
    (worker,) = counter.received
    assert (worker.name, worker.ip, worker.rank, worker.last_report_at) == (
        "pod1",
        "10.0.0.2",
        1,
        12.5,
    )
    assert not worker.has_left


@pytest.mark.parametrize("has_token", [True, False])
def test_a_worker_of_a_later_head_is_ignored(*, has_token: bool) -> None:
    """With a token, its hello proves the later head, whether the worker is known or not."""
    counter = CountingHead(has_token=has_token)
    counter.take(replace(POD1, epoch=1))
    assert (counter.later, len(counter.received)) == ([], 1)
    counter.take(replace(BEAT, epoch=2))
    counter.take(replace(POD1, epoch=3, hello=replace(HELLO, run_id="run-1")))
    counter.take(replace(POD2, epoch=4, hello=replace(HELLO, name="pod2", rank=2, run_id="run-1")))
    counter.take(
        replace(POD2, epoch=5, hello=replace(HELLO, name="pod2", rank=2, run_id="another"))
    )
    assert (counter.later, len(counter.received)) == ([3, 4] if has_token else [], 2)


EVIL = '{"protocol":3,"id":"x","phase":"p","epoch":999999999999999,"hello":{"name":"evil"%s}}'
IN_RUN = ',"run_id":"run-1"'


@pytest.mark.parametrize("has_token", [True, False])
@pytest.mark.parametrize("more", ["", IN_RUN, ',"run_id":"another"'])
def test_no_report_alone_ends_the_run(more: str, *, has_token: bool) -> None:
    """Without a token anyone may send one; with a token, no epoch is so far ahead."""
    counter = CountingHead(has_token=has_token)
    counter.take(POD1)
    evil = Report.from_dict(json.loads(EVIL % more))
    for report in (evil, replace(evil, hello=None), evil):
        assert counter.take(report).verdict is None
    assert counter.later == []


@pytest.mark.parametrize(("hours", "later"), [(23.0, True), (25.0, False)])
def test_a_later_epoch_is_at_most_a_day_ahead(hours: float, later: bool) -> None:  # noqa: FBT001 - a table's column
    """Epochs are times in milliseconds; clocks differ, but not by a day."""
    counter = CountingHead(has_token=True)
    epoch = int((time.time() + hours * 3600) * 1000)
    counter.take(replace(POD1, epoch=epoch, hello=replace(HELLO, run_id="run-1")))
    assert counter.later == ([epoch] if later else [])
    assert counter.received == []


def test_what_a_node_does_not_apply_is_sent_again_after_a_pause() -> None:
    """The first reply follows at once; a node that cannot apply it does not keep both busy."""
    counter, replies = CountingHead(), list[Reply]()
    says = replace(POD1, news=0, hold=LATE)

    async def ask() -> None:
        replies.append(await counter.reports.handle(says))

    async def scenario() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                await counter.reports.handle(POD1)
                counter.reports.want("agent1", {"data": Want()})
                await ask()
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert len(replies) == 1

    anyio.run(scenario)
    assert [reply.wanted is not None for reply in replies] == [True, True]


def test_a_report_is_held_until_there_is_an_order() -> None:
    """A worker that is up to date is answered at the moment of a change."""
    counter, replies = CountingHead(), list[Reply]()

    async def ask() -> None:
        replies.append(await counter.reports.handle(replace(POD1, news=0, hold=LATE)))

    async def scenario() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                await counter.reports.handle(POD1)
                tasks.start_soon(ask)
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert replies == []
                counter.reports.publish(phase="running", ray_ready=True, verdict=DONE)

    anyio.run(scenario)
    assert {reply.news for reply in replies} == {1}
    assert [reply.verdict for reply in replies] == [DONE, DONE]


@pytest.mark.parametrize("news", [-1, 0])
def test_a_report_that_arrives_after_its_successor_changes_nothing(news: int) -> None:
    """It is answered at once: its content was outdated when it arrived."""
    counter = CountingHead()
    counter.take(replace(POD1, sequence=1))
    counter.reports.ask("agent1", QuestionKind.LOG, "retriever")
    counter.take(replace(BEAT, sequence=3, phase="following the head"))
    counter.now += 5
    for sequence in (2, 3):
        late = replace(BEAT, sequence=sequence, hold=LATE, news=news, bye=BYE)
        reply = anyio.run(within_soon, counter.reports, late)
        assert asked_in(reply) == ["retriever"]
    assert [worker.phase for worker in counter.received] == [POD1.phase, "following the head"]
    assert (counter.byes, counter.reports.byes, counter.received[-1].last_report_at) == (
        [],
        {},
        12.5,
    )
    counter.take(replace(BEAT, sequence=4, bye=BYE))
    assert counter.received[-1].has_left


def test_reports_without_numbers_are_taken_as_they_come() -> None:
    """An agent of the former version sends none."""
    counter = CountingHead()
    phases = ["joining Ray", "following the head", "joining Ray"]
    for phase in phases:
        counter.take(replace(POD1, phase=phase))
    assert [worker.phase for worker in counter.received] == phases


async def within_soon(reports: Reports, report: Report) -> Reply:
    """Accept a report that must not be held."""
    with anyio.fail_after(LATE / 10):
        return await reports.handle(report)


def test_patience_ends() -> None:
    """Without news a held report is answered at its limit, with the current state."""
    counter = CountingHead()
    counter.reports.publish(phase="booting", ray_ready=False, verdict=None)  # without news
    assert anyio.run(counter.reports.handle, replace(POD1, news=0, hold=SOON)) == FIRST


def test_another_version_is_refused() -> None:
    """A worker with another Ray is refused by name, and its goodbye is not awaited."""
    counter = CountingHead()
    reply = anyio.run(counter.reports.handle, replace(POD1, hello=replace(HELLO, ray="2.50.0")))
    assert "Ray 2.50.0 here, 2.60.0 on the head" in reply.refusal
    assert counter.received[0].refused == reply.refusal
    anyio.run(counter.reports.wait_for_goodbyes, LATE, 0)


def test_farewell_waits_for_each() -> None:
    """The head stays until every worker has said goodbye."""
    counter = CountingHead()

    async def leave() -> None:
        for report in (POD1, POD2):
            await counter.reports.handle(replace(report, bye=BYE))

    async def scenario() -> None:
        await counter.reports.handle(POD1)
        await counter.reports.handle(POD2)
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave)
                await counter.reports.wait_for_goodbyes(LATE, 0)

    anyio.run(scenario)
    assert [worker.has_left for worker in counter.received] == [False, False, True, True]


def test_farewell_names_those_who_stay_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers without a goodbye in time are named."""
    counter, said = CountingHead(), list[str]()
    monkeypatch.setattr("agent.port.reports.say", said.append)
    anyio.run(counter.reports.handle, POD1)
    anyio.run(counter.reports.wait_for_goodbyes, SOON, 0)
    assert [line.partition(";")[0] for line in said] == ["pod1 did not confirm the verdict"]


def test_farewell_waits_for_those_who_are_about_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never reported is awaited, and gets the verdict if it reports in time."""
    counter, ended, said = CountingHead(), list[bool](), list[str]()
    monkeypatch.setattr("agent.port.reports.say", said.append)

    async def part() -> None:
        await counter.reports.wait_for_goodbyes(LATE, 1)
        ended.append(True)

    async def scenario() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(part)
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                await counter.reports.handle(POD1)
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                await counter.reports.handle(replace(POD1, bye=BYE))

    anyio.run(scenario)
    assert (ended, said) == ([True], [])
    anyio.run(counter.reports.wait_for_goodbyes, SOON, 2)
    assert [line.partition(";")[0] for line in said] == ["2 never called"]


def test_a_stranger_is_asked_who_it_is() -> None:
    """A heartbeat of an unknown agent does not count until it has sent a hello."""
    counter = CountingHead()
    reply = counter.take(BEAT)
    assert (reply.wants_hello, reply.verdict, counter.received) == (True, None, [])
    assert not counter.take(POD1).wants_hello
    assert [worker.name for worker in counter.received] == ["pod1"]


def test_a_worker_whose_address_changed_is_the_same() -> None:
    """An agent is identified by its ID: another address makes no second entry."""
    counter = CountingHead()
    counter.take(POD1)
    counter.take(replace(BEAT, ip="10.0.0.77"))
    assert {worker.key for worker in counter.received} == {"agent1"}
    assert counter.received[-1].ip == "10.0.0.77"


def test_a_later_agent_of_a_node_replaces_the_former() -> None:
    """A pod that was killed and restarted is one worker, whatever its address.

    Without a token its rank is kept until the former agent has been silent for long.
    """
    for has_token in (True, False):
        counter = CountingHead(has_token=has_token)
        counter.take(POD1)
        counter.now += 0 if has_token else 100
        counter.take(replace(POD1, id="agent9", ip="10.0.0.99"))
        assert counter.replaced == ["agent1"]


def test_two_machines_of_one_name_are_two_workers() -> None:
    """Two that run at the same time are distinguished, though they share name and rank."""
    counter = CountingHead(has_token=True)

    async def scenario() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                await counter.reports.handle(POD1)
                tasks.start_soon(counter.reports.handle, replace(BEAT, news=0, hold=LATE))
                await anyio.wait_all_tasks_blocked()
                await counter.reports.handle(replace(POD1, id="agent9", ip="10.0.0.99"))
                assert counter.replaced == []
                counter.now += 100  # the first has been silent for long, and no request is held
                tasks.cancel_scope.cancel()
        await counter.reports.handle(replace(BEAT, id="agent9"))

    anyio.run(scenario)
    assert counter.replaced == ["agent1"]


def test_ranks_by_the_first_hello() -> None:
    """Whoever comes first is rank 1; a name keeps its rank, and running namesakes have one each."""
    kept: list[tuple[str, ...]] = []
    reports = Reports(
        *(FIRST, Expected("2.60.0", "3.11.7", "", "abc"), lambda _: None, lambda: 0.0),
        rank_names=["pod1"],
        keep_ranks=kept.append,
        has_token=True,
    )

    async def rank(name: str, key: str, hold: float = 0.0) -> int | None:
        hello = replace(HELLO, name=name, rank=None)
        report = replace(POD1, id=key, ip=f"10.0.0.{ord(key)}", hello=hello, news=0, hold=hold)
        return (await reports.handle(report)).rank

    async def scenario() -> list[int | None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rank, "pod1", "a", LATE)
            await anyio.wait_all_tasks_blocked()
            found = [await rank("pod2", "b"), await rank("pod1", "c"), await rank("pod1", "d")]
            tasks.cancel_scope.cancel()
        return found

    assert anyio.run(scenario) == [2, 3, 3]
    assert kept == [("pod1", "pod2"), ("pod1", "pod2", "pod1")]


def test_another_plan_of_services_is_refused() -> None:
    """Nodes that would run different services do not form one cluster."""
    reply = CountingHead().take(replace(POD1, hello=replace(HELLO, services="other")))
    assert "AGENT_SERVICES differ" in reply.refusal


def asked_in(reply: Reply) -> list[str]:
    """Return what a reply asks for."""
    return [] if reply.wanted is None else [one.name for one in reply.wanted.questions]


def test_what_is_wanted_is_repeated_until_it_was_received() -> None:
    """It goes to one worker only, at once, and ends when that worker has it."""
    counter, replies = CountingHead(), list[Reply]()

    async def scenario() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                for pod in (POD1, POD2):
                    await counter.reports.handle(pod)

                async def ask() -> None:
                    replies.append(await counter.reports.handle(replace(BEAT, news=0, hold=LATE)))

                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                counter.reports.want("agent1", {"data": Want()})
        other = await counter.reports.handle(replace(POD2, hello=None))
        assert other.wanted is None

    anyio.run(scenario)
    wanted = replies[0].wanted
    assert wanted is not None
    assert (wanted.revision, wanted.wants) == (1, {"data": Want()})
    assert counter.take(BEAT).wanted == wanted
    assert counter.take(replace(BEAT, applied=Applied("another head's agent", 7))).wanted == wanted
    heard = replace(BEAT, applied=Applied(wanted.by, 1))
    assert counter.take(heard).wanted is None

    # A question comes with what is wanted, until it was received itself.
    counter.reports.ask("agent1", QuestionKind.LOG, "ray")
    counter.reports.want("agent1", {}, may_leave=True)
    last = counter.take(heard).wanted
    assert last is not None
    assert (last.revision, last.wants, last.may_leave) == (3, {}, True)
    assert [(one.number, one.name) for one in last.questions] == [(2, "ray")]
    assert counter.take(replace(BEAT, applied=Applied(wanted.by, 3))).wanted is None
    counter.reports.want("agent1", {"data": Want(2)})
    assert asked_in(counter.take(BEAT)) == []


def test_a_log_that_is_asked_for_again_is_one_question() -> None:
    """A page asks for it every few seconds, also while its node is out of reach for hours."""
    counter = CountingHead()
    counter.take(POD1)
    for name in ("ray", "agent", "ray"):
        counter.reports.ask("agent1", QuestionKind.LOG, name)
    wanted = counter.take(BEAT).wanted
    assert wanted is not None
    assert [(one.number, one.name) for one in wanted.questions] == [(2, "agent"), (3, "ray")]


def test_requested_logs_are_stored() -> None:
    """The end of a log comes with a report; unrequested ones are discarded."""
    counter = CountingHead()
    counter.take(POD1)
    counter.reports.ask("agent1", QuestionKind.LOG, "ray")
    counter.take(replace(BEAT, logs={"ray": "no space left", "other": "much"}))
    assert counter.reports.logs == {("agent1", "ray"): "no space left"}
    counter.take(replace(BEAT, logs={"ray": "again"}))
    assert counter.reports.logs == {("agent1", "ray"): "no space left"}


def test_nothing_is_wanted_of_a_worker_that_left() -> None:
    """A node that leaves gets nothing more, before and after its goodbye."""
    counter = CountingHead()
    counter.take(POD1)
    counter.reports.ask("agent1", QuestionKind.LOG, "ray")
    assert counter.take(replace(BEAT, bye=Bye("stopped"))).wanted is None
    counter.reports.want("agent1", {"data": Want()})
    assert counter.take(BEAT).wanted is None


def test_a_departure_is_reported_once_with_its_cause() -> None:
    """The reason and the last output of a worker reach the head."""
    counter = CountingHead()
    for report in (POD1, replace(BEAT, bye=BYE), replace(BEAT, bye=BYE)):
        counter.take(report)
    assert counter.byes == [("pod1", BYE)]


def test_after_the_end_a_new_worker_gets_no_verdict() -> None:
    """A head that holds its verdict says only that to agents of another run."""
    counter = CountingHead()
    counter.take(POD1)
    counter.reports.publish(phase="leaving", verdict=DONE)
    assert counter.take(POD2).verdict == DONE  # it came before the farewell ended
    anyio.run(counter.reports.wait_for_goodbyes, SOON, 0)
    late = counter.take(replace(POD1, id="agent7"))
    assert (late.held, late.phase, late.verdict, late.ray_ready) == (True, "held", None, False)
    assert counter.take(BEAT).verdict == DONE
    assert len({worker.key for worker in counter.received}) == 2


def test_facts_travel_once_as_a_value() -> None:
    """A worker's machine data comes with its hello, through JSON, as the same value."""
    counter = CountingHead()
    hello = replace(HELLO, facts=MACHINE)
    wire = json.loads(json.dumps(replace(POD1, hello=hello).to_dict()))
    counter.take(Report.from_dict(wire))
    counter.take(BEAT)
    assert counter.introduced == [("pod1", MACHINE)]


def test_a_hello_has_the_clock() -> None:
    """A node's clock offset is measured when its hello arrives, and kept with its facts."""
    counter = CountingHead()
    hello = replace(HELLO, facts=MACHINE, clock=time.time() + 60)
    counter.take(replace(POD1, hello=hello))
    ((_, facts),) = counter.introduced
    assert facts.node_versions.clock_ahead == pytest.approx(60, abs=2)
    sent = json.loads(json.dumps(replace(POD1, hello=hello).to_dict()))
    read = Report.from_dict(sent).hello
    assert read is not None
    assert read.clock == hello.clock
