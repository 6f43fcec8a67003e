"""The members of groups, by a table of histories: their states, and what follows from them."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.members import (
    addresses_of,
    group_sizes_of,
    shortage_sentence,
    slots_of,
)
from agent.decisions.head.service_addresses import judges_now, known_place
from agent.decisions.head.shares import shares_verdict
from agent.decisions.head.starvation import starved_services
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import HERE, ItemReport, Step, Want
from agent.frameworks.recipe import NodeSize
from agent.job.groups import NodeGroup
from agent.job.services import Placeholders, front_of
from agent.job.share import ShareEnd
from support.event_words import cases
from support.groups import (
    ENGINE,
    FIRST_NODE,
    GROUP,
    READY,
    RUNS,
    UP,
    a_goal,
    ends_with,
    front,
    left,
    says,
)
from support.heads import REWARD_SPEC, SUBMITTED, TICK, Trace, goal, job, nodes, reported
from support.histories import Case, play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.decisions.head.head_goal import HeadGoal

ALL_NEEDED = replace(GROUP, min=None)
OOM = "exit code 1 (CUDA out of memory)"
POOL = NodeGroup("pool", 1, ray=True, first_rank=2)
SPARE = replace(says(4).worker, group="rollout", rank=None)
RANKED = replace(says(2, "ready", "ready").worker, group="rollout")
SMALL = replace(says(3, "ready").worker, members={"engine": 1}, gpus=0)
STATES = {"S": "serving", "T": "stale", "W": "wedged", "D": "down"}
STEPS = [*product(("pending", "ready", "lost"), repeat=2)]


def with_front() -> HeadGoal:
    """Return a goal whose front is listed as a service, too."""
    made = a_goal(weights="sglang")
    return replace(made, services=(front_of(made.services[0]), *made.services))


def after_engine() -> HeadGoal:
    """Return a goal with a reward server that needs the group."""
    made = replace(a_goal(), max_prepare_seconds=1000.0)
    return replace(made, services=(*made.services, replace(REWARD_SPEC, after=("engine",))))


def seen(letters: str, version: str = "7", generations: tuple[int, ...] = (1, 1, 1, 1)) -> object:
    """Return what the front sees of the members."""
    return front(*(STATES[one] for one in letters), version=version, generations=generations)


def of_pool(node: int, rank: int, *, joined: bool = True) -> h.WorkerReported:
    """Return a report of a node of a group in Ray."""
    worker = reported(node, joined=joined).worker
    return h.WorkerReported(replace(worker, given_rank=rank, group="pool"))


WORDS = {
    "all needed": a_goal(ALL_NEEDED),
    "by nccl, all needed": a_goal(ALL_NEEDED, "nccl"),
    "by nccl, ends an attempt": a_goal(replace(ALL_NEEDED, lost="retry"), "nccl"),
    "by nccl, one needed": a_goal(replace(GROUP, min=1), "nccl"),
    "by sglang": a_goal(weights="sglang"),
    "by sglang, ends an attempt": a_goal(replace(GROUP, lost="retry"), "sglang"),
    "by sglang, its front listed": with_front(),
    "ends if lost": a_goal(replace(GROUP, lost="end")),
    "one node": a_goal(replace(GROUP, nodes=1)),
    "pool in Ray": replace(goal(2), groups=(POOL,)),
    "server after engine": after_engine(),
    "up": "1 Ray opens | 2 nodes",
    "pod2 begins": "3 pod2 is there -> start engine.0 on agent2 & start engine.1 on agent2",
    "first node": "up | pod2 begins | 3.5 pod2 ready ready",
    "pod3 begins": (
        "4 pod3 is there -> start engine.0 on agent3 & start engine.1 on agent3 & submit run-1"
    ),
    "all ready": "first node | pod3 begins | 4.5 pod3 ready ready",
    "runs": "all ready | 5 accepted | 6 job RUNNING",
    "runs behind a front": (
        "up | 2.5 ready engine-front | pod2 begins | 3.5 pod2 ready ready | pod3 begins | "
        "4.5 pod3 ready ready | 5 accepted | 6 job RUNNING"
    ),
    "all needed run": (
        "first node | 4 pod3 is there -> start engine.0 on agent3 & start engine.1 on agent3 | "
        "4.5 pod3 ready ready -> submit run-1 | 5 accepted | 6 job RUNNING"
    ),
    "one needed runs": (
        "up | pod2 begins | 3.5 pod2 ready pending | 4 pod3 is there -> start engine.0 on agent3 "
        "& start engine.1 on agent3 & start engine.1 on agent2 & submit run-1 | "
        "5 accepted | 6 job RUNNING"
    ),
    "next up": "1 Ray opens | 2 nodes -> follow run-1 | 3 job RUNNING",
    "both silent": "7 pod2 silent: no answer | 7 pod3 silent: no answer",
    **{f"front sees {letters}": seen(letters) for letters in ("SSSS", "TSSS", "WSSS", "TTTT")},
    **{f"front sees {letters}, no version": seen(letters, "") for letters in ("TTTT", "DTTT")},
    "front sees STSS again": seen("STSS", generations=(2, 2, 1, 1)),
    "front sees DDSS, three starts": seen("DDSS", generations=(3, 1, 1, 1)),
    "next pod2 is there": says(2, agent=4),
    "next agent of pod2": h.WorkerReported(
        replace(says(2, agent=4).worker, left={"engine.0": 1, "engine.1": 1})
    ),
    "next pod2 ready ready": says(2, "ready", "ready", agent=4),
    "next pod2 ready ready again": says(2, "ready", "ready", generation=2, agent=4),
    **{f"pod{n} {one} {other}": says(n, one, other) for n in (2, 3) for one, other in STEPS},
    **{f"pod2 {one} {other} again": says(2, one, other, generation=2) for one, other in STEPS},
    "pod2 lost ready, third": says(2, "lost", "ready", generation=3),
    "pod2 ended by memory": ends_with(2, OOM),
    "pod3 ended by memory": ends_with(3, OOM),
    "pod2 is there": says(2),
    "pod3 is there": says(3),
    "pod2 leaves": left(2),
    "pod2 ready": says(2, "ready"),
    **{
        f"pod2 ready ready as {rank}": h.WorkerReported(replace(RANKED, rank=rank))
        for rank in (1, 2, 9)
    },
    "pod3 is small, ready": h.WorkerReported(SMALL),
    "pod3 is there, small": h.WorkerReported(replace(SMALL, items=())),
    "pod3 of the pool": of_pool(3, 2),
    "pod4 has rank 1": h.WorkerReported(replace(SPARE, given_rank=1)),
    "pod4 has the rank of pod2": h.WorkerReported(
        replace(says(2, agent=4).worker, name="pod4", ip="10.0.0.4")
    ),
    "pod4 has the rank of the pool": of_pool(4, 2),
    "pod4 is spare": h.WorkerReported(replace(SPARE, given_rank=9)),
    "pod4 is spare of the pool": of_pool(4, 3, joined=False),
    "pod4 is spare of the pool, joined": of_pool(4, 3),
}

HISTORIES = cases(
    """\
