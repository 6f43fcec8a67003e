"""The head's reports: received, answered with news and wants, and the farewell at the end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.shared import QuestionKind, Want
from agent.port.protocol import Applied, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from support.report_histories import BYE, FIRST, HELLO, LATE, POD1, CountingHead
from support.worlds import MACHINE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POD2 = Report("agent2", "10.0.0.3", "joining Ray", hello=replace(HELLO, name="pod2", rank=2))
BEAT = replace(POD1, hello=None)
HELD = replace(BEAT, news=0, hold=LATE)
DONE = Outcome(Kind.DONE, 0, "the job succeeded")
SOON = 0.05


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario, in which no report may be held to its limit."""

    async def in_time() -> None:
        with anyio.fail_after(LATE / 2):
            await scenario()

    anyio.run(in_time)


# --- reports and their senders -------------------------------------------------------------------


def test_a_report_becomes_an_event_and_is_answered() -> None:
    """A first report is answered at once, and the head's decisions get the worker's data."""
    counter = CountingHead()
    assert counter.take(replace(POD1, hold=LATE)) == FIRST
    (worker,) = counter.received
    found = (worker.name, worker.ip, worker.rank, worker.last_report_at, worker.has_left)
    assert found == ("pod1", "10.0.0.2", 1, 12.5, False)


@pytest.mark.parametrize("has_token", [True, False])
def test_a_worker_of_a_later_head_is_ignored(*, has_token: bool) -> None:
    """With a token, its hello proves the later head, whether the worker is known or not."""
    counter = CountingHead(has_token=has_token)
    counter.take(replace(POD1, epoch=1))
    assert (counter.later, len(counter.received)) == ([], 1)
    of_pod2 = replace(HELLO, name="pod2", rank=2)
    counter.take(replace(BEAT, epoch=2))
    counter.take(replace(POD1, epoch=3, hello=replace(HELLO, run_id="run-1")))
    counter.take(replace(POD2, epoch=4, hello=replace(of_pod2, run_id="run-1")))
    counter.take(replace(POD2, epoch=5, hello=replace(of_pod2, run_id="another")))
    assert (counter.later, len(counter.received)) == ([3, 4] if has_token else [], 2)


@pytest.mark.parametrize("has_token", [True, False])
@pytest.mark.parametrize("run_id", ["", "run-1", "another"])
def test_no_report_alone_ends_the_run(run_id: str, *, has_token: bool) -> None:
    """Without a token anyone may send one; with a token, no epoch is so far ahead."""
    counter = CountingHead(has_token=has_token)
    counter.take(POD1)
    evil = Report("x", "", "p", epoch=999999999999999, hello=Hello("evil", run_id=run_id))
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


@pytest.mark.parametrize("news", [-1, 0])
def test_a_report_that_arrives_after_its_successor_changes_nothing(news: int) -> None:
    """It is answered at once: its content was outdated when it arrived."""
    counter = CountingHead()
    counter.take(replace(POD1, sequence=1))
    counter.reports.ask("agent1", QuestionKind.LOG, "retriever")
    counter.take(replace(BEAT, sequence=3, phase="following the head"))
    counter.now += 5
    replies = list[Reply]()

    async def scenario() -> None:
        for sequence in (2, 3):
            late = replace(BEAT, sequence=sequence, hold=LATE, news=news, bye=BYE)
            replies.append(await counter.reports.handle(late))

    play(scenario)
    assert [asked_in(reply) for reply in replies] == [["retriever"], ["retriever"]]
    phases = [(worker.phase, worker.last_report_at) for worker in counter.received]
    assert phases == [(POD1.phase, 12.5), ("following the head", 12.5)]
    assert (counter.byes, counter.reports.byes) == ([], {})
    counter.take(replace(BEAT, sequence=4, bye=BYE))
    assert counter.received[-1].has_left


