"""Dependencies: services and steps start after those that they need, on any node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.decisions import worker
from agent.decisions.head import head_state as h
from agent.decisions.shared import (
    HERE,
    RAY,
    ItemReport,
    Step,
)
from agent.decisions.worker import worker_state as w
from agent.job.services import (
    ON_EVERY,
    ON_HEAD,
    PREPARE,
    PREPARE_EACH,
    PrepareStep,
    ServiceSpec,
    Where,
    longest_waits,
    wanted_steps,
)
from agent.plan import waits as wait_keys
from support import workers
from support.heads import (
    LOST,
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD,
    REWARD_SPEC,
    SUBMITTED,
    TICK,
    Started,
    Trace,
    goal,
    lost,
    nodes,
    ready,
    reported,
)
from support.histories import BOOT, LATER, Case, Logged, Row, Waits, play

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

EACH = PrepareStep(PREPARE_EACH, "mount", ON_EVERY, 100.0, "AGENT_WAIT_PREPARE")
MAKE = PrepareStep(PREPARE, "make", ON_HEAD, 100.0, "AGENT_WAIT_PREPARE", after=(PREPARE_EACH,))
DATA = PrepareStep("data", "make", ON_EVERY, 100.0, "within", after=(PREPARE,))
LAST = PrepareStep("last", "make", ON_EVERY, 100.0, "within", after=(PREPARE_EACH,))
ASKED = replace(REWARD_SPEC, after=(PREPARE_EACH, PREPARE))
FINDER = replace(RETRIEVER_SPEC, after=("data",))
ON_RANK = replace(RETRIEVER_SPEC, name="judge", where=Where("rank", 1), after=())
ON_WORKERS = replace(RETRIEVER_SPEC, name="cache", where=Where("workers"), after=())


def of(*rows: PrepareStep | ServiceSpec, workers: int = 0) -> HeadGoal:
    """Return a goal with these steps and services."""
    steps = tuple(row for row in rows if isinstance(row, PrepareStep))
    services = tuple(row for row in rows if isinstance(row, ServiceSpec))
    made = replace(goal(workers), steps=steps, services=services)
    return replace(made, max_prepare_seconds=1000.0)


def says(n: int, *done: str, rank: int | None = None, pending: str = "") -> h.WorkerReported:
    """Return a worker's report about its steps and services."""
    items = tuple(ItemReport(name, Step.READY) for name in done)
    items += tuple(ItemReport(name, Step.PENDING) for name in pending.split())
    return reported(n, joined=not pending, preparing=bool(pending), items=items, rank=rank)


def has_retriever(n: int, step: Step, generation: int) -> h.WorkerReported:
    """Return a worker's report about a retriever that an earlier head wanted."""
    item = ItemReport(RETRIEVER, step, "", generation, is_running=step is Step.READY)
    return reported(n, items=(item,))


def by_agent(key: str, report: h.WorkerReported) -> h.WorkerReported:
    """Return a report of another agent on the same node."""
    return replace(report, worker=replace(report.worker, key=key))


# --- on the head and on workers -------------------------------------------------------------------

ON_HEAD_ALONE = replace(RETRIEVER_SPEC, where=ON_HEAD, after=())
SERVER = replace(REWARD_SPEC, after=(RETRIEVER,))
ALL_SERVE: list[Row] = [
    (3, nodes()),
    (10, ready(RETRIEVER), f"start {REWARD}"),
    (10, ready(REWARD), "submit run-1"),
    (10, SUBMITTED),
]

