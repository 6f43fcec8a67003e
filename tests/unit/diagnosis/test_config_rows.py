"""Values that a configuration refuses: named with the key and the reason, else only quoted."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

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
            "RunConfig refuses a value (trainer.lr): Input should be a valid number",
        ),
        (
            "RolloutArgs",
            "extra_forbidden",
            "Extra inputs are not permitted",
            "RolloutArgs has no key trainer.lr in this version",
        ),
        ("RunConfig", "missing", "Field required", "RunConfig lacks its key trainer.lr"),
        ("ChatRequestParams", "missing", "Field required", ""),
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


SETTING = """Traceback (most recent call last):
  File "/app/main.py", line 3, in <module>
    main()
  File "/app/{package}/trainer/setup.py", line 30, in {function}
    raise ValueError(message)
{type}: {message}
"""


@pytest.mark.parametrize(
    ("package", "function", "message", "is_named"),
    [
        ("verl", "init_workers", "rollout.n must be greater than 1 for GRPO", True),
        ("slime", "parse_args", "--rollout-batch-size cannot be used with --debug", True),
        ("verl", "train_step", "rollout.n must be greater than 1 for GRPO", False),
        ("mine", "init_workers", "rollout.n must be greater than 1 for GRPO", False),
        ("verl", "init_workers", "input_ids must be of one length", False),
        ("verl", "init_workers", "the two must be equal", False),
        ("verl", "init_workers", "rollout.n was 3", False),
    ],
)
def test_a_refused_setting(package: str, function: str, message: str, is_named: bool) -> None:  # noqa: FBT001 - a row of the table
    """A framework names a setting and what it must be, before the work has begun."""
    for type_ in ("ValueError", "NotImplementedError"):
        text = SETTING.format(package=package, function=function, message=message, type=type_)
        answer = found(text)
        assert (answer.key == "setting refused") is is_named
        assert not is_named or answer.cause == f"{package} refuses a setting: {message}"


def test_what_a_framework_does_not_support_may_be_a_matter_of_its_version() -> None:
    """It names no setting: the setting may change, or the version."""
    text = SETTING.format(
        package="megatron",
        function="__init__",
        message="TransformerEngine only supports softmax compute in FP32",
        type="AssertionError",
    )
    answer = found(text)
    assert answer.cause.startswith("megatron refuses what it is asked for: TransformerEngine only")
    assert "a version of megatron that supports it" in answer.what_to_do


def test_an_assertion_without_a_message_is_named_by_its_code() -> None:
    """Its line says nothing, but the check's code does; a traceback in a box has it as well."""
    code = "assert config.data.size >= config.mini_size"
    plain = f"""Traceback (most recent call last):
  File "/app/verl/ppo.py", line 3, in _validate_config
    {code}
AssertionError"""
    box = f"""╭──────── Traceback (most recent call last) ────────╮
│ /app/verl/ppo.py:3 in _validate_config            │
│                                                   │
│   1 │   # a comment                               │
│   2 │   more = 1                                  │
│ ❱ 3 │   {code}  │
│   4 │                                             │
╰───────────────────────────────────────────────────╯
AssertionError"""
    wanted = f"the configuration does not pass _validate_config: {code.removeprefix('assert ')}"
    assert found(plain).cause == wanted
    assert found(box).cause == wanted


@pytest.mark.parametrize(
    ("message", "cause", "setting"),
    [
        ("no file /nope.jsonl on vm", "no file /nope.jsonl on vm", "AGENT_TRAIN_DATA"),
        ("/d.jsonl has no rows", "/d.jsonl has no rows", "AGENT_TRAIN_DATA"),
        (
            "/d.jsonl has no column input, only ['a']: name them by --prompt-key and --label-key",
            "/d.jsonl has no column input, only ['a']",
            "AGENT_JOB_ARGS (--prompt-key, --label-key)",
        ),
        (
            "processes see different checkpoints (/c/1, None): --checkpoints must be a folder",
            "processes see different checkpoints (/c/1, None): --checkpoints must be a folder",
            "AGENT_CHECKPOINTS",
        ),
        ("--config a: expected NAME=VALUE", "--config a: expected NAME=VALUE", "AGENT_JOB_ARGS"),
    ],
)
def test_the_sentence_of_the_bundled_trainer_is_the_cause(
    message: str, cause: str, setting: str
) -> None:
    """It says what is wrong; the remedy names the variable that it is about."""
    text = (
        'Traceback (most recent call last):\n  File "/x/trl_grpo.py", line 303, in _load\n    f()\n'
        f"TrainerSetupError: {message}"
    )
    answer = diagnose_logs([Log("", "job.log", text)])
    assert (answer.key, answer.cause) == ("trainer's setup", cause)
    assert setting in answer.what_to_do
