"""Versions of packages that do not fit, by who imports or calls what."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

CALL = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    main()
  File "{file}", line 30, in {function}
    f(**values)
TypeError: {called}() got an unexpected keyword argument 'extra'
"""
IMPORT = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    import package
  File "{file}", line 30, in <module>
    import x
ModuleNotFoundError: No module named '{module}'
"""
SITE = "/usr/lib/python3/site-packages"


def found(text: str) -> Diagnosis:
    """Return the diagnosis of one job's output."""
    return diagnose_logs([Log("", "job.log", text)])


@pytest.mark.parametrize(
    ("file", "function", "called", "key"),
    [
        (
            f"{SITE}/vllm/entrypoints/llm.py",
            "__init__",
            "EngineArgs.__init__",
            "argument of another version",
        ),
        ("/app/train.py", "main", "GRPOConfig.__init__", "argument of another version"),
        (f"{SITE}/verl/config.py", "omega_conf_to_dataclass", "RunConfig.__init__", None),
        ("/app/train.py", "main", "compute_score", ""),
        (
            f"{SITE}/verl/reward_manager.py",
            "__call__",
            "compute_score",
            "argument of another version",
        ),
    ],
)
def test_an_argument_that_is_not_taken(
    file: str, function: str, called: str, key: str | None
) -> None:
    """A package that calls, or a script that makes a configuration; not the job's own calls."""
    answer = found(CALL.format(file=file, function=function, called=called))
    assert answer.key == ("configuration key" if key is None else key)


@pytest.mark.parametrize(
    ("file", "function", "message", "cause"),
    [
        (
            f"{SITE}/verl/reward_manager.py",
            "__call__",
            "compute_score() got an unexpected keyword argument 'extra'",
            (
                "verl calls the function compute_score with other arguments than it takes "
                "(unexpected keyword argument 'extra')"
            ),
        ),
        (
            "/app/openrlhf/engine.py",
            "generate",
            "LLM.generate() missing 1 required positional argument: 'prompts'",
            (
                "openrlhf calls generate with other arguments than it takes "
                "(missing 1 required positional argument: 'prompts')"
            ),
        ),
        (
            f"{SITE}/vllm/engine.py",
            "launch",
            "Engine.run() takes 2 positional arguments but 3 were given",
            "vllm calls run with other arguments than it takes (takes 2 positional arguments)",
        ),
        (
            "/app/bridge/instantiate_utils.py",
            "_call_target",
            "Provider.__init__() got an unexpected keyword argument 'split_rank'",
            (
                "a configuration calls Provider with other arguments than it takes "
                "(unexpected keyword argument 'split_rank')"
            ),
        ),
    ],
)
def test_a_call_is_named_with_its_difference(
    file: str, function: str, message: str, cause: str
) -> None:
    """Who calls what, and which argument is too many or missing."""
    text = CALL.format(file=file, function=function, called="f").rpartition("TypeError")[0]
    assert found(f"{text}TypeError: {message}\n").cause == cause


@pytest.mark.parametrize(
    ("file", "owner"),
    [(f"{SITE}/openai/_client.py", "BadRequestError"), (f"{SITE}/ray/_private/worker.py", "Job")],
)
def test_an_exception_that_cannot_be_rebuilt_is_no_misfit(file: str, owner: str) -> None:
    """Another process raised it; its arguments say nothing about versions."""
    text = CALL.format(file=file, function="loads", called="f").rpartition("TypeError")[0]
    message = f"{owner}.__init__() missing 2 required keyword-only arguments: 'response' and 'body'"
    assert found(f"{text}TypeError: {message}\n").key == ""


@pytest.mark.parametrize(
    ("file", "owner", "package"),
    [
        (f"{SITE}/verl/models/llama.py", "LlamaFlashAttention2", "transformers"),
        ("/app/openrlhf/engine.py", "GPUModelRunner", "vllm"),
        (f"{SITE}/vllm/runner.py", "GPUModelRunner", ""),
        ("/app/train.py", "GPUModelRunner", ""),
        (f"{SITE}/verl/worker.py", "NoneType", ""),
    ],
)
def test_an_attribute_of_another_version(file: str, owner: str, package: str) -> None:
    """A package uses what another one's class has no longer; other objects say nothing."""
    text = CALL.format(file=file, function="run", called="f").rpartition("TypeError")[0]
    answer = found(f"{text}AttributeError: '{owner}' object has no attribute 'rotary_emb'\n")
    assert (answer.key == "attribute of another version") is bool(package)
    assert not package or f"the installed {package} does not have" in answer.cause


