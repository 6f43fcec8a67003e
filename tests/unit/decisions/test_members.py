"""The members of groups, by a table of histories: their states, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.members import (
    addresses_of,
    group_sizes_of,
    members_of,
    shortage_sentence,
    slots_of,
)
from agent.decisions.head.service_addresses import judges_now, known_place
from agent.decisions.head.shares import shares_verdict
from agent.decisions.head.starvation import starved_services
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import HERE, RAY, ItemReport, Step, Want
from agent.frameworks.recipe import NodeSize
from agent.job.groups import NodeGroup
from agent.job.services import Placeholders, front_of
from agent.job.share import ShareEnd
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
from support.heads import (
    REWARD_SPEC,
    SUBMITTED,
    TICK,
    Trace,
    goal,
    job,
    lost,
    nodes,
    ready,
    reported,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.job.groups import Lost
    from agent.job.services import Weights


class Row(NamedTuple):
    """A history, and what it leaves."""

    events: Sequence[tuple[float, h.HeadEvent]]
    states: str  # of the members, a letter each
    phase: str = "running"
    weights: Weights | None = None
    group: NodeGroup = GROUP
    line: str = ""  # in the log
    end: str = ""  # of the attempt, or of the run


ROWS = {
    "no node has reported": Row([], "", "booting"),
    "one of two nodes": Row([(3.0, says(2))], "LL", "booting"),
    "enough serve, and the other node lacks": Row(FIRST_NODE, "SS", "booting"),
    "the other node lacks for AGENT_WAIT_WORKERS": Row(
        [*FIRST_NODE, (201.0, TICK)], "SS", "submitting", line="going on without rank 2 of rollout"
    ),
    "one loads, and two serve": Row(
        [*FIRST_NODE, (4.0, says(3)), (4.5, says(3, "ready", "pending"))], "SSSL", "submitting"
    ),
    "too few serve": Row(
        [(3.0, says(2)), (3.5, says(2, "ready", "pending")), (4.0, says(3))], "SLLL", "booting"
    ),
    "the job runs": Row(RUNS, "SSSS"),
    "one ends, and is started again": Row(
        [*RUNS, (7.0, says(2, "lost", "ready"))], "LSSS", line="engine.0 on rank 1 (pod2) is down"
    ),
    "two of four are enough": Row([*RUNS, (7.0, says(2, "lost", "lost"))], "LLSS"),
    "too few, and the trainer waits": Row(
        [*RUNS, (7.0, says(2, "lost", "lost")), (8.0, says(3, "lost", "ready"))],
        "LLLS",
        line="engine: 1 of 4 serve, 2 needed",
    ),
    "nothing serves": Row(
        [*RUNS, (7.0, says(2, "lost", "lost")), (8.0, says(3, "lost", "lost"))],
        "LLLL",
        line="no engine serves since",
    ),
    "behind a front a member serves once the front says so": Row(
        [*READY, (5.0, front("stale", "serving", "serving", "serving"))],
        "TSSS",
        "submitting",
        "sglang",
    ),
    "a restarted member is stale until its front has sent it the weights": Row(
        [
            *RUNS,
            (7.0, front("serving", "serving", "serving", "serving")),
            (8.0, says(2, "lost", "ready")),
            (9.0, says(2, "ready", "ready", generation=2)),
        ],
        "TTSS",
        weights="sglang",
    ),
    "then it serves": Row(
        [
            *RUNS,
            (8.0, says(2, "lost", "lost")),
            (9.0, says(2, "ready", "ready", generation=2)),
            (9.5, front("serving", "stale", "serving", "serving", generations=(2, 2, 1, 1))),
        ],
        "STSS",
        weights="sglang",
    ),
    "one that answers its probe and no request is started again": Row(
        [*RUNS, (7.0, front("wedged", "serving", "serving", "serving"))],
        "LSSS",
        weights="sglang",
        line="engine.0 on rank 1 (pod2) is down (no answer)",
    ),
    "by NCCL only the next attempt sends weights": Row(
        [
            *RUNS,
            (7.0, says(2, "lost", "ready")),
            (9.0, says(2, "ready", "ready", generation=2)),
        ],
        "TTSS",
        weights="nccl",
        group=replace(GROUP, min=None),
    ),
    "a group that ends the attempt: by NCCL no other process takes its place": Row(
        [*RUNS, (7.0, says(2, "lost", "ready"))],
        "LSSS",
        "stopping",
        weights="nccl",
        group=replace(GROUP, min=None, lost="retry"),
        end="too few members of engine are left in the group rollout: 3 of 4 serve, 4 needed",
    ),
    "behind a front another process takes its place": Row(
        [*RUNS, (7.0, says(2, "lost", "lost")), (8.0, says(3, "lost", "lost"))],
        "LLLL",
        weights="sglang",
        group=replace(GROUP, lost="retry"),
    ),
    "a job that fails without such a member is tried again": Row(
        [
            *RUNS,
            (7.0, says(2, "lost", "ready")),
            (9.0, says(2, "ready", "ready", generation=2)),
            (300.0, job("FAILED", 1)),
        ],
        "SSSS",
        "booting",
        weights="nccl",
        group=replace(GROUP, min=None),
        line="engine.0 on pod2 was lost",
    ),
    "a group that ends the run: both nodes are gone": Row(
        [
            *RUNS,
            *((7.0, h.WorkerSilent(f"agent{n}", "no answer", ray_answers=False)) for n in (2, 3)),
            (68.0, TICK),
        ],
        "DDDD",
        "stopping",
        group=replace(GROUP, lost="end"),
        end="too few members of engine are left in the group rollout: 0 of 4 serve",
    ),
    "a group that waits: both nodes are gone": Row(
        [
            *RUNS,
            *((7.0, h.WorkerSilent(f"agent{n}", "no answer", ray_answers=False)) for n in (2, 3)),
            (68.0, TICK),
        ],
        "DDDD",
        line="no engine serves since",
    ),
}
SILENT = tuple((7.0, h.WorkerSilent(f"agent{n}", "no answer", ray_answers=False)) for n in (2, 3))
STATUS = ((100.0, job("RUNNING")),)
ROWS |= {
    "one of two nodes stays away, and enough serve": Row(
        [*RUNS, SILENT[0], (68.0, TICK)], "DDSS", group=replace(GROUP, lost="end")
    ),
    "a node that left during the boot may be back": Row(
        [*FIRST_NODE, (5.0, left(2)), (6.0, TICK)], "RR", "booting", group=replace(GROUP, nodes=1)
    ),
    "it is not back by AGENT_WAIT_WORKERS": Row(
        [*FIRST_NODE, (5.0, left(2)), (201.0, TICK)],
        "RR",
        "leaving",
        group=replace(GROUP, nodes=1),
        end="engine on the group rollout not ready in time: 0 of 2 serve, 2 needed",
    ),
    "both nodes are silent during the boot, for longer than AGENT_NODE_GRACE": Row(
        [*FIRST_NODE, (4.0, says(3)), *SILENT, (68.0, TICK)],
        "DDDD",
        "booting",
        group=replace(GROUP, min=None),
    ),
    "a pod that is replaced has no weights by NCCL": Row(
        [
            *RUNS,
            SILENT[0],
            (9.0, says(2, agent=4)),
            (10.0, says(2, "ready", "ready", generation=2, agent=4)),
        ],
        "TTSS",
        weights="nccl",
        group=replace(GROUP, min=None),
    ),
    "a member that loads as the trainer sends its weights by NCCL": Row(
        [
            *((3.0, says(2)), (3.5, says(2, "ready", "pending")), (4.0, says(3))),
            *((5.0, SUBMITTED), (6.0, job("RUNNING")), (7.0, says(2, "ready", "ready"))),
        ],
        "STLL",
        weights="nccl",
        group=replace(GROUP, min=1),
    ),
    "one that loads for too long is started again": Row(
        [*RUNS, (7.0, says(2, "lost", "ready")), (8.0, TICK), *STATUS, (129.0, TICK)],
        "LSSS",
        line="engine.0 on rank 1 (pod2) is down (not ready in time: no answer): restart 2 of 2",
    ),
    "no restart is used while its node is away": Row(
        [*RUNS, (7.0, says(2, "lost", "ready")), (9.0, SILENT[0][1]), *STATUS, (199.0, TICK)],
        "DDSS",
    ),
}
LETTERS = {
    "pending": "P",
    "loading": "L",
    "stale": "T",
    "serving": "S",
    "dead": "D",
    "retired": "R",
}


@pytest.mark.parametrize("name", ROWS)
def test_histories(name: str) -> None:
    """Each history leaves these members and this phase, and has this line in its log."""
    row = ROWS[name]
    trace = Trace(a_goal(row.group, row.weights), [*UP, *row.events])
    members = members_of(trace.state, trace.state.goal.services[0])
    assert "".join(LETTERS[member.state.value] for member in members) == row.states
    assert trace.state.phase.value == row.phase
    assert row.line in trace.log
    end = trace.state.outcome
    assert row.end in ("" if end is None else end.reason)


def test_a_member_that_keeps_failing_is_given_up() -> None:
    """Its restarts are used up; the others go on, and the next attempt tries it again."""
    trace = Trace(a_goal(), [*UP, *RUNS])
    now = 10.0
    for generation in (1, 2, 3):
        trace.take(says(2, "lost", "ready", generation=generation, at=now), now)
        now += 5.0
        trace.take(TICK, now)
    (first, *_) = members_of(trace.state, trace.state.goal.services[0])
    assert first.state.value == "retired"
    assert "engine.0" not in wanted_of(trace.state, "agent2")
    assert "the run goes on without it" in trace.log


def test_a_member_that_only_the_trainer_can_update_stays_out_of_its_router() -> None:
    """Its node learns by the want that it is stale; the next attempt sends it the weights."""
    history = [
        *RUNS,
        (7.0, says(2, "lost", "ready")),
        (9.0, says(2, "ready", "ready", generation=2)),
    ]
    trace = Trace(a_goal(replace(GROUP, min=None), "nccl"), [*UP, *history])
    assert wanted_of(trace.state, "agent2")["engine.0"] == Want(2, is_stale=True)
    trace.state = trace.state.with_attempt(engines={})
    assert wanted_of(trace.state, "agent2")["engine.0"] == Want(2)


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


def test_members_that_await_the_first_update_of_an_attempt() -> None:
    """The trainer sends it after its start, which may take minutes: until then nothing is short."""
    trace = Trace(a_goal(weights="sglang"), [*UP, *RUNS])
    stale = ("stale", "stale", "stale", "stale")
    trace.take(front(*stale, version=""), 7.0)
    assert "serve" not in trace.log
    trace.take(front("down", *stale[:3], version=""), 8.0)
    assert "serve" not in trace.log  # two are needed
    trace.take(front(*stale), 9.0)
    assert "no engine serves since 00:00 UTC: all 4 on pod2 and pod3" in trace.log
    assert "(needs version 7); the trainer waits" in trace.log


@pytest.mark.parametrize("lost", ["wait", "end"])
def test_the_next_agent_waits_for_reports(lost: Lost) -> None:
    """An agent that follows a killed one takes no group for lost before its nodes may report."""
    group = replace(GROUP, lost=lost)
    before = Trace(a_goal(group), [*UP, *RUNS]).state.durable
    follows = [*UP, (3.0, job("RUNNING"))]
    trace = Trace(a_goal(group), follows, before)
    assert trace.state.phase.value == "running"
    assert "serve" not in trace.log
    reports = [(6.0, says(2, "ready", "ready")), (7.0, says(3, "ready", "ready"))]
    assert "serve" not in Trace(a_goal(group), [*follows, *reports, (61.0, TICK)], before).log

    # If none has reported after the grace, they are lost.
    trace.take(TICK, 61.0)
    assert "no engine serves since" in trace.log
    assert trace.state.phase.value == ("running" if lost == "wait" else "stopping")


def test_of_two_nodes_with_one_rank_one_runs_members() -> None:
    """The first that reported has them, however often the other one reports; then the other."""
    other = h.WorkerReported(replace(says(2, agent=4).worker, name="pod4", ip="10.0.0.4"))
    trace = Trace(a_goal(), [*UP, *RUNS, (7.0, other)])
    assert not wanted_of(trace.state, "agent4").keys() & {"engine.0", "engine.1"}
    spec = trace.state.goal.services[0]
    assert {member.node for member in members_of(trace.state, spec)} == {"pod2", "pod3"}
    trace.take(h.WorkerSilent("agent2", "no answer", ray_answers=False), 8.0)
    trace.take(other, 9.0)
    assert {"engine.0", "engine.1"} <= wanted_of(trace.state, "agent4").keys()
    assert {member.node for member in members_of(trace.state, spec)} == {"pod4", "pod3"}


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


@pytest.mark.parametrize(
    ("ended_at", "phase"), [(7.0, "booting"), (None, "leaving"), (-60.0, "leaving")]
)
def test_a_job_that_fails_as_its_front_has_ended(ended_at: float | None, phase: str) -> None:
    """It is a loss: the job's requests broke. One long after, or without such an end, is none."""
    engine_goal = a_goal(weights="sglang")
    (engine,) = engine_goal.services
    begin = [*UP, (2.5, ready("engine-front")), *RUNS]
    trace = Trace(replace(engine_goal, services=(front_of(engine), engine)), begin)
    if ended_at is not None:
        trace.take(lost("engine-front", "exit code 137 (SIGKILL)"), 7.0)
        trace.take(ready("engine-front", 2), 8.0)
    trace.take(job("FAILED", 1), 9.0 if ended_at is None else 16.0 - ended_at)
    assert trace.state.phase.value == phase


