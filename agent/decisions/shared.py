"""What both stories share: waits as data, and what can happen to either."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.outcome import Outcome
    from agent.base.ranges import Count
    from agent.work.torchrun import Seat


@dataclass(frozen=True)
class Wait:
    """Something waited for: what, until when, and the last that was heard of it."""

    key: str
    """Names it for the program: a planned wait's key."""
    what: str
    deadline: float
    known: str | Callable[[], str] = ""
    """What is known of it; a function where that takes more than a look."""
    is_following: bool = False
    """True where a story merely goes on: nothing is late, and nobody need be told."""
    share: float | None = None
    """How much of it is done, where that is known: that is told as it grows."""

    @property
    def evidence(self) -> str:
        """Return the last that was heard of it."""
        return self.known if isinstance(self.known, str) else self.known()

    def sentence(self, now: float, evidence: str | None = None) -> str:
        """Say what is missing, why as far as known, and how long there is."""
        left = max(0, round(self.deadline - now))
        evidence = self.evidence if evidence is None else evidence
        why = f", {evidence}" if evidence else ""
        return f"waiting for {self.what}{why} ({left} s left)"

    def to_dict(self, now: float) -> dict[str, object]:
        """Return it as a status shows it."""
        left = round(self.deadline - now, 1)
        told = {"what": self.what, "evidence": self.evidence, "seconds_left": left}
        more = {} if self.share is None else {"share": round(self.share, 3)}
        return {**told, "following": self.is_following, **more}

    def over(self, now: float) -> bool:
        """Say whether the deadline has passed."""
        return now >= self.deadline


@dataclass(frozen=True)
class Said:
    """A sentence for the log, as a decision's by-product."""

    sentence: str
    level: str = "info"


@dataclass(frozen=True)
class Tick:
    """Time has passed; nothing else happened."""


@dataclass(frozen=True)
class StopAsked:
    """A signal asks this node to stop."""

    signum: int


class OrderKind(str, Enum):
    """What a head may have a worker do; all but the last name a thing of the worker's own plan."""

    START_SERVICE = "start-service"
    RUN_STEP = "run-step"
    SEND_LOG = "send-log"
    PROBE = "probe"
    RUN_PART = "run-part"
    STOP_PART = "stop-part"
    STOP = "stop"


@dataclass(frozen=True)
class Order:
    """One order: names and numbers only, never a command, a path, an environment or a URL."""

    by: str
    """The head's agent by its id: another one counts anew."""
    number: Count
    """Counts its orders to one worker, so that none is carried out twice."""
    kind: OrderKind
    name: str = ""
    generation: Count = 1
    """Counts a service's starts; of a job's share it is the number of the attempt."""
    seat: Seat | None = None
    """Which share of the job it is, where this starts one."""
    at: str = ""
    """The address of the fellow node that is to be tried; '' for the head's."""


@dataclass(frozen=True)
class Unfit:
    """This node's own checks forbid the run, or the job does not fit what joined."""

    outcome: Outcome
