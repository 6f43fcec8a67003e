"""Random histories of a head, for properties of its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from agent.decisions.head import head_state as h
from agent.decisions.shared import Answered
from agent.decisions.stall import Stalled
from support.heads import (
    INT,
    PREPARED,
    REWARD,
    SUBMITTED,
    TERM,
    TICK,
    History,
    accepted,
    goal,
    job,
    lost,
    nodes,
    pending,
    ray_doubt,
    ray_lost,
    ready,
    reported,
    waits,
)

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal


def times(number: int, *events: h.HeadEvent) -> list[h.HeadEvent]:
    """Repeat events, so that they are drawn more often."""
    return list(events) * number


FINE = [
    *times(2, TICK),
    *times(4, nodes(2, 3, 4), SUBMITTED, job("RUNNING")),
    *times(2, accepted(2), job("RUNNING", attempt=2)),
    *times(1, nodes(), nodes(2), nodes(3, dead=(2,)), nodes(dead=(2, 3, 4)), nodes(up=False)),
    *times(
        1, reported(2, rank=1), reported(3, rank=2), reported(3, joined=False, detail="no route")
    ),
    *times(1, reported(2, joined=False, preparing=True), reported(4, refused="version mismatch")),
    *times(1, reported(3, has_left=True), waits("not yet"), job("PENDING")),
    *times(4, reported(2, rank=1), h.WorkerSilent("agent2", "no answer")),
    *times(1, h.WorkerSilent("agent3", "no answer", ray_answers=True)),
    *times(3, *PREPARED),
    *times(2, ray_doubt()),
    *times(1, ray_doubt("its dashboard is stopped", beside_job=True)),
    *times(1, Stalled(1, "no step", then="lost"), Stalled(2, "no step", then="retry")),
    *times(1, Stalled(1, "no step"), Stalled(1, "no step", "rank 1 waits", "stop")),
    *times(
        1,
        Answered(h.NodesAsked("run-1")),
        Answered(h.NodesAsked("run-1", {"pod2": "connection refused"})),
    ),
]
BAD = [
    *times(4, TERM),
    *times(2, ray_doubt("its dashboard is stopped")),
    *times(1, INT, ray_lost("exit 1"), lost("AGENT_PREPARE", "exit 2")),
    *times(1, waits("bad runtime_env", final=True), job("SUCCEEDED", 0), job("STOPPED")),
    *times(1, job("FAILED", 7), job("FAILED", -9), job("FAILED", 0, "\n"), job("FAILED")),
]
OF_SERVICE = [
    *times(4, ready(REWARD)),
    *times(2, lost(REWARD, "exit 1")),
    *times(1, pending(REWARD, "refused")),
]
GOALS = st.builds(
    goal,
    st.integers(0, 3),
    st.sampled_from([None, None, 0, 1]),
    job=st.sampled_from([True, True, False]),
    services=st.sampled_from([(), (REWARD,)]),
    prepare=st.booleans(),
    given=st.booleans(),
    retries=st.sampled_from([0, 0, 1, 3]),
)
PAUSES = [0.0, 0.1, 1.0, 1.0, 1.0, 5.0, 10.0, 61.0, 125.0, 1000.0]


@st.composite
def histories(draw: st.DrawFn) -> tuple[HeadGoal, History]:
    """Draw a goal and its events, on a clock that never goes back."""
    of = draw(GOALS)
    events = FINE * 5 + BAD + (OF_SERVICE * 5 if of.services else [])
    boot = times(1, nodes(2, 3, 4), *PREPARED, *(ready(spec.name) for spec in of.services))
    begin = draw(st.sampled_from([[*boot, SUBMITTED, job("RUNNING")], boot, []]))
    now, history = 1.0, [(1.0, event) for event in begin]
    for _ in range(draw(st.integers(0, 25))):
        now += draw(st.sampled_from(PAUSES))
        history.append((now, draw(st.sampled_from(events))))
    return of, history