ON_THE_HEAD: dict[str, Case] = {
    # The data takes longer than the server's limit, which counts from the server's own start
    "the reward server waits for the data, and has its time from its own start": [
        of(EACH, MAKE, ASKED),
        (0, BOOT, f"start {PREPARE_EACH}", f"{PREPARE} waits…", f"{REWARD} waits…"),
        (3, nodes()),
        (90, ready(PREPARE_EACH), f"start {PREPARE}"),
        Waits(
            f"waiting for {REWARD}, not started, waits for {PREPARE} (15 min 10 s left)",
            f"waiting for {PREPARE} (100 s left)",
        ),
        (180, TICK),
        (185, ready(PREPARE), f"start {REWARD}"),
        (400, ready(REWARD), "submit run-1"),
    ],
    "a step that fails ends the run, and nothing after it starts": [
        of(EACH, MAKE, ASKED),
        (3, nodes()),
        (9, lost(PREPARE_EACH, "exit code 2"), f"end 69: {PREPARE_EACH} failed: exit code 2"),
    ],
    "a step that is late ends the run": [
        of(EACH, MAKE, ASKED),
        (3, nodes()),
        (100, TICK, f"end 69: {PREPARE_EACH} not ready in time…"),
    ],
    "a later step has its time from its own start": [
        of(EACH, MAKE, ASKED),
        (3, nodes()),
        (9, ready(PREPARE_EACH), f"start {PREPARE}"),
        (109, TICK, f"end 69: {PREPARE} not ready in time…"),
    ],
    "a server that ends at once ends the run": [
        of(EACH, MAKE, ASKED),
        (3, nodes()),
        (9, ready(PREPARE_EACH), f"start {PREPARE}"),
        (10, ready(PREPARE), f"start {REWARD}"),
        (11, LOST, f"end 69: {REWARD} ended before it was ready: exit code 1"),
    ],
    "an agent that resumes does not repeat a step, and others still wait for theirs": [
        replace(of(EACH, MAKE, ASKED), finished_steps=frozenset({PREPARE_EACH})),
        (0, BOOT, f"start {PREPARE}", f"{REWARD} waits for {PREPARE}"),
    ],
    "an agent that resumes has all steps": [
        replace(of(EACH, MAKE, ASKED), finished_steps=frozenset({PREPARE_EACH, PREPARE})),
        (0, BOOT, f"start {REWARD}"),
    ],
    # AGENT_PREPARE may not be set, and the model may be a path
    "what a run lacks is not waited for": [
        of(ASKED, replace(FINDER, after=("AGENT_MODEL", "data"))),
        (0, BOOT, f"start {REWARD}", f"start {RETRIEVER}"),
    ],
    "a restart waits for what is gone, too, and has its time from then": [
        of(ON_HEAD_ALONE, SERVER),
        *ALL_SERVE,
        (20, lost(RETRIEVER, "exit code 1"), f"start {RETRIEVER}, generation 2"),
        (21, lost(REWARD, "exit code 1")),
        (100, ready(RETRIEVER, 2), f"start {REWARD}, generation 2"),
        Logged(f"{REWARD} waits for {RETRIEVER}"),
        Waits("waiting for the job's status from Ray, …", f"waiting for {REWARD} (2 min left)"),
    ],
    "a restart that waits for what is lost for good ends the run": [
        of(replace(ON_HEAD_ALONE, restarts=1), SERVER),
        *ALL_SERVE,
        (20, lost(RETRIEVER, "exit code 1"), f"start {RETRIEVER}, generation 2"),
        (21, lost(REWARD, "exit code 1")),
        (30, lost(RETRIEVER, "exit code 1", 2), "stop run-1"),
        (LATER, TICK, f"end 69: {RETRIEVER} is lost for good…"),
    ],
    "what is given up is not waited for, on all nodes": [
        of(
            replace(ON_HEAD_ALONE, essential=False),
            SERVER,
            replace(ON_WORKERS, after=(RETRIEVER,)),
            workers=1,
        ),
        (3, nodes(2)),
        (4, says(2)),
        (20, lost(RETRIEVER, "exit code 1"), f"start {REWARD}", "start cache on agent2"),
        Logged("the run goes on without it"),
    ],
}

