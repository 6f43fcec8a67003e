"""The faults of a seed: a pure function, so that a failure can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
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


@dataclass(frozen=True)
class InjectedFault:
    """One fault: when, what, and where."""

    at: float
    """Seconds since the agents' start."""
    kind: str
    what: str
    pod: int
    lasts: float | None = 0.0
    """Seconds until it is undone (for a killed pod: restarted); None: never."""

    def sentence(self) -> str:
        """Render one line."""
        until = "for good" if self.lasts is None else f"for {self.lasts:g} s"
        until = "" if self.lasts == 0 else f" {until}"
        return f"{self.at:g} s: {self.kind} {self.what} of pod{self.pod}{until}"


class Chance(NamedTuple):
    """One kind of fault: its weight, where it may hit, and its maximum duration."""

    weight: int
    kind: str
    what: str
    only_head: bool = False
    longest: float = 0.0
    may_stay: bool = False


CHANCES = (
    Chance(6, KILL, AGENT),
    Chance(4, STOP, AGENT, longest=20.0),
    Chance(4, KILL, POD, longest=25.0, may_stay=True),
    Chance(4, STOP, POD, longest=25.0),
    Chance(6, CUT, "link", longest=25.0, may_stay=True),
    Chance(2, KILL, GCS, only_head=True),
    Chance(2, STOP, GCS, only_head=True, longest=40.0),
    Chance(2, KILL, RAYLET),
    Chance(2, STOP, RAYLET, longest=40.0),
    Chance(1, KILL, DASHBOARD, only_head=True),
    Chance(2, STOP, DASHBOARD, only_head=True, longest=40.0),
    Chance(1, KILL, DRIVER, only_head=True),
    Chance(2, STOP, DRIVER, only_head=True, longest=20.0),
    Chance(1, KILL, ACTOR),
    Chance(4, KILL, REWARD, only_head=True),
    Chance(3, STOP, REWARD, only_head=True, longest=40.0),
    Chance(3, DNS, SILENT, longest=20.0, only_head=True),
    Chance(2, DNS, UNKNOWN, longest=20.0, only_head=True),
    Chance(2, DNS, WRONG, longest=20.0, only_head=True),
    Chance(3, DISK, "full", longest=20.0, only_head=True),
)
"""DNS and the run folder's disk are shared: they are planned for the head only."""


def plan(seed: int, seconds: float) -> tuple[InjectedFault, ...]:
    """Return the faults of a seed, in order."""
    dice = random.Random(seed)  # noqa: S311 - repeatable on purpose; not used for secrets
    found: list[InjectedFault] = []
    at = FIRST_AT
    while True:
        at += max(LEAST_PAUSE, dice.expovariate(1 / MEAN_PAUSE))
        if at >= seconds:
            return tuple(found)
        found.append(_one(dice, round(at, 1)))


def _one(dice: random.Random, at: float) -> InjectedFault:
    chance = dice.choices(CHANCES, [one.weight for one in CHANCES])[0]
    pod = HEAD if chance.only_head else dice.randrange(PODS)
    lasts: float | None = round(dice.uniform(1.0, chance.longest), 1) if chance.longest else 0.0
    if chance.may_stay and dice.random() < NEVER:
        lasts = None
    return InjectedFault(at, chance.kind, chance.what, pod, lasts)
