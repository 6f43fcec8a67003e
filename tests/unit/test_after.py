"""What waits for what: services and steps start after what they need, wherever that runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.decisions import head, worker
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadPhase
from agent.decisions.values import (
    HERE,
    ItemReport,
    LogLine,
    Order,
    OrderKind,
    ServiceGone,
    ServiceReady,
    Step,
    StepOver,
)
from agent.decisions.worker import state as w
from agent.plan import waits as planned
from agent.work.services import (
    ON_EVERY,
    ON_HEAD,
    PREPARE,
    PREPARE_EACH,
    PrepareStep,
    ServiceSpec,
    Where,
    find_cycle,
    longest_waits,
    ordered_steps,
)
from unit import workers
from unit.heads import (
    LOST,
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD,
    REWARD_SPEC,
    SUBMITTED,
    TICK,
    History,
    Story,
    goal,
    nodes,
    word,
)

EACH = PrepareStep(PREPARE_EACH, "mount", ON_EVERY, 100.0, "AGENT_WAIT_PREPARE")
MAKE = PrepareStep(PREPARE, "make", ON_HEAD, 100.0, "AGENT_WAIT_PREPARE", after=(PREPARE_EACH,))
DATA = PrepareStep("data", "make", ON_EVERY, 100.0, "within", after=(PREPARE,))
LAST = PrepareStep("last", "make", ON_EVERY, 100.0, "within", after=(PREPARE_EACH,))
ASKED = replace(REWARD_SPEC, after=(PREPARE_EACH, PREPARE))
FINDER = replace(RETRIEVER_SPEC, after=("data",))
ON_RANK = replace(RETRIEVER_SPEC, name="judge", where=Where("rank", 1), after=())
ON_WORKERS = replace(RETRIEVER_SPEC, name="cache", where=Where("workers"), after=())


def of(*rows: PrepareStep | ServiceSpec, workers: int = 0) -> h.HeadGoal:
    """Return a goal with these steps and services."""
    steps = tuple(row for row in rows if isinstance(row, PrepareStep))
    services = tuple(row for row in rows if isinstance(row, ServiceSpec))
    made = replace(goal(workers), steps=steps, services=services)
    return replace(made, max_prepare_seconds=1000.0)


def begins(story: Story) -> list[str]:
    """Name what the head starts as it begins, or has wait."""
    return [
        action.sentence if isinstance(action, LogLine) else f"{type(action).__name__} {action.name}"
        for action in head.first_actions(story.state)
        if isinstance(action, LogLine | h.StartService | h.OrderStep)
    ]


def starts(story: Story) -> list[str]:
    """Name what was started, on which node, and when it had to wait, after what."""
    kinds = h.StartService | h.OrderStep
    return [f"{deed.name} {deed.node}" for deed in story.deeds if isinstance(deed, kinds)]


def says(n: int, *done: str, at: float, rank: int | None = None, pending: str = "") -> h.HeadEvent:
    """Return a worker's word of its steps and services."""
    items = tuple(ItemReport(name, Step.READY) for name in done)
    items += tuple(ItemReport(name, Step.PENDING) for name in pending.split())
    return word(n, joined=not pending, preparing=bool(pending), heard=at, items=items, rank=rank)


# --- on the head ---------------------------------------------------------------------------------


