"""Faults that a run must bear without any cost, as docs/faults.md promises, and all others.

Each fault counts as harmful unless it is named here; some of these are harmless only if they are
short, or rare. A world knows since when one of its faults may have harmed the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.simulated.machines import Machine
    from support.simulated.world import World

HARMLESS = frozenset(
    {
        *("kill_head_agent", "kill_worker_agent", "kill_head_agent_twice", "pause_agent"),
        *("link_blinks", "one_way_blinks", "heal", "good_network", "doubles", "reorders"),
        *("dns_fails", "clock_jumps", "slow_disks", "failing_writes", "torn_writes", "full_disk"),
        *("stalled_disk", "workers_disks_fail", "service_dies", "mute_ray", "ray_hangs"),
    }
)
"""Faults that change neither the attempts nor the end of a run. A fault that goes beyond what is
promised says so itself (`Harms.add`)."""
LONGEST_SILENCE = 30.0
"""Seconds for which a node, or the head, may be silent within a minute without a loss."""
_MINUTE = 60.0
_REPLACED = 25.0
"""Seconds within which a head learns that an agent was killed and another follows it."""
TORCHRUN = "torchrun"


class Harms:
    """What may have harmed a run so far."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.why = ""
        """The first fault that may have harmed the run; '' while there was none."""
        self._killed_at = -math.inf
        self._submitted_at = -math.inf
        self._silences: dict[str, list[tuple[float, float]]] = {}
        self._counts: dict[str, list[float]] = {}

    def happens(self, name: str, *, is_borne: bool = False) -> None:
        """Note a fault that is about to happen; one that hits a group that waits is borne."""
        if name not in HARMLESS and not is_borne:
            self.add(name)

    def add(self, why: str) -> None:
        """Note that the run may be harmed from now on."""
        if not self.why:
            self.why = why
            self._world.note("FAULT", f"may harm the run: {why}")

    def silence(self, machine: Machine, seconds: float) -> None:
        """Note that a machine is silent for a while: many such times add up to a loss."""
        now = self._world.now
        for label in {machine.label, "" if self._world.is_head(machine) else machine.label}:
            self._silences.setdefault(label, []).append((now, seconds))
        both = [*self._silences.get("", []), *self._silences.get(machine.label, [])]
        recent = sum(length for at, length in both if at + length > now - _MINUTE)
        if recent > LONGEST_SILENCE:
            self.add(f"{machine.label} is silent for {recent:.0f} s within a minute")

    def kill(self, machine: Machine) -> None:
        """Note the kill of an agent: the ranks of its torchrun end with it (docs/torchrun.md).

        An attempt that is durable counts, though no rank of it may have begun.
        """
        self._killed_at = self._world.now
        begins = self._world.now < self._submitted_at + _REPLACED
        if self._world.groups or (begins and self._world.setup.kind == TORCHRUN):
            self.add(f"{machine.label}'s torchrun ends with its agent")

    def submission(self) -> None:
        """Note that a job begins: torchrun starts nothing on a node whose agent was just killed."""
        self._submitted_at = self._world.now
        just_killed = self._world.now < self._killed_at + _REPLACED
        if self._world.setup.kind == TORCHRUN and just_killed:
            self.add("torchrun starts as an agent is killed")

    def repeats(self, what: str, most: int, within: float) -> None:
        """Note something that a run bears so often within a time."""
        now = self._world.now
        times = [at for at in self._counts.get(what, []) if at > now - within]
        self._counts[what] = [*times, now]
        if len(times) + 1 > most:
            self.add(f"{what} {len(times) + 1} times within {within:g} s")
