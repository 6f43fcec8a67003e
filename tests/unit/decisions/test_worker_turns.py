"""A worker by what its head wants: its rank, its turn to prepare, and services without Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.decisions import worker
from agent.decisions.shared import RAY, Step
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.job.groups import NodeGroup
from agent.job.services import ON_EVERY, PrepareStep
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports
from support.heads import RETRIEVER, RETRIEVER_SPEC, lost, ready
from support.workers import LIMITS, TERM, TICK, Began, History, WorkerTrace, replied, wanted

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Worker

DATA = PrepareStep("data", "make", ON_EVERY, 50.0, "within", "/shared/.data")
EACH = PrepareStep("AGENT_PREPARE_EACH", "fetch", ON_EVERY, 7200.0, "AGENT_WAIT_PREPARE")
OF_STEPS = w.WorkerGoal("pod0", {**LIMITS, "prepare": 300.0}, (EACH, DATA))
OF_ALONE = w.WorkerGoal("pod0", LIMITS, service_only_ranks=frozenset({2}))


def ordered_start(rank: int, epoch: int = 1) -> w.HeadSpoke:
    """Return the head's reply with this node's rank."""
    return replace(replied(epoch), rank=rank)


def action_names(trace: WorkerTrace) -> list[str]:
    """Name what was done."""
    return [type(deed).__name__ for deed in trace.effects]


STORIES: dict[str, tuple[w.WorkerGoal, History, list[str]]] = {
    "its turn is waited for": (OF_STEPS, [(1, ready(EACH.name)), (2, replied())], []),
    "its turn": (
        OF_STEPS,
        [(1, ready(EACH.name)), (2, replied()), (3, wanted(1, "data")), (4, wanted(1, "data"))],
        ["Began"],
    ),
    "then it joins": (
        OF_STEPS,
        [(1, ready(EACH.name)), (3, wanted(1, "data")), (4, replied()), (9, ready("data"))],
        ["Began", "Began"],
    ),
    "what is under way is not begun twice": (
        OF_STEPS,
        [(2, replied()), (3, wanted(1, "data")), (4, wanted(2, "data"))],
        ["Began"],
    ),
    "a plain Ray head wants nothing": (
        OF_STEPS,
        [(2, replied(epoch=None)), (2 + times.PLAIN_RAY, replied(epoch=None))],
        ["Began"],
    ),
    "a head whose agent is being replaced wants a step again": (
        OF_STEPS,
        [(2, replied(epoch=None)), (2.3, replied(epoch=None)), (11.9, replied(epoch=None))],
        [],
    ),
    "GCS answers again after a silence": (
        OF_STEPS,
        [(2, replied(epoch=None)), (8, w.HeadSilent("x")), (13, replied(epoch=None))],
        [],
    ),
    "a node of its own joins no Ray": (
        OF_ALONE,
        [(1, ordered_start(2)), (2, ordered_start(2))],
        [],
    ),
    "another rank does": (OF_ALONE, [(1, ordered_start(1))], ["Began"]),
    "it follows a head that was started anew": (
        OF_ALONE,
        [
            (1, ordered_start(2)),
            (2, ordered_start(2, epoch=2)),
            (50, ordered_start(2, epoch=2)),
            (100, TICK),
        ],
        [],
    ),
    "and leaves one that fell silent": (
        OF_ALONE,
        [(1, ordered_start(2)), (62, TICK)],
        ["EndWorker"],
    ),
}


@pytest.mark.parametrize(("of", "history", "expected"), STORIES.values(), ids=STORIES.keys())
def test_what_the_head_wants(of: w.WorkerGoal, history: History, expected: list[str]) -> None:
    """What happens decides what is done, and nothing else."""
    assert action_names(WorkerTrace(of, history)) == expected


def test_a_step_has_its_time_from_its_order() -> None:
    """The limit of a step counts from its turn; the turn itself has the limit of all of them."""
    begun: History = [(1, ready(EACH.name)), (2, replied())]
    trace = WorkerTrace(
        OF_STEPS, [*begun, (200, replied()), (210, wanted(1, "data")), (255, replied())]
    )
    assert trace.outcomes == []
    trace.take(replied(), 261)
    assert "data not ready in time: it still runs" in trace.outcomes[0].reason
    kept = [(at, replied()) for at in range(10, 7200, 50)]
    trace = WorkerTrace(OF_STEPS, [*begun, *kept, (7200, TICK)])
    assert "data not ready in time: the head last reported" in trace.outcomes[0].reason
    assert trace.outcomes[0].exit_code == 69


def test_steps_run_side_by_side() -> None:
    """The head may want one while AGENT_PREPARE_EACH still runs: each has its own time."""
    trace = WorkerTrace(OF_STEPS, [(2, replied()), (3, wanted(1, "data"))])
    assert action_names(trace) == ["Began"]
    assert trace.state.running_steps == (EACH.name, "data")
    assert trace.state.steps_due["data"] == 53.0


def test_the_head_gets_the_state_of_an_order() -> None:
    """All steps are reported, also those that wait for their turn."""
    trace = WorkerTrace(OF_STEPS, [(1, replied())])
    assert [(word.name, word.step) for word in worker.item_reports(trace.state)] == [
        (EACH.name, Step.PENDING),
        ("data", Step.PENDING),
    ]
    (turn,) = (wait for wait in worker.pending_waits(trace.state) if "data" in wait.what)
    assert turn.what == "the head to have data run here"
    assert [item.is_running for item in worker.item_reports(trace.state)] == [True, False]
    trace.take(wanted(1, "data"), 2)
    assert trace.effects[-1] == Began("data")
    assert [item.is_running for item in worker.item_reports(trace.state)] == [True, True]
    trace.take(ready("data"), 3)
    _, done = worker.item_reports(trace.state)
    assert (done.step, done.is_running) == (Step.READY, False)


def test_running_processes_continue_under_another_head() -> None:
    """A restarted head adopts what runs by its generation; only a later one starts."""
    of = w.WorkerGoal("pod0", LIMITS, services=(RETRIEVER_SPEC,))
    trace = WorkerTrace(of, [(1, wanted(7, RETRIEVER, generation=2)), (2, ready(RETRIEVER))])
    trace.take(replied(ready=False), 3)  # it has decided nothing yet
    trace.take(wanted(1, RETRIEVER, by="head2", generation=2), 3)
    assert trace.effects == [Began(RETRIEVER, 2)]
    (said,) = worker.item_reports(trace.state)
    assert (said.step, said.generation) == (Step.READY, 2)
    trace.take(lost(RETRIEVER, "exit 1"), 5)
    trace.take(wanted(2, RETRIEVER, by="head2", generation=2), 5)
    assert len(trace.effects) == 1
    trace.take(wanted(3, RETRIEVER, by="head2", generation=3), 6)
    assert trace.effects[1:] == [Began(RETRIEVER, 3)]


def test_a_node_of_its_own_follows() -> None:
    """It is reported as a node for a service only, and never as joined."""
    state = WorkerTrace(OF_ALONE, [(1, ordered_start(2))]).state
    assert (state.phase, state.service_only, state.joined, state.rank) == (
        WorkerPhase.FOLLOWING,
        True,
        False,
        2,
    )
    names_group = of_group(is_in_ray=False)
    for rank in (2, 9):
        node = WorkerTrace(names_group, [(1, ordered_start(rank))]).state
        assert (node.phase, node.service_only) == (WorkerPhase.FOLLOWING, True)
    alone = [(1, replied(epoch=None)), (20, replied(epoch=None)), (100, TICK)]
    bare = WorkerTrace(replace(OF_ALONE, rank=2), alone)
    assert bare.outcomes[0].exit_code == 69


def of_group(*, is_in_ray: bool) -> w.WorkerGoal:
    """Return the goal of a node that names a group of rank 2."""
    group = NodeGroup("pool", 1, ray=is_in_ray, first_rank=2)
    return w.WorkerGoal("pod0", LIMITS, groups=(group,), group="pool")


def test_a_spare_of_a_group_in_ray_joins_with_the_groups_rank() -> None:
    """Before it has that rank, and once another node has it, it follows without Ray."""
    trace = WorkerTrace(of_group(is_in_ray=True), [(1, ordered_start(9))])
    assert (trace.state.phase, trace.state.service_only) == (WorkerPhase.FOLLOWING, True)
    assert trace.effects == []
    trace.take(ordered_start(2), 2)
    assert (trace.state.phase, trace.state.service_only) == (WorkerPhase.JOINING, False)
    trace.take(ordered_start(9), 3)
    assert (trace.state.phase, trace.state.service_only) == (WorkerPhase.FOLLOWING, True)


EVENTS = st.sampled_from(
    [
        TICK,
        ordered_start(2),
        ordered_start(2, epoch=2),
        replied(epoch=None),
        w.HeadSilent("x"),
        wanted(1, "data"),
        TERM,
    ]
)


@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.1, 5.0, 61.0]))))
def test_a_node_of_its_own_never_starts_ray(events: list[tuple[w.WorkerEvent, float]]) -> None:
    """Whatever happens, it starts no Ray; left alone, it ends, once."""
    trace = WorkerTrace(replace(OF_ALONE, rank=2), [])
    for event, pause in events:
        trace.take(event, trace.now + pause)
    assert trace.finish()
    assert len(trace.outcomes) == 1
    assert not any(isinstance(deed, Began) and deed.name == RAY for deed in trace.effects)


def test_ranks_come_with_the_reply() -> None:
    """The first hello gets rank 1; a node with a rank from its platform gets none."""
    received: list[Worker] = []
    kept: list[tuple[str, ...]] = []
    first = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
    reports = Reports(
        first,
        Expected(None, "", "", ""),
        lambda event: received.append(event.worker) if hasattr(event, "worker") else None,
        lambda: 1.0,
        keep_ranks=kept.append,
        has_token=True,
    )

    def rank(key: str, name: str, own: int | None = None) -> int | None:
        ip = f"10.0.0.{ord(key)}"
        report = Report(key, ip, "joining", hello=Hello(name, own))
        reply = anyio.run(reports.handle, Report.from_dict(report.to_dict()))
        return Reply.from_dict(reply.to_dict()).rank

    assert [rank("a", "pod1"), rank("b", "pod2"), rank("c", "pod9", 5)] == [1, 2, None]
    assert rank("d", "pod1") == 1
    assert kept == [("pod1",), ("pod1", "pod2")]
    assert [one.effective_rank for one in received] == [1, 2, 5, 1]