def test_the_reward_server_waits_for_the_data_and_has_its_time_from_its_own_start() -> None:
    """Ray and what depends on nothing start at once; the data takes longer than its limit."""
    story = Story(of(EACH, MAKE, ASKED), [])
    assert begins(story) == [
        f"OrderStep {PREPARE_EACH}",
        f"{PREPARE} waits for {PREPARE_EACH}",
        f"{REWARD} waits for {PREPARE_EACH} and {PREPARE}",
    ]
    story.take(nodes(), 3)
    story.take(StepOver(PREPARE_EACH), 90)
    assert starts(story) == [f"{PREPARE} {HERE}"]
    (server, step) = head.pending_waits(story.state)
    assert (server.what, server.evidence) == (REWARD, f"not started, waits for {PREPARE}")
    assert (step.what, step.deadline) == (PREPARE, 190.0)
    story.take(TICK, 180)
    story.take(StepOver(PREPARE), 185)
    assert starts(story) == [f"{PREPARE} {HERE}", f"{REWARD} {HERE}"]
    (server,) = head.pending_waits(story.state)
    assert (server.evidence, server.deadline) == ("", 185.0 + REWARD_SPEC.within)
    story.take(ServiceReady(REWARD), 400)
    assert (story.state.phase, story.ends) == (HeadPhase.SUBMITTING, [])


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([(9, StepOver(PREPARE_EACH, "exit code 2"))], f"{PREPARE_EACH} failed: exit code 2"),
        ([(100, TICK)], f"{PREPARE_EACH} not ready in time"),
        (
            [(9, StepOver(PREPARE_EACH)), (109, TICK)],
            f"{PREPARE} not ready in time",
        ),
        (
            [(9, StepOver(PREPARE_EACH)), (10, StepOver(PREPARE)), (11, LOST)],
            f"{REWARD} ended before it was ready: exit code 1",
        ),
    ],
)
def test_what_fails_ends_the_run_with_its_own_reason(history: History, reason: str) -> None:
    """Nothing that waits for it is waited for any longer, or started."""
    story = Story(of(EACH, MAKE, ASKED), [(3, nodes()), *history])
    (end,) = story.ends
    assert (end.exit_code, end.reason[: len(reason)]) == (69, reason)


def test_an_agent_that_goes_on_knows_what_was_done() -> None:
    """A step that a killed agent finished is not run again; what waits for others still does."""
    made = of(EACH, MAKE, ASKED)
    story = Story(replace(made, finished_steps=frozenset({PREPARE_EACH})), [])
    assert begins(story) == [f"OrderStep {PREPARE}", f"{REWARD} waits for {PREPARE}"]
    story = Story(replace(made, finished_steps=frozenset({PREPARE_EACH, PREPARE})), [])
    assert begins(story) == [f"StartService {REWARD}"]
    shared = replace(EACH, once="/data/.done")
    done = Story(replace(of(shared), finished_steps=frozenset({PREPARE_EACH})), [])
    assert done.state.step_queues == {}


def test_a_restart_waits_for_what_is_gone_too() -> None:
    """It is started again once that answers, and has its time from then on."""
    first = replace(RETRIEVER_SPEC, where=ON_HEAD, after=())
    story = Story(of(first, replace(REWARD_SPEC, after=(RETRIEVER,))), [(3, nodes())])
    for event in (ServiceReady(RETRIEVER), ServiceReady(REWARD), SUBMITTED):
        story.take(event, 10)
    story.take(ServiceGone(RETRIEVER, "exit code 1"), 20)
    story.take(ServiceGone(REWARD, "exit code 1"), 21)
    assert starts(story) == [f"{REWARD} {HERE}", f"{RETRIEVER} {HERE}"]
    assert f"{REWARD} waits for {RETRIEVER}" in story.said
    story.take(ServiceReady(RETRIEVER, generation=2), 100)
    assert story.deeds[-1] == h.StartService(REWARD, HERE, 2)
    item = story.state.services[HERE, REWARD]
    assert (item.deadline, story.state.blocked) == (100 + REWARD_SPEC.restarted_within, frozenset())


def test_a_restart_that_waits_in_vain_ends_the_run() -> None:
    """What it waits for is lost for good; else its own last resort would be."""
    first = replace(RETRIEVER_SPEC, where=ON_HEAD, restarts=1)
    story = Story(of(first, replace(REWARD_SPEC, after=(RETRIEVER,))), [(3, nodes())])
    for event in (ServiceReady(RETRIEVER), ServiceReady(REWARD), SUBMITTED):
        story.take(event, 10)
    story.take(ServiceGone(RETRIEVER, "exit code 1"), 20)
    story.take(ServiceGone(REWARD, "exit code 1"), 21)
    story.take(ServiceGone(RETRIEVER, "exit code 1", generation=2), 30)
    assert story.finish()
    assert f"{RETRIEVER} is lost for good" in str(story.state.verdict)


