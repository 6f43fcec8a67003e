"""What a services file asks for, once it is read: services, prepare steps, the reward server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.work.prepare import PrepareStep
    from agent.work.services import Alive, Readiness, ServiceSpec
    from agent.work.where import Where


@dataclass(frozen=True)
class RewardRow:
    """What `[services.reward]` says of the reward server; the rest is as AGENT_REWARD has it."""

    command: str | None
    """Its shell command; None for the bundled one."""
    where: Where
    alone: bool
    ready: Readiness | None
    within: float | None
    restarts: int
    essential: bool
    env: tuple[tuple[str, str], ...]
    alive: Alive | None = None
    after: tuple[str, ...] | None = None
    """What it waits for; None for what AGENT_REWARD waits for."""

    def of(self, spec: ServiceSpec) -> ServiceSpec:
        """Return the reward server as this row would have it."""
        variable = "services.reward, ready.within"
        return replace(
            spec,
            where=self.where,
            alone=self.alone,
            ready=self.ready or spec.ready,
            within=self.within or spec.within,
            deadline_variable=variable if self.within else spec.deadline_variable,
            restarts=self.restarts,
            essential=self.essential,
            env=(*spec.env, *self.env),
            alive=self.alive,
            after=spec.after if self.after is None else self.after,
        )


@dataclass(frozen=True)
class ServicesFile:
    """What the file asks for; empty where there is none."""

    services: tuple[ServiceSpec, ...] = ()
    steps: tuple[PrepareStep, ...] = ()
    reward: RewardRow | None = None


NO_FILE = ServicesFile()
