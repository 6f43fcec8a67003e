"""What the head can do: its actions as data, carried out elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.items import HERE
from agent.decisions.shared import Said

if TYPE_CHECKING:
    from agent.base.outcome import Outcome
    from agent.decisions.attempts import Attempt
    from agent.decisions.head.underway import Underway
    from agent.work.torchrun import Seat


@dataclass(frozen=True)
class Submit:
    """Submit the job under this id; once per attempt."""

    id: str


@dataclass(frozen=True)
class Follow:
    """Follow a job that an earlier agent submitted under this id; submit none."""

    id: str


@dataclass(frozen=True)
class Keep:
    """Write down what a next agent must know, before anything follows from it."""

    known: Underway


@dataclass(frozen=True)
class StopJob:
    """Ask Ray to stop an attempt."""

    id: str


@dataclass(frozen=True)
class AskNodes:
    """Ask every node whether it still serves this attempt."""

    id: str


@dataclass(frozen=True)
class RestartRay:
    """Start this node's Ray again."""


@dataclass(frozen=True)
class StartService:
    """Start a service, on this node or by order on a worker's; `generation` counts its starts."""

    name: str
    node: str = HERE
    generation: int = 1


@dataclass(frozen=True)
class RunStep:
    """Have a worker run a prepare step of its plan's."""

    name: str
    node: str


@dataclass(frozen=True)
class Probe:
    """Have a node try the reward server, or a fellow node at this address, or all together."""

    node: str
    probe: str
    at: str = ""
    seat: Seat | None = None
    """Its share of what all try together."""


@dataclass(frozen=True)
class Retry:
    """Write down how this attempt ended, and clear away what may be left of it."""

    ended: Attempt
    next: Attempt


@dataclass(frozen=True)
class TakeUp:
    """Go on with a run of which this head had no record, after so many attempts."""

    run_id: str
    attempts: int
    epoch: int = 0
    """A higher one than ours, by which workers know the head before this one; 0 for none."""


@dataclass(frozen=True)
class Leave:
    """Tell the workers, take everything down, end."""

    outcome: Outcome


HeadAction = (
    Said
    | Submit
    | Follow
    | Keep
    | StopJob
    | AskNodes
    | RestartRay
    | StartService
    | RunStep
    | Probe
    | Retry
    | TakeUp
    | Leave
)
