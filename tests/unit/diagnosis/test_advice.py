"""Advice on a training: each rule has series that fail, beside healthy ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.shared import HERE, Outage
from agent.diagnosis.advice import (
    LASTING,
    LEAST_PAST,
    LEAST_WINDOW,
    PAST,
    RECENT,
    Advice,
    change_by,
)
from agent.diagnosis.training_rules import NAMES, RULES
from agent.frameworks import all_frameworks
from agent.frameworks.openrlhf import FRAMEWORK as OPENRLHF
from agent.frameworks.trl import FRAMEWORK as TRL
from agent.frameworks.verl import FRAMEWORK as VERL
from agent.port.glance import glance_of
from agent.port.status_model import AdviceStatus
from agent.port.user_notices import Noticed, notices_of
from agent.record.job_lines import JobLines
from support.trainings import FAILING, HEALTHY, Made, looks
from tools.page.situations import made_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.diagnosis.training_rules import Rule

DOCS = Path(__file__).parents[3] / "docs" / "progress.md"
LOOKS = 12  # at each training
SEEDS = 2
MANY_LOOKS = 40
MANY_SEEDS = 5


def advised(lines: JobLines) -> list[str]:
    """Return what the advice says."""
    return [advice.what for advice in lines.advice()]


def training(metrics: Callable[[int], str], steps: int = 60, said: bytes = b"") -> JobLines:
    """Return what is known of a training by verl whose steps, a minute each, have these metrics.

    `said` is in the output of the last step.
    """
    now = 0.0
    lines = JobLines(str, lambda: now)
    lines.begin_attempt(1)
    for step in range(1, steps + 1):
        now = 60.0 * step
        if step == steps:
            lines.write(said, lambda _pause: False)
        lines.write(f"step:{step} - {metrics(step)}\n".encode(), lambda _pause: False)
    return lines


def state_of(lines: JobLines) -> str:
    """Return the worst state of the advice."""
    states = {advice.state for advice in lines.advice()}
    return "end" if "end" in states else "look" if states else "keep"


# --- sudden changes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "before", "after", "words"),
    [
        ("critic/rewards/mean", 0.7, 0.3, "the mean reward fell"),
        ("actor/kl_loss", 0.01, 0.5, "the KL rose"),
        ("actor/entropy", 0.8, 0.15, "the entropy fell"),
        ("actor/entropy", 0.8, 1.9, "the entropy rose"),
        ("actor/grad_norm", 0.4, 9.0, "the gradient norm rose"),
        ("response_length/clip_ratio", 0.05, 0.4, "the share of clipped responses rose"),
        ("rollout_corr/kl", 0.001, 0.03, "the KL of engine and trainer rose"),
        ("critic/vf_explained_var", 0.8, 0.3, "the critic's explained variance fell"),
    ],
)
def test_a_series_that_leaves_its_past(key: str, before: float, after: float, words: str) -> None:
    """From the shipped reader to what status shows; the other way round it is no advice."""
    assert advised(training(lambda step: f"{key}:{before if step < 56 else after}")) == [
        f"{words} from {before:g} to {after:g} since step 56"
    ]
    back = advised(training(lambda step: f"{key}:{after if step < 56 else before}"))
    assert [line for line in back if not key.endswith("entropy")] == []


def test_a_few_steps_are_no_past() -> None:
    """The first steps of a training change much."""
    rise = next(rule for rule in RULES if (rule.meaning, rule.shape) == ("kl", "sudden"))
    points = [(step, 0.0 if step < LEAST_PAST - 1 else 9.0) for step in range(LEAST_PAST + 4)]
    assert change_by(rise, {"kl": points}) is None
    assert change_by(rise, {"kl": [(-1, 0.0), *points]}) is not None


# --- levels and slow changes ----------------------------------------------------------------------


def _line(key: str, first: float, last: float, steps: int) -> Callable[[int], str]:
    return lambda step: f"{key}:{first + (last - first) * step / steps:.6f}"


@pytest.mark.parametrize(
    ("key", "first", "last", "steps", "words"),
    [
        ("actor/entropy", 0.6, 0.02, 150, "the entropy fell from 0.5"),
        ("actor/entropy", 0.35, 0.03, 250, "the entropy fell from 0.3"),
        ("actor/entropy", 0.3, 4.0, 200, "the entropy rose from 0.4"),
        ("actor/kl_loss", 0.01, 2.0, 200, "the KL rose from 0.0"),
        ("critic/rewards/mean", 0.7, 0.5, 200, "the mean reward slowly fell from 0.67"),
        ("actor/grad_norm", 0.2, 6.0, 200, "the gradient norm rose from 0.3"),
        ("actor/grad_norm", 0.0, 0.0, 40, "the gradient norm is 0"),
        ("response_length/clip_ratio", 0.05, 0.9, 200, "the share of clipped responses is 0.8"),
        ("actor/pg_clipfrac", 0.01, 0.4, 200, "the clip fraction is 0.3"),
        ("actor/pg_clipfrac", 0.01, 0.2, 200, "the clip fraction slowly rose from 0.03"),
        ("rollout_corr/k3_kl", 0.001, 0.1, 200, "the KL of engine and trainer is 0.09"),
        ("rollout_corr/kl", 0.001, 0.04, 200, "the KL of engine and trainer slowly rose"),
        ("training/rollout_probs_diff_mean", 0.005, 0.1, 200, "the difference of engine and tr"),
        ("training/rollout_probs_diff_mean", 0.005, 0.05, 200, "the difference of engine and tr"),
        ("sampling/sampling_logp_difference/mean", 0.2, 0.2, 30, "the difference of engine and"),
        ("vllm_kl", 0.2, 0.2, 30, "the KL of engine and trainer is 0.2"),
        ("training/off_policy/trajectory_staleness/mean", 1, 12, 200, "the staleness of the sam"),
        ("training/off_policy/trajectory_staleness/mean", 1, 6, 200, "the staleness of the samp"),
        ("critic/vf_explained_var", 0.7, -0.2, 200, "the critic's explained variance is -0.1"),
        ("critic/vf_explained_var", 0.7, 0.2, 200, "the critic's explained variance slowly fell"),
        ("frac_reward_zero_std", 0.3, 0.95, 200, "the share of groups with equal rewards is 0.9"),
        ("group_reward_std", 0.4, 0.02, 200, "the spread of rewards in a group fell from 0.3"),
        ("dynamic_filtering_pass_rate", 80, 8, 200, "the percentage of groups that the filter k"),
        ("val-core/math/acc/mean@8", 0.6, 0.5, 12, "the validation reward fell from 0.58"),
        ("critic/rewards/mean", 0, 0, 40, "the mean reward is 0 in each of 40 steps"),
    ],
)
def test_what_goes_wrong_slowly(
    key: str, first: float, last: float, steps: int, words: str
) -> None:
    """Whatever its speed; a metric that moves back to health is none."""
    lines = training(_line(key, first, last, steps), steps)
    assert [said[: len(words)] for said in advised(lines)] == [words]
    assert state_of(lines) == "look"
    if first != last and "entropy" not in key:
        assert advised(training(_line(key, last, first, steps), steps)) == []


def test_a_reward_that_rises_while_the_validation_falls() -> None:
    """The remedy is another one than that of a policy that gets worse in both."""

    def metrics(rise: float) -> Callable[[int], str]:
        return lambda step: (
            f"critic/rewards/mean:{0.5 + rise * step}"
            + (f" - val-core/math/acc/mean@8:{0.7 - step / 500}" if step % 10 == 0 else "")
        )

    (hacking,) = training(metrics(0.002), 100).advice()
    assert hacking.what.endswith("0.52, after step 20, while the mean reward rose")
    assert "to please the reward" in hacking.remedy
    both = training(metrics(-0.002), 100).advice()
    assert [advice.meaning for advice in both] == ["reward", "validation"]
    assert "does not carry over" in both[1].remedy


# --- what ends a run ------------------------------------------------------------------------------


def test_a_reward_alone_ends_nothing() -> None:
    """Other data makes it fall; a policy that breaks shows in a second metric."""

    def metrics(step: int, kl: float) -> str:
        reward = 0.7 if step < 50 else 0.2
        return f"critic/rewards/mean:{reward} - actor/kl_loss:{0.01 if step < 50 else kl}"

    assert state_of(training(lambda step: metrics(step, 0.02))) == "look"
    broken = training(lambda step: metrics(step, 3.0))
    assert state_of(broken) == "end"

    # What the page, `status` and AGENT_NOTIFY make of it.
    advice = tuple(map(AdviceStatus.of, broken.advice()))
    status = replace(made_run("ok", 3).status, advice=advice)
    _, notices = notices_of(Noticed(started=2, ended=9), status)
    assert glance_of(status).state == "end"
    assert [notice.moment for notice in notices] == ["advice"]
    assert notices[0].sentence.startswith("The mean reward fell from 0.7 to 0.2")


def test_other_data_is_forgotten_as_the_policy_learns() -> None:
    """The advice goes with the steps before, or as soon as the reward rises."""

    def metrics(step: int) -> str:
        reward = 0.7 if step < 60 else 0.4 + (step - 60) / 500
        return f"critic/rewards/mean:{reward} - actor/entropy:0.3 - actor/kl_loss:0.02"

    said = {steps: state_of(training(metrics, steps)) for steps in (59, 64, 100, 130)}
    assert said == {59: "keep", 64: "look", 100: "keep", 130: "keep"}


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_what_is_not_finite_is_said_at_once(number: str) -> None:
    """At the first step, and only as long as it lasts; fp16 skips single steps and goes on."""
    lines = training(lambda _: f"actor/grad_norm:{number} - actor/pg_loss:{number} - x:nan", 1)
    assert advised(lines) == ["actor/grad_norm, actor/pg_loss are nan or infinite at step 1"]
    assert state_of(lines) == "look"
    for step in (2, 3):
        lines.write(b"step:%d - actor/pg_loss:nan\n" % step, lambda _pause: False)
    assert state_of(lines) == "end"
    lines.write(b"step:4 - actor/grad_norm:0.5 - actor/pg_loss:0.1\n", lambda _pause: False)
    assert advised(lines) == []


# --- a reward that is missing ---------------------------------------------------------------------


def _reward(step: int, lost: float, length: float = 400.0) -> str:
    """Return the metrics of a training that loses its reward at step 60."""
    reward = 0.6 + 0.01 * (step % 3) if step < 60 else lost
    return (
        f"critic/rewards/mean:{reward:.3f} - response_length/mean:{400.0 if step < 60 else length}"
    )


LOST = "the mean reward fell from 0.61 to 0 in one step, at step 60: "


def test_a_reward_of_zero_is_named_within_the_step() -> None:
    """No policy forgets all in one step; empty responses show that an engine fails."""
    lines = training(lambda step: _reward(step, 0.0))
    assert advised(lines) == [f"{LOST}a reward server or an engine failed, or the data changed"]
    assert state_of(lines) == "look"
    empty = training(lambda step: _reward(step, 0.0, 1.0))
    assert advised(empty) == [f"{LOST}the responses are empty, so an engine failed"]
    lasting = training(lambda step: _reward(step, 0.0), 400)
    assert advised(lasting)[0].startswith(LOST)


def test_a_reward_that_falls_while_a_service_does_not_answer() -> None:
    """The service is named, also if others still give rewards; not one that failed long ago."""
    lines = training(lambda step: _reward(step, 0.35))
    during = Outage("reward server", "pod2", 59 * 60 + 10.0, 59 * 60 + 20.0)
    words = "the mean reward fell from 0.61 to 0.35 in one step, at step 60: "
    assert [advice.what for advice in lines.advice((during,))] == [
        f"{words}the reward server on pod2 did not answer"
    ]
    found_later = Outage("reward server", HERE, 60 * 60 + 5.0)
    assert training(lambda step: _reward(step, 0.0)).advice((found_later,))[0].what == (
        f"{LOST}the reward server did not answer"
    )
    long_ago = Outage("judge", HERE, 600.0, 700.0)
    assert lines.advice((long_ago,)) == ()
    assert lines.advice((long_ago, during))[0].what.endswith("on pod2 did not answer")


def test_an_error_in_the_output_of_the_step_is_named() -> None:
    """Its text is only for readers with the token."""
    error = (
        b"Traceback (most recent call last):\n"
        b'  File "/usr/lib/python3/site-packages/requests/adapters.py", line 700, in send\n'
        b"    raise ConnectionError(e, request=request)\n"
        b"requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.0.0.4', port=8000): "
        b"Max retries exceeded with url: /get_reward (Caused by NewConnectionError('[Errno 111] "
        b"Connection refused'))\n"
    )
    lines = training(lambda step: _reward(step, 0.0), said=error)
    (said,) = lines.advice()
    assert said.what.startswith(f"{LOST}the job's output says: no server listens at 10.0.0.4:8000")
    assert AdviceStatus.of(said).what == f"{LOST}the job's output has an error"


def test_a_policy_that_loses_its_reward_over_some_steps() -> None:
    """That is learning, or the data."""
    lines = training(lambda step: f"critic/rewards/mean:{max(0.0, 0.6 - 0.06 * max(0, step - 50))}")
    assert advised(lines) == ["the mean reward fell from 0.6 to 0.12 since step 56"]


# --- made-up trainings ----------------------------------------------------------------------------


def _said(kind: str, seed: int, count: int) -> tuple[Made, list[tuple[int, tuple[Advice, ...]]]]:
    made = Made(kind, seed)
    return made, [*looks(kind, seed, max(1, made.steps // count))]


def _check(seeds: Sequence[int], count: int) -> tuple[Counter[str], Counter[str]]:
    """Return how many healthy trainings had a warning, and which failures were not found."""
    warned = Counter[str]()
    missed = Counter[str]()
    for seed in seeds:
        for kind in HEALTHY:
            _, said = _said(kind, seed, count)
            assert all(one.state == "look" for _, advice in said for one in advice), (kind, seed)
            warned[kind] += any(advice for _, advice in said)
        for kind, (meaning, _) in FAILING.items():
            made, said = _said(kind, seed, count)
            later = [advice for step, advice in said if step >= made.at]
            is_found = any(one.meaning == meaning for advice in later for one in advice)
            is_long = made.steps > 3 * LEAST_WINDOW and made.lasts > 6 * made.evaluate_every
            missed[kind] += is_long and not is_found
    return warned, missed


OTHER_DATA = ("curriculum", "other data")
"""Nobody can tell such a fall from another one at once: it may be named, but ends nothing."""


def test_healthy_trainings_beside_failing_ones() -> None:
    """Whatever their length, noise, restarts and missing values are."""
    warned, missed = _check(range(SEEDS), LOOKS)
    assert missed.total() == 0, missed
    assert sum(warned[kind] for kind in warned if kind not in OTHER_DATA) == 0, warned


@pytest.mark.slow
def test_many_healthy_trainings_beside_failing_ones() -> None:
    """No healthy one is to be ended; one in fifty has a warning, one failure in fifty is missed."""
    warned, missed = _check(range(SEEDS, SEEDS + MANY_SEEDS), MANY_LOOKS)
    healthy = MANY_SEEDS * (len(HEALTHY) - len(OTHER_DATA))
    assert sum(warned[kind] for kind in warned if kind not in OTHER_DATA) <= healthy / 50, warned
    assert missed.total() <= MANY_SEEDS * len(FAILING) / 50, missed


# --- the documentation ----------------------------------------------------------------------------


def _row(rule: Rule) -> str:
    limit = "" if rule.limit is None else f"{'≥' if rule.turn == 'rose' else '≤'} {rule.limit:g}"
    beside = "" if rule.beside is None else f", while the {NAMES[rule.beside[0]]} {rule.beside[1]}"
    numbers = (f"{rule.spreads:g}", f"{rule.share:.0%}", f"{rule.least:g}")
    shown = ("" if text in {"0", "0%"} else text for text in numbers)
    cells = (f"{NAMES[rule.meaning]} {rule.turn}{beside}", rule.shape, *shown, limit)
    return f"| {' | '.join(cells)} |"


def test_the_documentation_has_all_thresholds() -> None:
    """One table, equal to that of the code."""
    text = DOCS.read_text()
    assert "\n".join(map(_row, RULES)) in text
    assert f"last {RECENT} steps" in text
    assert f"the {PAST} before" in text
    assert f"last {LASTING} steps" in text
    assert f"{LEAST_WINDOW} steps or more" in text


def test_the_documentation_has_the_names_of_the_metrics() -> None:
    """Those of each framework with a recipe."""
    assert TRL.steps is not None
    assert VERL.steps is not None
    assert OPENRLHF.steps is not None
    frameworks = (VERL.steps, OPENRLHF.steps, TRL.steps)
    for meaning, name in NAMES.items():
        cells = [
            ", ".join(f"`{key}`" for key in known.meaning.names(meaning)) for known in frameworks
        ]
        assert f"| {name} | {' | '.join(cells)} |" in DOCS.read_text()


def test_every_framework_that_has_steps_has_these_metrics() -> None:
    """A reward at least; each rule's metric has a name for people."""
    formats = [framework.steps for framework in all_frameworks() if framework.steps is not None]
    assert formats
    assert all(known.meaning.reward for known in formats)
    assert {rule.meaning for rule in RULES} == NAMES.keys()
