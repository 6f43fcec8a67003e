"""Dependencies: services and steps start after those that they need, on any node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.decisions import worker
from agent.decisions.shared import (
    HERE,
    ItemReport,
    Step,
)
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
from support.event_words import cases
from support.heads import (
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD,
    REWARD_SPEC,
    SHARED_DATA_STEP,
    TICK,
    Started,
    Trace,
    goal,
    lost,
    nodes,
    ready,
    reported,
)
from support.histories import Case, play

if TYPE_CHECKING:
    from agent.decisions.head import head_state as h
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
ALL_SERVE = (
    "3 nodes | 10 ready retriever -> start reward server | "
    "10 ready reward server -> submit run-1 | 10 accepted"
)

OF_LOCAL = replace(workers.goal(), steps=(EACH, LAST), services=())
GIVEN = replace(EACH, command="mount {head_ip}")
GCS_ALONE = workers.replied(epoch=None)
BOOTING = workers.replied(ready=False)
OF_TURNS = {**workers.LIMITS, wait_keys.PREPARE: 100.0, wait_keys.BEFORE: 7000.0}
WORDS = {
    "steps and a server": of(EACH, MAKE, ASKED),
    "has one step": replace(of(EACH, MAKE, ASKED), finished_steps=frozenset({PREPARE_EACH})),
    "has all steps": replace(
        of(EACH, MAKE, ASKED), finished_steps=frozenset({PREPARE_EACH, PREPARE})
    ),
    "after what the run lacks": of(ASKED, replace(FINDER, after=("AGENT_MODEL", "data"))),
    "server after retriever": of(ON_HEAD_ALONE, SERVER),
    "ALL_SERVE": ALL_SERVE,
    "server after retriever with 1 restart": of(replace(ON_HEAD_ALONE, restarts=1), SERVER),
    "after an inessential one": of(
        replace(ON_HEAD_ALONE, essential=False),
        SERVER,
        replace(ON_WORKERS, after=(RETRIEVER,)),
        workers=1,
    ),
    "retriever after step, 2 workers": of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=2),
    "all kinds": of(
        EACH,
        MAKE,
        DATA,
        replace(ON_WORKERS, after=(PREPARE,)),
        ON_RANK,
        replace(REWARD_SPEC, after=("judge",)),
        workers=2,
    ),
    "data after make": of(replace(MAKE, after=()), DATA, workers=2),
    "data after judge": of(replace(DATA, after=("judge",)), ON_RANK, workers=2),
    "cache after step": of(replace(ON_WORKERS, after=(PREPARE_EACH,))),
    "pod2 prepares until 1004": [
        *((at, says(2, pending=PREPARE_EACH)) for at in range(14, 1004, 10))
    ],
    "server after cache, 2 workers": of(
        ON_WORKERS, replace(REWARD_SPEC, after=("cache",)), workers=2
    ),
    "server after cache": of(ON_WORKERS, replace(REWARD_SPEC, after=("cache",))),
    "retriever after step, 1 worker": of(EACH, replace(FINDER, after=(PREPARE_EACH,)), workers=1),
    "another agent is done": by_agent("agent9", says(2, PREPARE_EACH)),
    "retriever after both steps": of(EACH, MAKE, replace(FINDER, after=(PREPARE,)), workers=1),
    "pod2 has its third retriever": has_retriever(2, Step.READY, 3),
    "retriever, 1 worker": of(replace(FINDER, after=()), workers=1),
    "pod2 has lost its third retriever": has_retriever(2, Step.LOST, 3),
    "judge alone after step": of(EACH, replace(ON_RANK, alone=True, after=(PREPARE_EACH,))),
    "pod2 leaves with exit code 5": reported(
        2, "leaving", joined=False, rank=1, has_left=True, detail="exit code 5"
    ),
    "own steps": OF_LOCAL,
    "step and data": replace(OF_LOCAL, steps=(EACH, DATA)),
    "data with its turn": replace(OF_LOCAL, steps=(DATA,), limits=OF_TURNS),
    "the head replies until 7100": [*((at, workers.replied()) for at in range(10, 7100, 50))],
    "steps of the head": replace(OF_LOCAL, steps=(GIVEN, LAST, DATA)),
    "step with head_ip": replace(OF_LOCAL, steps=(GIVEN, LAST)),
}

ON_THE_HEAD = cases(
    """\
# The data takes longer than the server's limit, which counts from the server's own start
the reward server waits for the data, and has its time from its own start [steps and a server]
    0 boot -> start AGENT_PREPARE_EACH & AGENT_PREPARE waits… & reward server waits… | 3 nodes
    90 ready AGENT_PREPARE_EACH -> start AGENT_PREPARE
    waits waiting for reward server, not started, waits for AGENT_PREPARE (15 min 10 s left)
        & waiting for AGENT_PREPARE (100 s left)
    180 tick | 185 ready AGENT_PREPARE -> start reward server
    400 ready reward server -> submit run-1
