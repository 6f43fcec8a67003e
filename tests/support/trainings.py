"""Made-up trainings by step, healthy and failing ones, with the metrics that verl prints.

A training is made from a kind and a seed: its length, noise, batch, restarts from a checkpoint,
evaluations and missing values are drawn. A failing one is a healthy one in which one thing goes
wrong from some step on.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

from agent.diagnosis.advice import RewardFailure, advise
from agent.job.progress import Progress, StepSeen
from agent.job.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.diagnosis.advice import Advice

    Values = dict[str, float]
    Change = Callable[["Made", int, Values], None]

KEYS = {
    "reward": "critic/rewards/mean",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "gradient_norm": "actor/grad_norm",
    "clipped": "response_length/clip_ratio",
    "response_length": "response_length/mean",
    "clip_fraction": "actor/pg_clipfrac",
    "rollout_kl": "rollout_corr/k3_kl",
    "rollout_difference": "training/rollout_probs_diff_mean",
    "staleness": "training/off_policy/trajectory_staleness/mean",
    "explained_variance": "critic/vf_explained_var",
    "equal_groups": "frac_reward_zero_std",
    "group_spread": "group_reward_std",
    "kept_groups": "dynamic_filtering_pass_rate",
    "validation": "val-core/openai/gsm8k/acc/mean@1",
}
SECONDS = 60.0  # of a step
_SHARES = {"clipped", "clip_fraction", "equal_groups", "validation"}


class Made:
    """What a seed draws for a training, beside the values of its steps."""

    def __init__(self, kind: str, seed: int, steps: int | None = None) -> None:
        self.dice = random.Random(f"{kind} {seed}")  # noqa: S311 - noise
        dice = self.dice
        self.steps = steps or dice.choice((30, 60, 100, 150, 200, 300, 400, 600, 1000))
        self.noise = dice.choice((0.3, 0.6, 1.0, 1.0, 1.6, 2.5))
        self.at = int(self.steps * dice.uniform(0.3, 0.5))  # where something happens
        self.lasts = max(20, int((self.steps - self.at) * dice.uniform(0.5, 0.9)))
        self.low = dice.uniform(0.02, 0.3)  # the first reward
        self.high = dice.uniform(0.4, 0.95)
        self.pace = self.steps * dice.uniform(0.1, 0.4)
        self.entropy = dice.uniform(0.25, 0.9)
        self.entropy_end = self.entropy * dice.uniform(0.35, 1.3)
        self.kl_end = 10 ** dice.uniform(-3, -0.7)
        self.norm = 10 ** dice.uniform(-1.3, 0.3)
        self.evaluate_every = dice.choice((5, 10, 10, 20))
        self.missing = dice.choice((0.0, 0.0, 0.05, 0.2))  # the share of values that are missing
        self.restarts = dice.choice((0, 0, 1, 2))
        self.is_zero = False  # whether there is no reward
        self.drift = 0.0  # noise that goes on for some twenty steps
        self.now = 0.0  # seconds since the start
        self.failures: list[RewardFailure] = []

    def done(self, step: int) -> float:
        """Return which share of the change that begins `at` is done."""
        return min(1.0, max(0.0, (step - self.at) / self.lasts))

    def values(self, step: int) -> Values:
        """Return what a step of a healthy training shows, without noise."""
        done = step / self.steps
        learned = 1 - math.exp(-step / self.pace)
        reward = self.low + (self.high - self.low) * learned
        return {
            "reward": reward,
            "validation": max(0.0, reward * 0.9 - 0.02),
            "kl": self.kl_end * done**0.7 + 1e-4,
            "entropy": self.entropy + (self.entropy_end - self.entropy) * learned,
            "gradient_norm": self.norm * (1 + 0.6 * math.exp(-step / 10)),
            "clipped": 0.04,
            "response_length": 400 + 300 * done,
            "clip_fraction": 0.004,
            "rollout_kl": 0.0015,
            "rollout_difference": 0.007,
            "staleness": 1.2,
            "explained_variance": 0.75 - 1.2 * math.exp(-step / 15),
            "equal_groups": 0.3 + 0.3 * learned,
            "group_spread": 0.35 - 0.15 * learned,
            "kept_groups": 70 - 25 * learned,
        }

    def noisy(self, values: Values) -> Values:
        """Return values with the noise that each metric has."""
        dice = self.dice
        noise = self.noise
        scale = {
            "reward": 0.03,
            "validation": 0.008,
            "clipped": 0.01,
            "equal_groups": 0.05,
            "explained_variance": 0.06,
            "kept_groups": 4.0,
            "staleness": 0.2,
        }
        found = {}
        for name, value in values.items():
            if name in scale:
                found[name] = value + dice.gauss(0, scale[name] * noise)
            else:
                found[name] = value * math.exp(dice.gauss(0, 0.12 * noise))
            if name in _SHARES:
                found[name] = min(1.0, max(0.0, found[name]))
        if dice.random() < 0.02:  # single outliers are ordinary
            found["gradient_norm"] *= dice.uniform(3, 20)
            found["kl"] *= dice.uniform(2, 5)
        return found


# --- healthy ones ---------------------------------------------------------------------------------


def _nothing(_made: Made, _step: int, _values: Values) -> None:
    """Learn, and stay there."""


def _plateau(made: Made, _step: int, values: Values) -> None:
    values.update(reward=made.high, validation=made.high * 0.9, entropy=made.entropy)


def _warmup(made: Made, step: int, values: Values) -> None:
    """Nothing happens during the first steps."""
    values["reward"] = made.low + max(0.0, values["reward"] - made.low) * (step > made.at)


def _curriculum(made: Made, step: int, values: Values) -> None:
    """At each switch to harder data the reward falls at once, and rises again."""
    switches = (0.35, 0.6, 0.8)[: 1 + made.steps % 3]
    for part in switches:
        begin = int(part * made.steps)
        if step >= begin:
            hard = math.exp(-(step - begin) / (0.12 * made.steps + 5))
            values["reward"] *= 1 - 0.5 * hard
            values["response_length"] *= 1 + 0.3 * hard
            values["entropy"] *= 1 + 0.25 * hard
            values["gradient_norm"] *= 1 + 0.6 * hard
            values["clipped"] += 0.05 * hard
            values["equal_groups"] -= 0.1 * hard


def _other_data(made: Made, step: int, values: Values) -> None:
    """From one step on the data is harder for good; the policy goes on learning."""
    if step >= made.at:
        values["reward"] = values["reward"] * 0.55 + 0.1 * made.done(step)


def _long_answers(made: Made, step: int, values: Values) -> None:
    """Most responses are cut at first; the policy learns to be short."""
    learned = math.exp(-step / (0.3 * made.steps))
    values["clipped"] = 0.05 + 0.6 * learned
    values["response_length"] = 1000 + 2500 * learned


def _explores(made: Made, step: int, values: Values) -> None:
    """A higher clip range lets the entropy grow."""
    values["entropy"] = made.entropy * (1 + 0.8 * step / made.steps)


def _sharp(made: Made, step: int, values: Values) -> None:
    """An instruct model has little entropy from the start."""
    values["entropy"] = 0.12 - 0.03 * step / made.steps
    values["kl"] *= 0.3


def _wanders(made: Made, _step: int, values: Values) -> None:
    """Batches that follow each other are alike."""
    made.drift = 0.95 * made.drift + made.dice.gauss(0, 0.01 * made.noise)
    values["reward"] += made.drift
    values["entropy"] *= math.exp(made.drift)
    values["gradient_norm"] *= math.exp(3 * made.drift)


def _slow_critic(_made: Made, step: int, values: Values) -> None:
    """The critic is worse than a constant for most of a hundred steps."""
    values["explained_variance"] = 0.6 - 2.5 * math.exp(-step / 60)


def _saturates(_made: Made, step: int, values: Values) -> None:
    """Nearly all problems are solved."""
    learned = 1 - math.exp(-step / 40)
    values["reward"] = 0.4 + 0.57 * learned
    values["validation"] = 0.4 + 0.5 * learned
    values["equal_groups"] = 0.2 + 0.5 * learned
    values["entropy"] = 0.3 - 0.17 * learned


def _sparse(made: Made, step: int, values: Values) -> None:
    """A small batch of hard problems: often no reward at all."""
    values["reward"] = 0.02 + 0.08 * step / made.steps
    values["validation"] = 0.05


def _reward_model(_made: Made, _step: int, values: Values) -> None:
    """The scores of a reward model have any scale, and may be negative."""
    values["reward"] = 4 * values["reward"] - 2.5
    values["validation"] = values["reward"]


def _epochs(_made: Made, step: int, values: Values) -> None:
    """The data comes in the same order in each epoch."""
    values["reward"] *= 1 + 0.12 * math.sin(2 * math.pi * step / 25)


def _moe(_made: Made, _step: int, values: Values) -> None:
    """The router of engine and trainer choose differently at times."""
    values["rollout_difference"] = 0.025
    values["rollout_kl"] = 0.008


def _gspo(_made: Made, _step: int, values: Values) -> None:
    values["clip_fraction"] = 0.15


def _asynchronous(_made: Made, _step: int, values: Values) -> None:
    values["staleness"] = 2.5
    values["rollout_kl"] = 0.004


HEALTHY: dict[str, Change] = {
    "learns": _nothing,
    "plateau": _plateau,
    "warmup": _warmup,
    "curriculum": _curriculum,
    "other data": _other_data,
    "long answers": _long_answers,
    "explores": _explores,
    "sharp": _sharp,
    "wanders": _wanders,
    "slow critic": _slow_critic,
    "saturates": _saturates,
    "sparse": _sparse,
    "reward model": _reward_model,
    "epochs": _epochs,
    "moe": _moe,
    "gspo": _gspo,
    "asynchronous": _asynchronous,
}


# --- failing ones ---------------------------------------------------------------------------------


def _toward(name: str, end: float) -> Change:
    """Return a metric's slow move to a level; shares of 0 to 1 move by the same ratio a step."""

    def change(made: Made, step: int, values: Values) -> None:
        done = made.done(step)
        start = values[name]
        is_ratio = start > 0 and end > 0
        values[name] = start * (end / start) ** done if is_ratio else start + (end - start) * done

    return change


