"""A restarted head: workers wait for it and rejoin, and their memory of the run is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from agent.base import ends, times
from agent.decisions import worker
from agent.decisions.attempts import LostAttempt
from agent.decisions.head import head_state as h
from agent.decisions.shared import RAY
from agent.decisions.worker import worker_state as w
from agent.port.reports import Expected, Reports
from agent.record.run_folder import RunFolder
from agent.record.run_record import RUN_FILE
from agent.run.takeover import SurvivingProcesses
from agent.run.worker import first_state, record_reachability
from agent.settings.redact import Redactor
from support import heads
from support.heads import SHARED_DATA_STEP, SubmitJob
from support.node_runs import made_run
from support.report_histories import FIRST, HELLO, POD1
from support.run_records import store_of, written
from support.workers import (
    DOWN,
    GOAL,
    JOINED,
    RAY_UP,
    SILENT,
    TICK,
    Began,
    History,
    WorkerTrace,
    replied,
)
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.port.protocol import Hello, Reply

BACK = replied(epoch=2, ip="10.0.0.9")
NOT_READY = replied(epoch=2, ip="10.0.0.9", ready=False)
OTHER = replied(epoch=2, run="another")
MEMORY = h.RunRemembered("old", 1)
KNOWING = replace(HELLO, run_id="old", attempt=1)


@pytest.mark.parametrize(
    "history",
    [
        [*JOINED, (20, SILENT), (60, BACK), (62, TICK)],
        [*JOINED, (20, SILENT), (30, DOWN), (40, SILENT), (67, BACK), (67.5, TICK)],
        [*JOINED, (20, SILENT), (60, NOT_READY), (150, BACK), (151, TICK)],
        [(2, replied()), (3, SILENT), (4, DOWN), (90, BACK), (91, TICK)],
    ],
)
def test_a_worker_joins_the_head_that_came_back(history: History) -> None:
    """It stops its old Ray, waits for the new head's, and joins at the new address."""
    trace = WorkerTrace(GOAL, history)
    assert trace.outcomes == []
    assert (trace.effects[-1], trace.state.head_ip) == (Began(RAY, 2), "10.0.0.9")


@pytest.mark.parametrize(
    ("history", "at", "words"),
    [
        ([*JOINED, (20, SILENT)], 68, "silent for 60 s"),
        ([*JOINED, (20, SILENT), (30, DOWN), (67, SILENT)], 68, "the head pod0 to come back"),
        ([*JOINED, (20, SILENT), (60, NOT_READY)], 160, "Ray at the head pod0"),
        ([*JOINED, (20, OTHER)], 20, "began another run: another, not run"),
        (
            [(2, replied(run="")), (8, RAY_UP), (9, replied()), (20, OTHER)],
            20,
            "began another run: another, not run",
        ),
    ],
)
def test_a_head_that_does_not_come_back_is_lost(history: History, at: float, words: str) -> None:
    """After AGENT_HEAD_GRACE, or when it has begun another run, the worker ends with 75."""
    before = WorkerTrace(GOAL, history if at > history[-1][0] else history[:-1])
    before.take(TICK, at - 0.1)
    assert before.outcomes == []
    trace = WorkerTrace(GOAL, [*history, (at, TICK)])
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (75, "head")
    assert words in end.reason


def test_no_ray_is_started_while_the_head_is_away() -> None:
    """While the head is silent, a Ray that ended here has no cluster to join."""
    history = [*JOINED, (20, SILENT), (30, DOWN), (31, TICK), (40, SILENT), (41, TICK)]
    trace = WorkerTrace(GOAL, history)
    assert trace.effects == [Began(RAY)]


def test_before_it_joined_a_worker_takes_any_run() -> None:
    """A head that is restarted before any worker joined it may begin another run."""
    waiting = w.HeadSpoke("10.0.0.1", 1, ray_ready=False, phase="booting", run_id="first")
    trace = WorkerTrace(GOAL, [(2, waiting), (5, replied(epoch=2, run="second"))])
    assert trace.outcomes == []
    assert trace.state.run_id == "second"


# --- the head whose agent is killed ------------------------------------------------------------

GCS_ALONE = replied(epoch=None, phase="", run="")
HELD = replied(held=True, ready=False)


@pytest.mark.parametrize("received", [replied(ready=False), HELD], ids=["answered", "held"])
def test_gcs_alone_is_no_plain_head_once_an_agent_answered(received: w.HeadSpoke) -> None:
    """Its agent was killed while Ray boots: no step starts unwanted, no worker joins."""
    gone: History = [(3, GCS_ALONE), (4, GCS_ALONE), (5, GCS_ALONE)]
    for steps in ((SHARED_DATA_STEP,), ()):
        trace = WorkerTrace(replace(GOAL, steps=steps), [(2, received), *gone])
        assert (trace.effects, trace.state.is_plain_head) == ([], False)
        assert trace.state.evidence == "its agent is gone, though Ray's GCS still answers"
    trace.take(replied(), 6)
    trace.take(RAY_UP, 9)
    trace.take(replied(), 10)
    assert trace.effects == [Began(RAY)]
    assert trace.state.joined


def test_an_agent_that_never_returns_is_waited_for_in_time() -> None:
    """AGENT_HEAD_GRACE after its last answer, or AGENT_WAIT_HEAD after the start, the wait ends."""
    trace = WorkerTrace(GOAL, [(2, replied(ready=False)), (98, GCS_ALONE), (99, GCS_ALONE)])
    assert trace.finish()
    assert [end.exit_code for end in trace.outcomes] == [69]
    assert trace.now == pytest.approx(100)