def test_a_job_that_fails_as_head_and_front_have_ended() -> None:
    """The head's next agent has seen no end of the front, which does not run: a loss, too."""
    engine_goal = a_goal(weights="sglang")
    (engine,) = engine_goal.services
    with_front = replace(engine_goal, services=(front_of(engine), engine))
    before = Trace(with_front, [*UP, (2.5, ready("engine-front")), *RUNS]).state.durable
    trace = Trace(with_front, [*UP, (3.0, job("RUNNING")), (4.0, job("FAILED", 1))], before)
    assert trace.state.phase.value == "booting"


def test_a_spare_of_a_group() -> None:
    """It joins no Ray and runs nothing, until it gets the rank of a node that has gone."""

    def spare(rank: int, at: float) -> h.WorkerReported:
        worker = replace(says(4, at=at).worker, rank=None, given_rank=rank, group="rollout")
        return h.WorkerReported(worker)

    trace = Trace(a_goal(), [*UP, *RUNS, (7.0, spare(9, 7.0))])
    assert trace.state.fleet.workers["agent4"].service_only
    assert wanted_of(trace.state, "agent4") == {}
    trace.take(h.WorkerSilent("agent2", "no answer", ray_answers=False), 8.0)
    trace.take(spare(1, 9.0), 9.0)
    assert {"engine.0", "engine.1"} == wanted_of(trace.state, "agent4").keys()
    spec = trace.state.goal.services[0]
    assert {member.node for member in members_of(trace.state, spec)} == {"pod4", "pod3"}


