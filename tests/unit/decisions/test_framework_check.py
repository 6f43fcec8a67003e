"""The framework's check of the job's command, as the head decides on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head import head_decide as head
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import CHECK, HERE
from support.heads import (
    NOTHING_DURABLE,
    PREPARED,
    RUNNING,
    SUBMITTED,
    TICK,
    Trace,
    checked,
    goal,
    lost,
    nodes,
    reported,
)
from support.histories import Case, Logged, play

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

REFUSAL = ends.FRAMEWORK_REFUSES.outcome(
    framework="verl 0.9.7",
    what="x in AGENT_JOB_ARGS",
    words="no x",
    culprit="AGENT_JOB_ARGS",
    remedy="Correct it there",
)
ACCEPTED = checked()
REFUSED = checked(refusal=REFUSAL)
UNKNOWN = checked("verl is not installed for python3")


def asking(workers: int = 0, *, prepare: bool = False, given: bool = False) -> HeadGoal:
    """Return a goal whose command is asked about."""
    return replace(goal(workers, prepare=prepare, given=given), framework="verl 0.9.7")


ASKED_AGAIN = f"start {CHECK}, generation 2"
EACH, MAKE = PREPARED
"""The events that the prepare steps are done."""

CHECKS: dict[str, Case] = {
    "a refusal before the submission ends the run, with the framework's words": [
        asking(3),
        (1.5, REFUSED, "end 78: verl 0.9.7 refuses x in AGENT_JOB_ARGS: no x"),
    ],
    "it is asked once": [
        asking(),
        (1, ACCEPTED),
        (3, nodes(), "submit run-1"),
        (4, SUBMITTED),
        (9, TICK),
    ],
    "nothing waits for the answer, and a refusal after the submission is a warning": [
        asking(1),
        (3, nodes(2), "submit run-1"),
        (4, reported(2)),
        (5, SUBMITTED),
        (6, REFUSED),
        Logged("no x; the job goes on, since it is submitted already. Correct it there"),
    ],
    "what cannot be asked is a warning, never a refusal": [
        asking(),
        (1, UNKNOWN),
        (3, nodes(), "submit run-1"),
        Logged("verl 0.9.7 cannot be asked: verl is not installed for python3"),
    ],
    # Prepare steps may install it, or another version: a refusal before their end is no verdict
    "after a refusal it is asked again after the steps": [
        asking(prepare=True),
        (1, REFUSED),
        (3, nodes()),
        (9, EACH),
        (10, MAKE, ASKED_AGAIN, "submit run-1"),
        Logged("asked again after the prepare steps"),
    ],
    "where it was not installed, too, and a refusal then counts": [
        asking(1, prepare=True),
        (1, UNKNOWN),
        (9, EACH),
        (10, MAKE, ASKED_AGAIN),
        (11, REFUSED, "end 78: …no x"),
    ],
    "an answer that comes late would be about the former version": [
        asking(1, prepare=True),
        (2, EACH),
        (2, MAKE, ASKED_AGAIN),
    ],
    "what was accepted is not asked again": [
        asking(1, prepare=True),
        (1, ACCEPTED),
        (9, EACH),
        (10, MAKE),
    ],
    "a step that fails ends the run, whatever the framework has said": [
        asking(prepare=True),
        (1, REFUSED),
        (2, lost("AGENT_PREPARE", "code 1"), "end 69: AGENT_PREPARE failed: …"),
    ],
    # The driver may run on another machine, with another version
    "on a given Ray nothing waits": [asking(given=True), (3, nodes(), "submit run-1")],
    "on a given Ray a refusal is a warning": [
        asking(1, given=True),
        (1, REFUSED),
        Logged("Ray may run it elsewhere"),
    ],
}


@pytest.mark.parametrize("case", CHECKS.values(), ids=CHECKS)
def test_the_frameworks_check(case: Case) -> None:
    """A refusal ends the run before the submission, and nothing waits for the answer."""
    play(case)


def test_a_refusal_names_its_variable() -> None:
    """The phase is that of the boot."""
    (end,) = Trace(asking(3), [(1.5, REFUSED)]).outcomes
    assert (end.culprit, end.phase) == ("AGENT_JOB_ARGS", "booting")


def test_only_a_known_framework_is_asked() -> None:
    """Once, at the start; nothing is asked about a job that a killed agent has left running."""
    for of, is_asked in ((asking(), True), (goal(), False)):
        first = head.first_state(of, NOTHING_DURABLE)
        assert (CHECK in wanted_of(first, HERE)) is is_asked
    before = Trace(asking(), [(1.0, ACCEPTED), *RUNNING])
    again = head.first_state(asking(), before.state.durable)
    assert CHECK not in wanted_of(again, HERE)