a step that fails ends the run, and nothing after it starts [steps and a server]
    3 nodes
    9 lost AGENT_PREPARE_EACH: exit code 2 -> end 69: AGENT_PREPARE_EACH failed: exit code 2
a step that is late ends the run [steps and a server]
    3 nodes | 100 tick -> end 69: AGENT_PREPARE_EACH not ready in time…
a later step has its time from its own start [steps and a server]
    3 nodes | 9 ready AGENT_PREPARE_EACH -> start AGENT_PREPARE
    109 tick -> end 69: AGENT_PREPARE not ready in time…
a server that ends at once ends the run [steps and a server]
    3 nodes | 9 ready AGENT_PREPARE_EACH -> start AGENT_PREPARE
    10 ready AGENT_PREPARE -> start reward server
    11 lost reward server: exit code 1
        -> end 69: reward server ended before it was ready: exit code 1
an agent that resumes does not repeat a step, and others still wait for theirs [has one step]
    0 boot -> start AGENT_PREPARE & reward server waits for AGENT_PREPARE
an agent that resumes has all steps [has all steps]
    0 boot -> start reward server
# AGENT_PREPARE may not be set, and the model may be a path
what a run lacks is not waited for [after what the run lacks]
    0 boot -> start reward server & start retriever
a restart waits for what is gone, too, and has its time from then [server after retriever]
    ALL_SERVE | 20 lost retriever: exit code 1 -> start retriever, generation 2
    21 lost reward server: exit code 1
    100 ready retriever, generation 2 -> start reward server, generation 2
    log reward server waits for retriever
    waits waiting for the job's status from Ray, … & waiting for reward server (2 min left)
a restart that waits for what is lost for good ends the run [server after retriever with 1 restart]
    ALL_SERVE | 20 lost retriever: exit code 1 -> start retriever, generation 2
    21 lost reward server: exit code 1
    30 lost retriever, generation 2: exit code 1 -> stop run-1
    later tick -> end 69: retriever is lost for good…
what is given up is not waited for, on all nodes [after an inessential one]
    3 nodes 2 | 4 pod2 joined
    20 lost retriever: exit code 1 -> start reward server & start cache on agent2
    log the run goes on without it
""",
    WORDS,
)

ON_WORKERS_TOO = cases(
    """\
a service of every node waits for its own node [retriever after step, 2 workers]
    3 nodes 2 3 | 4 pod2 reports: AGENT_PREPARE_EACH pending, AGENT_PREPARE_EACH pending
    5 pod3 joined: AGENT_PREPARE_EACH ready -> start retriever on agent3
    6 ready AGENT_PREPARE_EACH -> start retriever | 7 ready retriever
    7 pod3 joined: AGENT_PREPARE_EACH ready, retriever ready
    500 pod2 joined: AGENT_PREPARE_EACH ready -> start retriever on agent2
    log retriever on pod2 waits for AGENT_PREPARE_EACH
    waits waiting for retriever on pod2 (5 min left)
a step of the head and a service of rank 1 start all that waits for them [all kinds]
    3 nodes 2 3
    4 pod3 reports as 2: data pending, AGENT_PREPARE_EACH pending, AGENT_PREPARE_EACH pending
    5 ready AGENT_PREPARE_EACH -> start AGENT_PREPARE
    6 ready AGENT_PREPARE -> start data on agent3 & start cache on agent3 & start data
    7 pod2 joined as 1: data ready, AGENT_PREPARE_EACH ready -> start cache on agent2
        & start judge on agent2
    8 pod2 joined as 1: data ready, AGENT_PREPARE_EACH ready, judge ready -> start reward server
a wanted step waits for a step of the head; a later worker's, too [data after make]
    3 nodes 2 3 | 4 pod2 reports: data pending, AGENT_PREPARE_EACH pending
    5 ready AGENT_PREPARE -> start data & start data on agent2
    6 pod3 reports: data pending, AGENT_PREPARE_EACH pending -> start data on agent3
a wanted step waits for a service elsewhere [data after judge]
    3 nodes 2 3
    4 pod2 reports as 1: data pending, AGENT_PREPARE_EACH pending -> start judge on agent2
    4 pod3 reports as 2: data pending, AGENT_PREPARE_EACH pending
    8 pod2 reports as 1: judge ready, data pending, AGENT_PREPARE_EACH pending
        -> start data on agent2 & start data & start data on agent3
