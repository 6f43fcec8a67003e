"""Sizes that do not divide: both are named as the check names them."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

CHECK = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    main()
  File "/app/engine.py", line 30, in check
    {code}
{line}
"""


def found(line: str, code: str = "check(sizes)") -> Diagnosis:
    """Return the diagnosis of a check that failed."""
    return diagnose_logs([Log("", "job.log", CHECK.format(code=code, line=line))])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "AssertionError: actor_world_size must be divisible by vllm_num_engines, got 4 and 3",
            "actor_world_size does not divide by vllm_num_engines",
        ),
        (
            "ValueError: hidden_size 3584 is not divisible by tensor parallel size 3",
            "hidden_size 3584 does not divide by tensor parallel size 3",
        ),
        (
            "AssertionError: First dimension of it should be divisible by tensor parallel size",
            "First dimension of it does not divide by tensor parallel size",
        ),
        (
            "ValueError: bad setting: `rope_dim` has to be a multiple of 8.",
            "rope_dim does not divide by 8",
        ),
        ("ValueError: the rest must be divisible by", ""),
        ("ValueError: 8 is a divisor of the size", ""),
    ],
)
def test_the_message_names_both(line: str, cause: str) -> None:
    """What does not divide by what, without a guess at heads or batches."""
    assert found(line).cause == cause


def test_an_assertion_names_both_by_its_code() -> None:
    """It has no message, but it was printed with its code."""
    code = "assert args.global_batch % (ranks * 2) == 0"
    assert found("AssertionError", code).cause == "args.global_batch does not divide by ranks * 2"
    assert found("AssertionError", "assert args.batch > 0").key == ""


def test_rows_about_sizes_name_the_two_of_the_message() -> None:
    """The row is only the kind of trouble."""
    line = "AssertionError: padded length 100 of the batch must be divisible by the ring size 3"
    answer = diagnose_logs([Log("", "job.log", f'  File "/x/a.py", line 1, in f\n    x\n{line}')])
    assert answer.key == "batch"
    assert answer.cause == "padded length 100 of the batch does not divide by ring size 3"


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("ValueError: train_batch_size 6 must be divisible by n_gpus 4", "batch × samples"),
        (
            "AssertionError: num_attention_heads 28 must be divisible by tp 8",
            "and key-value heads",
        ),
        (
            "ValueError: hidden_size 512 is not a multiple of num_heads 6",
            "model's own configuration",
        ),
        (
            "ValueError: world_size (6) is not divisible by tensor parallel (4)",
            "must divide the GPUs",
        ),
        ("ValueError: rope_dim is not divisible by 8", "Change one of the two"),
    ],
)
def test_the_remedy_is_about_the_sizes_that_are_named(line: str, remedy: str) -> None:
    """Heads and layers are the model's, batches and ranks the job's."""
    assert remedy in found(line).what_to_do
