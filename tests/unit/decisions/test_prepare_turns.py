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
from agent.job.services import ON_EVERY, ON_HEAD, PrepareStep
from support.event_words import cases
from support.heads import (
    NOTHING_DURABLE,
    SHARED_DATA_STEP,
    Started,
    Trace,
    goal,
    ready,
    reported,
)
from support.histories import Case, head_after, play
from support.worlds import MACHINE

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

MORE = PrepareStep("more", "make {rank}", ON_EVERY, 60.0, "within")
AT = "nfs of workers"
OF_WORKERS = ("data", AT)


def of(*steps: PrepareStep) -> HeadGoal:
    """Return a goal with steps of a file; the head's disk is the shared one."""
    return replace(goal(3), steps=steps, facts=replace(MACHINE, disks={"/shared/.data": "nfs"}))


def has(n: int, disk: str = "nfs") -> h.WorkerIntroduced:
    """Return the event that a worker's machine is known, with the disk of the step."""
    facts = replace(MACHINE, disks={"/shared/.data": disk})
    return h.WorkerIntroduced(f"agent{n}", f"pod{n}", facts)


def says(
    n: int,
    *over: str,
    pending: tuple[str, ...] = (),
    running: tuple[str, ...] = (),
    stopped: tuple[str, ...] = (),
    given_rank: int | None = None,
    **more: Any,  # noqa: ANN401 - passed on
) -> h.WorkerReported:
    """Return a worker's report about finished steps, and its other steps."""
    items = tuple(ItemReport(name, Step.READY) for name in over)
    items += tuple(ItemReport(name, Step.PENDING) for name in pending)
    items += tuple(ItemReport(name, Step.PENDING, is_running=True) for name in running)
    items += tuple(ItemReport(name, Step.LOST, was_stopped=True) for name in stopped)
    event = reported(n, items=items, joined=False, preparing=True, **more)
    return h.WorkerReported(replace(event.worker, given_rank=given_rank))


OF_DATA = of(SHARED_DATA_STEP)
HAS_RECORD = replace(OF_DATA, has_record=True)
WORDS = {
    "data": OF_DATA,
    "data and more": of(SHARED_DATA_STEP, MORE),
    "data of the head": of(replace(SHARED_DATA_STEP, where=ON_HEAD)),
    "data, 1 worker, has a record": replace(HAS_RECORD, expected_workers=1),
    "data, has a record": HAS_RECORD,
    "more": of(MORE),
    "more after data": of(SHARED_DATA_STEP, replace(MORE, after=("data",))),
    "left: pod3 runs data": [Durable("run", holders=(StepHolder(*OF_WORKERS, "pod3"),))],
    "outlived": h.RunRemembered("run", 0, is_of_other_head=True),
    "three of them": (
        "2 ready data | 2 pod2 has the workers' disk | 2 pod3 has the workers' disk | "
        "2 pod4 has the workers' disk"
    ),
    **{f"pod{n} has the disk": has(n) for n in (2, 3)},
    **{f"pod{n} has its own disk": has(n, f"disk of {n}") for n in (2, 3)},
    **{f"pod{n} has the workers' disk": has(n, AT) for n in (2, 3, 4, 5)},
    **{f"pod{n} is done": says(n, "data") for n in (2, 3)},
    **{f"pod{n} runs data": says(n, running=("data",)) for n in (3, 5)},
    **{f"pod{n} waits": says(n) for n in (2, 3, 4)},
    "pod2 has rank 1": says(2, given_rank=1),
    "pod2 has rank 1, is done": says(2, "data", given_rank=1),
    "pod2 has stopped it": says(2, stopped=("data",)),
    "pod2 is done with both": says(2, "data", "more"),
    "pod2 leaves": says(2, has_left=True),
    "pod2 leaves rank 1": says(2, given_rank=1, has_left=True),
    "pod2 waits for both": says(2, pending=("data", "more")),
    "pod3 has rank 2": says(3, given_rank=2),
    "pod3 is rank 2": says(3, rank=2),
    "pod4 has rank 3": says(4, given_rank=3),
}

