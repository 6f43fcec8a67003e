"""What is done once before the job: data, models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.where import ON_EVERY, ON_HEAD, Where, has_placeholder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.settings import Settings
    from agent.work.where import Place

PREPARE = "AGENT_PREPARE"
PREPARE_EACH = "AGENT_PREPARE_EACH"
MODEL = "AGENT_MODEL"
"""The steps that come from variables, by their names; the last one fetches the model."""


@dataclass(frozen=True)
class PrepareStep:
    """One step: a shell command, where it runs, and how long it may take."""

    name: str
    command: str
    where: Where
    within: float
    deadline_variable: str
    once: str | None = None
    """A file that is written after success; where it is found, the step is skipped."""
    after: tuple[str, ...] = ()
    """The steps and services that must be done or ready before it starts."""

    @property
    def needs_order(self) -> bool:
        """Say whether a worker waits for the head to have it run, whatever it depends on.

        Nodes that may share what it makes take turns, and what only the head tells must be known.
        """
        return self.once is not None or has_placeholder(self.command)

    @property
    def log(self) -> str:
        """Return the name of the file that holds its output."""
        return f"{self.name.removeprefix('AGENT_').lower().replace('_', '-')}.log"

    def argv(self, place: Place) -> list[str]:
        """Return the command that runs it on a node."""
        return ["/bin/sh", "-c", place.fill(self.command)]


def prepare_steps(
    settings: Settings, more: tuple[PrepareStep, ...] = ()
) -> tuple[PrepareStep, ...]:
    """Return the steps in the order in which they are shown; `more` come from a file.

    AGENT_PREPARE_EACH makes a node ready: on the head, AGENT_PREPARE starts after it.
    """
    asked = (
        (PREPARE_EACH, settings.prepare_each, ON_EVERY, ()),
        (PREPARE, settings.prepare, ON_HEAD, (PREPARE_EACH,)),
    )
    within, variable = settings.wait_prepare, "AGENT_WAIT_PREPARE"
    own = (
        PrepareStep(name, command, where, within, variable, after=after)
        for name, command, where, after in asked
        if command is not None
    )
    return (*own, *more)


def by_order(steps: Iterable[PrepareStep]) -> tuple[PrepareStep, ...]:
    """Return those that workers run by the head's order.

    They need it themselves, or they depend on one that does, or on what runs on other nodes.
    """
    each = [step for step in steps if step.where.kind == ON_EVERY.kind]
    own = {PREPARE_EACH, MODEL, *(step.name for step in each)}
    while True:
        ordered = [step for step in each if step.needs_order or not own.issuperset(step.after)]
        left = own - {step.name for step in ordered}
        if left == own:
            return tuple(ordered)
        own = left
