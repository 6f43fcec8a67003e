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

from agent.bundled.all_reduce import parsed, processes, serve_store
from agent.checks import run_checks
from agent.checks.finding import Level
from agent.checks.network import all_reduce_result
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import (
    ALL_REDUCE,
    HERE,
    ItemReport,
    ItemsReported,
    JobItem,
    JobWant,
    Step,
    Want,
)
from agent.frameworks.recipe import NodeSize
from agent.job.services import Placeholders
from agent.job.share import ShareArgs
from agent.node.facts import TorchPython
from agent.plan.show import render
from agent.record.run_folder import RunFolder
from agent.run import all_reduce_part
from agent.run.all_reduce_part import all_reduce_runner
from agent.run.executor import Executor
from agent.settings.redact import Redactor
from support.event_words import cases
from support.free_ports import free_port
from support.heads import (
    REWARD_SPEC,
    goal,
    reported,
    resumed,
)
from support.histories import Case, head_after, play
from support.node_runs import made_run
from support.worlds import MACHINE, plan_of, settings_of, topology_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.decisions.head import head_state as h
    from agent.run.node_run import NodeRun

ASKED = replace(goal(2), node="abc1", preflight=True)
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


def answer(words: str = "", evidence: str = "") -> ItemsReported:
    """Return the event of the head's own result."""
    step = Step.LOST if evidence else Step.READY
    return ItemsReported((JobItem(ALL_REDUCE, step, evidence, 1, words=words),))


def part_of(n: int, evidence: str = "", generation: int = 1) -> h.WorkerReported:
    """Return the event that a worker's ranks have ended."""
    step = Step.LOST if evidence else Step.READY
    ranks = ItemReport(ALL_REDUCE, step, evidence, generation)
    return reported(n, items=(ranks,))


def parts(state: h.HeadState) -> dict[str, ShareArgs | None]:
    """Return the parts in the all-reduce that are wanted, by node."""
    wants = {node: wanted_of(state, node) for node in (HERE, "agent3", "agent2")}
    return {node: own[ALL_REDUCE].share for node, own in wants.items() if ALL_REDUCE in own}


SIZES = (NodeSize(8),) * 3
RANKS_START = (
    "1 pod3 joined | 1 pod2 joined | "
    "2 nodes 2 3 -> start the all-reduce & start the all-reduce on agent3 "
    "& start the all-reduce on agent2"
)
IS_WAITED_FOR = "waiting for an all-reduce over all nodes (AGENT_PREFLIGHT) …"

WORDS = {
    "asked": ASKED,
    "ranks start": RANKS_START,
    "it took 12.5 ms": answer(came()),
    "not asked": replace(ASKED, preflight=False),
    "asked, 1 retry": replace(ASKED, retries=1),
    "pod2 stopped its fourth": part_of(2, "it was stopped", 4),
    "pod2 fails: closed": part_of(2, "Connection closed by peer"),
    "rank 12 failed": answer(came(failed=[(12, "CUDA error: ECC")])),
    "pod2 fails: no Python": part_of(2, "no such Python"),
    "left: attempt 1": [resumed(required=2)],
    "asked, reward server": replace(ASKED, services=(REWARD_SPEC,)),
}

PREFLIGHTS = cases(
    """\
all begin together, and the job waits for the head's result [asked]
    ranks start
    waits waiting for an all-reduce over all nodes (AGENT_PREFLIGHT) (2 min 10 s left)
    8 pod2 joined: the all-reduce ready | 9 it took 12.5 ms -> submit run-1
    log an all-reduce of 256 MiB over 24 GPUs takes 12.5 ms
it takes seconds, and is made only where it was asked for [not asked]
    1 pod3 joined | 1 pod2 joined | 2 nodes 2 3 -> submit run-1
another attempt of the job does not repeat it [asked, 1 retry]
    ranks start | 9 it took 12.5 ms -> submit run-1
    10 Ray dies: killed -> start Ray, generation 2 | 20 nodes 2 3 -> submit run-2
# Its generation is an earlier one, and what a node says of its end does not count
one of a killed agent ends first [asked]
    1 pod3 joined | 1 pod2 stopped its fourth
    2 nodes 2 3 -> start the all-reduce, generation 5
        & start the all-reduce on agent3, generation 5
        & start the all-reduce on agent2, generation 5
    7 tick | waits waiting for an all-reduce over all nodes (AGENT_PREFLIGHT) …
a failure ends the run, with the node's name [asked]
    ranks start | 8.9 pod2 fails: closed
    9 rank 12 failed
        -> end 78: AGENT_PREFLIGHT: the all-reduce failed: rank 12 on pod3: CUDA error: ECC
# Its report counts if the head has no result a moment later, long before the limit
a node that could not begin [asked]
    ranks start | 5 pod2 fails: no Python | 9.9 tick
    10 tick -> end 78: AGENT_PREFLIGHT: the all-reduce failed: pod2: no such Python
without any result the run ends at the limit [asked]
    ranks start | 131.9 tick | 132 tick -> end 78: …it wrote no result…
# It has the same grace as while the job runs
a node that goes meanwhile, and stays away [asked]
    ranks start | 10 pod2 joined, has left | 69.9 tick
    70 tick -> end 75: …the all-reduce was aborted after the loss of pod2
# All nodes are gone with that Ray; one tick handles both
its limit passes while Ray is started again [asked]
    ranks start | 6 Ray hangs: its dashboard is stopped
    1006 tick -> end 75: …aborted after the loss of pod3 and pod2
# The head must not loop until its limit for what else is over meanwhile
the pause after a loss is over meanwhile [asked, 1 retry]
    left: attempt 1 | 1 Ray dies: killed -> start Ray, generation 2 | 1 pod3 joined
    1 pod2 joined | 2 nodes 2 3
    11 tick -> start the all-reduce & start the all-reduce on agent3
        & start the all-reduce on agent2
    12 tick | waits waiting for an all-reduce over all nodes (AGENT_PREFLIGHT) …
a score does not come in time meanwhile [asked, reward server]
    0.5 ready reward server | 1 pod3 joined | 1 pod2 joined | 2 nodes 2 3
    11.5 tick -> start the all-reduce & start the all-reduce on agent3
        & start the all-reduce on agent2
    12 pod4 joined | 22 tick
    waits waiting for an all-reduce over all nodes (AGENT_PREFLIGHT) …
""",
    WORDS,
)


