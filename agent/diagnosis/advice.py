"""Advice on a training that may go wrong: a series that leaves its own past. Advice only.

A rule compares the median of the last few steps with that of many steps before. It applies if the
change is large in three ways: against the spread of those steps, against their median, and at all.
A slow rise or fall over the whole training is none. Numbers that are not finite need no past.
"""

from __future__ import annotations

from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal

from agent.base.text import number_text
from agent.base.value import Value
from agent.frameworks.step_format import Meaning
from agent.job.progress import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.job.progress import Progress

    Points = Sequence[tuple[int, float]]

RECENT = 5  # so many of the last steps
PAST = 50  # are compared with so many before
LEAST_PAST = 20  # without so many there is no advice
POINTS = RECENT + PAST
COLLAPSE = 0.5  # a mean reward that fell by more than this share of its past has collapsed
_SIGMA = 1.349  # the quartiles of normal noise are so many standard deviations apart


class Rule(Value):
    """When a metric has left its past, and what may be the reason."""

    meaning: Meaning
    name: str  # as people call it
    turn: Literal["rose", "fell"]
    spreads: float  # the change is more than so many standard deviations of the steps before
    share: float  # and more than this share of their median
    least: float  # and more than this at all
    remedy: str


RULES = (
    Rule(
        meaning="reward",
        name="mean reward",
        turn="fell",
        spreads=4.0,
        share=0.2,
        least=0.02,
        remedy="Look at the last responses and at the reward server; an earlier checkpoint "
        "may be better",
    ),
    Rule(
        meaning="kl",
        name="KL",
        turn="rose",
        spreads=4.0,
        share=2.0,
        least=0.02,
        remedy="The policy leaves its reference quickly: a lower learning rate or a higher "
        "KL coefficient",
    ),
    Rule(
        meaning="entropy",
        name="entropy",
        turn="fell",
        spreads=4.0,
        share=0.5,
        least=0.05,
        remedy="The policy collapses to few responses: a lower learning rate, an entropy "
        "bonus, or a higher clip range",
    ),
    Rule(
        meaning="entropy",
        name="entropy",
        turn="rose",
        spreads=4.0,
        share=1.0,
        least=0.2,
        remedy="The policy comes apart: look at the last responses; a lower learning rate",
    ),
    Rule(
        meaning="gradient_norm",
        name="gradient norm",
        turn="rose",
        spreads=6.0,
        share=4.0,
        least=0.1,
        remedy="Look at the data of these steps; gradient clipping, or a lower learning rate",
    ),
    Rule(
        meaning="clipped",
        name="share of clipped responses",
        turn="rose",
        spreads=4.0,
        share=0.0,
        least=0.2,
        remedy="Responses reach their longest length: look at them; allow longer ones, or "
        "reward shorter",
    ),
)
"""All thresholds of advice; docs/progress.md has them as a table."""


class Advice(Value):
    """What may go wrong, and what to do."""

    what: str
    remedy: str
    state: Literal["look", "end"] = "look"  # "end": no further step is likely to repair it
    plain: str = ""  # `what` without the metrics' names, which are text of the job's output

    def to_dict(self) -> dict[str, str]:
        """Return it as `/status` has it for every reader."""
        return {"what": self.plain or self.what, "remedy": self.remedy, "state": self.state}

    def to_warning(self) -> dict[str, str]:
        """Return it as `/status` has warnings."""
        return {"check": "training", "what": self.what, "remedy": self.remedy}


def advise(progress: Progress, points: Callable[[Meaning, int], Points]) -> tuple[Advice, ...]:
    """Return the advice on a job's metrics; `points` returns the last ones with a meaning."""
    advice = [*_not_finite(progress)]
    for rule in RULES:
        found = by_rule(rule, points(rule.meaning, POINTS))
        if found is not None:
            advice.append(found)
    return tuple(advice)


def by_rule(rule: Rule, points: Points) -> Advice | None:
    """Return the advice of a rule for the last points of its metric, or None."""
    past = [value for _, value in points[:-RECENT]][-PAST:]
    recent = points[-RECENT:]
    if len(past) < LEAST_PAST:
        return None
    before = median(past)
    now = median(value for _, value in recent)
    change = now - before if rule.turn == "rose" else before - now

    low, _, high = quantiles(past, n=4)
    spread = (high - low) / _SIGMA
    if change <= max(rule.spreads * spread, rule.share * abs(before), rule.least):
        return None
    since = recent[0][0]
    change_text = f"from {number_text(before)} to {number_text(now)}"
    what = f"the {rule.name} {rule.turn} {change_text} since step {since}"
    is_collapse = rule.meaning == "reward" and change > COLLAPSE * abs(before)
    return Advice(what, rule.remedy, "end" if is_collapse else "look")


_NAMES: Mapping[Meaning, str] = {rule.meaning: rule.name for rule in RULES}


def _not_finite(progress: Progress) -> tuple[Advice, ...]:
    """Return advice on metrics of the rules, and losses, whose newest value is nan or infinite."""
    watched = {name for meaning in _NAMES for name in names_of(meaning)}
    broken = [name for name in progress.not_finite if name in watched or "loss" in name.lower()]
    if not broken:
        return ()
    at = "" if progress.last is None else f" at step {progress.last}"
    verb = "is" if len(broken) == 1 else "are"
    what = f"{', '.join(broken)} {verb} nan or infinite{at}"
    remedy = (
        "The weights may be lost: stop, and go on from a checkpoint before it, with a lower "
        "learning rate or in bfloat16"
    )
    plain = f"a metric or loss is nan or infinite{at}"
    return (Advice(what, remedy, "end", plain),)
