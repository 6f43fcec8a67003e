"""The suite of versions: its pairs, the scenarios of each, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.versions.pairs import BOOT, REFUSAL, TOKEN, Result, parse, requirement, scenarios, table

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


def test_a_series_means_its_last_release() -> None:
    """A pair may also name one release, or the newest."""
    assert requirement("2.44") == "ray[default]==2.44.*"
    assert requirement("2.44.1") == "ray[default]==2.44.1"
    assert requirement("newest") == "ray[default]"
    with pytest.raises(ValueError, match="no RAY/PYTHON"):
        parse("2.44")


def test_the_table_has_all_pairs_in_order() -> None:
    """Also those that were not run, and others that somebody named."""
    results = {"2.9.1/3.10": Result("2.9.1", "boot ok 28 s"), "newest/3.10": Result("2.60.0", "")}
    lines = table(results).splitlines()
    assert lines[0] == "| Ray | Python 3.10 | Python 3.11 | Python 3.12 | Python 3.13 |"
    assert lines[2] == "| 2.9.1 (2.9.1) | boot ok 28 s | not run | not run | not run |"
    assert lines[3].startswith("| 2.40 | not run")
    assert lines[-1].startswith("| newest (2.60.0) |")
