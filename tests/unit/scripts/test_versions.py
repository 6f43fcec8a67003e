"""The pure part of the suite of versions: pairs, pip's messages, results, and the table."""

from __future__ import annotations

import argparse

import pytest

from tools.versions import cli
from tools.versions.environment import REPO
from tools.versions.pairs import BOOT, REFUSAL, TOKEN, Pair, every_pair, parse, scenarios
from tools.versions.results import (
    NO_WHEEL,
    OK,
    REFUSED,
    Result,
    Step,
    of_steps,
)

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