def test_what_its_nodes_run() -> None:
    """Each node of the group runs its members, and no Ray."""
    trace = Trace(a_goal(), [*UP, *READY])
    assert wanted_of(trace.state, "agent2") == {"engine.0": Want(1), "engine.1": Want(1)}


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


@pytest.mark.parametrize("event", [SILENT[0], (8.0, left(2))])
def test_a_front_learns_whose_nodes_are_cut_off(event: tuple[float, h.HeadEvent]) -> None:
    """It waits no longer for what those have not answered."""
    trace = Trace(a_goal(weights="sglang"), [*UP, *RUNS, event])
    slots = slots_of(trace.state, trace.state.goal.services[0])
    assert [slot.is_cut_off for slot in slots] == [True, True, False, False]


def test_what_needs_a_group_starts_once_enough_of_it_serve() -> None:
    """Two of four members are enough here; it is blocked until then, with a line."""
    asks = replace(REWARD_SPEC, after=("engine",))
    made = replace(a_goal(), max_prepare_seconds=1000.0)
    nodes = [(3.0, says(2)), (3.5, says(3))]
    trace = Trace(replace(made, services=(*made.services, asks)), [*UP, *nodes])
    assert (HERE, asks.name) in trace.state.services.blocked
    assert trace.state.services.by_key[HERE, asks.name].evidence == "waits for engine"
    trace.take(says(2, "ready"), 4.0)
    assert (HERE, asks.name) in trace.state.services.blocked
    trace.take(says(3, "pending", "ready"), 5.0)
    assert (HERE, asks.name) not in trace.state.services.blocked


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


