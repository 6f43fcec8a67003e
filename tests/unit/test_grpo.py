"""The rehearsal's learning is GRPO: true gradients, and a reward that rises from chance."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bundled.grpo import (
    ANSWERS,
    CHANCE,
    Group,
    Learning,
    advantages,
    divergence,
    gradient,
    log_probabilities,
    probabilities,
    problems,
    updated,
)

LOGITS = st.lists(st.floats(-500, 500), min_size=2, max_size=12)


@given(LOGITS)
def test_probabilities_sum_to_one(logits: list[float]) -> None:
    """Softmax is valid for any logits."""
    assert math.isclose(sum(probabilities(logits)), 1.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=32))
def test_advantages_are_normalised_by_group(rewards: list[float]) -> None:
    """They sum to zero and keep the order of the rewards."""
    values = advantages(rewards)
    assert abs(sum(values)) < 1e-3
    pairs = sorted(zip(rewards, values, strict=True))
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(pairs))


def test_equal_rewards_change_nothing() -> None:
    """If all answers are right or all wrong, advantages are 0 and the policy does not change."""
    assert advantages([1.0] * 4) == [0.0] * 4
    row = [0.3] * ANSWERS
    group = Group([1, 2], advantages([0.0, 0.0]))
    assert updated(row, [0.0] * ANSWERS, group, Learning(kl=0.0)) == row


def objective(
    logits: list[float],
    old: list[float],
    reference: list[float],
    group: Group,
    learning: Learning,
) -> float:
    """Return the objective: clipped gain minus the k3 estimate of the divergence."""
    now, before, frozen = map(log_probabilities, (logits, old, reference))
    total = 0.0
    for answer, advantage in zip(group.answers, group.advantages, strict=True):
        ratio = math.exp(now[answer] - before[answer])
        clipped = min(max(ratio, 1 - learning.clip), 1 + learning.clip)
        away = frozen[answer] - now[answer]
        k3 = math.exp(away) - away - 1
        total += min(ratio * advantage, clipped * advantage) - learning.kl * k3
    return total / len(group.answers)


@pytest.mark.parametrize("seed", range(20))
def test_the_gradient_is_that_of_the_objective(seed: int) -> None:
    """Each slope equals the finite difference of the objective, clipped or not."""
    draw = random.Random(seed)  # noqa: S311 # no secret
    old = [draw.gauss(0, 1) for _ in range(ANSWERS)]
    now = [value + draw.gauss(0, 0.4) for value in old]
    reference = [draw.gauss(0, 1) for _ in range(ANSWERS)]
    answers = draw.choices(range(ANSWERS), k=12)
    group = Group(answers, advantages([float(draw.random() < 0.4) for _ in answers]))
    learning = Learning(kl=0.3)
    step = 1e-6
    for index, slope in enumerate(gradient(now, old, reference, group, learning)):
        ends = [list(now), list(now)]
        ends[0][index] -= step
        ends[1][index] += step
        low, high = (objective(end, old, reference, group, learning) for end in ends)
        assert slope == pytest.approx((high - low) / (2 * step), abs=1e-5)


def test_the_clip_bounds_an_update() -> None:
    """After many updates by one group an answer gains little more than the clip."""
    row = [0.0] * ANSWERS
    group = Group([3, *range(4, 9)], advantages([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    after = probabilities(updated(row, row, group, Learning(rate=0.05, kl=0.0, updates=500)))
    assert CHANCE * 1.2 < after[3] < CHANCE * 1.5


def test_the_penalty_pulls_back_to_the_reference() -> None:
    """Without advantages, the divergence from the reference shrinks."""
    row, reference = [[2.0, 0.0, 0.0, 0.0]], [[0.0] * 4]
    group = Group([0, 0, 1, 2, 3], [0.0] * 5)
    after = [updated(row[0], reference[0], group, Learning(kl=0.2))]
    assert 0 < divergence(after, reference) < divergence(row, reference)
    assert divergence(reference, reference) == 0


def test_problems_are_different_additions_of_one_digit() -> None:
    """Their labels are right, a guess is right once in ten, and the seed decides which."""
    drawn = problems(24, seed=7)
    assert len(set(drawn)) == 24
    assert drawn == problems(24, seed=7) != problems(24, seed=8)
    assert {len(problem.label) for problem in problems(1000, seed=0)} == {1}
    assert len(problems(1000, seed=0)) == 55


def learned(seed: int, learning: Learning) -> list[float]:
    """Learn for 40 steps without Ray and HTTP; return the mean rewards."""
    tasks = problems(24, seed)
    policy = [[0.0] * ANSWERS for _ in tasks]
    means = []
    for step in range(40):
        earned = 0.0
        for index, task in enumerate(tasks):
            draw = random.Random(f"{seed}:{step}:{index}")  # noqa: S311 # no secret
            answers = draw.choices(range(ANSWERS), probabilities(policy[index]), k=16)
            rewards = [float(str(answer) == task.label) for answer in answers]
            group = Group(answers, advantages(rewards))
            policy[index] = updated(policy[index], [0.0] * ANSWERS, group, learning)
            earned += sum(rewards)
        means.append(earned / len(tasks) / 16)
    return means


@pytest.mark.parametrize("seed", range(5))
def test_the_reward_rises_from_chance_to_the_target(seed: int) -> None:
    """With the defaults, any seed starts near 0.1 and ends above 0.9."""
    means = learned(seed, Learning())
    assert abs(means[0] - CHANCE) < 0.06
    assert sum(means[-3:]) / 3 > 0.95


def test_absurd_settings_do_not_crash() -> None:
    """A rate that ruins the policy ends in a poor reward, never in an exception."""
    assert all(math.isfinite(mean) for mean in learned(0, Learning(rate=1e6, kl=100.0)))
