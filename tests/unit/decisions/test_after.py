"""Dependencies: services and steps start after those that they need, on any node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.decisions import worker
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import (
    HERE,
    RAY,
    ItemReport,
    LogLine,
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
    History,
    Started,
    Trace,
    goal,
    lost,
    nodes,
    ready,
    reported,
)

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


def begins(trace: Trace) -> list[str]:
    """Name the steps and services that the head starts at once, or holds back."""
    held = [action.sentence for action in trace.state.actions if isinstance(action, LogLine)]
    return [f"Started {one.name}" for one in trace.at_once] + held


def starts(trace: Trace) -> list[str]:
    """Name the started items, their node, and the items that each waited for."""
    return [f"{deed.name} {deed.node}" for deed in trace.effects if isinstance(deed, Started)]


def says(n: int, *done: str, at: float, rank: int | None = None, pending: str = "") -> h.HeadEvent:
    """Return a worker's report about its steps and services."""
    items = tuple(ItemReport(name, Step.READY) for name in done)
    items += tuple(ItemReport(name, Step.PENDING) for name in pending.split())
    return reported(
        n, joined=not pending, preparing=bool(pending), reported_at=at, items=items, rank=rank
    )


# --- on the head ---------------------------------------------------------------------------------


def test_the_reward_server_waits_for_the_data_and_has_its_time_from_its_own_start() -> None:
    """Items without dependencies start at once; the data takes longer than the server's limit."""
    trace = Trace(of(EACH, MAKE, ASKED), [])
    assert begins(trace) == [
        f"Started {PREPARE_EACH}",
        f"{PREPARE} waits for {PREPARE_EACH}",
        f"{REWARD} waits for {PREPARE_EACH} and {PREPARE}",
    ]
    trace.take(nodes(), 3)
    trace.take(ready(PREPARE_EACH), 90)
    assert starts(trace) == [f"{PREPARE} {HERE}"]
    (server, step) = head.pending_waits(trace.state)
    assert (server.what, server.evidence) == (REWARD, f"not started, waits for {PREPARE}")
    assert (step.what, step.deadline) == (PREPARE, 190.0)
    trace.take(TICK, 180)
    trace.take(ready(PREPARE), 185)
    assert starts(trace) == [f"{PREPARE} {HERE}", f"{REWARD} {HERE}"]
    (server,) = head.pending_waits(trace.state)
    assert (server.evidence, server.deadline) == ("", 185.0 + REWARD_SPEC.within)
    trace.take(ready(REWARD), 400)
    assert (trace.state.phase, trace.outcomes) == (HeadPhase.SUBMITTING, [])


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([(9, lost(PREPARE_EACH, "exit code 2"))], f"{PREPARE_EACH} failed: exit code 2"),
        ([(100, TICK)], f"{PREPARE_EACH} not ready in time"),
        (
            [(9, ready(PREPARE_EACH)), (109, TICK)],
            f"{PREPARE} not ready in time",
        ),
        (
            [(9, ready(PREPARE_EACH)), (10, ready(PREPARE)), (11, LOST)],
            f"{REWARD} ended before it was ready: exit code 1",
        ),
    ],
)
def test_what_fails_ends_the_run_with_its_own_reason(history: History, reason: str) -> None:
    """Items that depend on it are neither started nor waited for."""
    trace = Trace(of(EACH, MAKE, ASKED), [(3, nodes()), *history])
    (end,) = trace.outcomes
    assert (end.exit_code, end.reason[: len(reason)]) == (69, reason)


def test_an_agent_that_resumes_has_the_completed_steps() -> None:
    """A step that a killed agent finished does not run again; others still wait for theirs."""
    made = of(EACH, MAKE, ASKED)
    trace = Trace(replace(made, finished_steps=frozenset({PREPARE_EACH})), [])
    assert begins(trace) == [f"Started {PREPARE}", f"{REWARD} waits for {PREPARE}"]
    trace = Trace(replace(made, finished_steps=frozenset({PREPARE_EACH, PREPARE})), [])
    assert begins(trace) == [f"Started {REWARD}"]
    shared = replace(EACH, once="/data/.done")
    done = Trace(replace(of(shared), finished_steps=frozenset({PREPARE_EACH})), [(1, TICK)])
    assert done.state.steps.holders == {}