no node has reported
    up | members nothing | phase booting
one of two nodes
    up | pod2 begins | members LL | phase booting
enough serve, and the other node lacks
    first node | members SS | phase booting
the other node lacks for AGENT_WAIT_WORKERS
    first node | 201 tick -> submit run-1 | members SS | log going on without rank 2 of rollout
one loads, and two serve
    first node
    4 pod3 is there -> start engine.0 on agent3 & start engine.1 on agent3 & submit run-1
    4.5 pod3 ready pending | members SSSL
too few serve
    up | pod2 begins | 3.5 pod2 ready pending
    4 pod3 is there -> start engine.0 on agent3 & start engine.1 on agent3 | members SLLL
    phase booting
the job runs
    runs | members SSSS | phase running
one ends, and is started again
    runs | 7 pod2 lost ready -> start engine.0 on agent2, generation 2 | members LSSS
    log engine.0 on rank 1 (pod2) is down
two of four are enough
    runs
    7 pod2 lost lost -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    members LLSS | phase running
too few, and the trainer waits
    runs
    7 pod2 lost lost -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    8 pod3 lost ready -> start engine.0 on agent3, generation 2 | members LLLS
    log engine: 1 of 4 serve, 2 needed
nothing serves
    runs
    7 pod2 lost lost -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    8 pod3 lost lost -> start engine.0 on agent3, generation 2
        & start engine.1 on agent3, generation 2
    members LLLL | log no engine serves since
