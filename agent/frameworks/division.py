"""How many of the nodes generate and how many train, before anything was measured.

Both times follow from the model, the length of the answers and the GPUs. Training multiplies;
generating reads the weights and the cache of all answers from memory for each further token, so
that it depends on how many answers the cache holds: few long ones, or many short ones. The
estimate is rough, and meant for a start: after twenty steps a run says what would balance.
"""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.frameworks.pace import ASSUMED_MEMORY, SCORED, TRAINED, average, speed_of
from agent.frameworks.recipe import WEIGHT, shape_of
from agent.frameworks.sizing import least_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.frameworks.framework import FrameworkInfo
    from agent.frameworks.recipe import ModelShape

# Bytes per second that common GPUs read: 60 % of the peak, by the memory in GB.
_RATES = ((16, 0.2e12), (24, 0.5e12), (48, 0.5e12), (96, 1.6e12))
_FASTEST = 2.9e12  # Of GPUs with more memory
_FOR_ENGINE = 0.85  # Of a GPU's memory: for weights and cache
_MOST_ANSWERS = 256  # That an engine generates at a time: more are no faster
_BUSY = 0.5
"""Of what engines could generate: the last of a batch's answers are generated nearly alone."""
_OPERATIONS = 2  # For each parameter and token that is generated
_GB = 1e9
_PARTS = (Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3), Fraction(3, 4))
"""Of the nodes: finer ones would say more than the estimate knows."""


class Division(Value):
    """The part of the nodes that generates, and why."""

    part: Fraction
    why: str

    def of(self, nodes: int, trainers: int = 1) -> int:
        """Return how many of several nodes generate: rounded down, as the part of a group.

        So many train at least.
        """
        return max(1, min(nodes - trainers, int(self.part * nodes)))


def propose(
    model: ModelShape | None,
    longest: int,
    engine: int,
    gpu_memory: float | None = None,
    *,
    in_turns: bool = False,
) -> Division:
    """Propose a division for texts of at most so many tokens, and engines of so many GPUs.

    In turns: nothing is generated while the trainer trains. A step then has both in a row, and is
    shortest where the division follows the square roots of both.
    """
    if model is None:
        return Division(Fraction(1, 2), "half, since the model's name says no size")
    times = generating_time(model, longest, engine, gpu_memory or ASSUMED_MEMORY)
    weight = sqrt(times) if in_turns else times
    exact = weight / (1 + weight)
    part = min(_PARTS, key=lambda part: abs(part - exact))
    texts = f"{model.billions} and texts of up to {longest} tokens"
    takes = f"with as many GPUs generating takes about {times:.1f} × as long as training"
    turns = ", and both take turns" if in_turns else ""
    return Division(part, f"{part}: for {texts}, {takes}{turns}")


def division_for(
    framework: FrameworkInfo,
    words: Sequence[str],
    model: str,
    tensor_parallel: int | None,
) -> Division:
    """Propose a division for a framework whose recipes bring a group that generates.

    The model's size is that in its name: each node divides the nodes, and some may lack its files.
    """
    if framework.answers is None:
        return propose(None, 0, 1)
    longest, in_turns = framework.answers.read(words)
    shape = shape_of(model, None)
    engine = tensor_parallel or least_engine(shape)
    return propose(shape, longest, engine, in_turns=in_turns)


def generating_time(model: ModelShape, longest: int, engine: int, memory: float) -> float:
    """Return how many times as long as training on texts it takes to generate them.

    With as many GPUs of that memory in GB; `engine` is the GPUs that hold the weights once.
    """
    speed = speed_of(memory)
    rate = next((rate for most, rate in _RATES if memory <= most), _FASTEST)

    # How many answers does an engine generate at a time, if its GPUs hold the weights twice?
    cache = WEIGHT * model.cached * average(longest)
    gpus = max(engine, 2 * model.weights / (memory * _GB))
    room = gpus * memory * _GB * _FOR_ENGINE - model.weights
    answers = min(_MOST_ANSWERS, max(1.0, room / max(1, cache)))

    # How long does a token take, of each side, on one GPU?
    reads = (model.weights + answers * cache) / rate
    multiplies = _OPERATIONS * model.active * answers / speed
    generates = max(reads, multiplies) / answers / _BUSY
    trains = (TRAINED + SCORED) * model.active / speed
    return generates / trains
