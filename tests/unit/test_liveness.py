"""Liveness is a value with evidence: a contradiction of agent and GCS is logged once."""

from __future__ import annotations

import pytest

from agent.decisions.head import fleet
from agent.decisions.head import state as h
from agent.decisions.head.fleet import Liveness
from unit.heads import PAIR, Story, goal


@pytest.mark.parametrize(
    ("life", "doubt"),
    [
        (Liveness(agent_answers=True, ray_answers=None, is_listed=True), ""),
        (
            Liveness(agent_answers=True, ray_answers=None, is_listed=False),
            "Ray does not know it any more",
        ),
        (Liveness(agent_answers=False, ray_answers=True, is_listed=True), "its Ray answers still"),
        (
            Liveness(agent_answers=False, ray_answers=False, is_listed=True),
            "though GCS lists it still",
        ),
        (Liveness(agent_answers=False, ray_answers=False, is_listed=False), ""),
    ],
)
def test_disagreements(life: Liveness, doubt: str) -> None:
    """Each combination, and what a person should know of it."""
    assert (doubt in life.contradiction) == (bool(doubt) == bool(life.contradiction)) is True


def test_a_silence_is_said_once() -> None:
    """Again only where something else is known of the node."""
    silent = h.WorkerSilent("agent2", "no answer")
    story = Story(goal(1), [*PAIR, (9, silent), (10, silent), (11, silent)])
    assert story.said.count("pod2 is silent, no answer; nor does its Ray answer, though GCS") == 1
    life = fleet.liveness_of(story.state.fleet, story.state.fleet.workers["agent2"])
    assert life == Liveness(
        agent_answers=False, ray_answers=False, is_listed=True, evidence="no answer"
    )
    story.take(h.WorkerSilent("agent2", "no answer", ray_answers=True), 12)
    assert "pod2 is silent, no answer; its Ray answers still" in story.said