def test_a_restart_waits_for_what_is_gone_too() -> None:
    """A service is restarted once its dependency answers; its own limit counts from then."""
    first = replace(RETRIEVER_SPEC, where=ON_HEAD, after=())
    trace = Trace(of(first, replace(REWARD_SPEC, after=(RETRIEVER,))), [(3, nodes())])
    for event in (ready(RETRIEVER), ready(REWARD), SUBMITTED):
        trace.take(event, 10)
    trace.take(lost(RETRIEVER, "exit code 1"), 20)
    trace.take(lost(REWARD, "exit code 1"), 21)
    assert starts(trace) == [f"{REWARD} {HERE}", f"{RETRIEVER} {HERE}"]
    assert f"{REWARD} waits for {RETRIEVER}" in trace.log
    trace.take(ready(RETRIEVER, generation=2), 100)
    assert trace.effects[-1] == Started(REWARD, HERE, 2)
    item = trace.state.services.by_key[HERE, REWARD]
    assert (item.deadline, trace.state.services.blocked) == (
        100 + REWARD_SPEC.restarted_within,
        frozenset(),
    )


def test_a_restart_that_waits_in_vain_ends_the_run() -> None:
    """Its dependency is lost for good; otherwise its own limit would end the run."""
    first = replace(RETRIEVER_SPEC, where=ON_HEAD, restarts=1)
    trace = Trace(of(first, replace(REWARD_SPEC, after=(RETRIEVER,))), [(3, nodes())])
    for event in (ready(RETRIEVER), ready(REWARD), SUBMITTED):
        trace.take(event, 10)
    trace.take(lost(RETRIEVER, "exit code 1"), 20)
    trace.take(lost(REWARD, "exit code 1"), 21)
    trace.take(lost(RETRIEVER, "exit code 1", 2), 30)
    assert trace.finish()
    assert f"{RETRIEVER} is lost for good" in str(trace.state.outcome)


def test_what_is_given_up_is_not_waited_for() -> None:
    """The run continues without it and without the items that depend on it, on all nodes."""
    first = replace(RETRIEVER_SPEC, where=ON_HEAD, essential=False)
    server, cache = (replace(one, after=(RETRIEVER,)) for one in (REWARD_SPEC, ON_WORKERS))
    trace = Trace(of(first, server, cache, workers=1), [(3, nodes(2)), (4, says(2, at=4))])
    trace.take(lost(RETRIEVER, "exit code 1"), 20)
    assert starts(trace) == [f"{REWARD} {HERE}", "cache agent2"]
    assert "the run goes on without it" in trace.log


def test_what_a_run_lacks_is_not_waited_for() -> None:
    """AGENT_PREPARE may not be set, and the model may be a path."""
    trace = Trace(of(ASKED, replace(FINDER, after=("AGENT_MODEL", "data"))), [])
    assert begins(trace) == [f"Started {REWARD}", f"Started {RETRIEVER}"]


# --- on workers ----------------------------------------------------------------------------------


def test_a_service_of_every_node_waits_for_its_own_node() -> None:
    """The head's starts after the head's step, each worker's after that worker's."""
    trace = Trace(of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=2), [(3, nodes(2, 3))])
    trace.take(says(2, pending=PREPARE_EACH, at=4), 4)
    trace.take(says(3, PREPARE_EACH, at=5), 5)
    assert starts(trace) == [f"{RETRIEVER} agent3"]
    assert f"{RETRIEVER} on pod2 waits for {PREPARE_EACH}" in trace.log
    trace.take(ready(PREPARE_EACH), 6)
    assert starts(trace) == [f"{RETRIEVER} agent3", f"{RETRIEVER} {HERE}"]
    trace.take(ready(RETRIEVER), 7)
    trace.take(says(3, PREPARE_EACH, RETRIEVER, at=7), 7)
    trace.take(says(2, PREPARE_EACH, at=500), 500)
    assert starts(trace)[2:] == [f"{RETRIEVER} agent2"]
    item = trace.state.services.by_key["agent2", RETRIEVER]
    assert item.deadline == 500 + RETRIEVER_SPEC.within


