"""Numbers in sentences have plain digits."""

from __future__ import annotations

import pytest

from agent.base.text import number_text


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [
        (0.61449, 3, "0.614"),
        (99.6, 2, "100"),
        (312.4, 2, "312"),
        (-312.4, 2, "-312"),
        (999.7, 3, "1000"),
        (48_213.0, 3, "48213"),
        (1e300, 3, "1e+300"),
        (float("nan"), 3, "nan"),
        (float("inf"), 3, "inf"),
        (0.0, 3, "0"),
    ],
)
def test_plain_digits(value: float, digits: int, words: str) -> None:
    """Only what no sentence should hold in full has an exponent."""
    assert number_text(value, digits) == words


def test_a_sign() -> None:
    """A change has one."""
    assert number_text(0.191, 2, signed=True) == "+0.19"
    assert number_text(312.0, 2, signed=True) == "+312"
