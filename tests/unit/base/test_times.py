"""The table of times: its rules hold for all settings, and no module has its own."""

from __future__ import annotations

import ast
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base import times
from agent.base.times import RULES
from agent.settings.values import duration
from support.sources import ROOT, trees

TIMES = {name: value for name, value in vars(times).items() if type(value) is float}
DURATIONS = st.floats(min_value=0.001, max_value=30 * 24 * 3600)
"""All durations that a setting accepts."""
NOT_SECONDS = {
    "base/value.py": "ranges of messages",
    "bundled/": "programs that run without the agent",
    "checks/": "rates and shares",
    "diagnosis/advice.py": "thresholds of advice",
    "diagnosis/training_rules.py": "thresholds of advice",
    "record/series_file.py": "ranges of what is saved",
    "settings/values.py": "limits of settings",
    "frameworks/": "sizes and bounds",
    "job/": "defaults of a service, bounds of a histogram, and a day",
}
SHARES = {"MOST_OF_COST", "_STEADY", "STEADY", "_LOOP_SHARE", "_IDLE_CORES", "_IDLE_EACH"} | {
    *("_BUSY_SHARE", "_MAX_WAIT", "_TRY_DELAYS", "_PAUSES", "_COUNTERS"),
    *("MOST_OF_FREE", "_MEDIANS", "_LONGEST", "_WITH_PAUSE", "_WITHOUT_OUTPUT"),
}
"""Shares, multiples, rates and sequences."""


@pytest.mark.parametrize("rule", RULES)
@given(grace=DURATIONS)
def test_each_rule_holds_for_every_setting(rule: str, grace: float) -> None:
    """Whatever AGENT_NODE_GRACE the user sets, a time stays below those that it must be below."""
    names = {**TIMES, "AGENT_NODE_GRACE": grace}
    assert eval(rule, {"__builtins__": {}}, names), RULES[rule]  # noqa: S307 - rules of our own


def test_the_settings_accept_what_the_rules_are_tested_with() -> None:
    """A duration is above 0 and at most 30 days."""
    assert duration("720h") == 30 * 24 * 3600
    for text in ("0", "721h"):
        with pytest.raises(ValueError, match="duration"):
            duration(text)


def test_all_times_are_in_the_table() -> None:
    """No module has a constant in seconds that is not taken from the table."""
    found = []
    for path, tree in trees().items():
        name = path.removeprefix("agent/")
        if name == "base/times.py" or name.startswith(tuple(NOT_SECONDS)):
            continue
        for node in tree.body:
            if isinstance(node, ast.Assign):
                owns = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                floats = [
                    one
                    for one in ast.walk(node.value)
                    if isinstance(one, ast.Constant) and type(one.value) is float
                ]
                if floats and not owns & SHARES:
                    found.append(f"{name}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert found == []


def test_each_time_is_used_and_explained() -> None:
    """The table has no row without a reader or a reason."""
    text = (ROOT / "agent/base/times.py").read_text()
    lines, body = text.splitlines(), ast.parse(text).body
    sources = "\n".join(
        path.read_text() for path in ROOT.glob("agent/**/*.py") if path.name != "times.py"
    )
    used_here = {
        one.id
        for one in ast.walk(ast.parse(text))
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "RULES":
                continue
            has_comment = "  # " in lines[node.lineno - 1]
            assert has_comment or isinstance(after, ast.Expr), f"{name} has no reason"
            assert f"times.{name}" in sources or name in used_here, f"{name} is not used"