behind a front a member serves once the front says so [by sglang]
    all ready | 5 front sees TSSS | members TSSS
a restarted member is stale until its front has sent it the weights [by sglang]
    runs | 7 front sees SSSS | 8 pod2 lost ready -> start engine.0 on agent2, generation 2
    9 pod2 ready ready again -> start engine.1 on agent2, generation 2 | members TTSS
then it serves [by sglang]
    runs
    8 pod2 lost lost -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    9 pod2 ready ready again | 9.5 front sees STSS again | members STSS
one that answers its probe and no request is started again [by sglang]
    runs | 7 front sees WSSS -> start engine.0 on agent2, generation 2 | members LSSS
    log engine.0 on rank 1 (pod2) is down (no answer)
a group that ends the attempt: by NCCL nobody takes its place [by nccl, ends an attempt]
    all needed run | 7 pod2 lost ready -> start engine.0 on agent2, generation 2 & stop run-1
    members LSSS
    8 job STOPPED -> start engine.0 on agent2, generation 2 & start Ray, generation 2
    log too few members of engine are left in the group rollout: 3 of 4 serve, 4 needed
behind a front another process takes its place [by sglang, ends an attempt]
    runs
    7 pod2 lost lost -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    8 pod3 lost lost -> start engine.0 on agent3, generation 2
        & start engine.1 on agent3, generation 2
    members LLLL | phase running
# Its node learns by the want that it is stale, and stays out of its router
by NCCL only the next attempt sends weights [by nccl, all needed]
    all needed run | 7 pod2 lost ready -> start engine.0 on agent2, generation 2
    9 pod2 ready ready again -> start engine.1 on agent2, generation 2 | members TTSS
    wants agent2 engine.0, generation 2, stale & engine.1, generation 2, stale
a job that fails without such a member is tried again [by nccl, all needed]
    all needed run | 7 pod2 lost ready -> start engine.0 on agent2, generation 2
    9 pod2 ready ready again -> start engine.1 on agent2, generation 2
    300 job FAILED 1 -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2 & start Ray, generation 2
    members SSSS | log engine.0 on pod2 was lost
    wants agent2 engine.0, generation 2 & engine.1, generation 2
a group that ends the run: both nodes are gone [ends if lost]
    runs | both silent | 68 tick -> stop run-1 | members DDDD
a group that waits: both nodes are gone
    runs | both silent | 68 tick | members DDDD | log no engine serves since | phase running
one of two nodes stays away, and enough serve [ends if lost]
    runs | 7 pod2 silent: no answer | 68 tick | members DDSS | phase running
a node that left during the boot may be back [one node]
    up | pod2 begins | 3.5 pod2 ready ready | 5 pod2 leaves | 6 tick | members RR
it is not back by AGENT_WAIT_WORKERS [one node]
    up | pod2 begins | 3.5 pod2 ready ready | 5 pod2 leaves
    201 tick -> end 69: engine on the group rollout not ready in time: 0 of 2 serve, 2 needed…
both nodes are silent during the boot, for longer than AGENT_NODE_GRACE [all needed]
    first node | 4 pod3 is there -> start engine.0 on agent3 & start engine.1 on agent3
    both silent | 68 tick | members DDDD | phase booting
a pod that is replaced has no weights by NCCL [by nccl, all needed]
    all needed run | 7 pod2 silent: no answer
    9 next pod2 is there -> start engine.0 on agent4, generation 2
        & start engine.1 on agent4, generation 2
    10 next pod2 ready ready again | members TTSS
an agent that was killed has left them, with their weights [by nccl, ends an attempt]
    all needed run | 7 pod2 silent: no answer
    9 next agent of pod2 -> start engine.0 on agent4 & start engine.1 on agent4
    10 next pod2 ready ready | members SSSS | phase running
a member that loads as the trainer sends its weights by NCCL [by nccl, one needed]
    one needed runs | 7 pod2 ready ready | members STLL
one that loads for too long is started again
    runs | 7 pod2 lost ready -> start engine.0 on agent2, generation 2 | 8 tick | 100 job RUNNING
    129 tick -> start engine.0 on agent2, generation 3 | members LSSS
    log engine.0 on rank 1 (pod2) is down (not ready in time: no answer): restart 2 of 2
