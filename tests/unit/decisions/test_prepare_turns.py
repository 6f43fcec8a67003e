"""Prepare steps that the head wants: nodes that share a disk run one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.decisions.durable import Durable, StepHolder
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.shared import ItemReport, Step
from agent.job.services import ON_EVERY, ON_HEAD, PrepareStep, wanted_steps
from support.heads import (
    NOTHING_DURABLE,
    SHARED_DATA_STEP,
    TICK,
    History,
    Started,
    Trace,
    goal,
    nodes,
    ready,
    reported,
)
from support.worlds import MACHINE

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

MORE = PrepareStep("more", "make {rank}", ON_EVERY, 60.0, "within")
HERE_DONE = (2.0, ready("data"))


def of(*steps: PrepareStep) -> HeadGoal:
    """Return a goal with steps of a file; the head's disk is the shared one."""
    return replace(goal(3), steps=steps, facts=replace(MACHINE, disks={"/shared/.data": "nfs"}))


def hello(n: int, disk: str = "nfs", at: float = 1.0) -> History:
    """Return a worker's first report: its machine, and that it waits."""
    facts = replace(MACHINE, disks={"/shared/.data": disk})
    return [(at, h.WorkerIntroduced(f"agent{n}", f"pod{n}", facts)), says(n, at=at)]


def says(  # noqa: PLR0913 - what a worker may say
    n: int,
    *over: str,
    at: float,
    has_left: bool = False,
    pending: tuple[str, ...] = (),
    running: tuple[str, ...] = (),
    stopped: tuple[str, ...] = (),
    **more: Any,  # noqa: ANN401 - passed on
) -> tuple[float, h.HeadEvent]:
    """Return a worker's report about finished steps, and its other steps."""
    items = tuple(ItemReport(name, Step.READY) for name in over)
    items += tuple(ItemReport(name, Step.PENDING) for name in pending)
    items += tuple(ItemReport(name, Step.PENDING, is_running=True) for name in running)
    items += tuple(ItemReport(name, Step.LOST, was_stopped=True) for name in stopped)
    more |= {"joined": False, "preparing": True, "reported_at": at, "has_left": has_left}
    return at, reported(n, items=items, **more)


def begun(trace: Trace) -> list[tuple[str, str]]:
    """Name the steps that were begun, and their nodes."""
    return [(action.name, action.node) for action in trace.effects if isinstance(action, Started)]


