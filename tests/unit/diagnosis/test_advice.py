"""Advice on a training: a series that leaves its own past, and numbers that are not finite."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.diagnosis.advice import LEAST_PAST, PAST, RECENT, RULES, by_rule
from agent.frameworks import all_frameworks
from agent.record.job_lines import JobLines

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[3] / "docs" / "progress.md"
RISES = {rule.meaning: rule for rule in RULES if rule.turn == "rose"}
FALLS = {rule.meaning: rule for rule in RULES if rule.turn == "fell"}


def advised(lines: JobLines) -> list[str]:
    """Return what the advice says."""
    return [advice.what for advice in lines.advice()]


def training(metrics: Callable[[int], str], steps: int = 60) -> JobLines:
    """Return what is known of a training by verl whose steps have these metrics."""
    lines = JobLines(str)
    lines.begin_attempt(1)
    for step in range(1, steps + 1):
        lines.write(f"step:{step} - {metrics(step)}\n".encode(), lambda _pause: False)
    return lines


@pytest.mark.parametrize(
    ("key", "before", "after", "words"),
    [
        ("critic/rewards/mean", 0.7, 0.3, "the mean reward fell from 0.7 to 0.3 since step 56"),
        ("actor/kl_loss", 0.01, 0.5, "the KL rose from 0.01 to 0.5 since step 56"),
        ("actor/entropy", 0.8, 0.1, "the entropy fell from 0.8 to 0.1 since step 56"),
        ("actor/entropy", 0.8, 3.0, "the entropy rose from 0.8 to 3 since step 56"),
        ("actor/grad_norm", 0.4, 9.0, "the gradient norm rose from 0.4 to 9 since step 56"),
        (
            *("response_length/clip_ratio", 0.05, 0.6),
            "the share of clipped responses rose from 0.05 to 0.6 since step 56",
        ),
    ],
)
def test_a_series_that_leaves_its_past(key: str, before: float, after: float, words: str) -> None:
    """From the shipped reader to what status shows; the other way round it is no advice."""
    assert advised(training(lambda step: f"{key}:{before if step < 56 else after}")) == [words]
    back = advised(training(lambda step: f"{key}:{after if step < 56 else before}"))
    assert [line for line in back if not key.endswith("entropy")] == []


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_what_is_not_finite_is_said_at_once(number: str) -> None:
    """At the first step, and only as long as it lasts."""
    lines = training(lambda _: f"actor/grad_norm:{number} - actor/pg_loss:{number} - x:nan", 1)
    assert advised(lines) == ["actor/grad_norm, actor/pg_loss are nan or infinite at step 1"]
    lines.write(b"step:2 - actor/grad_norm:0.5 - actor/pg_loss:0.1\n", lambda _pause: False)
    assert advised(lines) == []


def _noise(level: float, spread: float) -> Callable[[random.Random, int], float]:
    return lambda dice, _: dice.gauss(level, spread)


ORDINARY: dict[str, Callable[[random.Random, int], float]] = {
    "noise": _noise(0.5, 0.1),
    "strong noise": _noise(0.1, 0.5),
    "one outlier": lambda dice, step: 50.0 if step % 37 == 0 else dice.gauss(0.5, 0.1),
    "a slow rise": lambda dice, step: step / 300 + dice.gauss(0, 0.05),
    "a slow fall": lambda dice, step: 3 * 0.99**step + dice.gauss(0, 0.02),
    "a saturation": lambda dice, step: 1 - 0.97**step + dice.gauss(0, 0.03),
    "constant": lambda _dice, _step: 0.0,
    "waves": lambda dice, step: (step // 10 % 2) * 0.3 + dice.gauss(0.5, 0.1),
    "tiny": _noise(1e-5, 1e-5),
}


@pytest.mark.parametrize("shape", ORDINARY)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.meaning} {rule.turn}")
def test_an_ordinary_training_has_no_advice(rule: object, shape: str) -> None:
    """In two trainings of 300 steps each, looked at after every step."""
    for seed in range(2):
        dice = random.Random(seed)  # noqa: S311 - noise
        points = [(step, ORDINARY[shape](dice, step)) for step in range(300)]
        for end in range(LEAST_PAST, 300):
            found = by_rule(rule, points[max(0, end - PAST - RECENT) : end])  # type: ignore[arg-type]
            assert found is None, (seed, end, found)


def test_a_few_steps_are_no_past() -> None:
    """The first steps of a training change much."""
    points = [(step, 0.0 if step < LEAST_PAST - 1 else 9.0) for step in range(LEAST_PAST + 4)]
    assert by_rule(RISES["kl"], points) is None
    assert by_rule(RISES["kl"], [(-1, 0.0), *points]) is not None


def test_the_documentation_has_all_thresholds() -> None:
    """One table, equal to that of the code."""
    rows = [
        f"| {rule.name} {rule.turn} | {rule.spreads:g} | {rule.share:.0%} | {rule.least:g} |"
        for rule in RULES
    ]
    assert "\n".join(rows) in DOCS.read_text()
    assert f"last {RECENT} steps" in DOCS.read_text()
    assert f"the {PAST} before" in DOCS.read_text()


def test_every_framework_that_has_steps_has_these_metrics() -> None:
    """A reward at least."""
    formats = [framework.steps for framework in all_frameworks() if framework.steps is not None]
    assert formats
    assert all(known.meaning.reward for known in formats)
    assert {*FALLS, *RISES} == {"reward", "kl", "entropy", "gradient_norm", "clipped"}