no restart is used while its node is away
    runs | 7 pod2 lost ready -> start engine.0 on agent2, generation 2 | 9 pod2 silent: no answer
    100 job RUNNING | 199 tick | members DDSS
# The others go on, and the next attempt tries it again
a member that keeps failing is given up
    runs | 10 pod2 lost ready -> start engine.0 on agent2, generation 2 | 15 tick
    15 pod2 lost ready again -> start engine.1 on agent2, generation 2
    20 tick -> start engine.0 on agent2, generation 3
    20 pod2 lost ready, third -> start engine.1 on agent2, generation 3 | 25 tick | members RSSS
    wants agent2 engine.1, generation 3 | log the run goes on without it
# It may take minutes: until then nothing is short
members that await the first update of an attempt [by sglang]
    runs | 7 front sees TTTT, no version | not logged serve | 8 front sees DTTT, no version
    not logged serve | 9 front sees TTTT
    log no engine serves since 00:00 UTC: all 4 on pod2 and pod3
    log (needs version 7); the trainer waits
# The first that reported has them, however often the other one reports; then the other
of two nodes with one rank one runs members
    runs | 7 pod4 has the rank of pod2 | wants agent4 nothing | 8 pod2 silent: no answer
    9 pod4 has the rank of pod2 -> start engine.0 on agent4 & start engine.1 on agent4
    wants agent4 engine.0 & engine.1
# It joins no Ray and runs nothing, until it gets the rank of a node that has gone
a spare of a group
    runs | 7 pod4 is spare | wants agent4 nothing | 8 pod2 silent: no answer
    9 pod4 has rank 1 -> start engine.0 on agent4 & start engine.1 on agent4
    wants agent4 engine.0 & engine.1
each node of the group runs its members, and no Ray
    all ready | wants agent2 engine.0 & engine.1
# Two of four members are enough here; it is blocked until then, with a line
what needs a group starts once enough of it serve [server after engine]
    up | pod2 begins | 3.5 pod3 is there -> start engine.0 on agent3 & start engine.1 on agent3
    4 pod2 ready | 5 pod3 pending ready -> start reward server
# Each has as many members as fit
nodes of a group with other numbers of GPUs [all needed]
    first node | 4 pod3 is there, small -> start engine.0 on agent3 | phase booting
    4.3 pod3 is small, ready -> submit run-1 | wants agent3 engine.0
# Its rank is none of the group's, and it is outside of Ray until it has one of those
the spare of a group in Ray is no node of the trainer [pool in Ray]
    up | 2.2 pod2 joined as 1 | 2.6 pod3 of the pool | 2.7 pod4 is spare of the pool
    2.8 nodes 2 3 -> submit run-1 | alive pod2 & pod3 | wants agent4 nothing
    3 pod4 is spare of the pool, joined | 3.1 nodes 2 3 4 | alive pod2 & pod3
    4 pod4 has the rank of the pool | wants agent4 Ray…
# At the front's port of another rank a process with other weights may not pass for the former
a node that gets another rank of its group starts its members again [by sglang]
    first node
    5 pod2 ready ready as 2 -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    wants agent2 engine.0, generation 2 & engine.1, generation 2 | 6 pod2 ready ready as 1
    wants agent2 engine.0, generation 2 & engine.1, generation 2
a node that becomes a spare of its group, and is none again [by sglang]
    first node | 5 pod2 ready ready as 9 | wants agent2 nothing
    6 pod2 ready ready as 1 -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    wants agent2 engine.0, generation 2 & engine.1, generation 2
# It is a loss: the job's requests broke
a job that fails as its front has ended [by sglang, its front listed]
    runs behind a front
    7 lost engine-front: exit code 137 (SIGKILL) -> start engine-front, generation 2
    8 ready engine-front, generation 2 | 9 job FAILED 1 -> start Ray, generation 2
a job that fails long after its front has ended [by sglang, its front listed]
    runs behind a front
    7 lost engine-front: exit code 137 (SIGKILL) -> start engine-front, generation 2
    8 ready engine-front, generation 2 | 76 job FAILED 1 -> end 1: the job failed with exit code 1
    91 tick
a job that fails while its front serves [by sglang, its front listed]
    runs behind a front | 9 job FAILED 1 -> end 1: the job failed with exit code 1 | 24 tick
