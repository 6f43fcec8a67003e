"""The kinds of faults, what each may cost, and the faults of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

PODS = 3
HEAD = 0
FIRST_AT = 3.0
MEAN_PAUSE, LEAST_PAUSE = 7.0, 1.0
NEVER = 0.1
"""The share of killed or cut-off pods that are not restored."""

KILL, STOP, CUT, DNS, DISK = "kill", "stop", "cut", "dns", "disk"
POD, AGENT, DRIVER, ACTOR = "pod", "agent", "driver", "actor"
GCS, RAYLET, DASHBOARD = "gcs_server", "raylet", "ray-dashboard"
REWARD = "reward server"
SILENT, UNKNOWN, WRONG = "silent", "unknown", "wrong"


class Cost(Enum):
    """What a fault may cost."""

    NOTHING = "nothing"
    TIME = "time: the job may not begin within its limits"
    ATTEMPT = "an attempt, as a node or its Ray may count as lost"
    DRIVER = "the job's first process"
    ACTOR = "an actor of the job"


class Kind(NamedTuple):
    """One kind of fault: its weight, what it may cost, where it may hit, its maximum duration."""

    weight: int
    action: str
    target: str
    cost: Cost
    only_head: bool = False
    longest: float = 0.0
    may_stay: bool = False


KINDS = (
    Kind(6, KILL, AGENT, Cost.NOTHING),
    Kind(4, STOP, AGENT, Cost.ATTEMPT, longest=20.0),
    Kind(4, KILL, POD, Cost.ATTEMPT, longest=25.0, may_stay=True),
    Kind(4, STOP, POD, Cost.ATTEMPT, longest=25.0),
    Kind(6, CUT, "link", Cost.ATTEMPT, longest=25.0, may_stay=True),
    Kind(2, KILL, GCS, Cost.ATTEMPT, only_head=True),
    Kind(2, STOP, GCS, Cost.ATTEMPT, only_head=True, longest=40.0),
    Kind(2, KILL, RAYLET, Cost.ATTEMPT),
    Kind(2, STOP, RAYLET, Cost.ATTEMPT, longest=40.0),
    Kind(1, KILL, DASHBOARD, Cost.ATTEMPT, only_head=True),
    Kind(2, STOP, DASHBOARD, Cost.TIME, only_head=True, longest=40.0),
    Kind(1, KILL, DRIVER, Cost.DRIVER, only_head=True),
    Kind(2, STOP, DRIVER, Cost.NOTHING, only_head=True, longest=20.0),
    Kind(1, KILL, ACTOR, Cost.ACTOR),
    Kind(4, KILL, REWARD, Cost.TIME, only_head=True),
    Kind(3, STOP, REWARD, Cost.TIME, only_head=True, longest=40.0),
    Kind(3, DNS, SILENT, Cost.NOTHING, only_head=True, longest=20.0),
    Kind(2, DNS, UNKNOWN, Cost.NOTHING, only_head=True, longest=20.0),
    Kind(2, DNS, WRONG, Cost.NOTHING, only_head=True, longest=20.0),
    Kind(3, DISK, "full", Cost.NOTHING, only_head=True, longest=20.0),
)
"""DNS and the run folder's disk are shared: their faults count as the head's."""


@dataclass(frozen=True)
class Fault:
    """One fault: when, what, and where."""

    at: float
    """Seconds since the agents' start."""
    kind: Kind
    pod: int
    lasts: float | None = 0.0
    """Seconds until it is undone (for a killed pod: restarted); None: never."""

    def sentence(self) -> str:
        """Render one line."""
        until = "for good" if self.lasts is None else f"for {self.lasts:g} s"
        until = "" if self.lasts == 0 else f" {until}"
        return f"{self.at:g} s: {self.kind.action} {self.kind.target} of pod{self.pod}{until}"


def faults_of(seed: int, seconds: float) -> list[Fault]:
    """Draw the faults of a seed, in order."""
    dice = random.Random(seed)  # noqa: S311 - repeatable on purpose; not used for secrets
    faults: list[Fault] = []
    at = FIRST_AT
    while True:
        at += max(LEAST_PAUSE, dice.expovariate(1 / MEAN_PAUSE))
        if at >= seconds:
            return faults
        kind = dice.choices(KINDS, [one.weight for one in KINDS])[0]
        pod = HEAD if kind.only_head else dice.randrange(PODS)
        lasts: float | None = round(dice.uniform(1.0, kind.longest), 1) if kind.longest else 0.0
        if kind.may_stay and dice.random() < NEVER:
            lasts = None
        faults.append(Fault(round(at, 1), kind, pod, lasts))