def test_reports_without_numbers_are_taken_as_they_come() -> None:
    """An agent of the former version sends none."""
    counter = CountingHead()
    phases = ["joining Ray", "following the head", "joining Ray"]
    for phase in phases:
        counter.take(replace(POD1, phase=phase))
    assert [worker.phase for worker in counter.received] == phases


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        ({"ray": "2.60.1"}, "Ray 2.60.1 here, 2.60.0 on the head"),
        ({"python": "3.11.8"}, "Python 3.11.8 here, 3.11.7 on the head"),
        ({"torch": "2.12.0"}, "torch 2.12.0 here, 2.13.0 on the head"),
        ({"ray": None, "python": "", "torch": ""}, ""),
        ({"services": "other"}, "AGENT_SERVICES differ"),
    ],
)
def test_a_worker_that_cannot_take_part_is_refused(hello: dict[str, str], refusal: str) -> None:
    """Ray refuses any difference, even in the patch; its goodbye is not awaited."""
    counter = CountingHead(torch="2.13.0")
    reply = counter.take(replace(POD1, hello=replace(HELLO, **hello)))
    assert (refusal in reply.refusal, bool(reply.refusal)) == (True, bool(refusal))
    assert counter.received[0].refused == reply.refusal
    if refusal:
        anyio.run(counter.reports.wait_for_goodbyes, LATE, 0)


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
    found = [(worker.key, worker.ip) for worker in counter.received]
    assert found == [("agent1", "10.0.0.2"), ("agent1", "10.0.0.77")]


@pytest.mark.parametrize("has_token", [True, False])
def test_a_later_agent_of_a_node_replaces_the_former(*, has_token: bool) -> None:
    """A pod that was killed and restarted is one worker, whatever its address.

    Without a token its rank is kept until the former agent has been silent for long.
    """
    counter = CountingHead(has_token=has_token)
    counter.take(POD1)
    counter.now += 0 if has_token else 100
    counter.take(replace(POD1, id="agent9", ip="10.0.0.99"))
    assert counter.replaced == ["agent1"]


def test_two_machines_of_one_name_are_two_workers() -> None:
    """Two that run at the same time are distinguished, though they share name and rank."""
    counter = CountingHead(has_token=True)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            await counter.reports.handle(POD1)
            tasks.start_soon(counter.reports.handle, HELD)
            await anyio.wait_all_tasks_blocked()
            await counter.reports.handle(replace(POD1, id="agent9", ip="10.0.0.99"))
            assert counter.replaced == []
            counter.now += 100  # the first has been silent for long, and no request is held
            tasks.cancel_scope.cancel()
        await counter.reports.handle(replace(BEAT, id="agent9"))

    play(scenario)
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
    ranks: list[int | None] = []

    async def first(name: str, key: str) -> None:
        hello = replace(HELLO, name=name, rank=None)
        report = replace(HELD, id=key, ip=f"10.0.0.{ord(key)}", hello=hello)
        ranks.append((await reports.handle(report)).rank)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first, "pod1", "a")
            await anyio.wait_all_tasks_blocked()
            for name, key in (("pod2", "b"), ("pod1", "c"), ("pod1", "d")):
                report = replace(POD1, id=key, ip=f"10.0.0.{ord(key)}")
                hello = replace(HELLO, name=name, rank=None)
                ranks.append((await reports.handle(replace(report, hello=hello))).rank)
            tasks.cancel_scope.cancel()

    play(scenario)
    assert ranks == [2, 3, 3]
    assert kept == [("pod1", "pod2"), ("pod1", "pod2", "pod1")]


def test_facts_travel_once_as_a_value() -> None:
    """A worker's machine data comes with its hello, through JSON, with the offset of its clock."""
    counter = CountingHead(has_token=True)
    for pod, name, clock in ((POD1, "pod1", None), (POD2, "pod2", time.time() + 60)):
        hello = replace(HELLO, name=name, facts=MACHINE, clock=clock)
        sent = replace(pod, hello=hello)
        counter.take(Report.from_dict(json.loads(json.dumps(sent.to_dict()))))
    counter.take(BEAT)
    (first, (_, ahead)) = counter.introduced
    assert first == ("pod1", MACHINE)
    assert ahead.node_versions.clock_ahead == pytest.approx(60, abs=2)


# --- replies that are held, and what is wanted ---------------------------------------------------


def asked_in(reply: Reply) -> list[str]:
    """Return what a reply asks for."""
    return [] if reply.wanted is None else [one.name for one in reply.wanted.questions]


def test_what_a_node_does_not_apply_is_sent_again_after_a_pause() -> None:
    """The first reply follows at once; a node that cannot apply it does not keep both busy."""
    counter, replies = CountingHead(), list[Reply]()

    async def ask() -> None:
        replies.append(await counter.reports.handle(HELD))

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            await counter.reports.handle(POD1)
            counter.reports.want("agent1", {"data": Want()})
            await ask()
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert len(replies) == 1

    play(scenario)
    assert [reply.wanted is not None for reply in replies] == [True, True]