# The head's next agent has seen no end of the front, which does not run: a loss, too
a job that fails as head and front have ended [by sglang, its front listed]
    runs behind a front | 8 next agent | next up | 4 job FAILED 1 -> start Ray, generation 2
# A pod that was replaced while no agent was on the head starts nothing before
the next agent asks the front which process was there [by sglang]
    runs | 7 next agent | next up | 8 pod2 replaced | 9 next pod2 is there | wants agent4 nothing
    9.5 front sees DDSS, three starts
    10 next pod2 is there -> start engine.0 on agent4, generation 4
        & start engine.1 on agent4, generation 2
    wants agent4 engine.0, generation 4 & engine.1, generation 2
# What the log says of a group of which nothing serves
members that ended in the same way are one reason [by nccl, all needed]
    all needed run
    7 pod2 ended by memory -> start engine.0 on agent2, generation 2
        & start engine.1 on agent2, generation 2
    8 pod3 ended by memory -> start engine.0 on agent3, generation 2
        & start engine.1 on agent3, generation 2
    log no engine serves since 00:00 UTC: all 4 on pod2 and pod3: exit code 1 (CUDA out of memory);
        last output: a line; the trainer waits for samples
# An agent that follows a killed one takes no group for lost before its nodes may report
the next agent waits for reports
    runs | 7 next agent | next up | not logged serve | 61 tick | log no engine serves since
    phase running
the next agent waits for reports before the end of the run [ends if lost]
    runs | 7 next agent | next up | not logged serve | 61 tick -> stop run-1
the next agent gets its reports
    runs | 7 next agent | next up
    6 pod2 ready ready -> start engine.0 on agent2 & start engine.1 on agent2
    7 pod3 ready ready -> start engine.0 on agent3 & start engine.1 on agent3 | 61 tick
    not logged serve
""",
    WORDS,
    a_goal(),
)


@pytest.mark.parametrize("case", HISTORIES.values(), ids=HISTORIES)
def test_histories(case: Case) -> None:
    """Each history leaves these members, and has these lines in its log."""
    play(case)


def test_a_stale_engine_of_nccl_is_no_reason_to_wait() -> None:
    """A trainer that hangs in NCCL since is a stall: none serves again in this attempt."""
    history = [*RUNS, *((7.0, says(node, "lost", "lost")) for node in (2, 3))]
    fronted = Trace(a_goal(weights="sglang"), [*UP, *history])
    assert [one.may_recover for one in starved_services(fronted.state, 8.0)] == [True]
    trace = Trace(a_goal(weights="nccl"), [*UP, *history])
    assert [one.may_recover for one in starved_services(trace.state, 8.0)] == [False]
    for node in (2, 3):
        trace.take(says(node, "ready", "ready", generation=2), 9.0)
    assert [one.may_recover for one in starved_services(trace.state, 9.0)] == [False]


SILENT = (7.0, h.WorkerSilent("agent2", "no answer", ray_answers=False))
FRONT_SEES = (7.0, front("serving", "serving", "serving", "serving"))


@pytest.mark.parametrize(("step", "culprit"), [("lost", "node"), ("ready", "job")])
def test_a_launchers_job_that_fails_without_such_a_member(step: str, culprit: str) -> None:
    """It is a loss, which another attempt may mend; with all members it is the job's failure."""
    history = [*RUNS, (7.0, says(2, step, "ready"))]
    trace = Trace(a_goal(replace(GROUP, min=None), "nccl"), [*UP, *history])
    failed = h.NodeShare("head", 0, NodeSize(8), ShareEnd(1, local_rank=0))
    state = replace(
        trace.state,
        goal=replace(trace.state.goal, shares_by="torchrun"),
        shares=h.JobShares({HERE: failed}),
    )
    assert shares_verdict(state, 8.0).culprit == culprit


def test_addresses() -> None:
    """A job gets the members' own addresses, or the ports of their front, by rank and number."""
    trace = Trace(a_goal(), [*UP, *READY])
    spec = trace.state.goal.services[0]
    own = ("10.0.0.2:31000", "10.0.0.2:31001", "10.0.0.3:31000", "10.0.0.3:31001")
    assert addresses_of(trace.state, spec, "10.0.0.1") == own
    fronted = replace(spec, weights="sglang", front=22_000)
    of_front = tuple(f"10.0.0.1:{port}" for port in (22_000, 22_001, 22_016, 22_017))
    assert addresses_of(trace.state, fronted, "10.0.0.1") == of_front
    slots = slots_of(trace.state, fronted)
    assert [(slot.port, slot.address) for slot in slots] == [
        (int(front.rpartition(":")[2]), address)
        for front, address in zip(of_front, own, strict=True)
    ]


