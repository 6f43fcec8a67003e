"""Every regular expression takes time by the length of a text, whatever a job prints.

Python's `re` holds the GIL: an expression that takes the square of a line's length stops the whole
agent, deadlines, signals and HTTP with it, for as long as a model repeats a token.
"""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING

import pytest

from support.expressions import Expression, Text, in_sources, of_lines, of_rows, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NOT_STATED = {
    "agent/bundled/judge.py": "the user's own `grade`",
    "agent/diagnosis/rows.py": "those of rows.toml, which are tried",
    "agent/frameworks/framework.py": "a name of a setting",
    "agent/job/checkpoints.py": "a name of a folder and a bounded number",
    "agent/job/progress.py": "those of lines with a step, which are tried",
    "agent/job/services_file.py": "the user's own `log` and `grade`",
    "agent/node/facts.py": "a name of a GPU",
    "agent/node/job_script.py": "what the user's own script passes to pkill",
    "agent/diagnosis/errors/forms.py": "alternations of literals",
    "agent/diagnosis/errors/roles.py": "those of roles in rows.toml, which are tried by their rows",
    "agent/node/upload.py": "one literal, with a file of Ray",
    "agent/processes/probing.py": "the user's own `log`",
    "agent/settings/redact.py": "the literals of secrets",
    "agent/settings/values.py": "those of settings, whose texts are short",
}
"""Files with calls whose expression no module states, and which expressions these are."""

_SHORT = 2_000
_LONG = 4 * _SHORT
_MOST_GROWTH = 8  # times, for a text of four times the length: a square takes sixteen
_IN_PASSING = 0.001  # seconds of a long text, below which no growth is measured
_MOST_OF_SHORT = 0.05  # seconds of a short text, on any machine
_MOST_OF_ROW = 0.02  # seconds of the longest text that a row's expression is applied to


def seconds(expression: Expression, text: str) -> float:
    """Return the CPU time that an expression takes for a text."""
    began = time.process_time()
    expression.apply(text)
    return time.process_time() - began


def is_slow(expression: Expression, text: Text) -> bool:
    """Return whether the time for a text grows with more than its length.

    One that is slow is measured again: another program may have taken the caches.
    """
    if expression.most is not None:
        whole = text.of(expression.most)
        return all(seconds(expression, whole) > _MOST_OF_ROW for _ in range(3))

    # Shorter texts first: one that takes the cube of a long one would not end.
    short = text.of(_SHORT)
    for shorter in (text.of(_SHORT // 8), short):
        if all(seconds(expression, shorter) > _MOST_OF_SHORT for _ in range(3)):
            return True
    long = text.of(_LONG)
    if seconds(expression, long) < _IN_PASSING:
        return False
    for _ in range(3):
        usual = min(seconds(expression, short) for _ in range(3))
        if seconds(expression, long) < _MOST_GROWTH * usual:
            return False
    return True


def slow_ones(expressions: Iterable[Expression], pairs: int) -> Iterator[str]:
    """Yield the expressions that are slow, each with a text that shows it."""
    chance = random.Random(7)  # noqa: S311 - the same texts each time
    for expression in expressions:
        slow = (text for text in texts(expression, chance, pairs) if is_slow(expression, text))
        shown = next(slow, None)
        if shown is not None:
            pattern = expression.pattern.pattern
            yield f"{expression.place}\n  {shown.begin!r} + {shown.repeated!r} * n\n  {pattern}"


@pytest.mark.parametrize(
    "pairs", [pytest.param(4, id="few"), pytest.param(400, marks=pytest.mark.slow, id="many")]
)
def test_time_grows_with_the_length_of_a_text(pairs: int) -> None:
    """Lines made of repeated fragments of an expression's own literals cost little."""
    known, _ = in_sources()
    every = (*known, *of_lines(), *of_rows())
    assert "\n".join(slow_ones(every, pairs)) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<![A-Za-z0-9])sk-(?=[\w-]*\d)[\w-]{32,}",
        r"(?<![A-Za-z0-9])eyJ[\w-]{10,}\.eyJ[\w-]{10,}",
        r"amdgpu.*(?:reset|hang)",
        r"0x[0-9a-f]+(?: \[\w+\])?.*:$",
        r"[\s,]+(?:is|has)\s*$",
    ],
)
def test_a_careless_expression_is_found(pattern: str) -> None:
    """By few texts of its own fragments."""
    careless = Expression("", re.compile(pattern), "finditer")
    assert [*slow_ones([careless], 0)]


def test_expressions_that_no_module_states() -> None:
    """Each file that makes one in a function is known, with a reason why it is not tried."""
    _, files = in_sources()
    assert files == NOT_STATED.keys()
