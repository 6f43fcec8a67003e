"""The suite of versions: which scenarios show that a Ray honors or refuses a token."""

from __future__ import annotations

import pytest

from tools.versions.environment import REPO
from tools.versions.pairs import BOOT, REFUSAL, TOKEN, scenarios


@pytest.mark.parametrize(
    ("installed", "second"),
    [("2.40.0", REFUSAL), ("2.51.1", REFUSAL), ("2.52.0", TOKEN), ("3.0.0", TOKEN)],
)
def test_a_token_is_honored_or_refused(installed: str, second: object) -> None:
    """Which of the two a Ray must show depends on its version alone."""
    assert scenarios(installed) == (BOOT, second)


def test_the_scenarios_are_tests_that_exist() -> None:
    """A test that was renamed would fail in every pair."""
    for scenario in (BOOT, TOKEN, REFUSAL):
        path, _, name = scenario.test.partition("::")
        assert (f"def {name}(" if name else "def test_") in (REPO / path).read_text()