def test_what_is_given_up_is_not_waited_for() -> None:
    """The run goes on without it, and so does what would have come after it, here and elsewhere."""
    first = replace(RETRIEVER_SPEC, where=ON_HEAD, essential=False)
    server, cache = (replace(one, after=(RETRIEVER,)) for one in (REWARD_SPEC, ON_WORKERS))
    story = Story(of(first, server, cache, workers=1), [(3, nodes(2)), (4, says(2, at=4))])
    story.take(ServiceGone(RETRIEVER, "exit code 1"), 20)
    assert starts(story) == ["cache agent2", f"{REWARD} {HERE}"]
    assert "the run goes on without it" in story.said


def test_what_a_run_lacks_is_not_waited_for() -> None:
    """AGENT_PREPARE may not be set, and the model may be a path."""
    story = Story(of(ASKED, replace(FINDER, after=("AGENT_MODEL", "data"))), [])
    assert begins(story) == [f"StartService {REWARD}", f"StartService {RETRIEVER}"]


# --- on workers ----------------------------------------------------------------------------------


def test_a_service_of_every_node_waits_for_its_own_node() -> None:
    """The head's is started by the head's step, each worker's by that worker's."""
    story = Story(of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=2), [(3, nodes(2, 3))])
    story.take(says(2, pending=PREPARE_EACH, at=4), 4)
    story.take(says(3, PREPARE_EACH, at=5), 5)
    assert starts(story) == [f"{RETRIEVER} agent3"]
    assert f"{RETRIEVER} on pod2 waits for {PREPARE_EACH}" in story.said
    story.take(StepOver(PREPARE_EACH), 6)
    assert starts(story) == [f"{RETRIEVER} agent3", f"{RETRIEVER} {HERE}"]
    story.take(ServiceReady(RETRIEVER), 7)
    story.take(ServiceReady(RETRIEVER, "agent3"), 7)
    story.take(says(2, PREPARE_EACH, at=500), 500)
    assert starts(story)[2:] == [f"{RETRIEVER} agent2"]
    item = story.state.services["agent2", RETRIEVER]
    assert item.deadline == 500 + RETRIEVER_SPEC.within


def test_what_runs_elsewhere_starts_all_that_waits_for_it() -> None:
    """A step of the head's and a service of rank 1: whoever waits for them starts at once."""
    cache = replace(ON_WORKERS, after=(PREPARE,))
    server = replace(REWARD_SPEC, after=("judge",))
    story = Story(of(EACH, MAKE, DATA, cache, ON_RANK, server, workers=2), [(3, nodes(2, 3))])
    story.take(says(3, pending=f"data {PREPARE_EACH}", rank=2, at=4), 4)
    assert starts(story) == []
    story.take(StepOver(PREPARE_EACH), 5)
    story.take(StepOver(PREPARE), 6)
    assert starts(story)[1:] == ["cache agent3", f"data {HERE}", "data agent3"]
    story.take(says(2, "data", PREPARE_EACH, rank=1, at=7), 7)
    assert starts(story)[4:] == ["cache agent2", "judge agent2"]
    story.take(says(2, "data", PREPARE_EACH, "judge", rank=1, at=8), 8)
    assert starts(story)[6:] == [f"{REWARD} {HERE}"]


def test_a_step_by_order_waits_for_a_step_of_the_head() -> None:
    """Every worker that has reported is ordered at once, and one that comes later then."""
    story = Story(of(replace(MAKE, after=()), DATA, workers=2), [(3, nodes(2, 3))])
    story.take(says(2, pending="data", at=4), 4)
    assert starts(story) == []
    story.take(StepOver(PREPARE), 5)
    story.take(says(3, pending="data", at=6), 6)
    assert starts(story) == [f"data {HERE}", "data agent2", "data agent3"]


