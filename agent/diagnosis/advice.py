"""Advice on a training that may go wrong. Advice only: it ends nothing.

The table RULES of training_rules.py says when each metric goes wrong; here are the three ways to
look at one. A reward that falls in one step to 0, or while a service does not answer, is named as
that: the policy has not changed. A fall of the reward alone may be a change of the data, so that
it never counts as "end": that takes a second metric, which only a broken policy has. Numbers that
are not finite need no past.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from agent.base import times
from agent.base.text import number_text
from agent.base.value import Value
from agent.decisions.shared import HERE
from agent.diagnosis.training_rules import NAMES, RULES, Rule, Shape, Turn
from agent.frameworks.step_format import MEANINGS, Meaning
from agent.job.progress import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.decisions.shared import Outage
    from agent.job.progress import Progress

    Points = Sequence[tuple[int, float]]
    Known = Mapping[Meaning, Points]

RECENT = 5  # sudden: so many of the last steps
PAST = 50  # are compared with so many before
LEAST_PAST = 20  # without so many steps before there is no advice
WINDOW = 1_000  # slow, level: steps that are looked at
LEAST_WINDOW = 60  # slow: values of the shortest window; shorter ones move by chance
SHORTER = 0.7  # slow: each window is so much shorter than the one before
STEADY = 3  # slow: each quarter moves by the mean movement, divided by this, at least
LASTING = 10  # level: so many of the last values, in a training with five times as many
LEAST_LASTING = 3  # level: and no fewer, of which one may be an outlier
RECOVERY = 40  # level: steps in which it must not steadily move back
COLLAPSE = 0.5  # a mean reward that fell by more than this share of its past has collapsed
LEAST_BEFORE = 10  # steps with a reward before a step without one
ZEROS = 3  # steps in a row count also where one may be chance
ALWAYS_ZERO = 30  # steps from the first on without any reward are no start of learning
_LEAST_SPREADS = 2.0  # standard deviations: a reward nearer to 0 is 0 at times
LEFT_OVER = 0.02  # of the reward before: a server that fails may still answer some requests
PROBED_AFTER = 3 * (times.SERVICE_PROBED + times.SERVICE_ANSWERS)  # a service that hangs is down
EMPTY = 0.1  # of the usual length: an engine that fails returns empty responses
NOT_FINITE = 3  # steps in a row: fp16 skips single ones, and goes on
_SIGMA = 1.349  # the quartiles of normal noise are so many standard deviations apart
_STEPS = 1.128  # normal values that follow each other differ by so many, in the mean
_BEND = 6**0.5  # the noise of a step, less the mean of its neighbors, doubled
_BLOCKS = 1.8  # the noise of a difference of two medians, times the root of their values' number
_MEDIANS = 3.5  # the noise of two quarters' difference, times the root of the window's length
_NO_REWARD = (
    "Nothing is learned: look at responses and at what the reward expects of them; the form of "
    "an answer, the reward server, or data that is too hard"
)


class Advice(Value):
    """What may go wrong, and what to do."""

    what: str
    remedy: str
    state: Literal["look", "end"] = "look"  # "end": no further step is likely to repair it
    plain: str = ""  # `what` without the metrics' names, which are text of the job's output
    meaning: Meaning | None = None  # of the metric, where it is one
    is_reward_lost: bool = False  # whether the reward was lost at once, and not by the policy
    lost_by: str = ""  # the service that failed in that step, as a sentence, if one did


class RewardFailure(Value):
    """What failed beside the policy, on the clock of the progress."""

    what: str
    since: float
    until: float | None = None  # None while it lasts
    plain: str = ""  # `what` without text of the job's output


def failures_of(outages: Iterable[Outage]) -> tuple[RewardFailure, ...]:
    """Return the times in which services did not answer."""
    failures = []
    for outage in outages:
        where = "" if outage.node == HERE else f" on {outage.node}"
        what = f"the {outage.service}{where} did not answer"
        failures.append(RewardFailure(what, outage.since, outage.until))
    return tuple(failures)


def advise(
    progress: Progress,
    points: Callable[[Meaning, int], Points],
    failures: Iterable[RewardFailure] = (),
) -> tuple[Advice, ...]:
    """Return the advice on a job's metrics; `points` returns the last ones with a meaning."""
    known = {meaning: points(meaning, WINDOW) for meaning in MEANINGS}
    advice = [*_not_finite(progress), *_without_reward(progress, known, failures)]
    named = {said.meaning for said in advice}

    # Of the rules for one metric the first that applies is shown.
    changes: dict[Meaning, tuple[Rule, Change]] = {}
    for rule in RULES:
        if rule.meaning in named or rule.meaning in changes:
            continue
        change = change_by(rule, known)
        if change is not None:
            changes[rule.meaning] = rule, change

    # The reward alone may have fallen with other data.
    is_broken = any(rule.is_grave for rule, _ in changes.values())
    for rule, change in changes.values():
        said = advice_of(rule, change)
        if is_broken and rule.meaning == "reward" and change.is_collapse:
            said = replace(said, state="end")
        advice.append(said)
    return tuple(advice)