def test_what_runs_elsewhere_starts_all_that_waits_for_it() -> None:
    """A step of the head and a service of rank 1: their dependents start at once."""
    cache = replace(ON_WORKERS, after=(PREPARE,))
    server = replace(REWARD_SPEC, after=("judge",))
    trace = Trace(of(EACH, MAKE, DATA, cache, ON_RANK, server, workers=2), [(3, nodes(2, 3))])
    trace.take(says(3, pending=f"data {PREPARE_EACH}", rank=2, at=4), 4)
    assert starts(trace) == []
    trace.take(ready(PREPARE_EACH), 5)
    trace.take(ready(PREPARE), 6)
    assert sorted(starts(trace)[1:]) == ["cache agent3", "data agent3", f"data {HERE}"]
    trace.take(says(2, "data", PREPARE_EACH, rank=1, at=7), 7)
    assert starts(trace)[4:] == ["cache agent2", "judge agent2"]
    trace.take(says(2, "data", PREPARE_EACH, "judge", rank=1, at=8), 8)
    assert starts(trace)[6:] == [f"{REWARD} {HERE}"]


def test_a_wanted_step_waits_for_a_step_of_the_head() -> None:
    """Every worker that has reported is wanted to run it at once; a later one when it reports."""
    trace = Trace(of(replace(MAKE, after=()), DATA, workers=2), [(3, nodes(2, 3))])
    trace.take(says(2, pending="data", at=4), 4)
    assert starts(trace) == []
    trace.take(ready(PREPARE), 5)
    trace.take(says(3, pending="data", at=6), 6)
    assert starts(trace) == [f"data {HERE}", "data agent2", "data agent3"]


def test_a_wait_for_a_node_that_never_gets_done_ends() -> None:
    """A last resort: the worker itself should have ended long before."""
    trace = Trace(of(replace(ON_WORKERS, after=(PREPARE_EACH,))), [])
    for at in range(4, 1004, 10):
        trace.take(says(2, pending=PREPARE_EACH, at=at), at)
        trace.take(nodes(), at)
    assert (trace.outcomes, trace.state.phase) == ([], HeadPhase.BOOTING)
    trace.take(TICK, 1004)
    (end,) = trace.outcomes
    assert end.exit_code == 69
    assert end.reason.startswith("cache on pod2 not ready in time: not started, waits for")


def test_a_wanted_step_waits_for_a_service_elsewhere() -> None:
    """Every worker that has reported is wanted to run it when rank 1 answers."""
    asks = replace(DATA, after=("judge",))
    trace = Trace(of(asks, ON_RANK, workers=2), [(3, nodes(2, 3))])
    trace.take(says(2, pending="data", rank=1, at=4), 4)
    trace.take(says(3, pending="data", rank=2, at=4), 4)
    assert starts(trace) == ["judge agent2"]
    trace.take(says(2, "judge", pending="data", rank=1, at=8), 8)
    assert sorted(starts(trace)[1:]) == ["data agent2", "data agent3", f"data {HERE}"]


def test_the_services_of_all_workers_are_waited_for() -> None:
    """An item on the head waits for as many workers as the run needs."""
    server = replace(REWARD_SPEC, after=("cache",))
    trace = Trace(of(ON_WORKERS, server, workers=2), [(3, nodes(2, 3))])
    trace.take(says(2, at=4), 4)
    trace.take(says(2, "cache", at=5), 5)
    assert starts(trace) == ["cache agent2"]
    trace.take(says(3, at=6), 6)
    trace.take(says(3, "cache", at=7), 7)
    assert starts(trace)[2:] == [f"{REWARD} {HERE}"]
    assert begins(Trace(of(ON_WORKERS, server), [])) == [f"Started {REWARD}"]


