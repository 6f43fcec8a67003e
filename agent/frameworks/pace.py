"""Estimates of the time of a training step, and of the steps between two checkpoints.

A checkpoint is due about every hour. The estimate is rough, within a factor of two or three: it
knows a GPU by its memory only, and takes texts for a quarter of the longest. Where states are in
CPU memory, each micro batch gets the weights from there, and the optimizer works there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import duration_text
from agent.base.value import Value
from agent.frameworks.recipe import count_of
from agent.frameworks.sizing import Fit

if TYPE_CHECKING:
    from agent.frameworks.recipe import RecipeInput

HOUR = 3600.0  # The training, in seconds, that the loss of a node may cost, about

# Operations per second of common GPUs in bf16: 40 % of the peak, by the memory in GB.
_SPEEDS = ((16, 25e12), (24, 60e12), (48, 110e12), (96, 250e12))
_FASTEST = 400e12  # Of GPUs with more memory
ASSUMED_MEMORY = 80  # In GB, where the GPU is not known

# Operations for each parameter and token.
TRAINED = 8  # Forward twice, because of gradient checkpointing, and backward
SCORED = 2  # Forward once

# States in CPU memory, for each GPU.
_MOVED_EACH_SECOND = 20e9  # Bytes over PCIe 4
_STATE = 4  # Bytes of a weight or a gradient that is moved, in float32
_UPDATED_EACH_SECOND = 0.5e9  # Parameters that Adam updates on the CPUs

_TOLERATED = 1.5  # The usual number of steps stays if they take at most so many hours
_PART_OF_LONGEST = 4  # A text has on average a quarter of the tokens of the longest


class StepWork(Value):
    """The work of a step."""

    samples: int
    longest: int  # The tokens of the longest sample
    trained: int = 1  # How many models are trained
    scored: int = 0  # Further forward passes: of the reference, and for the old probabilities
    generates: bool = True  # Whether its texts are generated, which takes as long as the rest
    fit: Fit | None = None  # Where its states are; None: on the GPUs
    micro: int = 0  # The tokens of a micro batch on one GPU; 0 if they are not known
    updates: int = 1


def average(tokens: int) -> int:
    """Return the usual tokens of texts that have at most so many."""
    return max(1, tokens // _PART_OF_LONGEST)


def speed_of(memory: float) -> float:
    """Return the operations per second of a GPU with so many GB."""
    return next((speed for most, speed in _SPEEDS if memory <= most), _FASTEST)


def step_seconds(asked: RecipeInput, step: StepWork) -> float | None:
    """Return about how long a step takes; None if the model or the GPUs are not known."""
    model = asked.basis.model
    nodes = asked.gpu_nodes
    gpus = sum(node.gpus for node in nodes)
    if model is None or not gpus:
        return None

    # How fast are the GPUs, and how much is to compute? Generating takes as long as the rest.
    memory = min((n.gpu_memory for n in nodes if n.gpu_memory), default=ASSUMED_MEMORY)
    speed = speed_of(memory)
    tokens = step.samples * step.longest / _PART_OF_LONGEST
    operations = step.trained * TRAINED + step.scored * SCORED
    seconds = tokens * operations * model.active / (gpus * speed)
    if step.generates:
        seconds *= 2
    return seconds + _cpu_seconds(step, tokens / gpus)


def _cpu_seconds(step: StepWork, tokens: float) -> float:
    """Return how long states in CPU memory take, with so many tokens on each GPU."""
    if step.fit is None or not step.fit.layout.on_cpu:
        return 0.0
    shard = step.fit.parameters.shard
    is_updated = not step.fit.load.adapters

    # Are the weights there too? They are moved for each pass, and gradients back.
    seconds = 0.0
    if step.micro and not any(step.fit.layout.busy):
        passes = step.trained * (3 if is_updated else 2) + step.scored
        seconds += tokens / step.micro * passes * _STATE * shard / _MOVED_EACH_SECOND
    if is_updated:
        updated = step.updates * step.trained * step.fit.layout.on_cpu * shard
        seconds += updated / _UPDATED_EACH_SECOND
    return seconds


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
    text = f"every {every}, {each} of {step.longest // _PART_OF_LONGEST} tokens"
    if step.fit is not None and step.fit.layout.on_cpu:
        text += ", with states in CPU memory"
    return steps, text
