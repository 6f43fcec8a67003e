"""The framework's check of the job's command, as the head decides on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head import head_decide as head
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import CHECK, HERE
from support.heads import (
    NOTHING_DURABLE,
    PREPARED,
    RUNNING,
    SUBMITTED,
    TICK,
    Started,
    Trace,
    checked,
    goal,
    lost,
    nodes,
    reported,
)

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


def asked(trace: Trace) -> list[int]:
    """Return the generations of the check that are wanted in this history."""
    started = (action for action in trace.actions if isinstance(action, Started))
    return [action.generation for action in started if action.name == CHECK]


def ends_of(trace: Trace) -> list[tuple[int, str, str]]:
    """Return code, reason and culprit of the ends."""
    return [(end.exit_code, end.reason, end.culprit) for end in trace.outcomes]


def test_a_refusal_before_the_submission_ends_the_run() -> None:
    """With the framework's words, while Ray starts or workers are awaited."""
    trace = Trace(asking(3), [(1.5, REFUSED)])
    assert ends_of(trace) == [
        (78, "verl 0.9.7 refuses x in AGENT_JOB_ARGS: no x", "AGENT_JOB_ARGS")
    ]
    assert trace.outcomes[0].phase == "booting"


def test_the_framework_is_asked_at_the_start_and_only_then() -> None:
    """One question for a run; none for a command without a known framework."""
    for of, is_asked in ((asking(), True), (goal(), False)):
        first = head.first_state(of, NOTHING_DURABLE)
        assert (CHECK in wanted_of(first, HERE)) is is_asked
    trace = Trace(asking(), [(1.0, ACCEPTED), (3.0, nodes()), (4.0, SUBMITTED), (9.0, TICK)])
    assert asked(trace) == []


def test_nothing_waits_for_the_answer() -> None:
    """A refusal after the submission is a warning."""
    trace = Trace(asking(1), [(3.0, nodes(2)), (4.0, reported(2))])
    assert list(trace.kinds())[-1:] == ["SubmitJob"]
    trace.take(SUBMITTED, 5.0)
    trace.take(REFUSED, 6.0)
    assert trace.outcomes == []
    assert trace.state.phase is HeadPhase.RUNNING
    assert "no x; the job goes on, since it is submitted already. Correct it there" in trace.log


def test_what_cannot_be_asked_is_a_warning() -> None:
    """Never a refusal."""
    trace = Trace(asking(), [(1.0, UNKNOWN), (3.0, nodes())])
    assert "SubmitJob" in list(trace.kinds())
    assert "verl 0.9.7 cannot be asked: verl is not installed for python3" in trace.log


def test_prepare_steps_may_install_another_version() -> None:
    """A refusal before their end is no verdict: it is asked again after them."""
    trace = Trace(asking(prepare=True), [(1.0, REFUSED), (3.0, nodes())])
    assert trace.outcomes == []
    assert "asked again after the prepare steps" in trace.log
    for event in PREPARED:
        trace.take(event, 10.0)
    assert asked(trace) == [2]

    awaiting = Trace(asking(1, prepare=True), [(1.0, UNKNOWN)])
    for event in PREPARED:
        awaiting.take(event, 10.0)
    assert "cannot be asked" not in awaiting.log
    awaiting.take(REFUSED, 11.0)
    assert [code for code, *_ in ends_of(awaiting)] == [78]

    # The first question may be unanswered still: its answer would be about the former version.
    late = Trace(asking(1, prepare=True), [(2.0, event) for event in PREPARED])
    assert asked(late) == [2]

    accepted = Trace(asking(1, prepare=True), [(1.0, ACCEPTED)])
    for event in PREPARED:
        accepted.take(event, 10.0)
    assert asked(accepted) == []


def test_a_step_that_fails_ends_the_run_as_always() -> None:
    """Whatever the framework has said before."""
    trace = Trace(asking(prepare=True), [(1.0, REFUSED), (2.0, lost("AGENT_PREPARE", "code 1"))])
    assert [code for code, *_ in ends_of(trace)] == [69]


def test_on_a_given_ray_a_refusal_is_a_warning() -> None:
    """The driver may run on another machine, with another version; nothing waits."""
    trace = Trace(asking(given=True), [(3.0, nodes())])
    assert "SubmitJob" in list(trace.kinds())
    other = Trace(asking(1, given=True), [(1.0, REFUSED)])
    assert other.outcomes == []
    assert "Ray may run it elsewhere" in other.log


def test_a_job_that_runs_already_is_not_asked_about() -> None:
    """A killed agent's job goes on."""
    first = Trace(asking(), [(1.0, ACCEPTED), *RUNNING])
    again = head.first_state(asking(), first.state.durable)
    assert CHECK not in wanted_of(again, HERE)
