"""The framework's check of the job's command, as the head decides on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head import head_decide as head
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import CHECK, HERE
from support.event_words import cases
from support.heads import (
    NOTHING_DURABLE,
    PREPARED,
    RUNNING,
    Trace,
    checked,
    goal,
)
from support.histories import Case, play

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

WORDS = {
    "asks, 3 workers": asking(3),
    "it refuses": REFUSED,
    "asks": asking(),
    "it accepts": ACCEPTED,
    "asks, 1 worker": asking(1),
    "it is not known": UNKNOWN,
    "asks, prepares": asking(prepare=True),
    "asks, prepares, 1 worker": asking(1, prepare=True),
    "asks, given Ray": asking(given=True),
    "asks, given Ray, 1 worker": asking(1, given=True),
}

CHECKS = cases(
    """\
a refusal before the submission ends the run, with the framework's words [asks, 3 workers]
    1.5 it refuses -> end 78: verl 0.9.7 refuses x in AGENT_JOB_ARGS: no x
it is asked once [asks]
    1 it accepts | 3 nodes -> submit run-1 | 4 accepted | 9 tick
nothing waits for the answer, and a refusal after the submission is a warning [asks, 1 worker]
    3 nodes 2 -> submit run-1 | 4 pod2 joined | 5 accepted | 6 it refuses
    log no x; the job goes on, since it is submitted already. Correct it there
what cannot be asked is a warning, never a refusal [asks]
    1 it is not known | 3 nodes -> submit run-1
    log verl 0.9.7 cannot be asked: verl is not installed for python3
# Prepare steps may install it, or another version: a refusal before their end is no verdict
after a refusal it is asked again after the steps [asks, prepares]
    1 it refuses | 3 nodes | 9 ready AGENT_PREPARE_EACH
    10 ready AGENT_PREPARE -> start the framework's check, generation 2 & submit run-1
    log asked again after the prepare steps
where it was not installed, too, and a refusal then counts [asks, prepares, 1 worker]
    1 it is not known | 9 ready AGENT_PREPARE_EACH
    10 ready AGENT_PREPARE -> start the framework's check, generation 2
    11 it refuses -> end 78: …no x
an answer that comes late would be about the former version [asks, prepares, 1 worker]
    2 ready AGENT_PREPARE_EACH
    2 ready AGENT_PREPARE -> start the framework's check, generation 2
what was accepted is not asked again [asks, prepares, 1 worker]
    1 it accepts | 9 ready AGENT_PREPARE_EACH | 10 ready AGENT_PREPARE
a step that fails ends the run, whatever the framework has said [asks, prepares]
    1 it refuses | 2 lost AGENT_PREPARE: code 1 -> end 69: AGENT_PREPARE failed: …
# The driver may run on another machine, with another version
on a given Ray nothing waits [asks, given Ray]
    3 nodes -> submit run-1
on a given Ray a refusal is a warning [asks, given Ray, 1 worker]
    1 it refuses | log Ray may run it elsewhere
""",
    WORDS,
)


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
