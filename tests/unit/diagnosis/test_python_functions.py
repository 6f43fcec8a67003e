"""A variable that is not set: named with the place that reads it."""

from __future__ import annotations

from agent.diagnosis.find_cause import Log, diagnose_logs

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