STORIES: dict[str, tuple[tuple[PrepareStep, ...], History, list[tuple[str, str]]]] = {
    "the head is first": ((SHARED_DATA_STEP,), hello(2), []),
    "then one worker": (
        (SHARED_DATA_STEP,),
        [*hello(2), *hello(3), HERE_DONE],
        [("data", "agent2")],
    ),
    "and then the next": (
        (SHARED_DATA_STEP,),
        [*hello(2), *hello(3), HERE_DONE, says(2, "data", at=3), says(2, "data", at=4)],
        [("data", "agent2"), ("data", "agent3")],
    ),
    "a disk of one's own is nobody's affair": (
        (SHARED_DATA_STEP,),
        [*hello(2, "disk of 2"), *hello(3, "disk of 3")],
        [("data", "agent2"), ("data", "agent3")],
    ),
    "who comes late finds it": (
        (SHARED_DATA_STEP,),
        [HERE_DONE, *hello(2, at=9.0)],
        [("data", "agent2")],
    ),
    "one that leaves has had its turn": (
        (SHARED_DATA_STEP,),
        [HERE_DONE, *hello(2), *hello(3), says(2, at=4, has_left=True)],
        [("data", "agent2"), ("data", "agent3")],
    ),
    "so has one that was replaced": (
        (SHARED_DATA_STEP,),
        [HERE_DONE, *hello(2), *hello(3), (4, h.WorkerReplaced("agent2"))],
        [("data", "agent2"), ("data", "agent3")],
    ),
    "and one that fell silent": (
        (SHARED_DATA_STEP,),
        [HERE_DONE, *hello(2), *hello(3), says(3, at=60), (60.5, TICK), (61, nodes())],
        [("data", "agent2"), ("data", "agent3")],
    ),
    "what a fence has ended waits for its turn again": (
        (SHARED_DATA_STEP,),
        [
            *[HERE_DONE, *hello(2), *hello(3), says(3, at=60), (60.5, TICK), (61, nodes())],
            says(2, at=70, stopped=("data",)),
            says(3, "data", at=80),
        ],
        [("data", "agent2"), ("data", "agent3"), ("data", "agent2")],
    ),
    "what depends on nothing waits for no turn": (
        (SHARED_DATA_STEP, MORE),
        [*hello(2), HERE_DONE, says(2, "data", at=4), says(2, "data", "more", at=5)],
        [("more", "agent2"), ("data", "agent2")],
    ),
    "what depends on another follows it": (
        (SHARED_DATA_STEP, replace(MORE, after=("data",))),
        [says(2, at=1, pending=("data", "more")), HERE_DONE, says(2, "data", at=4)],
        [("data", "agent2"), ("more", "head"), ("more", "agent2")],
    ),
    "without a marker nobody waits": (
        (MORE,),
        [*hello(2), *hello(3)],
        [("more", "agent2"), ("more", "agent3")],
    ),
    "one that has it from an earlier head": (
        (SHARED_DATA_STEP, MORE),
        [(1, hello(2)[0][1]), says(2, "data", at=2)],
        [("more", "agent2")],
    ),
    "a step of the head's own": ((replace(SHARED_DATA_STEP, where=ON_HEAD),), hello(2), []),
}


DISK_OF_WORKERS = ("data", "nfs of workers")
AT = "nfs of workers"
AFTER_A_RESTART: dict[str, tuple[History, list[tuple[str, str]]]] = {
    "its holder is late": ([*hello(2, AT), (9, TICK)], []),
    "its holder reports": (
        [*hello(2, AT), *hello(3, AT, at=2), says(2, at=5)],
        [("data", "agent3")],
    ),
    "its holder has finished": (
        [*hello(2, AT), *hello(3, AT, at=2), says(3, "data", at=5)],
        [("data", "agent3"), ("data", "agent2")],
    ),
    "its holder is gone": (
        [*hello(2, AT), HERE_DONE, says(2, at=59), (60, TICK)],
        [("data", "agent2")],
    ),
}


@pytest.mark.parametrize(
    ("history", "expected"), AFTER_A_RESTART.values(), ids=AFTER_A_RESTART.keys()
)
def test_turns_after_a_restart_of_the_heads_agent(
    history: History, expected: list[tuple[str, str]]
) -> None:
    """Workers share a disk that the head lacks: one of them still runs what was wanted before."""
    known = replace(of(SHARED_DATA_STEP), has_record=True)
    trace = Trace(known, history, Durable("run", holders=(StepHolder(*DISK_OF_WORKERS, "pod3"),)))
    assert begun(trace) == expected


def outlives(n: int, at: float, *running: str) -> History:
    """Return the first report of a worker that outlived a head, and the steps that it runs."""
    remembered = h.RunRemembered("run", 0, is_of_other_head=True)
    introduced = hello(n, AT, at)[0]
    return [(at, remembered), introduced, says(n, at=at, running=running)]


AFTER_A_LOST_DISK: dict[str, tuple[History, list[tuple[str, str]]]] = {
    "one that waits reports first": ([*outlives(2, 1), (9, TICK)], []),
    "the one that runs it is known": (
        [*outlives(2, 1), *outlives(3, 2, "data"), *outlives(4, 3), says(2, at=5)],
        [("data", "agent3")],
    ),
    "it has finished": (
        [*outlives(2, 1), *outlives(3, 2, "data"), says(3, "data", at=5), *hello(4, AT, at=12)],
        [("data", "agent3"), ("data", "agent2")],
    ),
    "nobody runs it": (
        [*outlives(2, 1), *outlives(3, 2), *outlives(4, 3), says(4, at=12)],
        [("data", "agent4")],
    ),
    "a spare runs it": (
        [*outlives(2, 1), *outlives(3, 2), *outlives(4, 3), *outlives(5, 4, "data"), (12, TICK)],
        [("data", "agent5")],
    ),
    "it never reports": (
        [*outlives(2, 1), HERE_DONE, says(2, at=59), (60, TICK)],
        [("data", "agent2")],
    ),
}