ON_WORKERS_TOO: dict[str, Case] = {
    "a service of every node waits for its own node": [
        of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=2),
        (3, nodes(2, 3)),
        (4, says(2, pending=PREPARE_EACH)),
        (5, says(3, PREPARE_EACH), f"start {RETRIEVER} on agent3"),
        (6, ready(PREPARE_EACH), f"start {RETRIEVER}"),
        (7, ready(RETRIEVER)),
        (7, says(3, PREPARE_EACH, RETRIEVER)),
        (500, says(2, PREPARE_EACH), f"start {RETRIEVER} on agent2"),
        Logged(f"{RETRIEVER} on pod2 waits for {PREPARE_EACH}"),
        Waits(f"waiting for {RETRIEVER} on pod2 (5 min left)"),
    ],
    "a step of the head and a service of rank 1 start all that waits for them": [
        of(
            EACH,
            MAKE,
            DATA,
            replace(ON_WORKERS, after=(PREPARE,)),
            ON_RANK,
            replace(REWARD_SPEC, after=("judge",)),
            workers=2,
        ),
        (3, nodes(2, 3)),
        (4, says(3, pending=f"data {PREPARE_EACH}", rank=2)),
        (5, ready(PREPARE_EACH), f"start {PREPARE}"),
        (6, ready(PREPARE), "start data on agent3", "start cache on agent3", "start data"),
        (
            7,
            says(2, "data", PREPARE_EACH, rank=1),
            "start cache on agent2",
            "start judge on agent2",
        ),
        (8, says(2, "data", PREPARE_EACH, "judge", rank=1), f"start {REWARD}"),
    ],
    "a wanted step waits for a step of the head; a later worker's is wanted with its report": [
        of(replace(MAKE, after=()), DATA, workers=2),
        (3, nodes(2, 3)),
        (4, says(2, pending="data")),
        (5, ready(PREPARE), "start data", "start data on agent2"),
        (6, says(3, pending="data"), "start data on agent3"),
    ],
    "a wanted step waits for a service elsewhere": [
        of(replace(DATA, after=("judge",)), ON_RANK, workers=2),
        (3, nodes(2, 3)),
        (4, says(2, pending="data", rank=1), "start judge on agent2"),
        (4, says(3, pending="data", rank=2)),
        (
            8,
            says(2, "judge", pending="data", rank=1),
            "start data on agent2",
            "start data",
            "start data on agent3",
        ),
    ],
    # A last resort: the worker itself should have ended long before
    "a wait for a node that never gets done ends": [
        of(replace(ON_WORKERS, after=(PREPARE_EACH,))),
        (4, says(2, pending=PREPARE_EACH)),
        (4, nodes()),
        *((at, says(2, pending=PREPARE_EACH)) for at in range(14, 1004, 10)),
        (1004, TICK, "end 69: cache on pod2 not ready in time: not started, waits for …"),
    ],
    "the services of as many workers as the run needs are waited for": [
        of(ON_WORKERS, replace(REWARD_SPEC, after=("cache",)), workers=2),
        (3, nodes(2, 3)),
        (4, says(2), "start cache on agent2"),
        (5, says(2, "cache")),
        (6, says(3), "start cache on agent3"),
        (7, says(3, "cache"), f"start {REWARD}"),
    ],
    "without workers, none of theirs is waited for": [
        of(ON_WORKERS, replace(REWARD_SPEC, after=("cache",))),
        (0, BOOT, f"start {REWARD}"),
    ],
    "another agent of a node is waited for anew": [
        of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=1),
        (2, ready(PREPARE_EACH), f"start {RETRIEVER}"),
        (3, nodes(2)),
        (4, says(2, pending=PREPARE_EACH)),
        (5, h.WorkerReplaced("agent2")),
        (6, by_agent("agent9", says(2, PREPARE_EACH)), f"start {RETRIEVER} on agent9"),
    ],
    # It runs there already, whatever this head waits for
    "what runs since an earlier head wanted it is wanted by that generation": [
        of(EACH, MAKE, replace(FINDER, after=(PREPARE,)), workers=1),
        (3, nodes(2)),
        (5, has_retriever(2, Step.READY, 3), f"start {RETRIEVER} on agent2, generation 3"),
        (6, ready(PREPARE_EACH), f"start {PREPARE}"),
        (7, ready(PREPARE), f"start {RETRIEVER}"),
    ],
    "what has ended under an earlier head is started as its next generation": [
        of(replace(FINDER, after=()), workers=1),
        (3, nodes(2)),
        (5, has_retriever(2, Step.LOST, 3), f"start {RETRIEVER} on agent2, generation 4"),
    ],
    # It has only a service: its last report ends the wait for its rank
    "a node whose step fails is named": [
        of(EACH, replace(ON_RANK, alone=True, after=(PREPARE_EACH,))),
        (2, ready(PREPARE_EACH)),
        (3, nodes()),
        (4, says(2, pending=PREPARE_EACH, rank=1)),
        (
            9,
            reported(2, "leaving", joined=False, rank=1, has_left=True, detail="exit code 5"),
        ),
        (LATER, TICK, "end 69: rank 1, which is to run judge not ready in time: exit code 5"),
    ],
}