@pytest.mark.parametrize("case", PREFLIGHTS.values(), ids=PREFLIGHTS)
def test_the_all_reduce_before_the_job(case: Case) -> None:
    """All nodes take part, the job waits for the head's result, and a failure is final."""
    play(case)


def test_each_node_gets_a_rank() -> None:
    """The head the first; nothing is wanted of them once there is a result."""
    trace = head_after(ASKED, RANKS_START)
    assert parts(trace.state) == {
        HERE: ShareArgs(0, SIZES),
        "agent3": ShareArgs(1, SIZES),
        "agent2": ShareArgs(2, SIZES),
    }
    trace.take(answer(came()), 9)
    assert parts(trace.state) == {}


def test_a_failure_names_the_variable() -> None:
    """By which the run goes on without it."""
    failed = answer(came(failed=[(12, "CUDA error")]))
    (end,) = head_after(ASKED, RANKS_START, (9, failed)).outcomes
    assert end.culprit == "AGENT_PREFLIGHT"
    assert "unset AGENT_PREFLIGHT" in end.remedy


# --- on each node --------------------------------------------------------------------------------


SEAT = ShareArgs(1, (NodeSize(8),) * 2)
PLACE = Placeholders("10.0.0.2", "10.0.0.1", "1")


def reports_of(
    tmp_path: Path, *wants: Want, head: bool = False, preflight: bool = True
) -> list[ItemReport]:
    """Want the all-reduce of a node, so and then so; return what is reported of it."""
    environ = {"AGENT_LOG_DIR": str(tmp_path), "RAY_WORKER": "0" if head else "1"}
    environ |= {"AGENT_HEAD": "node-b"} | ({"AGENT_PREFLIGHT": "nccl"} if preflight else {})
    plan = plan_of(environ, command=["train"])
    run = made_run(plan, Redactor(()), RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    runner = all_reduce_runner(run, lambda: PLACE)
    sent: list[ItemReport] = []

    def take(event: ItemsReported) -> None:
        sent.append(event.items[0])

    async def story() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                executor = Executor(tasks, lambda _name: runner, take)
                for want in wants:
                    executor.apply({ALL_REDUCE: want})
                    await anyio.wait_all_tasks_blocked()
                await executor.until_over(ALL_REDUCE)

    anyio.run(story)
    run.close()
    return sent


@pytest.mark.parametrize(
    ("want", "failure"),
    [(Want(1, SEAT), "no torch"), (Want(1), "the head has not said which share")],
)
def test_a_node_s_part_of_the_all_reduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, want: Want, failure: str
) -> None:
    """It gets the node's share and place."""
    asked: list[tuple[ShareArgs, Placeholders]] = []

    async def ranks(_run: NodeRun, seat: ShareArgs, place: Placeholders) -> tuple[str, str]:
        asked.append((seat, place))
        return "", "no torch"

    monkeypatch.setattr(all_reduce_part, "run_ranks", ranks)
    last = reports_of(tmp_path, want)[-1]
    assert (last.step, last.evidence, last.is_running) == (Step.LOST, failure, False)
    assert asked == ([(SEAT, PLACE)] if want.share else [])


def test_the_result_is_the_head_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its item alone has it."""

    async def ranks(*_: object) -> tuple[str, str]:
        return came(), ""

    monkeypatch.setattr(all_reduce_part, "run_ranks", ranks)
    *_, last = reports_of(tmp_path, JobWant(1, SEAT), head=True)
    assert isinstance(last, JobItem)
    assert (last.step, last.words) == (Step.READY, came())


def test_a_node_whose_plan_has_none(tmp_path: Path) -> None:
    """It refuses what the head wants."""
    (only,) = reports_of(tmp_path, Want(1, SEAT), preflight=False)
    assert only.evidence == "this node's plan has no 'the all-reduce' to run"


def test_another_head_s_all_reduce_ends_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent was killed during it: the old processes end before the new ones start."""
    happened: list[str] = []

    async def ranks(*_: object) -> tuple[str, str]:
        happened.append("begins")
        try:
            await anyio.sleep(60 if len(happened) == 1 else 0)
        finally:
            happened.append("is over")
        return "", "of the second"

    monkeypatch.setattr(all_reduce_part, "run_ranks", ranks)
    reports = reports_of(tmp_path, Want(1, SEAT), Want(2, SEAT))
    assert happened == ["begins", "is over", "begins", "is over"]
    assert (reports[-1].generation, reports[-1].evidence) == (2, "of the second")


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