class Change(NamedTuple):
    """Two levels of a metric."""

    before: float
    now: float
    since: int  # the step at which it began, or was first seen
    spread: float  # by how much they differ by chance: one standard deviation

    @property
    def is_collapse(self) -> bool:
        """Return whether most of what was there is lost."""
        return self.before - self.now > COLLAPSE * abs(self.before)


def change_by(rule: Rule, known: Known) -> Change | None:
    """Return the change by which a rule applies; None if it does not."""
    for change in _CHANGES[rule.shape](known[rule.meaning], rule):
        if _applies(rule, change) and _is_beside(rule, change, known):
            return change
    return None


def _applies(rule: Rule, change: Change) -> bool:
    """Return whether a change is larger than all thresholds of a rule."""
    turn = _sign(rule.turn)
    least = max(rule.spreads * change.spread, rule.share * abs(change.before), rule.least)
    is_large = least == 0 or turn * (change.now - change.before) > least
    is_beyond = rule.limit is None or turn * (change.now - rule.limit) >= 0
    return is_large and is_beyond


def _is_beside(rule: Rule, change: Change, known: Known) -> bool:
    """Return whether the other metric of a rule turned as it says over the same steps."""
    if rule.beside is None:
        return True
    meaning, turn = rule.beside
    values = [value for step, value in known[meaning] if step >= change.since]
    if len(values) < LEAST_PAST:
        return False
    first, *_, last = _quarters(values)
    return _sign(turn) * (last - first) > rule.spreads * _noise(values, len(values))


def _sudden(points: Points, _rule: Rule) -> Iterator[Change]:
    """Yield the change of the last few steps."""
    past = [value for _, value in points[:-RECENT]][-PAST:]
    recent = points[-RECENT:]
    if len(past) >= LEAST_PAST:
        now = median(value for _, value in recent)
        yield Change(median(past), now, recent[0][0], _spread(past))


def _slow(points: Points, rule: Rule) -> Iterator[Change]:
    """Yield the steady changes over windows up to now, the longest one first."""
    values = [value for _, value in points]
    length = float(len(values))
    while length >= (rule.points or LEAST_WINDOW):
        window = values[-int(length) :]
        if _is_steady(window, _sign(rule.turn)):
            first, *_, last = _quarters(window)
            since = points[-len(window)][0]
            yield Change(first, last, since, _noise(values, len(window)))
        length *= SHORTER


