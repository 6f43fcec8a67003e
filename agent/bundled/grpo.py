"""The rehearsal's GRPO on a tabular softmax policy, with gradients in plain Python.

Each prompt has its own row of logits over the answers. A group of answers is drawn for a prompt;
an answer's advantage is its reward minus the group's mean, divided by the group's deviation. The
policy maximizes PPO's clipped objective minus the k3 estimate of the divergence from a reference.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWERS = 10
"""Every sum is one digit, so one guess in ten is right."""

CHANCE = 1 / ANSWERS
_SMALLEST_DEVIATION = 1e-6
_LARGEST_LOG_RATIO = 10.0


class Learning(NamedTuple):
    """Parameters of an update."""

    rate: float = 0.5
    kl: float = 0.02
    clip: float = 0.2
    updates: int = 4


class Exercise(NamedTuple):
    """One addition."""

    left: int
    right: int

    @property
    def prompt(self) -> str:
        """The prompt."""
        return f"What is {self.left}+{self.right}?"

    @property
    def label(self) -> str:
        """The right answer."""
        return str(self.left + self.right)


def problems(count: int, seed: int) -> list[Exercise]:
    """Draw different additions with sums of one digit; there are 55."""
    every = [Exercise(a, b) for a in range(ANSWERS) for b in range(ANSWERS - a)]
    return random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311 # no secret


def log_probabilities(logits: Sequence[float]) -> list[float]:
    """Log-softmax: finite for every finite logit, where a probability may round to zero."""
    highest = max(logits)
    log_total = highest + math.log(sum(math.exp(logit - highest) for logit in logits))
    return [logit - log_total for logit in logits]


def probabilities(logits: Sequence[float]) -> list[float]:
    """Softmax."""
    return [math.exp(value) for value in log_probabilities(logits)]


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return each reward relative to its group; equal rewards give zeros."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + _SMALLEST_DEVIATION) for reward in rewards]


class Group(NamedTuple):
    """The answers drawn for one prompt, and their rewards."""

    answers: Sequence[int]
    advantages: Sequence[float]


def _ratio(above: float, below: float) -> float:
    """Return the ratio of two probabilities given as logs, limited to a finite range."""
    return math.exp(min(max(above - below, -_LARGEST_LOG_RATIO), _LARGEST_LOG_RATIO))


def gradient(
    logits: Sequence[float],
    old: Sequence[float],
    reference: Sequence[float],
    group: Group,
    learning: Learning,
) -> list[float]:
    """Return the gradient of the objective by logit."""
    now, before, frozen = map(log_probabilities, (logits, old, reference))
    slope = [0.0] * len(logits)
    for answer, advantage in zip(group.answers, group.advantages, strict=True):
        ratio = _ratio(now[answer], before[answer])
        clipped = ratio > 1 + learning.clip if advantage > 0 else ratio < 1 - learning.clip
        pull = 0.0 if clipped else ratio * advantage
        # d log p(answer) = 1 - p on its own logit, -p on each other
        pull -= learning.kl * (1 - _ratio(frozen[answer], now[answer]))
        slope[answer] += pull
        for other, value in enumerate(now):
            slope[other] -= pull * math.exp(value)
    return [value / len(group.answers) for value in slope]


def updated(
    logits: Sequence[float], reference: Sequence[float], group: Group, learning: Learning
) -> list[float]:
    """Return a prompt's logits after the updates by one group of answers."""
    old, row = list(logits), list(logits)
    for _ in range(learning.updates):
        slope = gradient(row, old, reference, group, learning)
        row = [logit + learning.rate * value for logit, value in zip(row, slope, strict=True)]
    return row


def divergence(policy: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> float:
    """Return the exact KL divergence of policy and reference, averaged over the prompts."""
    total = 0.0
    for row, frozen in zip(policy, reference, strict=True):
        pairs = zip(log_probabilities(row), log_probabilities(frozen), strict=True)
        total += sum(math.exp(now) * (now - then) for now, then in pairs)
    return total / len(policy)