@pytest.mark.parametrize(
    ("file", "module", "key"),
    [
        (f"{SITE}/openrlhf/engine.py", "vllm.worker.worker", "module of another version"),
        (f"{SITE}/openrlhf/engine.py", "vllm", "missing module"),
        (f"{SITE}/vllm/engine.py", "vllm.worker.worker", "missing module"),
        (f"{SITE}/openrlhf/engine.py", "vllm._C", "compiled part of a package"),
        ("/app/verl/trainer.py", "recipe.dapo", "missing module"),
    ],
)
def test_a_module_of_another_version(file: str, module: str, key: str) -> None:
    """Python names the whole path of a module only where the package around it is there."""
    assert found(IMPORT.format(file=file, module=module)).key == key


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
            "|: 'type'",
        ),
        (
            "ImportError: cannot import name 'StrEnum' from 'enum' (/usr/lib/python3.10/enum.py)",
            "StrEnum",
        ),
    ],
)
def test_a_python_that_is_too_old(line: str, why: str) -> None:
    """An installed package shows it; in the job's own code it is a mistake."""
    text = 'Traceback (most recent call last):\n  File "{}/x.py", line 4, in <module>\n    x\n{}'
    answer = found(text.format("/usr/lib/python3.10/site-packages/verl", line))
    assert answer.cause == f"the job's Python (3.10) is older than the installed verl needs ({why})"
    assert found(text.format("/app", line)).key == ""


def test_syntax_that_python_cannot_read_may_be_newer_or_older() -> None:
    """Packages for a much older Python fail so too: the sentence leaves that open."""
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.10/site-packages/verl/x.py", '
        "line 4\n    x\nSyntaxError: invalid syntax"
    )
    answer = found(text)
    assert answer.cause == (
        "the job's Python (3.10) cannot read a file of verl: newer or much older syntax, or damaged"
    )
    assert "python --version" in answer.what_to_do


@pytest.mark.parametrize(
    "line",
    [
        "'ByteString' from 'typing' (/usr/lib/python3.14/typing.py)",
        "'StrEnum' from 'enum' (/usr/lib/python3.12/site-packages/enum/__init__.py)",
        "'NoneType' from 'types' (/w/src/types.py)",
    ],
)
def test_a_name_that_python_lacks_is_not_always_newer(line: str) -> None:
    """It may have been removed, or a package or a file has the name of Python's own module."""
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.12/site-packages/verl/x.py", '
        f"line 4, in <module>\n    x\nImportError: cannot import name {line}"
    )
    assert found(text).key != "Python too old"


def test_an_attribute_is_used_by_the_caller_of_a_lookup() -> None:
    """A class with a `__getattr__` of its own raises the error there."""
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{SITE}/transformers/trainer.py", line 1, in save_model\n    x\n'
        f'  File "{SITE}/accelerate/accelerator.py", line 2, in __getattr__\n    raise\n'
        "AttributeError: 'Accelerator' object has no attribute 'deepspeed_config'"
    )
    assert found(text).cause.startswith("transformers uses deepspeed_config of Accelerator")


def test_what_to_install_is_not_cut_off() -> None:
    """A script with a long path uses a name that the installed package lacks."""
    file = "/workspace/a-long-name-of-a-project/examples/rollout/engines/metrics_of_engine.py"
    text = (
        f'Traceback (most recent call last):\n  File "{file}", line 41, in <module>\n'
        "    from vllm.v1.metrics.loggers import PrometheusStatLoggerOfEngine\n"
        "ImportError: cannot import name 'PrometheusStatLoggerOfEngine' from "
        "'vllm.v1.metrics.loggers' (/opt/venv/lib/python3.11/site-packages/vllm/v1/metrics/l.py)"
    )
    shown = diagnose_logs([Log("", "job.log", text)]).remedy().partition(" It shows in")[0]
    assert "Install the vllm that it was written for" in shown
    assert "…." not in shown