@pytest.mark.parametrize(
    ("history", "expected"), AFTER_A_LOST_DISK.values(), ids=AFTER_A_LOST_DISK.keys()
)
def test_turns_of_a_head_that_lost_its_disk(
    history: History, expected: list[tuple[str, str]]
) -> None:
    """It has no record of what was wanted: workers report what they run."""
    assert begun(Trace(of(SHARED_DATA_STEP), history)) == expected


def saved_and_ordered(trace: Trace) -> list[object]:
    """Return the holders that were saved, and the orders to workers, in their order."""
    kept = [one for one in trace.actions if isinstance(one, h.Persist | Started)]
    return [one.durable.holders if isinstance(one, h.Persist) else one for one in kept]


def test_what_runs_is_saved_though_nothing_is_ordered() -> None:
    """The next agent must find it, too; the holder is wanted to run the step that it runs."""
    trace = Trace(of(SHARED_DATA_STEP), [*outlives(3, 2, "data")])
    assert saved_and_ordered(trace) == [
        (StepHolder(*DISK_OF_WORKERS, "pod3"),),
        Started("data", "agent3"),
    ]


@pytest.mark.parametrize(
    ("more", "holder"),
    [
        ({"refused": "version mismatch"}, "pod2"),
        ({"rank": 1, "refused": "version mismatch"}, "pod2"),
        ({"rank": 77}, "pod9"),
        ({"rank": 1}, "pod9"),
    ],
)
def test_who_runs_a_step_keeps_others_from_it(more: dict[str, Any], holder: str) -> None:
    """A spare, too: a former head may have wanted it. A refused agent keeps nobody from it."""
    introduced = [hello(n, AT)[0] for n in (9, 2, 3, 4)]
    trace = Trace(of(SHARED_DATA_STEP), [outlives(2, 1)[0], *introduced])
    for at in range(2, 30):
        trace.take(says(9, at=at, running=("data",), **more)[1], at)
        for n in (2, 3, 4):
            trace.take(says(n, at=at, rank=n - 1)[1], at)
    assert {one.node for durable in trace.persisted for one in durable.holders} == {holder}
    assert {node for _, node in begun(trace)} <= {holder.replace("pod", "agent")}


def ranked(
    n: int, at: float, given_rank: int, *over: str, has_left: bool = False
) -> tuple[float, h.HeadEvent]:
    """Return the report of a worker that waits, on a platform without ranks."""
    _, event = says(n, *over, at=at, has_left=has_left)
    assert isinstance(event, h.WorkerReported)
    return at, h.WorkerReported(replace(event.worker, given_rank=given_rank))


GONE = ranked(2, 70, 1, has_left=True)
SILENT = (70.0, h.WorkerSilent("agent2", "connection refused"))
IN_PLACE_OF_ANOTHER: dict[str, tuple[History, list[tuple[str, str]]]] = {
    "which is there": ([ranked(2, 65, 1), ranked(3, 70, 2)], []),
    "which has left": ([GONE, ranked(3, 71, 2)], [("data", "agent3")]),
    "which is lost": ([ranked(2, 65, 1, "data"), SILENT, ranked(3, 71, 2)], [("data", "agent3")]),
    "which may not have reported yet": ([ranked(3, 50, 2), (59, TICK)], []),
    "which has not reported for long": ([ranked(3, 50, 2), (61, TICK)], [("data", "agent3")]),
    "whose rank it would have": ([GONE, says(3, at=71, rank=2)], []),
    "with a further one": ([GONE, ranked(3, 71, 2), ranked(4, 72, 3)], [("data", "agent3")]),
}


