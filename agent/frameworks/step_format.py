"""How a job prints its steps: kinds of lines as data, and what the names of metrics mean.

Each framework's table has its own `StepFormat`; `GENERAL` is for any other job. A line is
first searched for the sign of a kind, which most lines lack, then for its expression. Expressions
have bounded repetitions, so that the time for a line grows with its length only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

Meaning = Literal[
    "reward",
    "kl",
    "response_length",
    "clipped",
    "entropy",
    "gradient_norm",
    "step_seconds",
    "throughput",
    "equal_groups",
    "kept_groups",
    "group_spread",
    "clip_fraction",
    "rollout_kl",
    "rollout_difference",
    "staleness",
    "explained_variance",
    "samples_seconds",
    "engines_idle",
    "validation",  # last: a run may have dozens, and only so many keys are kept
]
"""What people and rules look at, whatever a framework calls it."""
MEANINGS: tuple[Meaning, ...] = get_args(Meaning)
Notation = Literal["", "dashes", "dict", "equals"]
"""How metrics are written behind a step: `- key:1 - key:2`, `{'key': 1}`, or `key=1 key: 2`.

Where the last is expected, an object counts as well.
"""


class KeyMeaning(Value, forbid_unknown_fields=True):
    """The names of a framework's metrics by meaning; the first that a run has counts.

    `*` in a name stands for any text.
    """

    reward: tuple[str, ...] = ()
    kl: tuple[str, ...] = ()
    response_length: tuple[str, ...] = ()
    clipped: tuple[str, ...] = ()  # the share of responses that were cut at the longest length
    entropy: tuple[str, ...] = ()
    gradient_norm: tuple[str, ...] = ()
    step_seconds: tuple[str, ...] = ()
    throughput: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()  # the mean reward or accuracy of an evaluation
    equal_groups: tuple[str, ...] = ()  # the share of groups whose rewards are all equal
    kept_groups: tuple[str, ...] = ()  # the percentage of groups that a filter has kept
    group_spread: tuple[str, ...] = ()  # the mean standard deviation of the rewards of a group
    clip_fraction: tuple[str, ...] = ()  # the share of tokens whose ratio was clipped
    rollout_kl: tuple[str, ...] = ()  # the KL between the engine and the trainer, same weights
    rollout_difference: tuple[str, ...] = ()  # the same as a mean absolute difference
    staleness: tuple[str, ...] = ()  # how many versions older the weights of the samples are
    explained_variance: tuple[str, ...] = ()  # the share of the returns' variance, of a critic
    samples_seconds: tuple[str, ...] = ()  # seconds of a step until its samples are there
    engines_idle: tuple[str, ...] = ()  # the share of a step in which the engines have no request

    def names(self, meaning: Meaning) -> tuple[str, ...]:
        """Return the names with a meaning."""
        names: tuple[str, ...] = getattr(self, meaning)
        return names

    def value(self, meaning: Meaning, metrics: Mapping[str, float]) -> float | None:
        """Return the value with a meaning among metrics; None without one."""
        return next((metrics[name] for name in self.names(meaning) if name in metrics), None)


# Which of several lines with steps counts: a later one of these.
GENERAL_BAR = 1  # A progress bar of any program
GENERAL_LINE = 2
BAR = 3  # A framework's progress bar
LINE = 4  # A framework's line with the metrics of a step
FILE = 5  # AGENT_PROGRESS_FILE


class LineFormat(Value, forbid_unknown_fields=True):
    """A kind of line: its sign, and an expression that finds its numbers.

    The expression's groups are `step`, `of` (the number of steps), `epoch` (0, 1, …, of `of` steps
    each), `epochs`; any other group is a metric.
    """

    shows: Literal["step", "values", "total", "evaluation", "checkpoint"]
    sign: str  # a text that each such line contains
    pattern: str = ""  # '' where the sign suffices
    notation: Notation = ""  # of the metrics behind the match
    rank: int = LINE
    begins: bool = False  # whether the line begins with it, behind what a launcher or logger writes


class StepFormat(Value, forbid_unknown_fields=True):
    """How a framework prints its steps."""

    lines: tuple[LineFormat, ...]
    meaning: KeyMeaning = KeyMeaning()
    of_evaluation: tuple[str, ...] = ()  # beginnings of names that only an evaluation has
    shown: tuple[str, ...] = ()  # names that people look at; `*` at the end: any that begin so


STEP = "[0-9]{1,12}"
"""Digits of a step: more of them are no step, and int() refuses 4,301."""
NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf)"
_BAR = (
    rf"\d{{1,3}}%\|[^|]{{0,500}}\| {{0,4}}(?P<step>{STEP})/(?P<of>{STEP}) \["
    r"[^\s,\]]{1,40}(?:, {1,3}[^\s,\]]{1,40})?"
)
"""A bar of tqdm, up to its metrics: `12%|█▏ | 3/25 [00:10<01:12,  3.3s/it`."""


def bar(description: str, rank: int = BAR) -> LineFormat:
    """Return the format of a bar of tqdm with a description, which is an expression."""
    pattern = rf"{description}:? {{0,4}}{_BAR}"
    return LineFormat("step", "%|", pattern, notation="equals", rank=rank, begins=True)


OWN_LINES = {
    "mean reward": LineFormat(
        "step",
        " mean reward ",
        rf"\bstep (?P<step>{STEP})/(?P<of>{STEP}) mean reward (?P<reward>{NUMBER})(?![\w.])",
        notation="equals",
    )
}
"""The line of the rehearsal and of our own trainer for TRL, by its name in their tables."""


def _json_with(key: str) -> LineFormat:
    """Return the format of an object in JSON or Python with a step and a metric."""
    pattern = rf"(?=\{{.{{0,400}}[\"'](?:global_)?step[\"']: ?(?P<step>{STEP})[,}}])"
    return LineFormat("step", key, pattern, notation="dict", rank=GENERAL_LINE, begins=True)


def _long(shows: Literal["evaluation", "checkpoint"], sign: str, words: str) -> LineFormat:
    """Return the format of a line that begins with what takes longer than a step."""
    pattern = rf"(?i:(?:\w{{1,20}} ){{0,2}}{words}\b)"
    return LineFormat(shows, sign, pattern, rank=GENERAL_LINE, begins=True)


_WORD = r"(?i:(?:global[ _])?(?:step|iteration|iter|update))"
SLIME = (
    LineFormat(
        "step",
        "{'train/",
        rf"step (?P<step>{STEP}): (?=\{{'train/)",
        notation="dict",
        begins=True,
    ),
    *(
        LineFormat("values", sign, rf"{sign}\d{{1,12}}: (?=\{{)", notation="dict", begins=True)
        for sign in ("rollout ", "perf ", "eval ")
    ),
)
"""The lines of slime and miles, which are also read without the recipe."""
PRIME_RL = LineFormat(
    "values",
    " | Reward ",
    rf"Step \d{{1,12}} \| {{1,8}}[\w.: ]{{1,20}} \| Reward (?P<reward>{NUMBER})(?![\w.])",
)
"""The line of prime-rl's orchestrator; its trainer's metrics come by AGENT_PROGRESS_FILE."""
GENERAL = StepFormat(
    lines=(
        *SLIME,
        PRIME_RL,
        LineFormat(
            "step",
            "/",
            rf"{_WORD}[ =:#]{{0,12}}(?P<step>{STEP}) ?/ {{0,12}}(?P<of>{STEP})(?![\w./])",
            notation="equals",
            rank=GENERAL_LINE,
            begins=True,
        ),
        LineFormat(
            "step",
            "loss",
            rf"{_WORD}[ =:#]{{1,12}}(?P<step>{STEP})(?![\w./])(?=.{{0,200}}loss)",
            notation="equals",
            rank=GENERAL_LINE,
            begins=True,
        ),
        _json_with("loss"),
        _json_with("reward"),
        # What may take longer than a step, in anybody's words at the begin of a line.
        _long("evaluation", "valuat", "evaluat(?:e|ing|ion)"),
        _long("evaluation", "alidat", "validat(?:e|ing|ion)"),
        _long("checkpoint", "ing ", "(?:sav|writ|upload|export|merg)ing"),
        bar(r"(?i:epoch) (?P<epoch>\d{1,6})", GENERAL_BAR),
        bar("", GENERAL_BAR),
    ),
    meaning=KeyMeaning(
        reward=(
            *("reward", "mean_reward", "reward_mean", "reward/mean"),
            *("rollout/raw_reward", "rollout/rewards"),
        ),
        kl=("kl", "kl_loss", "kl_div", "train/kl_loss", "train/ppo_kl"),
        response_length=(
            *("response_length", "completion_length"),
            *("rollout/response_len/mean", "rollout/response_lengths"),
        ),
        clipped=("clipped_ratio", "truncated_rate", "rollout/truncated_ratio", "rollout/truncated"),
        entropy=("entropy", "train/entropy_loss", "entropy/all/mean"),
        gradient_norm=(
            *("grad_norm", "gradient_norm", "total_norm"),
            *("train/grad_norm", "optim/grad_norm"),
        ),
        step_seconds=("step_time", "step_seconds", "perf/step_time", "time/step"),
        throughput=("tokens_per_second", "throughput"),
        validation=("eval/reward", "eval_reward", "val_reward", "val/reward", "eval/accuracy"),
        clip_fraction=("train/pg_clipfrac", "clipfrac", "clip_fraction"),
        rollout_kl=("mismatch_kl/all/mean",),
        rollout_difference=("train/train_rollout_logprob_abs_diff",),
        staleness=("staleness", "staleness/mean"),
        explained_variance=("explained_variance", "train/explained_variance"),
        samples_seconds=("samples_seconds", "perf/train_wait_time", "time/wait_for_batch"),
    ),
    of_evaluation=("eval_", "eval/", "val_", "val/"),
    shown=("reward", "loss", "loss/mean", "kl", "entropy", "grad_norm", "lr", "learning_rate"),
)
"""Lines of any program: `step 3/40 loss=0.5`, JSON, and bars without a description."""