def test_a_report_is_held_until_there_is_an_order() -> None:
    """A worker that is up to date is answered at the moment of a change."""
    counter, replies = CountingHead(), list[Reply]()

    async def ask() -> None:
        replies.append(await counter.reports.handle(HELD))

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            await counter.reports.handle(POD1)
            tasks.start_soon(ask)
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert replies == []
            counter.reports.publish(phase="running", ray_ready=True, verdict=DONE)

    play(scenario)
    assert [(reply.news, reply.verdict) for reply in replies] == [(1, DONE), (1, DONE)]


def test_patience_ends() -> None:
    """Without news a held report is answered at its limit, with the current state."""
    counter = CountingHead()
    counter.reports.publish(phase="booting", ray_ready=False, verdict=None)  # without news
    assert counter.take(replace(POD1, news=0, hold=SOON)) == FIRST


def test_what_is_wanted_is_repeated_until_it_was_received() -> None:
    """It goes to one worker only, at once, and ends when that worker has it."""
    counter, replies = CountingHead(), list[Reply]()

    async def ask() -> None:
        replies.append(await counter.reports.handle(HELD))

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            for pod in (POD1, POD2):
                await counter.reports.handle(pod)
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            counter.reports.want("agent1", {"data": Want()})

    play(scenario)
    assert counter.take(replace(POD2, hello=None)).wanted is None
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


def test_logs_that_are_asked_for_are_kept() -> None:
    """A page asks again and again, also while the node is out of reach: that is one question."""
    counter = CountingHead()
    counter.take(POD1)
    for name in ("ray", "agent", "ray"):
        counter.reports.ask("agent1", QuestionKind.LOG, name)
    assert asked_in(counter.take(BEAT)) == ["agent", "ray"]
    counter.take(replace(BEAT, logs={"ray": "no space left", "other": "much"}))
    counter.take(replace(BEAT, logs={"ray": "again"}))
    assert counter.reports.logs == {("agent1", "ray"): "no space left"}


# --- the end -------------------------------------------------------------------------------------


def test_a_worker_leaves_once_with_its_cause_and_its_logs() -> None:
    """Nothing is wanted of it then, and what else it sends is not kept."""
    counter = CountingHead()
    counter.take(POD1)
    counter.reports.ask("agent1", QuestionKind.LOG, "ray")
    for number in range(20):
        last = replace(BEAT, bye=BYE, logs={f"log{number}": "x" * 1000})
        assert counter.take(last).wanted is None
    counter.reports.want("agent1", {"data": Want()})
    assert counter.take(BEAT).wanted is None
    assert counter.byes == [("pod1", BYE)]
    assert counter.reports.logs == {("agent1", "log0"): "x" * 1000}
    assert [worker.has_left for worker in counter.received] == [False, True]


def test_farewell_waits_for_each() -> None:
    """The head stays until every worker has said goodbye."""
    counter = CountingHead()

    async def scenario() -> None:
        await counter.reports.handle(POD1)
        await counter.reports.handle(POD2)
        async with anyio.create_task_group() as tasks:
            for report in (POD1, POD2):
                tasks.start_soon(counter.reports.handle, replace(report, bye=BYE))
            await counter.reports.wait_for_goodbyes(LATE, 0)

    play(scenario)
    assert [worker.has_left for worker in counter.received] == [False, False, True, True]


def test_farewell_waits_for_those_who_are_about_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never reported is awaited; who stays silent is named."""
    counter, ended, said = CountingHead(), list[bool](), list[str]()
    monkeypatch.setattr("agent.port.reports.say", said.append)

    async def part() -> None:
        await counter.reports.wait_for_goodbyes(LATE, 1)
        ended.append(True)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(part)
            for report in (POD1, replace(POD1, bye=BYE)):
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                await counter.reports.handle(report)

    play(scenario)
    assert (ended, said) == ([True], [])
    anyio.run(counter.reports.wait_for_goodbyes, SOON, 2)
    silent = CountingHead()
    silent.take(POD1)
    anyio.run(silent.reports.wait_for_goodbyes, SOON, 0)
    named = [line.partition(";")[0] for line in said]
    assert named == ["2 never called", "pod1 did not confirm the verdict"]


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
