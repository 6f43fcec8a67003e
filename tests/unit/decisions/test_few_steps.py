"""A job that ends with 0: whether it has made its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.base import ends
from agent.bundled import trl_grpo
from agent.decisions.few_steps import warn_of_few_steps
from agent.record.job_lines import JobLines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.base.ends import Outcome

SUCCESS = ends.JOB_SUCCEEDED.outcome(before="")
VERL = "(TaskRunner pid=9) step:{} - critic/rewards/mean:0.5"
TOTAL = "Total training steps: 40"
NO_BAR = "  0%|          | 0/5000 [00:00<?, ?it/s]"


def end_of(attempts: Iterable[Iterable[str]], checkpoint: str = "") -> Outcome:
    """Return the outcome of a job whose attempts have printed this, the last one with success."""
    lines = JobLines(str)
    for number, printed in enumerate(attempts, 1):
        lines.begin_attempt(number)
        for line in printed:
            lines.write(f"{line}\n".encode(), lambda _pause: False)
    assert lines.progress is not None
    return warn_of_few_steps(SUCCESS, lines.progress, lines.total, checkpoint)


def steps(*numbers: int, of: int | None = None) -> list[str]:
    """Return lines with steps."""
    return [f"step {number}/{of} mean reward 0.5" for number in numbers]


@pytest.mark.parametrize(
    ("attempts", "checkpoint", "words"),
    [
        # fewer than all
        ([steps(1, 2, 3, of=400)], "", "the job exited with 0 after 3 of 400 steps"),
        ([[TOTAL, *(VERL.format(n) for n in range(1, 31))]], "", "after 30 of 40 steps"),
        ([steps(1, 2, 3, of=6), steps(2, 3, 4, of=6)], "", "after 4 of 6 steps"),
        ([steps(*range(5, 30, 5), of=40)], "", "after 25 of 40 steps"),
        # none
        ([[TOTAL, "ready"]], "", "the job exited with 0 after 0 of 40 steps"),
        (
            [steps(1, 2, of=6), ["Done."]],
            "",
            "without a step, though an earlier attempt had come to step 2",
        ),
        ([["Done."]], "/c/global_step_9", "without a step after it resumed from /c/global_step_9"),
        # all, or nothing is known
        ([steps(*range(1, 7), of=6)], "", ""),
        ([steps(*range(6), of=6)], "", ""),
        ([steps(*range(10, 101, 10), of=105)], "", ""),
        ([steps(1, 2, 3, of=6), steps(4, 5, 6, of=6)], "", ""),
        ([steps(*range(1, 7), of=6), ["Done."]], "/c/global_step_6", ""),
        ([[VERL.format(n) for n in range(1, 31)]], "", ""),
        ([[NO_BAR, *(VERL.format(n) for n in range(1, 31)), NO_BAR]], "", ""),
        ([["step by step", "Done."]], "", ""),
        ([[]], "", ""),
    ],
)
def test_a_success_with_fewer_steps_warns(
    attempts: list[list[str]], checkpoint: str, words: str
) -> None:
    """Its first word is `warning`, and the code stays the job's."""
    end = end_of(attempts, checkpoint)
    assert (end.exit_code, end.is_jobs_verdict, end.holds_pod) == (0, True, True)
    assert end.sentence().startswith("warning: ") == end.is_warning == bool(words)
    assert words in end.reason
    assert words or end == SUCCESS


FINISHED = trl_grpo.finished_sentence(3, "/c/checkpoint-3", "--max-steps")


@pytest.mark.parametrize(
    ("printed", "checkpoint", "of"),
    [
        ([FINISHED], "/c/checkpoint-3", 3),
        ([FINISHED], "/c/checkpoint-240", 3),
        ([TOTAL], "/c/global_step_40", 40),
    ],
)
def test_a_training_that_was_finished_already(printed: list[str], checkpoint: str, of: int) -> None:
    """The checkpoint has the steps that the output counts: nothing is missing."""
    end = end_of([printed], checkpoint)
    words = f"this training was finished already: {of} of {of} steps are in {checkpoint}"
    assert end.sentence().startswith(f"done: {words} (exit code 0). To train on, raise the number")
    assert (end.exit_code, end.is_jobs_verdict, end.is_warning) == (0, True, False)
    assert (words in FINISHED) == (checkpoint == "/c/checkpoint-3")


@pytest.mark.parametrize("printed", [["Done."], ["Total training steps: 41"]])
def test_what_is_not_known_to_be_finished(printed: list[str]) -> None:
    """Without the number of steps, or with more of them, the warning stays."""
    assert end_of([printed], "/c/global_step_40").is_warning


@given(st.integers(1, 60), st.integers(1, 7), st.booleans())
def test_all_steps_never_warn(total: int, every: int, from_zero: bool) -> None:  # noqa: FBT001
    """However often a step is printed, and wherever the count begins."""
    first = 0 if from_zero else 1
    numbers = range(first, total + first, every)
    assume(every == 1 or len(numbers) > 1)  # one line does not show how far two are apart
    assert not end_of([steps(*numbers, of=total)]).is_warning


def test_the_warning_is_the_first_word() -> None:
    """Nobody takes it for a success."""
    end = end_of([steps(1, 2, 3, of=400)])
    assert end.sentence() == (
        "warning: the job exited with 0 after 3 of 400 steps (exit code 0). Check the end of "
        "job.log; if the job stops early on purpose, ignore this"
    )
    after_loss = ends.JOB_SUCCEEDED.outcome(before="; before that, pod2 was lost")
    progress = JobLines(str)
    progress.begin_attempt(1)
    assert progress.progress is not None
    again = warn_of_few_steps(after_loss, progress.progress, 400)
    assert again.reason.endswith("after 0 of 400 steps; before that, pod2 was lost")
    assert SUCCESS.sentence() == "done: the job succeeded (exit code 0)"