def test_a_wait_for_a_node_that_never_gets_done_ends() -> None:
    """The worker itself should have ended long before; this is the last resort."""
    story = Story(of(replace(ON_WORKERS, after=(PREPARE_EACH,))), [])
    for at in range(4, 1004, 10):
        story.take(says(2, pending=PREPARE_EACH, at=at), at)
        story.take(nodes(), at)
    assert (story.ends, story.state.phase) == ([], HeadPhase.BOOTING)
    story.take(TICK, 1004)
    (end,) = story.ends
    assert end.exit_code == 69
    assert end.reason.startswith("cache on pod2 not ready in time: not started, waits for")


def test_a_step_by_order_waits_for_a_service_elsewhere() -> None:
    """It is ordered on every worker that has reported once rank 1 answers."""
    asks = replace(DATA, after=("judge",))
    story = Story(of(asks, ON_RANK, workers=2), [(3, nodes(2, 3))])
    story.take(says(2, pending="data", rank=1, at=4), 4)
    story.take(says(3, pending="data", rank=2, at=4), 4)
    assert starts(story) == ["judge agent2"]
    story.take(says(2, "judge", pending="data", rank=1, at=8), 8)
    assert starts(story)[1:] == ["data agent2", f"data {HERE}", "data agent3"]


def test_the_services_of_all_workers_are_waited_for() -> None:
    """For something on the head: of as many workers as the run needs."""
    server = replace(REWARD_SPEC, after=("cache",))
    story = Story(of(ON_WORKERS, server, workers=2), [(3, nodes(2, 3))])
    story.take(says(2, at=4), 4)
    story.take(says(2, "cache", at=5), 5)
    assert starts(story) == ["cache agent2"]
    story.take(says(3, at=6), 6)
    story.take(says(3, "cache", at=7), 7)
    assert starts(story)[2:] == [f"{REWARD} {HERE}"]
    assert begins(Story(of(ON_WORKERS, server), [])) == [f"StartService {REWARD}"]


def test_another_agent_of_a_node_is_waited_for_anew() -> None:
    """A service that waits there ends with its node; the next agent's step counts."""
    made = of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=1)
    story = Story(made, [(2, StepOver(PREPARE_EACH)), (3, nodes(2))])
    story.take(says(2, pending=PREPARE_EACH, at=4), 4)
    story.take(h.WorkerReplaced("agent2"), 5)
    again = says(2, PREPARE_EACH, at=6)
    assert isinstance(again, h.WorkerReported)
    story.take(replace(again, worker=replace(again.worker, key="agent9")), 6)
    assert starts(story) == [f"{RETRIEVER} {HERE}", f"{RETRIEVER} agent9"]
    assert story.state.blocked == frozenset()


def test_what_an_earlier_head_had_started_is_not_started_again() -> None:
    """It runs there already, whatever this head has to wait for."""
    made = of(EACH, MAKE, replace(FINDER, after=(PREPARE,)), workers=1)
    story = Story(made, [(3, nodes(2)), (4, says(2, at=4)), (5, says(2, RETRIEVER, at=5))])
    story.take(StepOver(PREPARE_EACH), 6)
    story.take(StepOver(PREPARE), 7)
    assert starts(story) == [f"{PREPARE} {HERE}", f"{RETRIEVER} {HERE}"]