def _level(points: Points, rule: Rule) -> Iterator[Change]:
    """Yield the change from the best steps of the training, unless it moves back."""
    values = [value for _, value in points]
    turn = _sign(rule.turn)
    size = min(LASTING, max(LEAST_LASTING, len(values) // 5))
    if len(values) < (rule.points or LEAST_PAST) or _is_steady(values[-RECOVERY:], -turn):
        return
    begins = range(len(values) % size, len(values) - size, size)
    blocks = [(turn * median(values[begin : begin + size]), begin) for begin in begins]
    best, begin = min(blocks)
    now = median(values[-size:])
    noise = _BLOCKS * _step_noise(values) / size**0.5 if rule.spreads else 0.0
    yield Change(turn * best, now, points[begin][0], noise)


_CHANGES: dict[Shape, Callable[[Points, Rule], Iterator[Change]]] = {
    "sudden": _sudden,
    "slow": _slow,
    "level": _level,
}


def _sign(turn: Turn) -> int:
    return 1 if turn == "rose" else -1


def _quarters(values: Sequence[float]) -> list[float]:
    """Return the medians of the four quarters of at least four values."""
    edges = [len(values) * part // 4 for part in range(5)]
    return [median(values[begin:end]) for begin, end in pairwise(edges)]


def _is_steady(values: Sequence[float], sign: int) -> bool:
    """Return whether each quarter moved on, by a part of the mean movement at least."""
    quarters = _quarters(values)
    moved = sign * (quarters[-1] - quarters[0])
    least = moved / (len(quarters) - 1) / STEADY
    steps = [sign * (after - before) for before, after in pairwise(quarters)]
    return moved > 0 and all(step >= least for step in steps)


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation of normal noise, which outliers do not change."""
    low, _, high = quantiles(values, n=4)
    return (high - low) / _SIGMA


def _step_noise(values: Sequence[float]) -> float:
    """Return the standard deviation of a step, whatever the trend is."""
    triples = zip(values, values[1:], values[2:], strict=False)
    bends = [before - 2 * value + after for before, value, after in triples]
    return float(_spread(bends) / _BEND)


def _noise(values: Sequence[float], length: int) -> float:
    """Return by how much the medians of two quarters of a window differ by chance."""
    return float(_MEDIANS * _step_noise(values) / length**0.5)


def advice_of(rule: Rule, change: Change) -> Advice:
    """Return the advice of a rule that applies."""
    name = NAMES[rule.meaning]
    levels = f"from {number_text(change.before)} to {number_text(change.now)}"
    match rule.shape:
        case "sudden":
            what = f"the {name} {rule.turn} {levels} since step {change.since}"
        case "slow":
            what = f"the {name} slowly {rule.turn} {levels} since step {change.since}"
        case "level" if rule.share:
            what = f"the {name} {rule.turn} {levels}, after step {change.since}"
        case "level":
            what = f"the {name} is {number_text(change.now)}"
    if rule.beside is not None:
        meaning, turn = rule.beside
        what += f", while the {NAMES[meaning]} {turn}"
    return Advice(what, rule.remedy, meaning=rule.meaning)


# --- a reward that is missing ---------------------------------------------------------------------


def _without_reward(
    progress: Progress, known: Known, failures: Iterable[RewardFailure]
) -> Iterator[Advice]:
    """Yield advice on a reward that was lost in one step: the policy has not changed."""
    rewards = known["reward"]
    values = [value for _, value in rewards]
    if len(values) >= ALWAYS_ZERO and not any(values):
        what = f"the mean reward is 0 in each of {len(values)} steps"
        yield Advice(what, _NO_REWARD, meaning="reward")
        return

    # Did it fall in the step in which something failed?
    for failure in failures:
        for begin in _steps_at(progress, rewards, failure):
            loss = _loss(values, begin)
            if loss is not None:
                advice = _lost_reward(rewards[begin][0], *loss, failure)
                yield replace(advice, lost_by=failure.plain or failure.what)
                return

    # Did it turn to 0 at once?
    scale = abs(median(values)) if values else 0.0
    begin = len(values)
    while begin and abs(values[begin - 1]) <= LEFT_OVER * scale:
        begin -= 1
    loss = _loss_of_all(values, begin)
    if loss is None:
        return
    since = rewards[begin][0]
    why = "a reward server or an engine failed, or the data changed"
    lengths = known["response_length"]
    usual = [length for step, length in lengths if step < since][-PAST:]
    meanwhile = [length for step, length in lengths if step >= since]
    if usual and meanwhile and median(meanwhile) < EMPTY * median(usual):
        why = "the responses are empty, so an engine failed"
    yield _lost_reward(since, *loss, RewardFailure(why, 0.0))


def _steps_at(progress: Progress, rewards: Points, failure: RewardFailure) -> range:
    """Return the places of the steps of the running attempt that a failure may have hit first."""
    each = progress.seconds_per_step
    is_over = failure.until is not None and failure.until < progress.began_at
    if each is None or is_over or progress.last is None or progress.last_at is None:
        return range(0)

    # A probe finds it some time later; what fails late in a step shows in the next one.
    ago = (progress.last_at - max(failure.since, progress.began_at)) / each
    first = progress.last - ago - PROBED_AFTER / each
    last = progress.last - ago + 2
    places = [place for place, (step, _) in enumerate(rewards) if first < step <= last]
    return range(places[0], places[-1] + 1) if places else range(0)


def _loss(values: Sequence[float], begin: int) -> tuple[float, float] | None:
    """Return the levels before and now if the values fell at once, and stay low; else None."""
    before = values[:begin][-PAST:]
    if begin >= len(values) or len(before) < LEAST_BEFORE:
        return None
    level = median(before[-LEAST_BEFORE:])
    least = max(_FALL.spreads * _step_noise(before), _FALL.share * abs(level), _FALL.least)
    after = values[begin:]
    now = median(after[-RECENT:])
    highest = max(after[0], median(after[:RECENT]), now)
    is_at_once = before[-1] >= level - least > highest
    return (level, now) if is_at_once else None


def _loss_of_all(values: Sequence[float], begin: int) -> tuple[float, float] | None:
    """Return the levels before and now if values near 0 are no chance; else None."""
    before = values[:begin][-PAST:]
    after = values[begin:]
    if not after or len(before) < LEAST_BEFORE:
        return None
    level = median(before)
    steps = [abs(later - value) for value, later in pairwise(before)]
    noise = max(_step_noise(before), fmean(steps) / _STEPS)
    spreads = _FALL.spreads if len(after) < ZEROS else _LEAST_SPREADS
    is_at_once = before[-1] > level / 2 > 0
    return (level, median(after)) if is_at_once and level > spreads * noise else None


def _lost_reward(since: int, before: float, now: float, failure: RewardFailure) -> Advice:
    """Return the advice on a reward that was lost at a step."""
    levels = f"from {number_text(before)} to {number_text(now)}"
    what = f"the mean reward fell {levels} in one step, at step {since}"
    remedy = (
        "Mend what failed, look at the last responses, and go on from a checkpoint before step "
        f"{since}: steps without rewards teach nothing, or wrong"
    )
    plain = f"{what}: {failure.plain or failure.what}"
    text = f"{what}: {failure.what}"
    return Advice(text, remedy, plain=plain, meaning="reward", is_reward_lost=True)


_FALL = next(rule for rule in RULES if (rule.meaning, rule.shape) == ("reward", "sudden"))


# --- numbers that are not finite ------------------------------------------------------------------


def _not_finite(progress: Progress) -> tuple[Advice, ...]:
    """Return advice on metrics of the rules, and losses, whose newest value is nan or infinite."""
    watched = {name for meaning in NAMES for name in names_of(meaning)}
    broken = [name for name in progress.not_finite if name in watched or "loss" in name.lower()]
    if not broken:
        return ()
    at = "" if progress.last is None else f" at step {progress.last}"
    verb = "is" if len(broken) == 1 else "are"
    what = f"{', '.join(broken)} {verb} nan or infinite{at}"
    remedy = (
        "The weights may be lost: if it lasts, stop, and go on from a checkpoint before it, with "
        "a lower learning rate or in bfloat16"
    )
    plain = f"a metric or loss is nan or infinite{at}"
    steps = 0
    if progress.not_finite_since is not None and progress.last is not None:
        steps = progress.last - progress.not_finite_since + 1
    return (Advice(what, remedy, "end" if steps >= NOT_FINITE else "look", plain),)
