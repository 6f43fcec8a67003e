"""Values that a configuration refuses: named with the key and the reason, else only quoted."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, Log, diagnose_logs

REFUSED = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    config = RunConfig(**values)
pydantic_core._pydantic_core.ValidationError: 1 validation error for {owner}
trainer.lr
  {message} [type={type}, input_value='x', input_type=str]
    For further information visit https://errors.pydantic.dev/2.11/v/{type}
"""
CHECKED = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    main()
  File "{file}", line 30, in {function}
    raise ValueError(message)
ValueError: {message}
"""


def found(text: str) -> Diagnosis:
    """Return the diagnosis of one job's output."""
    return diagnose_logs([Log("", "job.log", text)])


@pytest.mark.parametrize(
    ("owner", "type_", "message", "cause"),
    [
        (
            "RunConfig",
            "float_parsing",
            "Input should be a valid number",
            "RunConfig refuses trainer.lr: Input should be a valid number",
        ),
        (
            "RolloutArgs",
            "extra_forbidden",
            "Extra inputs are not permitted",
            "RolloutArgs has no key trainer.lr in this version",
        ),
        ("RunConfig", "missing", "Field required", "RunConfig lacks its key trainer.lr"),
        ("ChatCompletionRequest", "missing", "Field required", ""),
        ("VllmConfig", "value_error", "Value error, this GPU has no CUDA", ""),
    ],
)
def test_a_refused_field(owner: str, type_: str, message: str, cause: str) -> None:
    """Of a configuration, not of a request; the line that is quoted says why."""
    answer = found(REFUSED.format(owner=owner, type=type_, message=message))
    assert answer.cause == cause
    assert answer.line.startswith(f"{message} [type={type_}")


@pytest.mark.parametrize(
    ("file", "function", "message", "is_named"),
    [
        ("/usr/lib/python3/site-packages/vllm/config/parallel.py", "_verify_args", "", True),
        ("/app/megatron/training/arguments.py", "validate_args", "", True),
        ("/app/megatron/training/arguments.py", "parse", "", False),
        ("/app/reward.py", "validate_args", "", False),
        ("/x/vllm/config/model.py", "_verify_args", "the installed version is too old", False),
    ],
)
def test_a_check_of_a_configuration(file: str, function: str, message: str, is_named: bool) -> None:  # noqa: FBT001 - a row of the table
    """The frame shows that it is one; what is about packages or machines is no refused value."""
    message = message or "num_layers must be given with num_stages"
    answer = found(CHECKED.format(file=file, function=function, message=message))
    assert (answer.key == "configuration check") is is_named
    assert answer.line == f"ValueError: {message}"
    assert not is_named or message in answer.cause
