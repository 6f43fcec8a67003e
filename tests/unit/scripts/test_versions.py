"""The pure part of the suite of versions: pairs, pip's messages, results, and the table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from tools.versions import cli
from tools.versions.environment import REPO, refusal
from tools.versions.pairs import BOOT, REFUSAL, TOKEN, Pair, every_pair, parse, scenarios
from tools.versions.results import (
    FAILED,
    NO_WHEEL,
    NOT_INSTALLED,
    OK,
    REFUSED,
    Result,
    Step,
    load,
    of_steps,
    passed_word,
    save,
    table,
)
from tools.versions.trial import what_failed

if TYPE_CHECKING:
    from pathlib import Path

OLD = Pair("2.40", "3.10")
BOOTED = Step("boot", OK, 51.4)
SEEN = {
    OLD: of_steps(OLD, ("2.40.0", "3.10.13"), 140.0, [BOOTED, Step("token", REFUSED, 30.0)]),
    Pair("2.44", "3.13"): Result(Pair("2.44", "3.13"), NO_WHEEL, seconds=4.0),
}


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("2.40/3.10", "ray[default]==2.40.*"),
        ("2.44.1/3.12", "ray[default]==2.44.1"),
        ("newest/3.13", "ray[default]"),
    ],
)
def test_a_pair_is_read_as_it_is_written(text: str, requirement: str) -> None:
    """RAY/PYTHON there and back; a series asks for its last release."""
    assert str(parse(text)) == text
    assert parse(text).requirement == requirement


@pytest.mark.parametrize("text", ["", "2.40", "2.40/", "2.40/2.7", "oldest/3.10", "2.40/3.10/x"])
def test_what_is_no_pair_is_refused_with_an_example(text: str) -> None:
    """The command line says what it wants instead."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 2\.44/3\.12"):
        cli.pair(text)


def test_every_promised_pair_is_tried_once() -> None:
    """All Rays on all Pythons, even where no wheel is known: that is to be found."""
    pairs = every_pair()
    assert len(pairs) == len(set(pairs))
    assert {OLD, Pair("2.44", "3.13"), Pair("newest", "3.13")} <= set(pairs)


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


@pytest.mark.parametrize(
    ("said", "word", "what"),
    [
        (
            "WARNING: other\nERROR: No matching distribution found for ray[default]==2.44.*\n",
            NO_WHEEL,
            "",
        ),
        (
            "ERROR: No matching distribution found for raylike",
            NOT_INSTALLED,
            "ERROR: No matching distribution found for raylike",
        ),
        ("ERROR: ResolutionImpossible: a, b\nmore", NOT_INSTALLED, "ERROR: ResolutionImpossible"),
        ("killed", NOT_INSTALLED, "killed"),
        ("", NOT_INSTALLED, "no message"),
    ],
)
def test_a_missing_wheel_is_no_failure(said: str, word: str, what: str) -> None:
    """A pair without wheels is distinguished from a failed installation."""
    found = refusal(said)
    assert found.word == word
    assert what in found.what
    assert Result(OLD, word).bad is (word == NOT_INSTALLED)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            "E  assert\nFAILED tests/x.py::test_y - assert 1 == 2\n1 failed in 3 s\n",
            "assert 1 == 2",
        ),
        ("ERROR tests/x.py - ImportError\n1 error\n", "ImportError"),
        ("KeyboardInterrupt\n\n", "KeyboardInterrupt"),
        ("", "nothing"),
    ],
)
def test_a_failure_is_printed_as_by_pytest(said: str, what: str) -> None:
    """One line, and there always is one."""
    assert what in what_failed(said)


def test_one_failed_scenario_fails_the_pair() -> None:
    """The result names the scenario and the error."""
    step = Step("token", FAILED, 20.0, "FAILED x - assert 401 == 200")
    result = of_steps(OLD, ("2.40.0", "3.10.13"), 99.0, [BOOTED, step])
    assert result.bad
    assert result.sentence() == (
        "2.40/3.10 (Ray 2.40.0, Python 3.10.13): failed; boot ok 51 s, token failed 20 s; "
        "FAILED x - assert 401 == 200 (99 s in all)"
    )


def test_a_passed_refusal_is_called_one() -> None:
    """`ok` would read as if that Ray took the token."""
    assert (passed_word(REFUSAL.test), passed_word(TOKEN.test)) == (REFUSED, OK)


def test_results_are_stored(tmp_path: Path) -> None:
    """What one run has seen, the next one shows."""
    assert load(tmp_path / "none.json") == {}
    save(tmp_path / "results.json", SEEN)
    assert load(tmp_path / "results.json") == SEEN


def test_the_table_shows_every_pair() -> None:
    """One row a Ray with its full version, the newest last; what was not run says so."""
    lines = table(SEEN).splitlines()
    assert lines[0] == "| Ray | Python 3.10 | Python 3.11 | Python 3.12 | Python 3.13 |"
    assert lines[2] == (
        "| 2.40 (2.40.0) | boot ok 51 s, token refused 30 s | not run | not run | not run |"
    )
    assert lines[3] == "| 2.44 | not run | not run | not run | no wheel |"
    assert lines[-1].startswith("| newest |")