@pytest.mark.parametrize("event", [SILENT, (8.0, left(2))])
def test_a_front_learns_whose_nodes_are_cut_off(event: tuple[float, h.HeadEvent]) -> None:
    """It waits no longer for what those have not answered."""
    trace = Trace(a_goal(weights="sglang"), [*UP, *RUNS, event])
    slots = slots_of(trace.state, trace.state.goal.services[0])
    assert [slot.is_cut_off for slot in slots] == [True, True, False, False]


def test_where_the_judges_are() -> None:
    """The reward server gets the addresses of all of them, until all are given up."""
    judge = replace(ENGINE, name="judge", gpus=0, restarts=0)
    made = replace(a_goal(), services=(judge,), listed=frozenset({"judge"}))

    def reports(node: int, step: Step, ip: str = "") -> h.WorkerReported:
        items = (ItemReport("judge", step, "exit code 1", 1, is_running=step is Step.READY),)
        worker = reported(node, joined=False, rank=node - 1, items=items).worker
        return h.WorkerReported(replace(worker, ip=ip or worker.ip))

    both = [(3.0, reports(2, Step.READY)), (3.1, reports(3, Step.READY))]
    trace = Trace(made, [*UP, *both, (3.2, SUBMITTED), (3.3, job("RUNNING"))])

    def urls() -> str:
        return judges_now("{addresses:judge|url}", Placeholders(head_ip="10.0.0.1"), trace.state)

    assert urls() == "http://10.0.0.2:31000,http://10.0.0.3:31000"
    trace.take(reports(2, Step.READY, "10.0.0.9"), 4.0)
    assert urls() == "http://10.0.0.9:31000,http://10.0.0.3:31000"
    trace.take(reports(2, Step.LOST, "10.0.0.9"), 5.0)
    assert urls()
    trace.take(reports(3, Step.LOST), 6.0)
    assert urls() == ""

    # Of one node that was given up, while the other has not reported to this agent yet?
    services = trace.state.services
    one = frozenset(key for key in services.abandoned if key[0] == "agent2")
    assert len(one) == 1
    state = trace.state.with_services(abandoned=one)
    assert judges_now("{addresses:judge|url}", Placeholders(head_ip="10.0.0.1"), state)


def test_nodes_of_a_group_with_other_numbers_of_gpus() -> None:
    """Each has as many members as fit: ports, sizes and what is needed follow from both."""
    small = replace(says(3, "ready").worker, members={"engine": 1}, gpus=0)
    history = [*FIRST_NODE, (4.0, h.WorkerReported(replace(small, items=())))]
    trace = Trace(a_goal(replace(GROUP, min=None)), [*UP, *history])
    assert trace.state.phase.value == "booting"
    trace.take(h.WorkerReported(small), 4.3)
    assert trace.state.phase.value == "submitting"
    spec = replace(trace.state.goal.services[0], weights="sglang", front=22_000)
    assert [slot.port for slot in slots_of(trace.state, spec)] == [22_000, 22_001, 22_016]
    assert wanted_of(trace.state, "agent3") == {"engine.0": Want(1)}
    assert group_sizes_of(trace.state) == {"rollout": (2, 12)}


def test_addresses_with_ipv6() -> None:
    """A port stands behind brackets, in each form of the list."""
    there = [replace(says(n, "ready", "ready").worker, ip=f"fd00::{n}") for n in (2, 3)]
    trace = Trace(a_goal(), [*UP, *((3.0, h.WorkerReported(one)) for one in there)])
    spec = trace.state.goal.services[0]
    assert addresses_of(trace.state, spec, "fd00::1")[0] == "[fd00::2]:31000"
    fronted = replace(spec, weights="sglang", front=22_000)
    assert addresses_of(trace.state, fronted, "fd00::1")[0] == "[fd00::1]:22000"
    place = known_place(Placeholders(head_ip="fd00::1"), trace.state)
    assert place.fill("{addresses:engine|url|json}").startswith('["http://[fd00::2]:31000", ')
    _, _, script, _, words = place.shell_command("serve {addresses:engine|url|space}")
    assert script == "serve ${1}"
    assert words.split()[0] == "http://[fd00::2]:31000"


