"""The job's metrics by step: bounded, and true after attempts."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from agent.job.series import MOST_KEYS, MOST_POINTS, AttemptMark, Points, Series


def test_what_series_has() -> None:
    """Each key has its own steps; the one that people look at comes first."""
    series = Series()
    series.add(1, 1, {"other": 1.0, "reward": 0.5}, 9)
    series.add(1, 2, {"other": 2.0, "reward": 0.6, "eval_loss": 3.0}, None)
    assert to_builtins(series.part()) == {
        "keys": {
            "reward": {"steps": [1, 2], "values": [0.5, 0.6]},
            "eval_loss": {"steps": [2], "values": [3.0]},
            "other": {"steps": [1, 2], "values": [1.0, 2.0]},
        },
        "meanings": {"reward": "reward", "validation": "eval_loss"},
        "attempts": ({"number": 1, "first": 1, "after": None},),
        "of": 9,
        "checkpoints": (),
    }
    assert [*series.part(1).keys] == ["reward", "eval_loss", "other"]
    assert series.part(2).keys == {}
    assert series.points("reward", 1) == [(2, 0.6)]
    assert series.points("kl", 1) == []


def test_a_few_points_of_what_has_a_meaning_are_for_all() -> None:
    """Under our own names: those of the job are text of its output."""
    series = Series()
    for step in range(1000):
        series.add(1, step, {"critic/rewards/mean": step / 10, "said by a model": 1.0}, 1000)
    curves = series.curves()
    assert curves.meanings == {"reward": "reward"}
    assert [*curves.keys] == ["reward"]
    points = curves.keys["reward"]
    assert (len(points.steps), points.steps[0], points.steps[-1]) == (201, 0, 999)
    assert points.values[-1] == 99.9


def test_another_attempt_replaces_the_steps_that_it_makes_again() -> None:
    """The mark says where it began, and how far the one before had come."""
    series = Series()
    for step in range(1, 6):
        series.add(1, step, {"reward": 0.1, "rare": 0.0}, 9)
    series.add(2, 4, {"reward": 0.4}, 9)
    assert to_builtins(series.part().keys) == {
        "reward": {"steps": [1, 2, 3, 4], "values": [0.1, 0.1, 0.1, 0.4]},
        "rare": {"steps": [1, 2, 3], "values": [0.0] * 3},
    }
    assert series.attempts == [AttemptMark(1, 1), AttemptMark(2, 4, 5)]


def test_values_of_a_former_step_remove_nothing() -> None:
    """Only a step of the job itself takes points away."""
    series = Series()
    for step in range(1, 41):
        series.add(1, step, {"reward": step / 100}, 100)
    series.add_values(0, {"reward": 9.0, "eval_loss": 1.0})
    assert [step for step, _ in series.points("reward")] == [*range(1, 41)]
    assert series.points("reward", 1) == [(40, 0.4)]


@pytest.mark.parametrize("count", [MOST_POINTS, 3 * MOST_POINTS + 1, 100_000])
def test_many_points_are_thinned_evenly(count: int) -> None:
    """The first and the newest stay, and no gap is more than twice another one."""
    points = Points()
    for step in range(count):
        points.add(step, step / 2)
    assert MOST_POINTS // 2 <= len(points.steps) <= MOST_POINTS
    assert (points.steps[0], points.steps[-1]) == (0, count - 1)
    assert points.values == [step / 2 for step in points.steps]
    gaps = {later - step for step, later in itertools.pairwise(points.steps[:-1])}
    assert len(gaps) == 1


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), max_size=80))
def test_steps_always_rise(added: list[tuple[int, int]]) -> None:
    """Whatever a job prints, a curve has one value for a step, the one printed last."""
    series = Series()
    for step, attempt in added:
        series.add(attempt, step, {"a": float(step + attempt)}, None)
    keys = series.part().keys
    assert isinstance(keys, dict)
    for points in keys.values():
        assert points.steps == sorted(set(points.steps))
    if added:
        step, attempt = added[-1]
        assert keys["a"].steps[-1] == step
        assert keys["a"].values[-1] == step + attempt


def test_keys_are_bounded() -> None:
    """Those that people look at stay, also if they come late."""
    series = Series()
    series.add(1, 1, {f"other{n}": 0.0 for n in range(500)}, None)
    series.add(1, 2, {"reward": 1.0, "kl": 2.0}, None)
    for step in range(3, 100):
        series.add(1, step, {f"new{step}": 0.0, "reward": 1.0}, None)
    assert len(series.names) == MOST_KEYS
    assert series.names[0] in {"reward", "kl"}
    assert {"reward", "kl"} <= {*series.names}
    json.dumps(to_builtins(series.part()))
