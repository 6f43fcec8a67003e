"""What is done once before the job: data, models."""

from __future__ import annotations

from itertools import dropwhile
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.where import ON_EVERY, ON_HEAD, Where, has_placeholder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.settings import Settings
    from agent.work.where import Place


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

    @property
    def needs_order(self) -> bool:
        """Say whether a worker waits for the head to have it run.

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
    """Return the steps in the order in which one node runs them; `more` come from a file."""
    asked = (
        ("AGENT_PREPARE_EACH", settings.prepare_each, ON_EVERY),
        ("AGENT_PREPARE", settings.prepare, ON_HEAD),
    )
    own = (
        PrepareStep(name, command, where, settings.wait_prepare, "AGENT_WAIT_PREPARE")
        for name, command, where in asked
        if command is not None
    )
    return (*own, *more)


def by_order(steps: Iterable[PrepareStep]) -> tuple[PrepareStep, ...]:
    """Return those that workers run by the head's order: the first that needs it, and all after."""
    each = [step for step in steps if step.where.kind == ON_EVERY.kind]
    return tuple(dropwhile(lambda step: not step.needs_order, each))