@pytest.mark.parametrize(
    ("history", "expected"), IN_PLACE_OF_ANOTHER.values(), ids=IN_PLACE_OF_ANOTHER.keys()
)
def test_a_worker_in_place_of_an_expected_one(
    history: History, expected: list[tuple[str, str]]
) -> None:
    """Without ranks a replacement has a further one; all expected ranks were given before."""
    of_one = replace(of(SHARED_DATA_STEP), expected_workers=1, has_record=True)
    introduced = [event for n in (2, 3, 4) for event in hello(n, AT)[:1]]
    trace = Trace(of_one, [HERE_DONE, *introduced, *history])
    assert [order for order in begun(trace) if order[1] != "agent2"] == expected


def test_a_head_with_a_record_waits_for_no_other_worker() -> None:
    """Its record has all that was wanted."""
    trace = Trace(replace(of(SHARED_DATA_STEP), has_record=True), outlives(2, 1))
    assert begun(trace) == [("data", "agent2")]


def test_who_has_a_turn_is_saved_first() -> None:
    """By the worker's name, before its order; the head's own turns are not."""
    trace = Trace(of(SHARED_DATA_STEP), [*hello(2, AT), HERE_DONE, *hello(3)])
    of_workers = StepHolder(*DISK_OF_WORKERS, "pod2")
    assert saved_and_ordered(trace) == [
        (of_workers,),
        Started("data", "agent2"),
        (of_workers, StepHolder("data", "nfs", "pod3")),
        Started("data", "agent3"),
    ]
    assert all(one.must_be_on_disk for one in trace.actions if isinstance(one, h.Persist))


@pytest.mark.parametrize(("steps", "history", "expected"), STORIES.values(), ids=STORIES.keys())
def test_turns(
    steps: tuple[PrepareStep, ...], history: History, expected: list[tuple[str, str]]
) -> None:
    """The events decide which node prepares next."""
    assert begun(Trace(of(*steps), history)) == expected


@given(st.lists(st.tuples(st.integers(2, 6), st.sampled_from(["hello", "over", "gone"]))))
def test_never_two_at_once_on_one_disk(events: list[tuple[int, str]]) -> None:
    """For any events, at most one node works on a shared disk, and every node has its turn."""
    trace = Trace(of(SHARED_DATA_STEP), [HERE_DONE])
    working: list[str] = []
    for at, (n, kind) in enumerate(events, 3):
        before = len(begun(trace))
        key = f"agent{n}"
        if kind == "hello" and key not in trace.state.fleet.workers:
            for _, event in hello(n, at=float(at)):
                trace.take(event, float(at))
        elif kind == "over" and key in working:
            working.remove(key)
            trace.take(says(n, "data", at=float(at))[1], float(at))
        elif kind == "gone":
            working = [one for one in working if one != key]
            trace.take(h.WorkerReplaced(key), float(at))
        working += [node for _, node in begun(trace)[before:]]
        assert len(working) <= 1
        assert [*trace.state.steps.holders.values()] == working


def test_what_the_head_must_want() -> None:
    """Steps that need the head, and those that depend on them; independent ones do not wait."""
    plain = PrepareStep("AGENT_PREPARE_EACH", "fetch", ON_EVERY, 60.0, "x")
    last = replace(plain, name="last", after=("data",))
    assert wanted_steps((plain, replace(plain, where=ON_HEAD))) == ()
    assert wanted_steps(
        (plain, SHARED_DATA_STEP, replace(SHARED_DATA_STEP, where=ON_HEAD), last)
    ) == (SHARED_DATA_STEP, last)
    assert wanted_steps((SHARED_DATA_STEP, replace(last, after=(plain.name,)))) == (
        SHARED_DATA_STEP,
    )
    first = head.first_state(of(SHARED_DATA_STEP), NOTHING_DURABLE)
    assert first.steps.holders == {("data", "nfs"): "head"}
