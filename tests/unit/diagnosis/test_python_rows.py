"""A variable that is not set: named with the place that reads it."""

from __future__ import annotations

import pytest

from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.searched_log import Log

READ = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    {code}
{os}KeyError: '{name}'
"""
OS = '  File "<frozen os>", line 714, in __getitem__\n'


def cause_of(code: str, os: str = "", name: str = "DATA_HOME") -> str:
    """Return the cause that a failed lookup shows."""
    return diagnose_logs([Log("", "job.log", READ.format(code=code, os=os, name=name))]).cause


def test_a_variable_that_is_not_set() -> None:
    """Python's own frame shows it, or the code; any other dictionary does not."""
    said = "the environment variable DATA_HOME is not set, which /app/train.py:3 reads"
    assert cause_of('home = os.environ["DATA_HOME"]', OS) == said
    assert cause_of('environment["DATA_HOME"] += "x"') == said
    assert cause_of('names["DATA_HOME"]') == ""
    assert cause_of('os.environ["home"]', OS, name="home") == ""


def raised(file: str, line: str) -> Diagnosis:
    """Return the diagnosis of an exception that a file raised."""
    text = f'Traceback (most recent call last):\n  File "{file}", line 3, in f\n    x\n{line}'
    return diagnose_logs([Log("", "job.log", text)])


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: module 'inspect' has no attribute 'getargspec'",
        "ImportError: cannot import name 'Mapping' from 'collections' (/usr/x/__init__.py)",
        "ModuleNotFoundError: No module named 'imp'",
        "ValueError: mutable default <class 'a.B'> for field c is not allowed: use default_factory",
    ],
)
def test_a_package_may_be_too_old_for_python(line: str) -> None:
    """It uses what that Python no longer has; the job's own code may do so by mistake."""
    answer = raised("/opt/lib/python3.12/site-packages/hydra/conf.py", line)
    assert answer.cause.startswith("the installed hydra is too old for the job's Python (3.12)")
    assert raised("/w/train.py", line).key != "Python too new"


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("/w/train.py", "mistake in own code"),
        ("/opt/lib/python3.12/site-packages/trl/x.py", ""),
        ("/w/verl/trainer/main.py", ""),
        ("/tmp/tmpk2x9/solution.py", ""),
        (
            "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1/train.py",
            "mistake in own code",
        ),
    ],
)
def test_a_mistake_in_the_job_s_own_code_is_named(file: str, key: str) -> None:
    """A framework's own mistake is a defect of it; a program in /tmp is one that a model wrote."""
    assert raised(file, "NameError: name 'lossx' is not defined").key == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("module 'asyncio' has no attribute 'timeout'", "Python too old"),
        ("module 'typing' has no attribute 'Self'", "Python too old"),
        ("module 'inspect' has no attribute 'getargspec'", "Python too new"),
        ("module 'asyncio' has no attribute 'coroutine'", "Python too new"),
        ("module 'ast' has no attribute 'foo'", ""),
    ],
)
def test_a_name_of_python_is_new_or_gone(name: str, key: str) -> None:
    """Which of the two, only a list of names shows."""
    file = "/opt/venv/lib/python3.10/site-packages/pool/a.py"
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{file}", line 1, in get\n    x\nAttributeError: {name}'
    )
    assert diagnose_logs([Log("", "job.log", text)]).key == key
