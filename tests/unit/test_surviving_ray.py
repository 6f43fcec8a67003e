"""A worker whose agent alone was killed: its node has never left, for head and fence alike."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.decisions.head import state as h
from agent.decisions.worker import state as w
from agent.decisions.worker.state import RayStep, StartRay, StopRay, WorkerPhase
from unit import heads
from unit.heads import nodes, word
from unit.workers import TICK, Story, goal, spoke

KEPT = w.SurvivingRay(epoch=1, head_ip="10.0.0.1", run_id="run", attempt=2)
DOWN = w.RayExited("exit code 1")
SILENT = w.HeadSilent("no answer")


def test_it_follows_from_its_first_word() -> None:
    """Nothing is started or prepared again, and what runs there is told from the start."""
    story = Story(goal(prepare=True), [], KEPT)
    assert (story.state.joined, story.state.running_attempt, story.state.preparing) == (
        True,
        2,
        False,
    )
    story.take(replace(spoke(phase="running"), attempt=2), 0.5)
    story.take(TICK, 40)
    assert story.deeds == []
    assert (story.state.phase, story.state.running_attempt) == (WorkerPhase.FOLLOWING, 2)


def test_a_ray_of_an_earlier_attempt_is_told_until_it_is_gone() -> None:
    """The head was started anew meanwhile: the next attempt waits for this node's."""
    story = Story(goal(), [(0.5, replace(spoke(epoch=2), attempt=3))], KEPT)
    assert (story.deeds, story.state.running_attempt, story.state.joined) == ([StopRay()], 2, False)
    story.take(DOWN, 2)
    assert story.state.running_attempt == 0
    story.take(TICK, 3)
    assert (story.deeds[-1], story.state.running_attempt) == (StartRay("10.0.0.1"), 3)


def test_a_head_that_began_another_run_ends_it() -> None:
    """It belongs to the run that the killed agent followed."""
    story = Story(goal(), [(0.5, spoke(run="another"))], KEPT)
    assert [end.exit_code for end in story.ends] == [75]


@pytest.mark.parametrize(
    ("unreached", "fence"),
    [(None, 42), (-30.0, 18), (-60.0, 3)],
    ids=["reached to the end", "missed for 30 s", "missed for long"],
)
def test_the_fence_counts_from_the_killed_agents_word(unreached: float | None, fence: int) -> None:
    """At 0.8 of AGENT_NODE_GRACE since the head was out of reach, whichever agent noticed that."""
    kept = replace(KEPT, unreached_since=unreached)
    story = Story(goal(), [(at, SILENT) for at in range(3, fence)], kept)
    assert (story.deeds, story.state.ray) == ([], RayStep.UP)
    story.take(SILENT, fence)
    assert story.deeds == [StopRay()]


def test_its_head_misses_nothing() -> None:
    """Another agent speaks for the same Ray: no node left, and a job's own failure is its own."""
    story = heads.Story(heads.goal(1, retries=1), [(3, nodes(2)), (4, word(2))])
    story.take(h.Submitted("run-1"), 5)
    story.take(heads.job("RUNNING"), 6)
    story.take(h.WorkerSilent("agent2", "connection refused", ray_answers=True), 8)
    again = replace(word(2).worker, key="agent2.2", running_attempt=1)
    story.take(h.WorkerReported(again), 9)
    story.take(h.WorkerReplaced("agent2"), 9)
    assert "left Ray" not in story.said
    assert (story.state.below_required_since, story.state.last_loss) == (None, "")
    story.take(heads.job("FAILED", 7), 10)
    story.take(h.NodesAsked("run-1", {}), 11)
    assert [end.exit_code for end in story.ends] == [7]