OOM = "exit code 1 (CUDA out of memory)"


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


def test_the_spare_of_a_group_in_ray_is_no_node_of_the_trainer() -> None:
    """Its rank is none of the group's, and it is outside of Ray until it has one of those."""

    def of_pool(node: int, rank: int, *, joined: bool = True) -> h.WorkerReported:
        worker = reported(node, joined=joined).worker
        return h.WorkerReported(replace(worker, given_rank=rank, group="pool"))

    group = NodeGroup("pool", 1, ray=True, first_rank=2)
    spare = [(2.7, of_pool(4, 3, joined=False)), (2.8, nodes(2, 3))]
    history = [*UP, (2.2, reported(2, rank=1)), (2.6, of_pool(3, 2)), *spare]
    trace = Trace(replace(goal(2), groups=(group,)), history)
    assert [*trace.state.fleet.alive] == ["10.0.0.2", "10.0.0.3"]
    assert len(trace.state.nodes()) == 2
    assert wanted_of(trace.state, "agent4") == {}
    trace.take(of_pool(4, 3), 3.0)  # its Ray is not stopped yet
    trace.take(nodes(2, 3, 4), 3.1)
    assert [*trace.state.fleet.alive] == ["10.0.0.2", "10.0.0.3"]
    trace.take(of_pool(4, 2), 4.0)
    assert RAY in wanted_of(trace.state, "agent4")


