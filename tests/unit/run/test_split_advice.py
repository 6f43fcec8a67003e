"""Advice on the division of the nodes: once in the log of an attempt, and in the status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.frameworks.recipe import NodeSplit
from agent.port.glance import glance_of
from agent.port.status_model import Reader
from agent.record.events import SplitAdvised
from agent.run import head_server
from support.fake_runs import status_of
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
    monkeypatch.setattr(head_server, "say", lambda line, _level="info": lines.append(line))
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
    status.split = SPLIT

    anyio.run(status.look_at_run)
    anyio.run(status.look_at_run)
    assert [line for line in lines if "waited" in line] == [f"{WHAT}. {REMEDY}"] * times
    assert recorded == [SplitAdvised(WHAT, REMEDY)] * times
    assert [(one.what, one.remedy) for one in status.advice()] == [(WHAT, REMEDY)]
    shown = status.status(Reader.ANYONE)
    assert shown.advice[-1].what == WHAT
    judged = glance_of(replace(shown, progress=None))
    assert (WHAT[1:] in judged.sentence) is bool(times)