def test_a_node_whose_step_fails_is_named() -> None:
    """One that is there for a service only: its last word ends the wait for its rank."""
    alone = replace(ON_RANK, where=Where("rank", 1), alone=True, after=(PREPARE_EACH,))
    story = Story(of(EACH, alone), [(2, StepOver(PREPARE_EACH)), (3, nodes())])
    story.take(says(2, pending=PREPARE_EACH, rank=1, at=4), 4)
    assert (story.state.phase, starts(story)) == (HeadPhase.BOOTING, [])
    failed = f"{PREPARE_EACH} failed: exit code 5"
    story.take(word(2, "leaving", joined=False, rank=1, gone=True, detail=failed, heard=9), 9)
    assert story.finish()
    (end,) = story.ends
    assert end.exit_code == 69
    assert failed in end.reason


ROWS = (EACH, MAKE, DATA, replace(ASKED, after=(PREPARE,)), FINDER, ON_RANK)
AFTER = {row.name: row.after for row in ROWS}
ON_EVERY_NODE = {row.name for row in ROWS if row.where.kind == "every"}


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())))
def test_nothing_starts_too_early_and_nothing_waits_for_ever(
    choices: list[tuple[int, bool]],
) -> None:
    """Whatever is done, ready or fails: a start has all that it needs; left alone, the run ends."""
    story = Story(of(*ROWS, workers=2), [(1, nodes(2, 3))])
    for n in (2, 3):
        story.take(says(n, rank=n - 1, pending=f"{PREPARE_EACH} data", at=1), 1)
    runs = [(PREPARE_EACH, node, 1) for node in (HERE, "agent2", "agent3")]
    words = {(name, node): Step.PENDING for name, node, _ in runs}
    words |= {("data", node): Step.PENDING for node in ("agent2", "agent3")}
    seen = 0
    for at, (choice, is_well) in enumerate(choices, 2):
        new = [d for d in story.deeds[seen:] if isinstance(d, h.StartService | h.OrderStep)]
        seen = len(story.deeds)
        for deed in new:
            for name in AFTER[deed.name]:
                home = deed.node if name in ON_EVERY_NODE else HERE
                assert words.get((name, home)) is Step.READY, (deed, name)
            number = deed.generation if isinstance(deed, h.StartService) else 1
            runs.append((deed.name, deed.node, number))
            words[deed.name, deed.node] = Step.PENDING
        if not runs or story.ends:
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
            gone = is_step and not is_well
            n = int(node.removeprefix("agent"))
            story.take(word(n, rank=n - 1, heard=at, items=items, gone=gone), at)
        elif is_step:
            story.take(StepOver(name, failure), at)
        elif is_well:
            story.take(ServiceReady(name), at)
            runs.append((name, node, number))  # and may die later
        else:
            story.take(ServiceGone(name, failure), at)
    assert story.finish(200)
    assert story.ends or not story.state.blocked


# --- on a worker ---------------------------------------------------------------------------------

OF_LOCAL = replace(workers.goal(), steps=(EACH, LAST), services=())
GIVEN = replace(EACH, command="mount {head_ip}")


def test_a_workers_own_steps_follow_each_other_without_the_head() -> None:
    """Nobody has to tell: what it depends on is this node's own."""
    story = workers.Story(OF_LOCAL, [])
    assert ordered_steps(OF_LOCAL.steps) == ()
    assert [said.sentence for said in worker.first_messages(story.state)] == [
        f"last waits for {PREPARE_EACH}"
    ]
    assert story.state.running_steps == (PREPARE_EACH,)
    (one, other) = worker.pending_waits(story.state)[:2]
    assert (one.what, other.what, other.evidence) == (
        *(PREPARE_EACH, "last", f"not started, waits for {PREPARE_EACH}"),
    )
    story.take(StepOver(PREPARE_EACH), 95)
    assert story.deeds == [w.RunOwnStep("last")]
    story.take(workers.spoke(), 120)
    story.take(StepOver("last"), 190)
    assert story.ends == []
    assert isinstance(story.deeds[-1], w.StartRay)


def test_a_workers_step_that_fails_ends_it() -> None:
    """What waits for it is not run."""
    story = workers.Story(OF_LOCAL, [(9, StepOver(PREPARE_EACH, "exit code 2"))])
    (end,) = story.ends
    assert (end.exit_code, end.reason) == (69, f"{PREPARE_EACH} failed: exit code 2")
    assert not any(isinstance(deed, w.RunOwnStep) for deed in story.deeds)


