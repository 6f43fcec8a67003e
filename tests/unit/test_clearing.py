"""An attempt is gone from every node before the next is submitted, or there is no next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions import head
from agent.decisions.attempts import LostAttempt
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadPhase
from agent.decisions.values import LogLine
from unit.heads import TICK, History, Story, goal, job, nodes, word

if TYPE_CHECKING:
    from collections.abc import Sequence


def runs(n: int, attempt: int, *, joined: bool = True) -> h.WorkerReported:
    """Return a worker's report of the attempt of which something runs there."""
    said = word(n, joined=joined).worker
    return h.WorkerReported(replace(said, running_attempt=attempt))


PAIR: History = [(3, nodes(2)), (4, runs(2, 1)), (5, h.Submitted("run-1")), (6, job("RUNNING"))]
LOST: History = [*PAIR, (9, nodes(dead=(2,))), (10, job("FAILED", 1)), (11, nodes(2))]
AGAIN = [h.SubmitJob("run-1"), h.SubmitJob("run-2")]
SILENT = h.WorkerSilent("agent2", "no answer")


def submitted(story: Story) -> Sequence[h.HeadAction]:
    """Return the submissions so far."""
    return [deed for deed in story.deeds if isinstance(deed, h.SubmitJob)]


def test_a_retry_begins_on_a_new_ray() -> None:
    """Our own Ray ends with the attempt; one of others, and torchrun's none, do not."""
    assert [type(one) for one in Story(goal(1, retries=1), LOST).deeds[-2:]] == [
        h.Retry,
        h.RestartRay,
    ]
    given = Story(goal(1, retries=1, given=True), LOST)
    assert isinstance(given.deeds[-1], h.Retry)


def test_a_worker_in_reach_must_have_ended_it() -> None:
    """It is waited for by name, though GCS has the node again and the pause is over."""
    story = Story(goal(1, retries=1), [*LOST, (12, runs(2, 1)), (30, TICK)])
    assert submitted(story) == AGAIN[:1]
    assert "the end of attempt 1 on pod2" in [wait.what for wait in head.pending_waits(story.state)]
    story.take(runs(2, 0, joined=False), 31)
    assert submitted(story) == AGAIN[:1]
    story.take(runs(2, 2), 33)
    assert submitted(story) == AGAIN


def test_one_that_never_ends_it_ends_the_run() -> None:
    """75, with the reason, within AGENT_NODE_GRACE and a minute."""
    story = Story(goal(1, retries=1), [*LOST, (12, runs(2, 1))])
    story.take(runs(2, 1), 100)
    assert story.ends == []
    assert story.finish()
    (end,) = story.ends
    assert (end.exit_code, story.now) == (75, 10 + 60 + 60)
    assert "the end of attempt 1 on pod2 not ready in time" in end.reason


@pytest.mark.parametrize(("silent", "until"), [(9.5, 69.5), (20, 80)])
def test_one_out_of_reach_has_its_time(silent: float, until: float) -> None:
    """AGENT_NODE_GRACE after it fell silent it has ended all itself: others may go on then."""
    history: History = sorted([*PAIR, (9, nodes(dead=(2,))), (10, job("FAILED", 1))], key=at)
    story = Story(goal(1, retries=1), sorted([*history, (silent, SILENT)], key=at))
    story.take(nodes(3), max(silent, 12))
    story.take(runs(3, 2), 21)
    assert submitted(story) == AGAIN[:1]
    away = "the end of attempt 1 on pod2, out of reach"
    assert away in [wait.what for wait in head.pending_waits(story.state)]
    story.take(TICK, until - 0.1)
    assert submitted(story) == AGAIN[:1]
    story.take(TICK, until)
    assert submitted(story) == AGAIN


def at(one: tuple[float, h.HeadEvent]) -> float:
    """Return when something happens."""
    return one[0]


def test_a_later_life_of_a_node_is_proof() -> None:
    """The pod was started again: nothing of the former runs there."""
    story = Story(goal(1, retries=1), [*LOST, (12, runs(2, 1)), (13, h.WorkerReplaced("agent2"))])
    story.take(nodes(3), 14)
    story.take(runs(3, 2), 15)
    story.take(TICK, 20)
    assert submitted(story) == AGAIN


def test_this_node_must_be_clear_too() -> None:
    """What cannot be killed here is named, and no attempt is made beside it."""
    story = Story(goal(1, retries=1), PAIR)
    story.state, actions = head.decide(story.state, h.RayGone("exit 1"), 10)
    assert [type(one).__name__ for one in actions if not isinstance(one, LogLine)][-2:] == [
        "Retry",
        "RestartRay",
    ]
    story.take(h.Cleared(1, "python (pid 7)"), 12)
    story.take(nodes(2), 15)
    story.take(runs(2, 2), 15)
    assert story.state.phase is HeadPhase.BOOTING
    assert story.finish()
    assert "on this node not ready in time: python (pid 7) cannot be ended" in story.ends[0].reason
    assert submitted(story) == AGAIN[:1]


def test_a_head_that_was_started_again_knows_the_nodes_of_before() -> None:
    """From its record: who does not call has its time, who calls must have ended it."""
    of = replace(
        goal(1, retries=3, tried=(LostAttempt(5.0, "x"),)), former_workers=("pod2", "pod4")
    )
    story = Story(of, [(3, nodes(3)), (4, runs(3, 2)), (30, TICK)])
    assert submitted(story) == []
    story.take(runs(2, 1), 31)
    story.take(TICK, 60)
    assert submitted(story) == []
    story.take(runs(2, 0, joined=False), 61)
    assert submitted(story) == [h.SubmitJob("run-2")]