def test_another_agent_of_a_node_is_waited_for_anew() -> None:
    """A service that waits there ends with its node; only the next agent's step counts."""
    made = of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=1)
    trace = Trace(made, [(2, ready(PREPARE_EACH)), (3, nodes(2))])
    trace.take(says(2, pending=PREPARE_EACH, at=4), 4)
    trace.take(h.WorkerReplaced("agent2"), 5)
    again = says(2, PREPARE_EACH, at=6)
    assert isinstance(again, h.WorkerReported)
    trace.take(replace(again, worker=replace(again.worker, key="agent9")), 6)
    assert starts(trace) == [f"{RETRIEVER} {HERE}", f"{RETRIEVER} agent9"]
    assert trace.state.services.blocked == frozenset()


def test_what_an_earlier_head_had_started_is_not_started_again() -> None:
    """It runs there already, independent of this head's waits: that generation is wanted."""
    made = of(EACH, MAKE, replace(FINDER, after=(PREPARE,)), workers=1)
    serves = (ItemReport(RETRIEVER, Step.READY, generation=3, is_running=True),)
    trace = Trace(made, [(3, nodes(2)), (5, reported(2, reported_at=5, items=serves))])
    assert trace.effects == [Started(RETRIEVER, "agent2", 3)]
    trace.take(ready(PREPARE_EACH), 6)
    trace.take(ready(PREPARE), 7)
    assert starts(trace)[1:] == [f"{PREPARE} {HERE}", f"{RETRIEVER} {HERE}"]


def test_what_has_ended_under_an_earlier_head_is_started_as_its_next_generation() -> None:
    """A generation starts once, whichever head wanted it."""
    ended = (ItemReport(RETRIEVER, Step.LOST, "exit code 1", generation=3),)
    trace = Trace(of(replace(FINDER, after=()), workers=1), [(3, nodes(2))])
    trace.take(reported(2, reported_at=5, items=ended), 5)
    assert trace.effects == [Started(RETRIEVER, "agent2", 4)]


def test_a_node_whose_step_fails_is_named() -> None:
    """A node with only a service: its last report ends the wait for its rank."""
    alone = replace(ON_RANK, where=Where("rank", 1), alone=True, after=(PREPARE_EACH,))
    trace = Trace(of(EACH, alone), [(2, ready(PREPARE_EACH)), (3, nodes())])
    trace.take(says(2, pending=PREPARE_EACH, rank=1, at=4), 4)
    assert (trace.state.phase, starts(trace)) == (HeadPhase.BOOTING, [])
    failed = f"{PREPARE_EACH} failed: exit code 5"
    trace.take(
        reported(2, "leaving", joined=False, rank=1, has_left=True, detail=failed, reported_at=9), 9
    )
    assert trace.finish()
    (end,) = trace.outcomes
    assert end.exit_code == 69
    assert failed in end.reason


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
        trace.take(says(n, rank=n - 1, pending=f"{PREPARE_EACH} data", at=1), 1)
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


def test_a_workers_own_steps_follow_each_other_without_the_head() -> None:
    """Its dependencies are on this node, so it does not wait for the head."""
    trace = workers.WorkerTrace(OF_LOCAL, [])
    assert wanted_steps(OF_LOCAL.steps) == ()
    assert trace.state.running_steps == (PREPARE_EACH,)
    (one, other) = worker.pending_waits(trace.state)[:2]
    assert (one.what, other.what, other.evidence) == (
        *(PREPARE_EACH, "last", f"not started, waits for {PREPARE_EACH}"),
    )
    trace.take(ready(PREPARE_EACH), 95)
    assert trace.effects == [workers.Began("last")]
    trace.take(workers.replied(), 120)
    trace.take(ready("last"), 190)
    assert trace.outcomes == []
    assert trace.effects[-1] == workers.Began(RAY)