def _at_once(name: str, factor: float) -> Change:
    def change(made: Made, step: int, values: Values) -> None:
        if step >= made.at:
            values[name] *= factor

    return change


def _linearly(name: str, end: float) -> Change:
    def change(made: Made, step: int, values: Values) -> None:
        values[name] += (end - values[name]) * made.done(step)

    return change


def _decay(made: Made, step: int, values: Values) -> None:
    """The reward loses a third to two thirds, as slowly as it came."""
    values["reward"] *= 1 - (0.3 + 0.3 * made.high) * made.done(step)
    values["validation"] = values["reward"] * 0.9


def _hacking(made: Made, step: int, values: Values) -> None:
    """The reward goes on rising, while the evaluation falls."""
    done = made.done(step)
    values["reward"] += 0.3 * done
    values["validation"] *= 1 - 0.4 * done


def _breaks(made: Made, step: int, values: Values) -> None:
    """The policy breaks within a few steps."""
    worse = max(0, step - made.at)
    values["reward"] = max(0.01, values["reward"] * math.exp(-worse / 4))
    values["kl"] *= 1 + min(400, worse * worse)
    values["entropy"] = max(0.01, values["entropy"] * math.exp(-worse / 5))
    values["gradient_norm"] *= 1 + min(20, worse)


