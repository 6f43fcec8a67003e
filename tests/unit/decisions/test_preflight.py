"""The all-reduce before the job: its participants, the waits, and its result."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.bundled.all_reduce import parsed, processes, serve_store
from agent.checks import run_checks
from agent.checks.finding import Level
from agent.checks.network import all_reduce_result
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import (
    ALL_REDUCE,
    HERE,
    Answer,
    Answered,
    NodeWanted,
    Question,
    QuestionKind,
)
from agent.frameworks.recipe import NodeSize
from agent.job.services import Placeholders
from agent.job.share import ShareArgs
from agent.node.facts import TorchPython
from agent.plan import waits as wait_keys
from agent.plan.show import render
from agent.record.run_folder import RunFolder
from agent.run import questions as asked_module
from agent.run.questions import Questions
from agent.settings.redact import Redactor
from support.fake_runs import prober_of
from support.free_ports import free_port
from support.heads import (
    LIMITS,
    NOTHING_DURABLE,
    REWARD,
    REWARD_SPEC,
    TICK,
    SubmitJob,
    Trace,
    goal,
    nodes,
    ray_doubt,
    ray_lost,
    ready,
    reported,
    resumed,
)
from support.node_runs import made_run
from support.worlds import MACHINE, plan_of, settings_of, topology_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.decisions.durable import Durable
    from agent.decisions.head.head_goal import HeadGoal
    from agent.run.node_run import NodeRun

ASKED = replace(goal(2), node="abc1", preflight=True)
JOINED: list[tuple[float, h.HeadEvent]] = [
    (1.0, reported(3)),
    (1.0, reported(2)),
    (2.0, nodes(2, 3)),
]
SHARES = [("abc1", 8), ("abc2", 8), ("abc3", 8)]


def came(
    *,
    failed: Sequence[tuple[int, str]] = (),
    at: Sequence[str] = (),
    in_time: bool = True,
) -> str:
    """Return the output of the program on the head."""
    reduced = {"bytes": 256 << 20, "seconds": 0.0125} if in_time and not failed else None
    result = {"in_time": in_time, "at": at, "failed": failed, "all_reduce": reduced}
    return json.dumps(result)


# --- what it means -------------------------------------------------------------------------------


def test_how_fast_it_is() -> None:
    """Size, nodes and time."""
    assert all_reduce_result(came(), SHARES) == (
        "AGENT_PREFLIGHT: an all-reduce of 256 MiB over 24 GPUs takes 12.5 ms",
        "",
    )
    by_cpu, _ = all_reduce_result(came(), [("a", 0), ("b", 0)])
    assert "over 2 node(s) by CPU takes" in by_cpu


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("", "it wrote no result; preflight.log has its output"),
        ('{"error": "ImportError: no torch"}', "it could not start on abc1: ImportError: no torch"),
        (
            came(failed=[(3, "RuntimeError: Connection closed by peer"), (9, "CUDA error: ECC")]),
            "rank 9 on abc2: CUDA error: ECC",
        ),
        (
            came(failed=[(3, "RuntimeError: Connection closed by peer")]),
            "rank 3 on abc1: RuntimeError: Connection closed by peer",
        ),
        (
            came(
                at=[
                    *["connecting to the other ranks"] * 8,
                    *[""] * 8,
                    *["connecting to the other ranks"] * 8,
                ],
                in_time=False,
            ),
            (
                "it did not end in time; connecting to the other ranks on abc1 and abc3; "
                "no result on abc2"
            ),
        ),
    ],
)
def test_what_failed(words: str, failure: str) -> None:
    """The cause is reported before its effects; a missing node is named."""
    assert all_reduce_result(words, SHARES) == ("", failure)


# --- the trace -----------------------------------------------------------------------------------


def answer(words: str = "", evidence: str = "") -> Answered:
    """Return the event of the head's own result."""
    return Answered(Answer(ALL_REDUCE, "", evidence, words=words))


def test_all_begin_together_and_the_job_waits() -> None:
    """Each node gets a rank, the head the first; the job is submitted after the head's result."""
    trace = Trace(ASKED, JOINED)
    asked = [a for a in trace.actions if isinstance(a, h.ProbeNode) and a.probe == ALL_REDUCE]
    sizes = (NodeSize(8),) * 3
    assert [(a.node, a.share) for a in asked] == [
        (HERE, ShareArgs(0, sizes)),
        ("agent3", ShareArgs(1, sizes)),
        ("agent2", ShareArgs(2, sizes)),
    ]
    assert not any(isinstance(action, SubmitJob) for action in trace.actions)
    (wait,) = head.pending_waits(trace.state)
    until = 2.0 + times.ALL_REDUCE + times.ALL_REDUCE_SPARE
    assert (wait.key, wait.deadline) == (wait_keys.PREFLIGHT, until)
    trace.take(reported(2, answers=(Answer(ALL_REDUCE, ""),)), 8.0)
    assert not any(isinstance(action, SubmitJob) for action in trace.actions)
    trace.take(answer(came()), 9.0)
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert "an all-reduce of 256 MiB over 24 GPUs takes 12.5 ms" in trace.log