@pytest.mark.parametrize("case", (rows := ON_THE_HEAD | ON_WORKERS_TOO).values(), ids=rows)
def test_what_starts_after_what(case: Case) -> None:
    """A service or a step starts once what it needs is ready; otherwise the run ends."""
    play(case)


def test_a_step_that_is_done_has_no_holder_of_its_disk() -> None:
    """A killed agent finished it: nobody runs it."""
    shared = replace(EACH, once="/data/.done")
    done = Trace(replace(of(shared), finished_steps=frozenset({PREPARE_EACH})), [(1, TICK)])
    assert done.state.steps.holders == {}


ROWS = (EACH, MAKE, DATA, replace(ASKED, after=(PREPARE,)), FINDER, ON_RANK)
AFTER = {row.name: row.after for row in ROWS}
ON_EVERY_NODE = {row.name for row in ROWS if row.where.kind == "every"}


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())))
def test_nothing_starts_too_early_and_nothing_waits_for_ever(
    choices: list[tuple[int, bool]],
) -> None:
    """In any order of results, a start has its dependencies; without events the run ends."""
    trace = Trace(of(*ROWS, workers=2), [(1, nodes(2, 3))])
    for n in (2, 3):
        trace.take(says(n, rank=n - 1, pending=f"{PREPARE_EACH} data"), 1)
    runs = [(PREPARE_EACH, node, 1) for node in (HERE, "agent2", "agent3")]
    words = {(name, node): Step.PENDING for name, node, _ in runs}
    words |= {("data", node): Step.PENDING for node in ("agent2", "agent3")}
    seen = 0
    for at, (choice, is_well) in enumerate(choices, 2):
        new = [d for d in trace.effects[seen:] if isinstance(d, Started)]
        seen = len(trace.effects)
        for deed in new:
            for name in AFTER[deed.name]:
                home = deed.node if name in ON_EVERY_NODE else HERE
                assert words.get((name, home)) is Step.READY, (deed, name)
            number = deed.generation if isinstance(deed, Started) else 1
            runs.append((deed.name, deed.node, number))
            words[deed.name, deed.node] = Step.PENDING
        if not runs or trace.outcomes:
            break
        name, node, number = runs.pop(choice % len(runs))
        words[name, node] = Step.READY if is_well else Step.LOST
        is_step = any(row.name == name for row in (EACH, MAKE, DATA))
        failure = "" if is_well else "exit code 1"
        if node != HERE:
            items = tuple(
                ItemReport(what, step, generation=number if what == name else 1)
                for (what, where), step in words.items()
                if where == node
            )
            has_left = is_step and not is_well
            n = int(node.removeprefix("agent"))
            trace.take(reported(n, rank=n - 1, reported_at=at, items=items, has_left=has_left), at)
        elif is_step:
            trace.take(lost(name, failure), at)
        elif is_well:
            trace.take(ready(name), at)
            runs.append((name, node, number))  # and may fail later
        else:
            trace.take(lost(name, failure), at)
    assert trace.finish(200)
    assert trace.outcomes or not trace.state.services.blocked


# --- on a worker ---------------------------------------------------------------------------------

OF_LOCAL = replace(workers.goal(), steps=(EACH, LAST), services=())
GIVEN = replace(EACH, command="mount {head_ip}")
GCS_ALONE = workers.replied(epoch=None)
BOOTING = workers.replied(ready=False)
OF_TURNS = {**workers.LIMITS, wait_keys.PREPARE: 100.0, wait_keys.BEFORE: 7000.0}

