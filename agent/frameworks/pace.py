"""Estimates of the time of a training step, and of the steps between two checkpoints.

A checkpoint is due about every hour. The estimate is rough, within a factor of two or three: it
knows a GPU by its memory only, and takes texts for a quarter of the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import duration_text
from agent.base.value import Value
from agent.frameworks.recipe import count_of

if TYPE_CHECKING:
    from agent.frameworks.recipe import RecipeInput

HOUR = 3600.0  # The training, in seconds, that the loss of a node may cost, about

# Operations per second of common GPUs in bf16: 40 % of the peak, by the memory in GB.
_SPEEDS = ((16, 25e12), (24, 60e12), (48, 110e12), (96, 250e12))
_FASTEST = 400e12  # Of GPUs with more memory
_ASSUMED_MEMORY = 80  # In GB, where the GPU is not known

# Operations for each parameter and token.
_TRAINED = 8  # Forward twice, because of gradient checkpointing, and backward
_SCORED = 2  # Forward once

_TOLERATED = 1.5  # The usual number of steps stays if they take at most so many hours
_PART_OF_LONGEST = 4  # A text has on average a quarter of the tokens of the longest


class StepWork(Value):
    """The work of a step."""

    samples: int
    longest: int  # The tokens of the longest sample
    trained: int = 1  # How many models are trained
    scored: int = 0  # Further forward passes: of the reference, and for the old probabilities
    generates: bool = True  # Whether its texts are generated, which takes as long as the rest


def step_seconds(asked: RecipeInput, step: StepWork) -> float | None:
    """Return about how long a step takes; None if the model or the GPUs are not known."""
    model = asked.basis.model
    nodes = asked.gpu_nodes
    gpus = sum(node.gpus for node in nodes)
    if model is None or not gpus:
        return None

    # How fast are the GPUs, and how much is to compute? Generating takes as long as the rest.
    memory = min((n.gpu_memory for n in nodes if n.gpu_memory), default=_ASSUMED_MEMORY)
    speed = next((speed for most, speed in _SPEEDS if memory <= most), _FASTEST)
    tokens = step.samples * step.longest / _PART_OF_LONGEST
    operations = step.trained * _TRAINED + step.scored * _SCORED
    seconds = tokens * operations * model.active / (gpus * speed)
    return 2 * seconds if step.generates else seconds


def steps_between_saves(asked: RecipeInput, step: StepWork, usual: int) -> tuple[int, str]:
    """Return the steps between checkpoints, at most the usual number, and the estimate."""
    seconds = step_seconds(asked, step)
    if seconds is None:
        return usual, ""
    is_usual = usual * seconds <= _TOLERATED * HOUR
    steps = usual if is_usual else max(1, int(HOUR / seconds))
    every = "step" if steps == 1 else count_of(steps, "step")
    rounded = seconds if seconds < 120 else round(seconds / 60) * 60
    each = f"about {duration_text(rounded)} a step, estimated: {step.samples} samples"
    return steps, f"every {every}, {each} of {step.longest // _PART_OF_LONGEST} tokens"
