"""Prepare steps: commands that must finish before the job, such as the model's download."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from agent.base.text import own_command
from agent.base.value import Value
from agent.work.where import ON_EVERY, ON_HEAD, Where, has_placeholder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.node.facts import RayPython
    from agent.settings.model import Settings
    from agent.work.where import Placeholders


PREPARE = "AGENT_PREPARE"
PREPARE_EACH = "AGENT_PREPARE_EACH"
MODEL = "AGENT_MODEL"
"""The names of the steps from variables; AGENT_MODEL fetches the model."""


class PrepareStep(Value):
    """One step: a shell command, where it runs, and how long it may take."""

    name: str
    command: str
    where: Where
    within: float
    deadline_variable: str
    once: str | None = None
    """A file that is written after success; if it exists, the step is skipped."""
    after: tuple[str, ...] = ()
    """The steps and services that must be done or ready before it starts."""

    @property
    def needs_order(self) -> bool:
        """Return whether a worker runs it only when the head orders it.

        Nodes that may share its output take turns, and placeholders need values from the head.
        """
        return self.once is not None or has_placeholder(self.command)

    @property
    def log(self) -> str:
        """Return the name of the file that holds its output."""
        return f"{self.name.removeprefix('AGENT_').lower().replace('_', '-')}.log"

    def argv(self, place: Placeholders) -> list[str]:
        """Return the command that runs it on a node."""
        return ["/bin/sh", "-c", place.fill(self.command)]


def prepare_steps(
    settings: Settings, more: tuple[PrepareStep, ...] = ()
) -> tuple[PrepareStep, ...]:
    """Return the steps in the order in which they are shown; `more` come from a file.

    AGENT_PREPARE_EACH makes a node ready: on the head, AGENT_PREPARE starts after it.
    """
    rows = (
        (PREPARE_EACH, settings.prepare_each, ON_EVERY, ()),
        (PREPARE, settings.prepare, ON_HEAD, (PREPARE_EACH,)),
    )
    within, variable = settings.wait_prepare, "AGENT_WAIT_PREPARE"
    own = (
        PrepareStep(name, command, where, within, variable, after=after)
        for name, command, where, after in rows
        if command is not None
    )
    return (*own, *more)


def ordered_steps(steps: Iterable[PrepareStep]) -> tuple[PrepareStep, ...]:
    """Return the steps that workers run only when the head orders it.

    They share a disk, or depend on such a step, or on something on another node.
    """
    each = [step for step in steps if step.where.kind == ON_EVERY.kind]
    own = {PREPARE_EACH, MODEL, *(step.name for step in each)}
    while True:
        ordered = [step for step in each if step.needs_order or not own.issuperset(step.after)]
        left = own - {step.name for step in ordered}
        if left == own:
            return tuple(ordered)
        own = left


NAME = MODEL
_HUB_ID = re.compile(r"\w[\w.-]{0,95}(?:/\w[\w.-]{0,95})?", re.ASCII)


def is_hub_id(model: str) -> bool:
    """Return whether a model may be a hub id such as `org/name`, rather than a path."""
    return _HUB_ID.fullmatch(model) is not None


def fetch_steps(settings: Settings, ray: RayPython, *, is_here: bool) -> tuple[PrepareStep, ...]:
    """Return the step that fetches the model, if it is a hub id and can be fetched.

    A relative path looks like an id; if it exists, it is a path, as for the frameworks.
    """
    model = settings.model
    if model is None or is_here or not is_hub_id(model) or ray.hub is None:
        return ()
    command = shlex.join(own_command(ray.executable, "fetch-model", model))
    within, variable = settings.wait_prepare, "AGENT_WAIT_PREPARE"
    return (PrepareStep(NAME, command, ON_EVERY, within, variable, after=(PREPARE_EACH,)),)


def fetch_note(settings: Settings, ray: RayPython, *, is_here: bool) -> str:
    """Return a note if each process has to fetch the model for itself, or ''."""
    model = settings.model
    if model is None or is_here or not is_hub_id(model) or ray.hub is not None:
        return ""
    return (
        f"AGENT_MODEL={model} is fetched by each process that needs it: huggingface_hub, which "
        f"would fetch it once a node, is not installed for {ray.executable}"
    )