def test_a_workers_next_agent_finds_in_its_record_that_the_head_has_one(tmp_path: Path) -> None:
    """Both agents were killed before this node joined."""
    run = made_run(plan_of({}), Redactor(()), RunFolder(tmp_path, "run", "pod1"), 0.0)
    preparing = replace(GOAL, steps=(SHARED_DATA_STEP,))
    before = first_state(run, preparing)
    assert not before.has_agent
    after, _ = worker.decide(before, replied(ready=False), 1)
    record_reachability(run, before, after)
    run.surviving = SurvivingProcesses(run.node.record, ())
    run.close()
    first = first_state(run, preparing)
    assert (first.has_agent, first.ray) == (True, None)
    state, actions = worker.decide(first, GCS_ALONE, 1)
    assert (state.is_plain_head, state.ray_ready, actions) == (False, False, ())


# --- the head that lost its disk ---------------------------------------------------------------


def test_a_head_without_its_disk_continues_the_run_that_a_worker_reports() -> None:
    """The run keeps its ID, and its attempts count."""
    trace = heads.Trace(heads.goal(retries=1), [(1, MEMORY), (2, MEMORY)])
    assert trace.effects == []
    (kept,) = [one for one in trace.actions if isinstance(one, h.Persist)]
    assert kept.must_be_on_disk
    assert (kept.durable.run_id, len(kept.durable.ended)) == ("old", 1)
    trace.take(heads.nodes(), 3)
    trace.take(heads.TICK, 61)
    assert trace.effects[-1] == SubmitJob("old-2")
    assert "attempt 2 of 2: its head was lost" in trace.log


def test_a_worker_may_remember_that_the_attempts_are_used_up() -> None:
    """Then nothing is submitted again."""
    trace = heads.Trace(heads.goal(), [(1, MEMORY)])
    assert [type(deed) for deed in trace.effects] == [h.EndRun]
    assert [len(one.ended) for one in trace.persisted] == [1]
    assert (trace.outcomes[0].exit_code, trace.outcomes[0].holds_pod) == (75, True)


def test_a_head_with_a_record_ignores_other_runs() -> None:
    """Neither if its own record has the run, nor once the job is submitted."""
    known = heads.Trace(heads.goal(retries=3), [(1, MEMORY)], heads.after_losses(heads_tried()))
    assert (known.effects, known.persisted) == ([], [])
    running = heads.Trace(heads.goal(retries=3), [*heads.RUNNING, (6, MEMORY)])
    assert running.state.durable.run_id == "run"


def heads_tried() -> LostAttempt:
    """Return an attempt of an earlier head."""
    return LostAttempt(700.0, "its head was lost")


def test_a_worker_with_a_run_is_answered_after_the_decision() -> None:
    """Until then no reply names another run to it, even if it asks again while that is recorded."""
    remembered: list[tuple[str, int, int]] = []

    def on_memory(hello: Hello, epoch: int) -> bool:
        remembered.append((hello.run_id, hello.attempt, epoch))
        return len(remembered) == 1  # the second time the disk has it

    expected = Expected("2.60.0", "3.11.7", "", "abc")
    reports = Reports(FIRST, expected, lambda _event: None, lambda: 1.0, on_recalled_run=on_memory)
    replies: list[Reply] = []

    async def ask() -> None:
        replies.append(await reports.handle(replace(POD1, hello=KNOWING, epoch=9)))

    async def trace() -> None:
        with anyio.fail_after(4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                tasks.start_soon(ask)
                while len(remembered) < 2:
                    await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
                assert replies == []
                reports.publish(run_id="old")
                reports.run_decided.set()

    anyio.run(trace)
    assert remembered == [("old", 1, 9)] * 2
    assert [reply.run_id for reply in replies] == ["old"] * 2


@pytest.mark.parametrize("asks_before", [True, False])
def test_a_worker_with_a_run_is_answered_at_the_end(*, asks_before: bool) -> None:
    """A head that has ended decides on no run: the verdict follows at once."""
    recalled: list[str] = []

    def on_memory(hello: Hello, _epoch: int) -> bool:
        recalled.append(hello.run_id)
        return True

    expected = Expected("2.60.0", "3.11.7", "", "abc")
    reports = Reports(FIRST, expected, lambda _event: None, lambda: 1.0, on_recalled_run=on_memory)
    verdict = ends.STOPPED_BY_SIGNAL.outcome(code=0, signal="SIGTERM")
    replies: list[Reply] = []

    async def ask() -> None:
        replies.append(await reports.handle(replace(POD1, hello=KNOWING, epoch=9)))

    async def trace() -> None:
        with anyio.fail_after(times.RUN_DECIDED / 2):
            async with anyio.create_task_group() as tasks:
                if asks_before:
                    tasks.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                reports.publish(verdict=verdict)
                if not asks_before:
                    tasks.start_soon(ask)

    anyio.run(trace)
    assert [reply.verdict for reply in replies] == [verdict]
    assert recalled == (["old"] if asks_before else [])


def test_what_others_remember_is_written_down(tmp_path: Path) -> None:
    """The next head of this pod finds it on the disk, under the run's own ID."""
    store = store_of(tmp_path, "new")
    own = store.durable.starting_ray("pod0", 1e9)
    store.put(own, 0.0)
    anyio.run(store.on_disk)
    trace = heads.Trace(heads.goal(retries=3), [(1, h.RunRemembered("old", 2))], own)
    store.put(trace.state.durable, 1.0)
    store.close()
    assert not (tmp_path / "new" / RUN_FILE).exists()
    found = written(tmp_path, "old").durable
    assert [(one.number, one.exit_code) for one in found.ended] == [(1, 75), (2, 75)]
    assert (found.attempt.id, found.epoch) == ("old-3", own.epoch)
