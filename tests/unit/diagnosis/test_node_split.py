"""Advice on how the nodes are divided: who waits, and which division balances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.diagnosis.node_split import Waits, best_division
from agent.frameworks.recipe import NodeSplit
from agent.record.job_lines import JobLines

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.diagnosis.advice import Advice

SETTING = "nodes = {engines} in [groups.rollout]"


def divided(trainer: int, engines: int, idle: float | None = None) -> NodeSplit:
    """Return nodes that are divided by a group."""
    return NodeSplit(trainer, engines, "rollout", SETTING, idle)


HALVES = divided(4, 4)


def advised(
    waited: Callable[[int], float],
    split: NodeSplit = HALVES,
    steps: int = 30,
    line: str = "perf {step}: {{'perf/train_wait_time': {waited}, 'perf/step_time': 100.0}}",
) -> Advice | None:
    """Return the advice on a training by slime whose steps of 100 s waited so long for samples."""
    now = 0.0
    lines = JobLines(str, lambda: now)
    lines.begin_attempt(1)
    for step in range(1, steps + 1):
        now = 100.0 * step
        lines.write(f"step {step}: {{'train/loss': 0.1}}\n".encode(), lambda _pause: False)
        text = line.format(step=step, waited=waited(step))
        lines.write(f"{text}\n".encode(), lambda _pause: False)
    return lines.split_advice(split)


def test_the_trainer_waits() -> None:
    """From slime's own lines to the sentence: 0.38 of a step trains, the engines never wait."""
    advice = advised(lambda _step: 62.0)
    assert advice is not None
    half = "the trainer waited 62% of the last 20 steps: 5 nodes of rollout and 3 of the trainer"
    assert advice.what == f"{half} would balance, 20% less time a step"
    assert advice.remedy == (
        "For the next training set nodes = 5 in [groups.rollout], if 3 nodes can hold what trains"
    )
    assert advice.state == "look"


def test_the_engines_wait() -> None:
    """The front has seen no request for half of the time, and the trainer never waits."""
    split = divided(4, 4, 0.5)
    advice = advised(lambda _step: 2.0, split)
    assert advice is not None
    assert advice.what.startswith("the engines waited 50% of the last 20 steps: 3 nodes of rollout")
    assert advice.remedy == "For the next training set nodes = 3 in [groups.rollout]"


def test_engines_and_trainer_take_turns() -> None:
    """A synchronous training has both in a row: as many nodes as the root of the work."""
    split = divided(4, 4, 0.1)
    advice = advised(lambda _step: 90.0, split)
    assert advice is not None
    turns = "the trainer and the engines waited for each other, 90% and 10% of the last 20 steps"
    assert advice.what.startswith(f"{turns}: 6 nodes of rollout and 2 of the trainer would balance")
    assert "have it generate the next batch while one trains" in advice.remedy


def test_verl_says_itself_how_long_its_engines_wait() -> None:
    """Its fully asynchronous trainer has a metric of both."""
    line = (
        "step:{step} - timing_s/gen:{waited} - timing_s/step:100.0 - "
        "fully_async/rollouter/idle_ratio:0.6"
    )
    advice = advised(lambda _step: 1.0, line=line)
    assert advice is not None
    assert advice.what.startswith("the engines waited 60% of")


@pytest.mark.parametrize(
    ("waited", "split"),
    [
        (62.0, divided(1, 1)),  # no node can move
        (62.0, divided(1, 3)),  # the trainer's last node
        (30.0, HALVES),  # 5 and 3 would save 7%
        (4.0, HALVES),  # as balanced as it gets
        (25.0, divided(4, 4, 0.25)),  # both wait for the sync
        (50.0, divided(4, 4, 0.5)),  # in turns, half and half
    ],
)
def test_no_other_division_helps(waited: float, split: NodeSplit) -> None:
    """Nothing is said where the nodes cannot move, or would save less than a tenth of a step."""
    assert advised(lambda _step: waited, split) is None


def test_chance_is_no_advice() -> None:
    """It takes twenty steps of the attempt, without its first, and halves that agree."""
    assert advised(lambda _step: 62.0, steps=20) is None
    assert advised(lambda _step: 62.0, steps=21) is not None
    assert advised(lambda step: 90.0 if step > 25 else 1.0) is None
    assert advised(lambda step: 62.0 + 20 * (-1) ** step) is not None


def test_another_attempt_counts_anew() -> None:
    """Steps of a former attempt may have had other nodes."""
    now = 0.0
    lines = JobLines(str, lambda: now)
    for attempt, steps in ((1, range(1, 40)), (2, range(40, 55))):
        lines.begin_attempt(attempt)
        for step in steps:
            now = 100.0 * step
            text = f"step:{step} - timing_s/gen:62.0 - timing_s/step:100.0\n"
            lines.write(text.encode(), lambda _pause: False)
    assert lines.split_advice(HALVES) is None


def test_the_best_division_of_many_nodes() -> None:
    """Thrice the work wants three quarters of the nodes; fewer moves are nearly as good."""
    split = divided(50, 50)
    waits = Waits(trainer=2 / 3, engines=0.0)
    assert best_division(split, waits)[:2] == (30, 70)
