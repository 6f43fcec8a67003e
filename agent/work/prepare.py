"""What is done once before the job: data, models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.where import ON_EVERY, ON_HEAD, Where

if TYPE_CHECKING:
    from agent.settings import Settings


@dataclass(frozen=True)
class PrepareStep:
    """One step: a shell command, where it runs, and how long it may take."""

    name: str
    command: str
    where: Where
    within: float
    deadline_variable: str

    @property
    def log(self) -> str:
        """Return the name of the file that holds its output."""
        return f"{self.name.removeprefix('AGENT_').lower().replace('_', '-')}.log"

    @property
    def argv(self) -> list[str]:
        """Return the command that runs it."""
        return ["/bin/sh", "-c", self.command]


def prepare_steps(settings: Settings) -> tuple[PrepareStep, ...]:
    """Return the steps in the order in which one node runs them."""
    asked = (
        ("AGENT_PREPARE_EACH", settings.prepare_each, ON_EVERY),
        ("AGENT_PREPARE", settings.prepare, ON_HEAD),
    )
    return tuple(
        PrepareStep(name, command, where, settings.wait_prepare, "AGENT_WAIT_PREPARE")
        for name, command, where in asked
        if command is not None
    )
