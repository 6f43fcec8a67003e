"""When a metric of a training goes wrong: all rules of advice as one table.

Each row looks at one metric in one of three ways, and applies if a level before and the level now
differ by more than all of its thresholds. advice.py has the three ways.

- sudden: the last few steps, against the many before
- slow: the last quarter of a long window, against its first one, where each quarter moved on
- level: the last steps, against the best ones of the whole training, unless they move back

`frameworks` has each metric's names. Of the rows of one metric the first that applies is shown.

A `limit` says what is unhealthy in any training, and has its reason beside its row. `spreads` keeps
chance out: noise exceeds four standard deviations once in 30,000 steps; three are enough for a slow
change whose other numbers are far above noise. `share` and `least` leave out what a person would
not call a change. Where a row gives no reason for them, they are what the simulated trainings of
test_advice.py allow: at most one healthy one in fifty has advice, and at most one failure in fifty
has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agent.base.value import Value
from agent.frameworks.step_format import Meaning

if TYPE_CHECKING:
    from collections.abc import Mapping

Turn = Literal["rose", "fell"]
Shape = Literal["sudden", "slow", "level"]

LEAST_VALIDATIONS = 6  # evaluations are few
PATIENCE = 100  # steps: a critic begins without any knowledge


class Rule(Value):
    """When a metric goes wrong, and what to do."""

    meaning: Meaning
    shape: Shape
    turn: Turn
    remedy: str
    spreads: float = 0.0  # the change is more than so many standard deviations of chance
    share: float = 0.0  # and more than this share of the level before
    least: float = 0.0  # and more than this at all
    limit: float | None = None  # and the level now is beyond this
    beside: tuple[Meaning, Turn] | None = None  # and this other metric did that meanwhile
    points: int | None = None  # so many values are needed, where it is not the usual number
    is_grave: bool = False  # only a broken policy has it: with a reward that collapsed, "end"


NAMES: Mapping[Meaning, str] = {
    "reward": "mean reward",
    "validation": "validation reward",
    "kl": "KL",
    "entropy": "entropy",
    "gradient_norm": "gradient norm",
    "clipped": "share of clipped responses",
    "equal_groups": "share of groups with equal rewards",
    "kept_groups": "percentage of groups that the filter keeps",
    "group_spread": "spread of rewards in a group",
    "clip_fraction": "clip fraction",
    "rollout_kl": "KL of engine and trainer",
    "rollout_difference": "difference of engine and trainer",
    "staleness": "staleness of the samples",
    "explained_variance": "critic's explained variance",
}
"""The metrics that rules look at, as people call them."""

_OTHER_DATA = (
    "If the data changed there, that is the reason. Otherwise look at the last responses and at "
    "the reward server; an earlier checkpoint may be better"
)
_WORSE = (
    "The policy gets worse, or the data harder: compare evaluations; an earlier checkpoint, a "
    "lower learning rate, or a higher KL coefficient"
)
_HACKING = (
    "The policy learns to please the reward, not the task: look at responses with a high reward; "
    "mend the reward or raise the KL coefficient, and go on from an earlier checkpoint"
)
_CARRIES_NOT_OVER = "What it learns does not carry over: an earlier checkpoint may be better"
_LEAVES_REFERENCE = (
    "The policy leaves its reference: a lower learning rate or a higher KL coefficient"
)
_FEW_RESPONSES = (
    "The policy collapses to few responses: a lower learning rate, an entropy bonus, or a higher "
    "clip range"
)
_COMES_APART = "The policy comes apart: look at the last responses; a lower learning rate"
_GRADIENTS = "Look at the data of these steps; gradient clipping, or a lower learning rate"
_NO_GRADIENT = (
    "Nothing is learned: all rewards of each group are the same, or no parameter is trained"
)
_LONGEST = (
    "Responses reach their longest length: look at them; allow longer ones, or reward shorter"
)
_EQUAL_REWARDS = (
    "Groups with equal rewards teach nothing: other data, neither too easy nor too hard, more "
    "responses a prompt, or a filter for such groups"
)
_THROWN_AWAY = (
    "Most responses are thrown away: other data, neither too easy nor too hard, or more responses "
    "a prompt"
)
_LARGE_UPDATES = "Updates are too large: a lower learning rate, or fewer updates from one batch"
_MISMATCH = (
    "The engine samples from another policy than the trainer updates: look at the weight sync, "
    "precision and kernels of both; correct it by importance sampling"
)
_STALE = (
    "Samples are much older than the policy: fewer responses in flight, more engines, or a lower "
    "limit of staleness"
)
_CRITIC = (
    "The critic does not follow the policy: look at its loss; a longer warmup, or another learning "
    "rate of the critic"
)

RULES = (
    # The best steps may have had easier data: most of their reward has to be lost. A slow fall
    # needs the least, since each quarter of it goes on.
    Rule("reward", "sudden", "fell", _OTHER_DATA, spreads=4.0, share=0.2, least=0.02),
    Rule("reward", "level", "fell", _OTHER_DATA, spreads=4.0, share=0.6, least=0.05),
    Rule("reward", "slow", "fell", _WORSE, spreads=4.0, share=0.12, least=0.03),
    # 8% of 0.6 is twice what an evaluation of 500 problems differs by chance.
    Rule(
        "validation",
        "level",
        "fell",
        _HACKING,
        spreads=4.0,
        share=0.08,
        least=0.02,
        beside=("reward", "rose"),
        points=LEAST_VALIDATIONS,
    ),
    Rule(
        "validation",
        "level",
        "fell",
        _CARRIES_NOT_OVER,
        spreads=4.0,
        share=0.08,
        least=0.02,
        points=LEAST_VALIDATIONS,
    ),
    # A healthy KL stays below 0.3; without a KL loss some reach 0.5.
    Rule("kl", "level", "rose", _LEAVES_REFERENCE, share=2.0, limit=1.0, is_grave=True),
    Rule("kl", "sudden", "rose", _LEAVES_REFERENCE, spreads=4.0, share=2.0, least=0.02),
    # At 0.05 nearly all responses to a prompt are the same; instruct models begin near 0.1.
    Rule("entropy", "level", "fell", _FEW_RESPONSES, share=0.5, limit=0.05, is_grave=True),
    Rule("entropy", "level", "fell", _FEW_RESPONSES, share=0.75, limit=0.1),
    Rule("entropy", "sudden", "fell", _FEW_RESPONSES, spreads=4.0, share=0.5, least=0.05),
    # Human text has about 1; at 2 words are nearly random.
    Rule("entropy", "level", "rose", _COMES_APART, share=2.0, limit=2.0, is_grave=True),
    Rule("entropy", "sudden", "rose", _COMES_APART, spreads=4.0, share=1.0, least=0.2),
    # Gradient norms jump: five times as large counts, and, for good, above the usual clip of 1.
    Rule("gradient_norm", "sudden", "rose", _GRADIENTS, spreads=6.0, share=4.0, least=0.1),
    Rule("gradient_norm", "level", "rose", _GRADIENTS, share=4.0, limit=1.0),
    Rule("gradient_norm", "level", "fell", _NO_GRADIENT, limit=0.0),
    # Long reasoning begins with up to half of the responses cut, and shortens.
    Rule("clipped", "sudden", "rose", _LONGEST, spreads=4.0, least=0.2),
    Rule("clipped", "level", "rose", _LONGEST, limit=0.5),
    # Where a fifth of the groups teaches, five times the responses are needed for a batch; so it
    # is where the filter keeps a fifth, or a fifth of the spread is left.
    Rule("equal_groups", "level", "rose", _EQUAL_REWARDS, limit=0.8),
    Rule("kept_groups", "level", "fell", _THROWN_AWAY, limit=20.0),
    Rule("group_spread", "level", "fell", _EQUAL_REWARDS, share=0.8),
    # PPO clips a few per cent of the tokens; GSPO, by whole responses, some 15.
    Rule("clip_fraction", "level", "rose", _LARGE_UPDATES, limit=0.25),
    Rule("clip_fraction", "slow", "rose", _LARGE_UPDATES, spreads=3.0, share=3.0, limit=0.1),
    # About 0.001 is usual, with experts up to 0.01.
    Rule("rollout_kl", "level", "rose", _MISMATCH, limit=0.05),
    Rule("rollout_kl", "slow", "rose", _MISMATCH, spreads=3.0, share=2.0, limit=0.02),
    Rule("rollout_kl", "sudden", "rose", _MISMATCH, spreads=4.0, share=2.0, least=0.01),
    # About 0.003 to 0.02 is usual, with experts up to 0.04.
    Rule("rollout_difference", "level", "rose", _MISMATCH, limit=0.06),
    Rule("rollout_difference", "slow", "rose", _MISMATCH, spreads=3.0, share=2.0, limit=0.03),
    Rule("rollout_difference", "sudden", "rose", _MISMATCH, spreads=4.0, share=2.0, least=0.02),
    # Asynchronous trainers allow 1 to 4 versions; 8 is twice the most.
    Rule("staleness", "level", "rose", _STALE, limit=8.0),
    Rule("staleness", "slow", "rose", _STALE, spreads=3.0, share=1.0, limit=3.0),
    # At 0 the critic is worth no more than a constant; critics reach 0.5 to 0.9.
    Rule("explained_variance", "level", "fell", _CRITIC, limit=0.0, points=PATIENCE),
    Rule("explained_variance", "slow", "fell", _CRITIC, spreads=3.0, share=0.4, least=0.2),
    Rule("explained_variance", "sudden", "fell", _CRITIC, spreads=4.0, share=0.4, least=0.2),
)
"""All thresholds of advice; docs/progress.md has them as a table."""