ON_A_WORKER: dict[str, Case] = {
    "its own steps follow each other without the head": [
        OF_LOCAL,
        (0, BOOT, f"start {PREPARE_EACH}"),
        Waits(
            f"waiting for {PREPARE_EACH} (100 s left)",
            f"waiting for last, not started, waits for {PREPARE_EACH} (100 s left)",
            "waiting for the head pod0, …",
        ),
        (95, ready(PREPARE_EACH), "start last"),
        (120, workers.replied()),
        (190, ready("last"), f"start {RAY}"),
    ],
    "a step that fails ends it, and no other begins": [
        OF_LOCAL,
        (0, BOOT, f"start {PREPARE_EACH}"),
        (9, lost(PREPARE_EACH, "exit code 2"), f"end 69: {PREPARE_EACH} failed: exit code 2"),
    ],
    "a step after one of another node waits for the head as well": [
        replace(OF_LOCAL, steps=(EACH, DATA)),
        (0, BOOT, f"start {PREPARE_EACH}"),
        (1, workers.replied()),
        Waits(
            f"waiting for the head to have data run here, data waits for {PREPARE}; …",
            f"waiting for {PREPARE_EACH} (99 s left)",
        ),
    ],
    # Its turn comes at the latest after the limits of all that is before it
    "the time of what it waits for counts before its own": [
        replace(OF_LOCAL, steps=(DATA,), limits=OF_TURNS),
        *((at, workers.replied()) for at in range(10, 7100, 50)),
        (7100, workers.TICK, "end 69: data not ready in time…"),
    ],
    # The order on this node is kept; what runs on other nodes cannot be waited for
    "where the head has no agent, nothing is waited for elsewhere": [
        replace(OF_LOCAL, steps=(GIVEN, LAST, DATA)),
        (2, GCS_ALONE),
        (2 + times.PLAIN_RAY, GCS_ALONE, f"start {PREPARE_EACH}", "start data"),
        (13, ready("data")),
        (14, ready(PREPARE_EACH), "start last"),
    ],
    "what waits is not started out of reach: what it waits for runs again first": [
        OF_LOCAL,
        (2, BOOTING),
        (3, w.HeadSilent("no answer")),
        (51, workers.TICK, f"stop {PREPARE_EACH}"),
        (60, BOOTING, f"start {PREPARE_EACH}, generation 2"),
        (70, ready(PREPARE_EACH), "start last"),
    ],
    "a step that the head wants starts once, also after a head without an agent": [
        replace(OF_LOCAL, steps=(GIVEN, LAST)),
        (1, GCS_ALONE),
        (1 + times.PLAIN_RAY, GCS_ALONE, f"start {PREPARE_EACH}"),
        (2 + times.PLAIN_RAY, workers.wanted(1, "last"), "start last"),
        (13, ready(PREPARE_EACH)),
    ],
}


@pytest.mark.parametrize("case", ON_A_WORKER.values(), ids=ON_A_WORKER)
def test_what_starts_after_what_on_a_worker(case: Case) -> None:
    """Its own steps wait for each other, and for the head's word where they need another node."""
    play(case)


def test_which_steps_only_the_head_can_want() -> None:
    """Those that need the head's address or another node, and those after them."""
    assert wanted_steps(OF_LOCAL.steps) == ()
    assert wanted_steps((GIVEN, LAST)) == (GIVEN, LAST)
    assert wanted_steps((EACH, MAKE, DATA, LAST)) == (DATA,)
    assert wanted_steps((LAST, replace(LAST, name="more", after=("last",)))) == ()


def test_a_step_that_waits_for_its_turn_is_reported() -> None:
    """As one that does not run yet."""
    of_data = replace(OF_LOCAL, steps=(EACH, DATA))
    trace = workers.WorkerTrace(of_data, [(1, workers.replied())])
    items = worker.item_reports(trace.state)
    assert [(item.name, item.is_running) for item in items][-1] == ("data", False)


# --- the plan ------------------------------------------------------------------------------------


def test_the_longest_waits() -> None:
    """Each limit counts from the item's own start, after the limits of its dependencies."""
    rows = (EACH, MAKE, DATA, LAST, FINDER)
    assert longest_waits(rows) == {
        PREPARE_EACH: 0.0,
        PREPARE: 100.0,
        "last": 100.0,
        "data": 200.0,
        RETRIEVER: 300.0,
    }
    assert longest_waits((EACH, ASKED)) == {PREPARE_EACH: 0.0, REWARD: 100.0}
    assert longest_waits((EACH, REWARD_SPEC)) == {}
