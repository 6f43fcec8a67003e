"""What a platform does with a container whose first process has ended, and what that bills."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.run.restarts import QUICK_RESTARTS, Restarts

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from support.simulated.machines import Machine
    from support.simulated.world import World

RUNPOD, LWS, ON_FAILURE, NEVER = "RunPod", "LeaderWorkerSet", "Kubernetes OnFailure", "never"
"""RunPod restarts whatever exits; its pods are stopped by AGENT_ON_DONE=stop-pod. A LeaderWorkerSet
starts all its pods anew when one exits; they are held (AGENT_ON_DONE=hold) until somebody deletes
it. A pod with restartPolicy OnFailure restarts failures, six times with growing pauses. Slurm,
dstack, SkyPilot and pods with restartPolicy Never restart nothing."""
RULES = (RUNPOD, LWS, ON_FAILURE, NEVER)
BILLS_AFTER = 60.0
"""No pod that could have the verdict runs for longer after the run's end."""
_BACKOFF_LIMIT = 6
_LONGEST = 1500.0


class Platform:
    """One platform's rule, and what it costs."""

    def __init__(self, world: World, rule: str) -> None:
        self._world, self.rule = world, rule
        self._restarts: Counter[str] = Counter()
        self.off_at: dict[str, float] = {}
        """When each machine stopped for good, or was held until somebody deletes its group."""
        self._told: frozenset[str] = frozenset()
        """The workers that followed the head in reach of it when it stopped for good."""

    @property
    def keeps_ends(self) -> bool:
        """Say whether agents record their ends there, since the platform restarts any of them."""
        return self.rule in {RUNPOD, LWS}

    def begins(self, machine: Machine) -> Restarts:
        """Let a container's agent begin, and read how the one before it ended."""
        machine.restarts = Restarts(
            machine.logs,
            machine.name,
            "settings",
            is_on=self.keeps_ends,
            holds=self.keeps_ends,
            longest=_LONGEST,
        )
        return machine.restarts

    def left(self, machine: Machine, outcome: Outcome) -> float | None:
        """Handle the exit of a container; return the pause before it starts again, or None."""
        pause = self._pause(machine, outcome)
        if pause is None:
            self._is_off(machine)
        elif self.rule == LWS:
            self._world.later(pause, self._recreate)
        return pause

    def _pause(self, machine: Machine, outcome: Outcome) -> float | None:
        if self.rule == NEVER or (self.rule == ON_FAILURE and outcome.exit_code == 0):
            return None
        if self.rule == ON_FAILURE:
            self._restarts[machine.label] += 1
            fails = self._restarts[machine.label]
            return None if fails > _BACKOFF_LIMIT else min(300.0, 10.0 * 2 ** (fails - 1))
        assert machine.restarts is not None
        if outcome.holds_pod or machine.restarts.would_repeat():
            return None
        self._count(machine, outcome)
        return self._world.random.uniform(1.0, 10.0)

    def _count(self, machine: Machine, outcome: Outcome) -> None:
        """Break the rule that no container loops: each mishap allows some restarts only.

        An agent whose disk takes nothing cannot know how often its container was started.
        """
        group = self._world.machines if self.rule == LWS else [machine]
        if not all(one.takes_records for one in group):
            return
        self._restarts[machine.label] += 1
        most = (QUICK_RESTARTS + 1) * (len(self._world.setup.faults) + 2)
        if self._restarts[machine.label] > most:
            self._world.rules.breaks("no container loops", f"{machine.name}: {outcome.reason}")

    def _is_off(self, machine: Machine) -> None:
        now = self._world.now
        self.off_at[machine.label] = now
        if machine is self._world.head:
            followers = [one for one in self._world.workers if self._follows(one)]
            self._told = frozenset(one.label for one in followers)
            self._world.later(BILLS_AFTER, self._check, now)

    def _follows(self, worker: Machine) -> bool:
        state = getattr(worker.agent, "state", None)
        is_calm = self._world.quiet_for(worker) > BILLS_AFTER
        in_reach = self._world.network.reaches(worker, self._world.head)
        if state is None or state.head_ip != self._world.head.ip:  # it may follow a former head
            return False
        return is_calm and in_reach and state.phase.value.startswith("follow")

    def _check(self, ended_at: float) -> None:
        """Look that the pods which could have the verdict are off, unless the head is back."""
        if self.off_at.get(self._world.head.label) != ended_at:
            return
        for worker in self._world.workers:
            if worker.label in self._told and worker.code is None and worker.is_on:
                how = f"{worker.name} runs {BILLS_AFTER:g} s after the run's end"
                self._world.rules.breaks("nothing bills after the end", how)

    def _recreate(self) -> None:
        """Start all pods of a LeaderWorkerSet anew: one of its containers has ended."""
        for machine in self._world.machines:
            if machine.is_on:
                machine.recreate()