@pytest.mark.parametrize(("there", "begins"), [((2, 3), 0), ((2, 4), 1), ((3, 4), 1), ((4,), 0)])
def test_a_partial_start_is_about_the_trainer(there: tuple[int, ...], begins: int) -> None:
    """Of three workers one is of a group that joins Ray: AGENT_PARTIAL does not go without it."""
    group = NodeGroup("rollout", 1, ray=True, first_rank=3)
    made = replace(goal(3, least=2), groups=(group,))
    reports = [(2.5, reported(n, rank=n - 1)) for n in there]
    trace = Trace(made, [*UP, (2.2, nodes(*there)), *reports, (200.0, TICK)])
    assert trace.state.phase.value == ("submitting" if begins else "leaving")


def test_members_that_ended_in_the_same_way_are_one_reason() -> None:
    """What the log says of a group of which nothing serves, whether they load again or not."""
    events = [*RUNS, (7.0, ends_with(2, OOM)), (8.0, ends_with(3, OOM))]
    trace = Trace(a_goal(replace(GROUP, min=None), "nccl"), [*UP, *events])
    all_of_it = f"all 4 on pod2 and pod3: {OOM}"
    since = "no engine serves since 00:00 UTC"
    assert f"{since}: {all_of_it}; last output: a line; the trainer waits for samples" in trace.log
    trace.take(says(2, "pending", "pending", generation=2), 9.0)
    group, spec = trace.state.goal.groups[0], trace.state.goal.services[0]
    words = f"{since}: {all_of_it}; the trainer waits for samples"
    assert shortage_sentence(trace.state, group, spec) == words


def test_other_reasons_stand_beside_it() -> None:
    """Each reason once, with the most members first; who is silent and who loads differs."""
    silent = h.WorkerSilent("agent3", "no answer for 5 s", ray_answers=False)
    trace = Trace(a_goal(), [*UP, *RUNS, (7.0, says(2, "lost", "ready")), (8.0, silent)])
    group, spec = trace.state.goal.groups[0], trace.state.goal.services[0]
    assert shortage_sentence(trace.state, group, spec) == (
        "engine: 1 of 4 serve, 2 needed; engine.0 on pod3 and engine.1 on pod3 are dead "
        "(its node is silent, no answer for 5 s); engine.0 on pod2 is loading"
    )


def test_a_shortage_is_durable_and_measured() -> None:
    """How long too few served, and none, is kept for the next agent, and over with the attempt."""
    none_serves = [(7.0, ends_with(2, OOM)), (9.0, ends_with(3, OOM))]
    trace = Trace(a_goal(), [*UP, *RUNS, *none_serves])
    (short,) = trace.state.durable.shortages
    assert (short.group, short.service, short.since) == ("rollout", "engine", 9.0)
    assert short.nothing_since == 9.0
    trace.take(says(2, "ready", "pending", generation=2), 19.0)
    trace.take(says(2, "ready", "ready", generation=2), 29.0)
    (short,) = trace.state.durable.shortages
    assert (short.seconds(99.0), short.seconds_without_any(99.0)) == (20.0, 10.0)
    assert OOM in short.why
    assert trace.state.durable.shortage_of("engine") is None


@pytest.mark.parametrize(
    ("before", "generation"),
    [
        ([SILENT], 2),
        ([(8.0, left(2))], 2),
        ([(8.0, front(*["serving"] * 4, generations=(5, 1, 1, 1))), (8.5, left(2))], 6),
    ],
)
def test_a_pod_that_is_replaced_has_another_process_behind_its_front(
    before: Sequence[tuple[float, h.HeadEvent]], generation: int
) -> None:
    """Its front must not take it for the former one, which had the weights, at its address."""
    trace = Trace(a_goal(weights="sglang"), [*UP, *RUNS, FRONT_SEES, *before])
    trace.take(says(2, agent=4, at=9.0), 9.0)
    slot = slots_of(trace.state, trace.state.goal.services[0])[0]
    assert (slot.address, slot.generation) == ("10.0.0.2:31000", generation)
    assert wanted_of(trace.state, "agent4")["engine.0"] == Want(generation)