def test_a_workers_step_that_fails_ends_it() -> None:
    """Steps that depend on it do not run."""
    trace = workers.WorkerTrace(OF_LOCAL, [(9, lost(PREPARE_EACH, "exit code 2"))])
    (end,) = trace.outcomes
    assert (end.exit_code, end.reason) == (69, f"{PREPARE_EACH} failed: exit code 2")
    assert not any(isinstance(deed, workers.Began) for deed in trace.effects)


def test_a_step_after_one_that_the_head_wants_waits_for_the_head_as_well() -> None:
    """So does a step that depends on another node; the wait names the dependency."""
    assert wanted_steps((GIVEN, LAST)) == (GIVEN, LAST)
    assert wanted_steps((EACH, MAKE, DATA, LAST)) == (DATA,)
    assert wanted_steps((LAST, replace(LAST, name="more", after=("last",)))) == ()
    of_data = replace(OF_LOCAL, steps=(EACH, DATA))
    trace = workers.WorkerTrace(of_data, [(1, workers.replied())])
    turn = next(wait for wait in worker.pending_waits(trace.state) if wait.key == "turn")
    assert turn.evidence.startswith(f"data waits for {PREPARE}; ")
    items = worker.item_reports(trace.state)
    assert [(item.name, item.is_running) for item in items][-1] == ("data", False)


def test_the_time_of_what_it_waits_for_counts_before_its_own() -> None:
    """A worker gives up its turn only after the limits of all items before it."""
    limits = {**workers.LIMITS, wait_keys.PREPARE: 100.0, wait_keys.BEFORE: 7000.0}
    made = replace(OF_LOCAL, steps=(DATA,), limits=limits)
    kept: workers.History = [(at, workers.replied()) for at in range(10, 7100, 50)]
    trace = workers.WorkerTrace(made, kept)
    assert trace.outcomes == []
    trace.take(workers.TICK, 7100)
    assert "data not ready in time" in trace.outcomes[0].reason


def test_a_plain_head_orders_nothing() -> None:
    """The order on this node is kept; items on other nodes cannot be waited for."""
    made = replace(OF_LOCAL, steps=(GIVEN, LAST, DATA))
    gcs_alone = workers.replied(epoch=None)
    trace = workers.WorkerTrace(made, [(2, gcs_alone), (2 + times.PLAIN_RAY, gcs_alone)])
    assert trace.effects == [workers.Began(PREPARE_EACH), workers.Began("data")]
    trace.take(ready("data"), 13)
    trace.take(ready(PREPARE_EACH), 14)
    assert trace.effects[2:] == [workers.Began("last")]


def test_what_waits_is_not_started_out_of_reach() -> None:
    """Its dependency was stopped, and runs again first."""
    silent = w.HeadSilent("no answer")
    trace = workers.WorkerTrace(OF_LOCAL, [(2, workers.replied(ready=False)), (3, silent)])
    trace.take(workers.TICK, 51)
    assert trace.effects == [workers.Ended(PREPARE_EACH)]
    trace.take(workers.replied(ready=False), 60)
    trace.take(ready(PREPARE_EACH), 70)
    assert trace.effects[1:] == [workers.Began(PREPARE_EACH, 2), workers.Began("last")]


def test_an_order_starts_a_step_once() -> None:
    """Also if the head had no agent before, and the step waits for another of this node."""
    made = replace(OF_LOCAL, steps=(GIVEN, LAST))
    gcs_alone, later = workers.replied(epoch=None), 1 + times.PLAIN_RAY
    trace = workers.WorkerTrace(made, [(1, gcs_alone), (later, gcs_alone)])
    trace.take(workers.wanted(1, "last"), later + 1)
    trace.take(ready(PREPARE_EACH), 13)
    assert trace.effects == [workers.Began(PREPARE_EACH), workers.Began("last")]


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
