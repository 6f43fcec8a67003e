"""The table of times: its rules hold for all settings, and each time in it is shared."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base import times
from agent.base.times import RULES
from agent.settings.values import duration
from support.sources import ROOT

TIMES = {name: value for name, value in vars(times).items() if type(value) is float}
BESIDE_OTHERS = {"HOLDER_REPORTS", "FENCE_LEAST", "MODEL_READ_AFTER", "RUN_DECIDED", "SAMPLE_PAUSE"}
"""Times of one module that stand in the section of a course of events, with its others."""
DURATIONS = st.floats(min_value=0.001, max_value=30 * 24 * 3600)
"""All durations that a setting accepts."""


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


def test_each_time_is_shared_and_explained() -> None:
    """Each row has a reason, and several readers or a place in the order: others stand alone."""
    text = (ROOT / "agent/base/times.py").read_text()
    lines = text.splitlines()
    within = Counter(re.findall(r"\w+", text))
    read = re.compile(r"\btimes\b\W+(?=(\w+))")
    readers = Counter[str]()
    for path in ROOT.glob("agent/**/*.py"):
        readers.update({*read.findall(path.read_text())})

    for node, after in pairwise(ast.parse(text).body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            has_comment = "  # " in lines[node.lineno - 1]
            assert has_comment or isinstance(after, ast.Expr), f"{name} has no reason"

            is_ordered = within[name] > 1
            assert readers[name] or is_ordered, f"{name} is not used"
            is_shared = readers[name] > 1 or is_ordered or name in BESIDE_OTHERS
            assert is_shared, f"{name} is used by one module: it belongs there"