def test_a_step_after_one_by_order_is_by_order_as_well() -> None:
    """So is one that depends on another node; the wait says for what."""
    assert ordered_steps((GIVEN, LAST)) == (GIVEN, LAST)
    assert ordered_steps((EACH, MAKE, DATA, LAST)) == (DATA,)
    assert ordered_steps((LAST, replace(LAST, name="more", after=("last",)))) == ()
    of_data = replace(OF_LOCAL, steps=(EACH, DATA))
    story = workers.Story(of_data, [(1, workers.spoke())])
    turn = next(wait for wait in worker.pending_waits(story.state) if wait.key == "turn")
    assert turn.evidence.startswith(f"data waits for {PREPARE}; ")
    assert [item.name for item in worker.item_reports(story.state)] == ["data"]


def test_the_time_of_what_it_waits_for_counts_before_its_own() -> None:
    """A worker gives its turn up only after all that may have to come first."""
    limits = {**workers.LIMITS, planned.PREPARE: 100.0, planned.BEFORE: 7000.0}
    made = replace(OF_LOCAL, steps=(DATA,), limits=limits)
    kept: workers.History = [(at, workers.spoke()) for at in range(10, 7100, 50)]
    story = workers.Story(made, kept)
    assert story.ends == []
    story.take(workers.TICK, 7100)
    assert "data not ready in time" in story.ends[0].reason


def test_a_plain_head_orders_nothing() -> None:
    """This node's own order is kept; what runs elsewhere cannot be waited for."""
    made = replace(OF_LOCAL, steps=(GIVEN, LAST, DATA))
    story = workers.Story(made, [(2, workers.spoke(epoch=None))])
    assert story.deeds == [w.RunOwnStep(PREPARE_EACH), w.RunOwnStep("data")]
    story.take(StepOver("data"), 3)
    story.take(StepOver(PREPARE_EACH), 4)
    assert story.deeds[2:] == [w.RunOwnStep("last")]


def test_what_waits_is_not_started_out_of_reach() -> None:
    """What it waits for was stopped, and is run again first; even if it ended in that moment."""
    silent = w.HeadSilent("no answer")
    story = workers.Story(OF_LOCAL, [(2, workers.spoke(ready=False)), (3, silent)])
    story.take(workers.TICK, 51)
    story.take(StepOver(PREPARE_EACH), 51.1)
    assert story.deeds == [w.StopSteps()]
    story.take(workers.spoke(ready=False), 60)
    story.take(StepOver(PREPARE_EACH), 70)
    assert story.deeds[1:] == [w.RunOwnStep(PREPARE_EACH), w.RunOwnStep("last")]


def test_an_order_starts_a_step_once() -> None:
    """Also where no agent was at the head before, and it waits for another of this node."""
    ordered = w.Ordered(Order("head1", 1, OrderKind.RUN_STEP, "last"))
    made = replace(OF_LOCAL, steps=(GIVEN, LAST))
    story = workers.Story(made, [(1, workers.spoke(epoch=None)), (2, ordered)])
    story.take(StepOver(PREPARE_EACH), 3)
    assert story.deeds == [w.RunOwnStep(PREPARE_EACH), w.RunOwnStep("last")]


# --- what is planned -----------------------------------------------------------------------------


def test_the_longest_waits() -> None:
    """Each thing's limit counts from its own start: before that are those of what it waits for."""
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


def test_circles() -> None:
    """Each in it waits for the next."""
    assert find_cycle({"a": ["b"], "b": ["c"], "c": []}) == []
    found = find_cycle({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]})
    assert sorted(found) == ["a", "b", "c"]
    follows = {"a": "b", "b": "c", "c": "a"}
    assert [follows[one] for one in found] == [*found[1:], found[0]]
