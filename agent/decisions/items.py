"""Things that must come up on a node, how far each has come, and how often it was restarted."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.base.ranges import Count, Name

HERE = "head"
"""Stands for the head's own node where a worker's would be named by its agent's id."""

FORGOTTEN_AFTER = 600.0
"""A restart counts no more after so many quiet seconds: four a week are not four a minute."""
LONGEST_PAUSE = 30.0


class Step(str, Enum):
    """How far something that must come up has come."""

    PENDING = "pending"
    READY = "ready"
    LOST = "lost"


@dataclass(frozen=True)
class Item:
    """One thing that must come up: Ray, a service, a prepare step."""

    step: Step = Step.PENDING
    evidence: str = ""
    restarts: int = 0
    """Restarts that are not forgotten yet."""
    answered: bool = False
    """True once it was ready, whatever came after."""
    deadline: float | None = None
    """By when it must be ready, where the plan's own limit does not count from the beginning."""
    began: float = 0.0
    """When it was started, where it waited for others before."""
    generation: int = 1
    """Counts its starts: word of an earlier one says nothing of this one."""
    restarted: float | None = None
    """When it was restarted last."""
    again_at: float | None = None
    """When it is to be started again, where it is dead and waits for that."""

    def ready(self) -> Item:
        """Return it as it is once it is ready."""
        return replace(
            self, step=Step.READY, evidence="", answered=True, deadline=None, again_at=None
        )

    def lost(self, evidence: str) -> Item:
        """Return it as it is once it has ended or failed."""
        return replace(self, step=Step.LOST, evidence=evidence)

    def counted(self, now: float) -> int:
        """Return how many restarts still count."""
        quiet = self.restarted is not None and now >= self.restarted + FORGOTTEN_AFTER
        return 0 if quiet else self.restarts

    def pause(self, now: float) -> float:
        """Return how long to wait before its next start: not at all at first, then ever longer."""
        before = self.counted(now)
        return 0.0 if before == 0 else min(LONGEST_PAUSE, 2.0 ** (before - 1))

    def again(self, now: float, within: float | None = None) -> Item:
        """Return it as it is when it is started again."""
        return replace(
            self,
            step=Step.PENDING,
            restarts=self.counted(now) + 1,
            generation=self.generation + 1,
            restarted=now,
            again_at=None,
            deadline=None if within is None else now + within,
        )


@dataclass(frozen=True)
class Outage:
    """A time in which a service that was ready did not answer; times are on the run's clock."""

    service: str
    node: str
    """The worker by name, or HERE."""
    since: float
    until: float | None = None
    """None while it lasts."""


@dataclass(frozen=True)
class ItemWord:
    """A worker's word of something that it was ordered to run."""

    name: Name
    step: Step
    evidence: str = ""
    generation: Count = 1


# --- what can happen to them ---------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceReady:
    """A service answered a real request; a `generation` of None stands for the current one."""

    name: str
    node: str = HERE
    generation: int | None = None


@dataclass(frozen=True)
class ServiceWaits:
    """A service does not answer as it should, so far."""

    name: str
    evidence: str
    node: str = HERE
    generation: int | None = None


@dataclass(frozen=True)
class ServiceGone:
    """A service's process ended."""

    name: str
    evidence: str
    node: str = HERE
    generation: int | None = None


@dataclass(frozen=True)
class StepOver:
    """A prepare step is over; `failure` says how it failed, or is empty."""

    name: str
    failure: str = ""
    node: str = HERE
