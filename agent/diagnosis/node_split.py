"""Advice on how a run divides its nodes: whether its trainer or its engines wait.

Each step takes so many node-seconds of training, and so many of generating: what a node does while
the other side waits. From both follows what a step takes with any other division. Where trainer
and engines take turns, the two add up; else the longer one decides. Advice needs twenty steps of
one attempt, both halves of which agree, and a division that saves a tenth of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.diagnosis.advice import Advice
from agent.frameworks.recipe import NodeSplit, count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.frameworks.step_format import Meaning
    from agent.job.progress import Progress

    Points = Sequence[tuple[int, float]]

STEPS = 20
"""The steps that are looked at: the last ones of the attempt, without its first."""
LEAST_SAVED = 0.1  # of a step: less is noise, and no reason to divide the nodes anew
_NEAR = 0.05  # of a step
_TURNS = 0.9
"""Of a step: if the waiting of both adds up to so much, hardly anything is done at a time."""
_LEAST_OF_TURNS = 0.1  # both wait as long at least: engines that never wait take no turns


class Waits(Value):
    """The shares of some steps in which the trainer and the engines waited for each other."""

    trainer: float
    engines: float

    @property
    def take_turns(self) -> bool:
        """Return whether one of both waits nearly always, so that each step has both in a row."""
        least = min(self.trainer, self.engines)
        return least >= _LEAST_OF_TURNS and self.trainer + self.engines >= _TURNS

    def step(self, split: NodeSplit, trainer: int, engines: int) -> float:
        """Return how long a step would take with so many nodes, in present ones.

        What neither side can do anything about, such as the exchange of weights, is left out.
        """
        trains = (1 - self.trainer) * split.trainer / trainer
        generates = (1 - self.engines) * split.engines / engines
        return trains + generates if self.take_turns else max(trains, generates)


def best_division(split: NodeSplit, waits: Waits) -> tuple[int, int, float]:
    """Return the nodes that would train and generate in a step near the shortest, and its gain.

    Of divisions that are nearly as good it is the division that moves the fewest nodes.
    """
    total = split.trainer + split.engines
    present = waits.step(split, split.trainer, split.engines)

    steps = {trainer: waits.step(split, trainer, total - trainer) for trainer in range(1, total)}
    near = [trainer for trainer, step in steps.items() if step <= min(steps.values()) + _NEAR]
    trainer = min(near, key=lambda nodes: (abs(nodes - split.trainer), steps[nodes]))
    return trainer, total - trainer, present - steps[trainer]


def advise_split(
    progress: Progress, points: Callable[[Meaning, int], Points], split: NodeSplit
) -> Advice | None:
    """Return advice to move nodes; None where none would help, or too little is known.

    `points` returns the last values with a meaning.
    """
    shares = _trainer_shares(progress, points)
    if len(shares) < STEPS:
        return None
    idle = _engines_share(progress, points, split)
    waits = Waits(trainer=sum(shares) / STEPS, engines=idle)
    trainer, engines, saved = best_division(split, waits)

    # Do both halves of the steps want the same, or is it chance?
    half = STEPS // 2
    for part in (shares[:half], shares[half:]):
        moved, _, saves = best_division(split, Waits(trainer=sum(part) / half, engines=idle))
        if saves < LEAST_SAVED or (moved < split.trainer) != (trainer < split.trainer):
            return None
    if saved < LEAST_SAVED:
        return None

    # Who waits?
    if waits.take_turns:
        both = f"{waits.trainer:.0%} and {waits.engines:.0%}"
        who = f"the trainer and the engines waited for each other, {both} of"
    elif waits.trainer > waits.engines:
        who = f"the trainer waited {waits.trainer:.0%} of"
    else:
        who = f"the engines waited {waits.engines:.0%} of"
    name = split.group or "engines"
    division = f"{count_of(engines, 'node')} of {name} and {trainer} of the trainer"
    remedy = f"For the next training set {split.setting.format(trainer=trainer, engines=engines)}"
    if trainer < split.trainer:
        remedy += f", if {count_of(trainer, 'node')} can hold what trains"
    if waits.take_turns:
        remedy += "; or have it generate the next batch while one trains, if the framework can"
    what = f"{who} the last {STEPS} steps: {division} would balance, {saved:.0%} less time a step"
    return Advice(what, remedy, meaning="samples_seconds")


def _trainer_shares(
    progress: Progress, points: Callable[[Meaning, int], Points]
) -> tuple[float, ...]:
    """Return the share of each of the last steps of the attempt that passed without samples."""
    if progress.first is None:
        return ()
    seconds = dict(points("step_seconds", 2 * STEPS))
    shares = [
        min(1.0, max(0.0, waited / seconds[step]))
        for step, waited in points("samples_seconds", 2 * STEPS)
        if step > progress.first and seconds.get(step, 0.0) > 0
    ]
    return tuple(shares[-STEPS:])


def _engines_share(
    progress: Progress, points: Callable[[Meaning, int], Points], split: NodeSplit
) -> float:
    """Return the share of the last steps in which the engines waited; 0 where it is not known."""
    first = progress.first or 0
    shares = [value for step, value in points("engines_idle", STEPS) if step > first]
    if len(shares) == STEPS:
        return min(1.0, max(0.0, sum(shares) / STEPS))
    return split.idle or 0.0