@pytest.mark.parametrize("rank", [2, 9])
def test_the_members_of_a_node_with_another_rank_are_not_those_of_the_former(rank: int) -> None:
    """A spare has none; at the front's port of another rank a process may not pass for the former.

    It has other weights.
    """
    trace = Trace(a_goal(weights="sglang"), [*UP, *FIRST_NODE])
    same = replace(says(2, "ready", "ready").worker, group="rollout")
    trace.take(h.WorkerReported(replace(same, rank=rank)), 5.0)
    of_spare = {} if rank == 9 else {"engine.0": Want(2), "engine.1": Want(2)}
    assert wanted_of(trace.state, "agent2") == of_spare
    trace.take(h.WorkerReported(replace(same, rank=1)), 6.0)
    assert {want.generation for want in wanted_of(trace.state, "agent2").values()} == {2}


FRONT_SEES = (7.0, front("serving", "serving", "serving", "serving"))


@pytest.mark.parametrize(
    ("before", "generation"),
    [
        ([SILENT[0]], 2),
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


def test_the_next_agent_asks_the_front_which_process_was_there() -> None:
    """A pod that was replaced while no agent was on the head starts nothing before."""
    trace = Trace(a_goal(weights="sglang"), [*UP, *RUNS])
    trace.state = replace(trace.state, has_resumed=True)
    trace.take(h.WorkerReplaced("agent2"), 8.0)
    trace.take(says(2, agent=4, at=9.0), 9.0)
    assert wanted_of(trace.state, "agent4") == {}
    trace.take(front("down", "down", "serving", "serving", generations=(3, 1, 1, 1)), 9.5)
    trace.take(says(2, agent=4, at=10.0), 10.0)
    assert wanted_of(trace.state, "agent4") == {"engine.0": Want(4), "engine.1": Want(2)}