TURNS = cases(
    """\
the head is first [data]
    1 pod2 has the disk | 1 pod2 waits
then one worker, and then the next [data]
    1 pod2 has the disk | 1 pod2 waits | 1 pod3 has the disk | 1 pod3 waits
    2 ready data -> start data on agent2 | 3 pod2 is done -> start data on agent3 | 4 pod2 is done
a disk of one's own is nobody's affair [data]
    1 pod2 has its own disk | 1 pod2 waits -> start data on agent2 | 1 pod3 has its own disk
    1 pod3 waits -> start data on agent3
who comes late finds it [data]
    2 ready data | 9 pod2 has the disk | 9 pod2 waits -> start data on agent2
one that leaves has had its turn [data]
    2 ready data | 2 pod2 has the disk | 2 pod2 waits -> start data on agent2 | 2 pod3 has the disk
    2 pod3 waits | 4 pod2 leaves -> start data on agent3
so has one that was replaced [data]
    2 ready data | 2 pod2 has the disk | 2 pod2 waits -> start data on agent2 | 2 pod3 has the disk
    2 pod3 waits | 4 pod2 replaced -> start data on agent3
# Once its node is reached again
and one that fell silent; what a fence has ended waits for its turn again [data]
    2 ready data | 2 pod2 has the disk | 2 pod2 waits -> start data on agent2 | 2 pod3 has the disk
    2 pod3 waits | 60 pod3 waits | 61.5 tick | 62 nodes -> start data on agent3
    70 pod2 has stopped it | 80 pod3 is done -> start data on agent2, generation 2
what depends on nothing waits for no turn [data and more]
    1 pod2 has the disk | 1 pod2 waits -> start more on agent2
    2 ready data -> start data on agent2 | 4 pod2 is done | 5 pod2 is done with both
what depends on another follows it [more after data]
    1 pod2 waits for both -> start data on agent2 | 2 ready data -> start more
    4 pod2 is done -> start more on agent2
without a marker nobody waits [more]
    1 pod2 has the disk | 1 pod2 waits -> start more on agent2 | 1 pod3 has the disk
    1 pod3 waits -> start more on agent3
one that has it from an earlier head [data and more]
    1 pod2 has the disk | 2 pod2 is done -> start more on agent2
a step of the head's own [data of the head]
    1 pod2 has the disk | 1 pod2 waits
# Workers share a disk that the head lacks: one of them still runs what was wanted before
after a restart, its holder is late [data, has a record]
    left: pod3 runs data | 1 pod2 has the workers' disk | 1 pod2 waits | 9 tick
its holder reports [data, has a record]
    left: pod3 runs data | 1 pod2 has the workers' disk | 1 pod2 waits
    2 pod3 has the workers' disk | 2 pod3 waits -> start data on agent3 | 5 pod2 waits
its holder has finished [data, has a record]
    left: pod3 runs data | 1 pod2 has the workers' disk | 1 pod2 waits
    2 pod3 has the workers' disk | 2 pod3 waits -> start data on agent3
    5 pod3 is done -> start data on agent2
its holder is gone [data, has a record]
    left: pod3 runs data | 1 pod2 has the workers' disk | 1 pod2 waits | 2 ready data
    59 pod2 waits | 60 pod2 waits -> start data on agent2
# It has no record of what was wanted: workers report what they run
after a lost disk, one that waits reports first [data]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits | 9 tick
the one that runs it is known [data]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits | 2 pod3 has the workers' disk
    2 pod3 runs data -> start data on agent3 | 3 pod4 has the workers' disk | 3 pod4 waits
    5 pod2 waits
it has finished [data]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits | 2 pod3 has the workers' disk
    2 pod3 runs data -> start data on agent3 | 5 pod3 is done | 12 pod4 has the workers' disk
    12 pod4 waits -> start data on agent2
nobody runs it [data]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits | 2 pod3 has the workers' disk
    2 pod3 waits | 3 pod4 has the workers' disk | 3 pod4 waits
    12 pod4 waits -> start data on agent4
a spare runs it [data]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits | 2 pod3 has the workers' disk
    2 pod3 waits | 3 pod4 has the workers' disk | 3 pod4 waits | 4 pod5 has the workers' disk
    4 pod5 runs data -> start data on agent5 | 12 tick
it never reports [data]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits | 2 ready data | 59 pod2 waits
    60 pod2 waits -> start data on agent2
# Its record has all that was wanted
a head with a record waits for no other worker [data, has a record]
    1 outlived | 1 pod2 has the workers' disk | 1 pod2 waits -> start data on agent2
# Without ranks a replacement has a further one; all expected ranks were given before
in place of one that is there [data, 1 worker, has a record]
    three of them | 65 pod2 has rank 1 -> start data on agent2 | 70 pod3 has rank 2
in place of one that has left, and a further one [data, 1 worker, has a record]
    three of them | 70 pod2 leaves rank 1 | 71 pod3 has rank 2 -> start data on agent3
    72 pod4 has rank 3
in place of one that is lost [data, 1 worker, has a record]
    three of them | 65 pod2 has rank 1, is done | 70 pod2 silent: connection refused
    71 pod3 has rank 2 -> start data on agent3
in place of one that may not have reported yet, or not for long [data, 1 worker, has a record]
    three of them | 50 pod3 has rank 2 | 59 pod3 has rank 2
    61 pod3 has rank 2 -> start data on agent3
in place of one whose rank it would have [data, 1 worker, has a record]
    three of them | 70 pod2 leaves rank 1 | 71 pod3 is rank 2
""",
    WORDS,
)