def _no_reward(made: Made, step: int, _values: Values) -> None:
    """The reward server fails: all rewards are exactly 0."""
    made.is_zero = step >= made.at


def _no_responses(made: Made, step: int, values: Values) -> None:
    """The engine fails: the responses are empty."""
    _no_reward(made, step, values)
    if made.is_zero:
        values["response_length"] = 1.0


def _part_of_the_rewards(made: Made, step: int, values: Values) -> None:
    """One of several reward servers fails, which the agent has seen."""
    if step == made.at:
        made.failures = [RewardFailure("the reward server on pod2 did not answer", made.now - 30)]
    if step >= made.at:
        values["reward"] *= 0.6


FAILING: dict[str, tuple[str, Change]] = {
    "entropy to 0.02, by a ratio": ("entropy", _toward("entropy", 0.02)),
    "entropy to 0.03, by a line": ("entropy", _linearly("entropy", 0.03)),
    "entropy at once": ("entropy", _at_once("entropy", 0.1)),
    "entropy comes apart": ("entropy", _toward("entropy", 4.0)),
    "reward decays": ("reward", _decay),
    "reward at once": ("reward", _at_once("reward", 0.3)),
    "reward hacking": ("validation", _hacking),
    "policy breaks": ("reward", _breaks),
    "KL drifts": ("kl", _toward("kl", 2.5)),
    "gradients explode": ("gradient_norm", _at_once("gradient_norm", 30)),
    "gradients grow": ("gradient_norm", _toward("gradient_norm", 40)),
    "answers at their limit": ("clipped", _linearly("clipped", 0.9)),
    "equal groups": ("equal_groups", _linearly("equal_groups", 0.96)),
    "no spread in groups": ("group_spread", _toward("group_spread", 0.01)),
    "few groups are kept": ("kept_groups", _linearly("kept_groups", 5)),
    "large updates": ("clip_fraction", _toward("clip_fraction", 0.4)),
    "mismatch grows": ("rollout_difference", _toward("rollout_difference", 0.12)),
    "mismatch in KL grows": ("rollout_kl", _toward("rollout_kl", 0.15)),
    "mismatch at once": ("rollout_difference", _at_once("rollout_difference", 12)),
    "staleness grows": ("staleness", _linearly("staleness", 14)),
    "no reward": ("reward", _no_reward),
    "no responses": ("reward", _no_responses),
    "part of the rewards": ("reward", _part_of_the_rewards),
    "critic fails": ("explained_variance", _linearly("explained_variance", -0.2)),
}