# A last resort: the worker itself should have ended long before
a wait for a node that never gets done ends [cache after step]
    4 pod2 reports: AGENT_PREPARE_EACH pending, AGENT_PREPARE_EACH pending | 4 nodes
    pod2 prepares until 1004
    1004 tick -> end 69: cache on pod2 not ready in time: not started, waits for …
the services of as many workers as the run needs are waited for [server after cache, 2 workers]
    3 nodes 2 3 | 4 pod2 joined -> start cache on agent2 | 5 pod2 joined: cache ready
    6 pod3 joined -> start cache on agent3 | 7 pod3 joined: cache ready -> start reward server
without workers, none of theirs is waited for [server after cache]
    0 boot -> start reward server
another agent of a node is waited for anew [retriever after step, 1 worker]
    2 ready AGENT_PREPARE_EACH -> start retriever | 3 nodes 2
    4 pod2 reports: AGENT_PREPARE_EACH pending, AGENT_PREPARE_EACH pending | 5 pod2 replaced
    6 another agent is done -> start retriever on agent9
# It runs there already, whatever this head waits for
what runs since an earlier head wanted it is wanted by that generation [retriever after both steps]
    3 nodes 2 | 5 pod2 has its third retriever -> start retriever on agent2, generation 3
    6 ready AGENT_PREPARE_EACH -> start AGENT_PREPARE | 7 ready AGENT_PREPARE -> start retriever
what has ended under an earlier head is started as its next generation [retriever, 1 worker]
    3 nodes 2 | 5 pod2 has lost its third retriever -> start retriever on agent2, generation 4
# It has only a service: its last report ends the wait for its rank
a node whose step fails is named [judge alone after step]
    2 ready AGENT_PREPARE_EACH | 3 nodes
    4 pod2 reports as 1: AGENT_PREPARE_EACH pending, AGENT_PREPARE_EACH pending
    9 pod2 leaves with exit code 5
    later tick -> end 69: rank 1, which is to run judge not ready in time: exit code 5
""",
    WORDS,
)


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


ON_A_WORKER = cases(
    """\
its own steps follow each other without the head [own steps]
    0 boot -> start AGENT_PREPARE_EACH
    waits waiting for AGENT_PREPARE_EACH (100 s left)
        & waiting for last, not started, waits for AGENT_PREPARE_EACH (100 s left)
        & waiting for the head pod0, …
    95 ready AGENT_PREPARE_EACH -> start last | 120 reply
    190 ready last -> start Ray
a step that fails ends it, and no other begins [own steps]
    0 boot -> start AGENT_PREPARE_EACH
    9 lost AGENT_PREPARE_EACH: exit code 2 -> end 69: AGENT_PREPARE_EACH failed: exit code 2
a step after one of another node waits for the head as well [step and data]
    0 boot -> start AGENT_PREPARE_EACH | 1 reply
    waits waiting for the head to have data run here, data waits for AGENT_PREPARE; …
        & waiting for AGENT_PREPARE_EACH (99 s left)
# Its turn comes at the latest after the limits of all that is before it
the time of what it waits for counts before its own [data with its turn]
    the head replies until 7100 | 7100 tick -> end 69: data not ready in time…
# The order on this node is kept; what runs on other nodes cannot be waited for
where the head has no agent, nothing is waited for elsewhere [steps of the head]
    2 GCS alone | 12 GCS alone -> start AGENT_PREPARE_EACH & start data | 13 ready data
    14 ready AGENT_PREPARE_EACH -> start last
what waits is not started out of reach: what it waits for runs again first [own steps]
    2 reply, not ready | 3 silent: no answer | 51 tick -> stop AGENT_PREPARE_EACH
    60 reply, not ready -> start AGENT_PREPARE_EACH, generation 2
    70 ready AGENT_PREPARE_EACH -> start last
a step that the head wants starts once, also after a head without an agent [step with head_ip]
    1 GCS alone | 11 GCS alone -> start AGENT_PREPARE_EACH | 12 wanted 1 last -> start last
    13 ready AGENT_PREPARE_EACH
""",
    WORDS,
)


@pytest.mark.parametrize("case", ON_A_WORKER.values(), ids=ON_A_WORKER)
def test_what_starts_after_what_on_a_worker(case: Case) -> None:
    """Its own steps wait for each other, and for the head's word where they need another node."""
    play(case)


def test_which_steps_only_the_head_can_want() -> None:
    """Those that need the head's address or another node, and those after them."""
    assert wanted_steps(OF_LOCAL.steps) == ()
    assert wanted_steps((GIVEN, LAST)) == (GIVEN, LAST)
    assert wanted_steps((EACH, MAKE, DATA, LAST)) == (DATA,)
    assert wanted_steps((SHARED_DATA_STEP,)) == (SHARED_DATA_STEP,)
    assert wanted_steps((replace(SHARED_DATA_STEP, where=ON_HEAD),)) == ()
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
