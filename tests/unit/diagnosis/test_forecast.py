"""Forecasts of full memory and disks: for steady growth, and for nothing else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from agent.diagnosis.forecast import Trend, sentence
from agent.node.figures import Forecast

if TYPE_CHECKING:
    from collections.abc import Callable

GB = 10**9
TOTAL = 100 * GB


def trend(used: Callable[[float], float], minutes: int, step: float = 10.0) -> Trend:
    """Return the trend of what is used, by minutes, with a reading every ten seconds."""
    made = Trend("host memory")
    seconds = 0.0
    while seconds <= minutes * 60:
        amount = int(used(seconds / 60) * GB)
        made.add(seconds, amount, TOTAL, {"ray::WorkerDict": max(0, amount - 5 * GB), "vllm": GB})
        seconds += step
    return made


def test_a_leak() -> None:
    """3 GB an hour from 87 GB on: full, which is 95 %, in 2 h 40 min; it is named by program."""
    forecast = trend(lambda minute: 86 + minute * 3 / 60, 20).forecast()
    assert forecast is not None
    assert forecast.per_hour == pytest.approx(3 * GB, rel=0.05)
    assert forecast.seconds == pytest.approx(8 / 3 * 3600, rel=0.05)
    said = sentence(replaced(forecast), "pod2", "since step 40")
    assert said == (
        "host memory of pod2 reaches 95 % in 2 h 40 min: +3.1 GB an hour since step 40, "
        "most of it in `ray::WorkerDict`"
    )
    assert "+3.1 GB an hour for 20 min" in sentence(replaced(forecast), "pod2")


@pytest.mark.parametrize(
    ("seconds", "per_hour", "words"),
    [
        (9_600, 312 * GB, "reaches 95 % in 2 h 40 min: +312 GB an hour for 20 min"),
        (9_600, GB // 4, "reaches 95 % in 2 h 40 min: +0.25 GB an hour for 20 min"),
        (0, 3_100_000_000, "is above 95 % and grows by 3.1 GB an hour for 20 min"),
    ],
)
def test_a_disk(seconds: int, per_hour: int, words: str) -> None:
    """It is on a node; large numbers have plain digits, and one that is full already says so."""
    ahead = Forecast("disk /workspace/ckpt", seconds, per_hour, 1_200)
    assert sentence(ahead, "pod2") == f"disk /workspace/ckpt on pod2 {words}"


def replaced(forecast: Forecast) -> Forecast:
    """Return it with round numbers."""
    return Forecast(forecast.what, 9_600, 3_100_000_000, 1_200, forecast.program)


def test_a_leak_that_began_late() -> None:
    """The longest window in which it grew counts: here the last hour of ten."""
    slow = trend(lambda minute: 60 + max(0.0, minute - 530) * 10 / 60, 600).forecast()
    assert slow is not None
    assert slow.since == 3_600
    assert slow.seconds == pytest.approx((95 - 60 - 70 / 6) / 10 * 3600, rel=0.05)


def test_noise_does_not_hide_it() -> None:
    """Each step takes and frees more than the leak of an hour."""
    rng = random.Random(1)  # noqa: S311 - noise
    noisy = trend(lambda minute: 70 + minute * 10 / 60 + rng.uniform(0, 0.6), 60).forecast()
    assert noisy is not None
    assert noisy.per_hour == pytest.approx(10 * GB, rel=0.2)


@pytest.mark.parametrize(
    "used",
    [
        lambda _minute: 50,
        lambda minute: 60 - minute / 60,
        lambda minute: 5 + 60 * (minute > 8),  # a model is loaded at once
        lambda minute: min(80, 5 + 10 * minute),  # within minutes
        lambda minute: 50 + minute % 10,  # a cache
        lambda minute: 50 + 0.001 * minute,  # full in years
        lambda minute: 50 + 20 * (minute > 100) + 20 * (minute > 200),  # two checkpoints
    ],
)
@pytest.mark.parametrize("minutes", [12, 25, 70, 260])
def test_no_forecast(used: Callable[[float], float], minutes: int) -> None:
    """What does not grow in each part of a window is no leak."""
    forecast = trend(used, minutes).forecast()
    assert forecast is None


def test_too_little_is_known() -> None:
    """The first twenty minutes say nothing; neither do single samples."""
    assert Trend("host memory").forecast() is None
    assert trend(lambda minute: 80 + minute, 10).forecast() is None
    assert trend(lambda minute: 80 + minute / 10, 30, step=600.0).forecast() is None


def test_it_is_bounded() -> None:
    """A week of readings keeps four hours of samples."""
    made = trend(lambda minute: 50 + minute / 1e5, 60 * 24, step=60.0)
    assert len(made._samples) <= 241  # noqa: SLF001 - what is kept