def test_it_is_done_once() -> None:
    """Another attempt of the job does not repeat it."""
    trace = Trace(replace(ASKED, retries=1), JOINED)
    trace.take(answer(came()), 9.0)
    trace.take(ray_lost("killed"), 10.0)
    for at in (20.0, 90.0):
        trace.take(nodes(2, 3), at)
    assert [type(a) for a in trace.actions].count(SubmitJob) == 2
    assert [a.probe for a in trace.actions if isinstance(a, h.ProbeNode)].count(ALL_REDUCE) == 3


def test_a_failure_ends_the_run() -> None:
    """78 with the node's name, and no submission."""
    trace = Trace(ASKED, JOINED)
    trace.take(reported(2, answers=(Answer(ALL_REDUCE, "", "Connection closed by peer"),)), 8.9)
    trace.take(answer(came(failed=[(12, "CUDA error: ECC")])), 9.0)
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (78, "AGENT_PREFLIGHT")
    assert end.reason == "AGENT_PREFLIGHT: the all-reduce failed: rank 12 on pod3: CUDA error: ECC"
    assert "unset AGENT_PREFLIGHT" in end.remedy
    assert not any(isinstance(action, SubmitJob) for action in trace.actions)


def test_a_node_that_could_not_begin() -> None:
    """Its report counts if the head has no result a moment later, long before the limit."""
    trace = Trace(ASKED, JOINED)
    trace.take(reported(2, answers=(Answer(ALL_REDUCE, "", "no such Python"),)), 5.0)
    assert not trace.outcomes
    then = head.deadline(trace.state)
    assert then is not None
    assert 5.0 < then <= 15.0
    for at in (then, 15.0):
        trace.take(TICK, at)
    (end,) = trace.outcomes
    assert end.reason == "AGENT_PREFLIGHT: the all-reduce failed: pod2: no such Python"


def test_it_cannot_hang() -> None:
    """Without any result the run ends at the deadline."""
    trace = Trace(ASKED, JOINED)
    trace.take(TICK, 2.0 + times.ALL_REDUCE + times.ALL_REDUCE_SPARE)
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (78, "AGENT_PREFLIGHT")
    assert "it wrote no result" in end.reason


def test_a_node_that_goes_meanwhile() -> None:
    """It has the same grace as while the job runs; then the run is lost, with its name."""
    trace = Trace(ASKED, JOINED)
    trace.take(reported(2, has_left=True), 10.0)
    trace.take(TICK, 10.0 + LIMITS[wait_keys.NODE])
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (75, "node")
    assert end.reason.endswith("the all-reduce was aborted after the loss of pod2")


@pytest.mark.parametrize(
    ("of", "left", "history", "over"),
    [
        (
            replace(ASKED, retries=1),
            resumed(required=2),
            [(1.0, ray_lost("killed")), *JOINED, (11.0, TICK)],
            12.0,
        ),
        (
            replace(ASKED, services=(REWARD_SPEC,)),
            NOTHING_DURABLE,
            [(1.5, ready(REWARD)), *JOINED, (11.5, TICK), (12.0, reported(4))],
            22.0,
        ),
    ],
    ids=["the pause after a loss", "a score that does not come"],
)
def test_what_else_is_over_meanwhile(
    of: HeadGoal, left: Durable, history: list[tuple[float, h.HeadEvent]], over: float
) -> None:
    """Only the all-reduce is waited for: the head does not loop until its deadline."""
    trace = Trace(of, [*history, (over, TICK)], left)
    (wait,) = head.pending_waits(trace.state)
    assert (wait.key, head.deadline(trace.state)) == (wait_keys.PREFLIGHT, wait.deadline)


def test_its_deadline_passes_while_ray_is_started_again() -> None:
    """One tick handles both."""
    trace = Trace(ASKED, [*JOINED, (6.0, ray_doubt("its dashboard is stopped")), (1006.0, TICK)])
    assert [end.exit_code for end in trace.outcomes] == [75]  # all nodes are gone with that Ray


def test_only_where_it_was_asked_for() -> None:
    """It takes seconds."""
    trace = Trace(replace(ASKED, preflight=False), JOINED)
    assert trace.state.phase is HeadPhase.SUBMITTING
    assert not any(a.probe == ALL_REDUCE for a in trace.actions if isinstance(a, h.ProbeNode))


# --- on each node --------------------------------------------------------------------------------


