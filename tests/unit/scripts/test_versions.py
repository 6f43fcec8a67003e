"""The suite of versions: its pairs, the scenarios of each, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.versions.pairs import BOOT, REFUSAL, TOKEN, scenarios

REPO = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("installed", "second"),
    [("2.40.0", REFUSAL), ("2.51.1", REFUSAL), ("2.52.0", TOKEN), ("3.0.0", TOKEN)],
)
def test_a_token_is_honored_or_refused(installed: str, second: str) -> None:
    """Which of the two a Ray must show depends on its version alone."""
    assert scenarios(installed) == {"boot": BOOT, "token": second}


def test_the_scenarios_are_tests_that_exist() -> None:
    """A test that was renamed would fail in every pair."""
    for scenario in (BOOT, TOKEN, REFUSAL):
        path, _, name = scenario.partition("::")
        assert (f"def {name}(" if name else "def test_") in (REPO / path).read_text()
