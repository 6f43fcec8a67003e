"""Advice on the division of the nodes: once in the log of an attempt, and in the status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from agent.decisions.shared import Shortage
from agent.frameworks.recipe import NodeSplit
from agent.job.groups import NodeGroup
from agent.job.job import Job
from agent.job.progress import Progress
from agent.port.glance import glance_of
from agent.port.status_model import Reader
from agent.record.events import SplitAdvised
from agent.run import split_watch
from agent.run.front_link import IdleTimes
from agent.run.split_watch import node_split
from support.fake_runs import status_of
from support.groups import UP, a_goal, status_of_front
from support.heads import PAIR, RUNNING, Trace, goal
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

SPLIT = NodeSplit(4, 4, setting="actor_rollout_ref.rollout.nnodes={engines}")
WHAT = (
    "the trainer waited 62% of the last 20 steps: 5 nodes of engines and 3 of the trainer would "
    "balance, 20% less time a step"
)
REMEDY = (
    "For the next training set actor_rollout_ref.rollout.nnodes=5, if 3 nodes can hold what trains"
)


@pytest.mark.parametrize(
    ("trace", "times"), [(Trace(goal(0), RUNNING), 1), (Trace(goal(1), PAIR[:1]), 0)]
)
def test_who_waits_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Trace, times: int
) -> None:
    """The recipe's command has the division; an attempt that does not run has no advice."""
    lines: list[str] = []
    recorded: list[object] = []
    monkeypatch.setattr(split_watch, "say", lambda line, _level="info": lines.append(line))
    plan = plan_of({"AGENT_LOG_DIR": str(tmp_path)}, command=["true"])
    state = trace.state
    now = 9.0
    status = status_of(state, plan, get_state=lambda: state, record=recorded.append)
    status.job_lines = type(status.job_lines)(str, lambda: now)
    status.job_lines.begin_attempt(state.attempt.number)
    for step in range(1, 31):
        now = 100.0 * step
        text = f"step:{step} - timing_s/gen:62.0 - timing_s/step:100.0\n"
        status.job_lines.write(text.encode(), lambda _pause: False)
    status.split.of_command = SPLIT

    anyio.run(status.look_at_run)
    anyio.run(status.look_at_run)
    assert [line for line in lines if "waited" in line] == [f"{WHAT}. {REMEDY}"] * times
    assert recorded == [SplitAdvised(WHAT, REMEDY)] * times
    assert [(one.what, one.remedy) for one in status.advice()] == [(WHAT, REMEDY)]
    shown = status.status(Reader.ANYONE)
    assert shown.advice[-1].what == WHAT
    judged = glance_of(replace(shown, progress=None))
    assert (WHAT[1:] in judged.sentence) is bool(times)


def test_which_nodes_train_and_which_generate() -> None:
    """Those of a group that the trainer updates; none while a shortage explains its waiting."""
    trace = Trace(replace(a_goal(weights="nccl"), expected_workers=1), UP)
    progress = Progress(1, 0.0, first=1, last=30, last_at=30.0, durations=(1.0,) * 20)
    split = node_split(trace.state, {}, progress)
    assert split is not None
    assert (split.group, split.trainer, split.engines, split.idle) == ("rollout", 2, 2, None)
    assert node_split(trace.state, {}, None) is None

    # What the front has replied counts only where it goes back to the first of the steps.
    front = SimpleNamespace(idle=IdleTimes())
    fronts: Any = {"engine": front}
    assert node_split(trace.state, fronts, progress) is None
    front.idle.add(9.0, status_of_front(0))
    front.idle.add(20.0, status_of_front(1))
    split = node_split(trace.state, fronts, progress)
    assert split is not None
    assert split.idle == 0.5

    for since, until, is_split in ((15.0, None, False), (1.0, 11.0, False), (1.0, 9.0, True)):
        shortage = Shortage("rollout", "engine", since, until)
        durable = trace.state.durable.with_shortage(shortage)
        found = node_split(replace(trace.state, durable=durable), {}, progress)
        assert (found is not None) == is_split


def test_a_group_of_environments_does_not_generate() -> None:
    """A group in Ray has engines where the job's command has its nodes or GPUs; else it may not."""
    groups = (NodeGroup("envs", 2, ray=True, first_rank=2),)
    trace = Trace(replace(goal(3), groups=groups), UP)
    progress = Progress(1, 0.0, first=1, last=30, last_at=30.0, durations=(1.0,) * 20)
    assert node_split(trace.state, {}, progress) is None
    for word, is_split in (("{gpus:envs}", True), ("d{nodes:envs*2}", True), ("{nodes}", False)):
        job = Job("command", ("python3", "train.py", word), {})
        found = node_split(trace.state, {}, progress, job=job)
        assert (found is not None) == is_split