class Look(NamedTuple):
    """The advice after a step."""

    step: int
    advice: tuple[Advice, ...]


def looks(kind: str, seed: int, every: int = 1, steps: int | None = None) -> Iterator[Look]:
    """Yield the advice on a training, after each so many steps and at its end."""
    made = Made(kind, seed, steps)
    change = HEALTHY[kind] if kind in HEALTHY else FAILING[kind][1]
    series = Series()
    progress = Progress(1, 0.0)
    dice = made.dice
    ends = sorted(dice.randrange(20, made.steps) for _ in range(made.restarts))
    step = 0
    while step < made.steps:
        step += 1
        made.now += SECONDS
        if ends and step == ends[0]:  # back to a checkpoint
            del ends[0]
            step = max(1, step - dice.randrange(1, 15))
            progress = progress.next_attempt(progress.attempt + 1, made.now)
        values = made.values(step)
        change(made, step, values)
        metrics = made.noisy(values)
        if kind == "sparse":
            batch = 64
            rate = max(0.0, min(1.0, values["reward"]))
            metrics["reward"] = sum(dice.random() < rate for _ in range(batch)) / batch
        if made.is_zero:
            metrics["reward"] = 0.0
        if step % made.evaluate_every:
            del metrics["validation"]
        named = {KEYS[name]: value for name, value in metrics.items()}
        if made.missing and dice.random() < made.missing:
            del named[dice.choice([*named])]
        series.add(progress.attempt, step, named, made.steps)
        progress = progress.with_step(StepSeen(step, made.steps, named, made.now))
        if step % every == 0 or step == made.steps:
            yield Look(step, advise(progress, series.points, made.failures))
