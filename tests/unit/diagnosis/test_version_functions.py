"""Versions of packages that do not fit, by who imports or calls what."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, Log, diagnose_logs

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
        (f"{SITE}/verl/reward_manager.py", "__call__", "compute_score", ""),
    ],
)
def test_an_argument_that_is_not_taken(
    file: str, function: str, called: str, key: str | None
) -> None:
    """A package that calls, or a script that makes a configuration; not the job's functions."""
    answer = found(CALL.format(file=file, function=function, called=called))
    assert answer.key == ("configuration key" if key is None else key)


@pytest.mark.parametrize(
    ("file", "module", "key"),
    [
        (f"{SITE}/openrlhf/engine.py", "vllm.worker.worker", "module of another version"),
        (f"{SITE}/openrlhf/engine.py", "vllm", "missing module"),
        (f"{SITE}/vllm/engine.py", "vllm.worker.worker", "missing module"),
        (f"{SITE}/openrlhf/engine.py", "vllm._C", "missing module"),
        ("/app/verl/trainer.py", "recipe.dapo", "missing module"),
    ],
)
def test_a_module_of_another_version(file: str, module: str, key: str) -> None:
    """Python names the whole path of a module only where the package around it is there."""
    assert found(IMPORT.format(file=file, module=module)).key == key


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("SyntaxError: invalid syntax", "newer syntax"),
        (
            "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
            "types joined by |",
        ),
        (
            "ImportError: cannot import name 'StrEnum' from 'enum' (/usr/lib/python3.10/enum.py)",
            "StrEnum of enum",
        ),
    ],
)
def test_a_python_that_is_too_old(line: str, why: str) -> None:
    """An installed package shows it; in the job's own code it is a mistake."""
    text = 'Traceback (most recent call last):\n  File "{}/x.py", line 4, in <module>\n    x\n{}'
    answer = found(text.format("/usr/lib/python3.10/site-packages/verl", line))
    assert answer.cause == f"Python 3.10 is older than the installed verl needs ({why})"
    assert found(text.format("/app", line)).key == ""