@pytest.mark.parametrize("case", TURNS.values(), ids=TURNS)
def test_turns(case: Case) -> None:
    """The events decide which node prepares next."""
    play(case)


def begun(trace: Trace) -> list[tuple[str, str]]:
    """Name the steps that were begun, and their nodes."""
    return [(action.name, action.node) for action in trace.effects if isinstance(action, Started)]


def saved_and_ordered(trace: Trace) -> list[object]:
    """Return the holders that were saved, and the orders to workers, in their order."""
    kept = [one for one in trace.actions if isinstance(one, h.Persist | Started)]
    return [one.durable.holders if isinstance(one, h.Persist) else one for one in kept]


def test_who_has_a_turn_is_saved_first() -> None:
    """By the worker's name, before its order; what runs without an order, too, for the next agent.

    The head's own turns are not.
    """
    runs = says(3, running=("data",))
    trace = head_after(OF_DATA, (2, WORDS["outlived"]), (2, has(3, AT)), (2, runs))
    holder = StepHolder(*OF_WORKERS, "pod3")
    assert saved_and_ordered(trace) == [(holder,), Started("data", "agent3")]

    waits = [(1, has(2, AT)), (1, says(2))]
    trace = head_after(OF_DATA, *waits, "2 ready data", (3, has(3)), (3, says(3)))
    of_workers = StepHolder(*OF_WORKERS, "pod2")
    assert saved_and_ordered(trace) == [
        (of_workers,),
        Started("data", "agent2"),
        (of_workers, StepHolder("data", "nfs", "pod3")),
        Started("data", "agent3"),
    ]
    assert all(one.must_be_on_disk for one in trace.actions if isinstance(one, h.Persist))
    assert head.first_state(OF_DATA, NOTHING_DURABLE).steps.holders == {("data", "nfs"): "head"}


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
    introduced = [(1, has(n, AT)) for n in (9, 2, 3, 4)]
    trace = head_after(OF_DATA, (1, WORDS["outlived"]), *introduced)
    for at in range(2, 30):
        runs = says(9, running=("data",), reported_at=at, **more)
        trace.take(runs, at)
        for n in (2, 3, 4):
            trace.take(says(n, rank=n - 1, reported_at=at), at)
    assert {one.node for durable in trace.persisted for one in durable.holders} == {holder}
    assert {node for _, node in begun(trace)} <= {holder.replace("pod", "agent")}


@given(st.lists(st.tuples(st.integers(2, 6), st.sampled_from(["hello", "over", "gone"]))))
def test_never_two_at_once_on_one_disk(events: list[tuple[int, str]]) -> None:
    """For any events, at most one node works on a shared disk, and every node has its turn."""
    trace = Trace(OF_DATA, [(2.0, ready("data"))])
    working: list[str] = []
    for at, (n, kind) in enumerate(events, 3):
        before = len(begun(trace))
        key = f"agent{n}"
        if kind == "hello" and key not in trace.state.fleet.workers:
            trace.take(has(n), at)
            trace.take(says(n, reported_at=at), at)
        elif kind == "over" and key in working:
            working.remove(key)
            trace.take(says(n, "data", reported_at=at), at)
        elif kind == "gone":
            working = [one for one in working if one != key]
            trace.take(h.WorkerReplaced(key), at)
        working += [node for _, node in begun(trace)[before:]]
        assert len(working) <= 1
        assert [*trace.state.steps.holders.values()] == working