def test_a_node_s_part_of_the_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the node's share and place."""
    seat, place = ShareArgs(1, (NodeSize(8),) * 2), Placeholders("10.0.0.2", "10.0.0.1", "1")
    asked: list[tuple[ShareArgs, Placeholders]] = []

    async def share(_run: NodeRun, seat: ShareArgs, place: Placeholders) -> Answer:
        asked.append((seat, place))
        return Answer(ALL_REDUCE, "", "no torch")

    monkeypatch.setattr(asked_module, "run_all_reduce", share)
    prober = prober_of(plan_of({}))
    assert anyio.run(prober.probe, ALL_REDUCE, "", place, seat).evidence == "no torch"
    assert asked == [(seat, place)]


def test_another_head_s_all_reduce_ends_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent was killed during it: the old processes end before the new ones start."""
    seat, place = ShareArgs(1, (NodeSize(8),) * 2), Placeholders("10.0.0.2", "10.0.0.1", "1")
    happened: list[str] = []

    async def share(*_: object) -> Answer:
        happened.append("begins")
        try:
            await anyio.sleep(60 if len(happened) == 1 else 0)
        finally:
            happened.append("is over")
        return Answer(ALL_REDUCE, "", "of the second")

    plan = plan_of({"AGENT_LOG_DIR": str(tmp_path)}, command=["train"])
    monkeypatch.setattr(asked_module, "run_all_reduce", share)
    run = made_run(plan, Redactor(()), RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    asked = Questions(run, lambda: place, lambda: None)

    async def trace() -> None:
        async with anyio.create_task_group() as tasks:
            for by in ("head1", "head2"):
                question = Question(1, QuestionKind.PROBE, ALL_REDUCE, seat)
                asked.hear(NodeWanted(by, 1, {}, questions=(question,)), tasks)
                await anyio.wait_all_tasks_blocked()

    anyio.run(trace)
    run.close()
    assert happened == ["begins", "is over", "begins", "is over"]
    assert [one.evidence for one in asked.for_report()[1]] == ["of the second"]


def test_the_plan_shows_it() -> None:
    """A wait, a port and its guard, and a check that fails without torch."""
    plan = plan_of({"AGENT_PREFLIGHT": "nccl"}, command=["train"])
    shown = render(plan, Redactor(()))
    assert "19999" in shown
    assert "store of AGENT_PREFLIGHT: {node_ip}; guard: none" in shown
    assert "an all-reduce over all nodes" in shown
    assert "--node '{rank}' --gpus '{gpus}' --within 120 --out" in shown
    assert plan.logs()["preflight"] == "preflight.log"
    assert "AGENT_PREFLIGHT" not in render(plan_of({}, command=["train"]), Redactor(()))


class Torch:
    """Accepts a store's socket, with libuv or without, like the releases of torch."""

    def __init__(self, *, by_libuv: bool) -> None:
        self._by_libuv = by_libuv
        self.listens: tuple[str, int] = ("", 0)

    def TCPStore(  # noqa: N802 - torch's name
        self,
        host: str,
        port: int,
        _size: None,
        *,
        master_listen_fd: int,
        use_libuv: bool = True,
        **_more: object,
    ) -> str:
        """Listen."""
        if use_libuv and not self._by_libuv:
            raise NotImplementedError("does not support initialization with an listen fd")
        with socket.socket(fileno=master_listen_fd) as own:
            self.listens = own.getsockname()
        return f"{host}:{port}"


@pytest.mark.parametrize("by_libuv", [True, False])
def test_the_store_is_on_one_address(*, by_libuv: bool) -> None:
    """Not on all addresses, as torch does, since it checks no token."""
    torch, port = Torch(by_libuv=by_libuv), free_port()
    found = serve_store(torch, "127.0.0.1", port, timedelta(seconds=1))
    assert found == f"127.0.0.1:{port}"
    assert torch.listens == ("127.0.0.1", port)


def test_without_torch() -> None:
    """78 before anything is started, with the Python that lacks it."""
    settings = settings_of({"AGENT_PREFLIGHT": "nccl"})
    facts = replace(MACHINE, torch=TorchPython("/usr/bin/python3", None))
    (found,) = [
        f for f in run_checks(facts, settings, topology_of({})) if f.check == "AGENT_PREFLIGHT"
    ]
    assert found.level is Level.FAIL
    assert "needs torch" in found.what
    with_torch = replace(MACHINE, torch=TorchPython("/usr/bin/python3", "2.6.0"))
    (found,) = [
        f for f in run_checks(with_torch, settings, topology_of({})) if f.check == "AGENT_PREFLIGHT"
    ]
    assert found.level is Level.OK


# --- the program ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_ranks_of_nodes(gpus: list[int]) -> None:
    """One per GPU; one per node if no node has GPUs."""
    counts = processes(gpus)
    assert sum(counts) == (sum(gpus) or len(gpus))


def test_its_command_line() -> None:
    """It accepts the agent's arguments."""
    where = ("--address", "10.0.0.1", "--port", "19999", "--node", "1")
    options = parsed([*where, "--gpus", "8,8", "--within", "120.0", "--out", "x"])
    assert (options.node, options.gpus, options.host) == (1, [8, 8], False)
