"""Judges of a run as a whole: what it may cost, what its job finds, and how its workers end.

They know the truth of the world, which the agents do not: which faults happened, which services
answer, which machines are there. rules.py calls them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agent.base import ends
from agent.decisions.attempts import is_loss
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import HERE
from agent.decisions.worker import worker_state as w
from agent.job.services import wanted_steps
from support.heads import SubmitJob, of_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.base.ends import Outcome
    from support.simulated.agents import Agent
    from support.simulated.machines import Machine
    from support.simulated.world import World

_JUST_NOW = 15.0
"""Seconds within which a head may not know yet that a service ended on one of its nodes."""
IN_BOOT = 230.0
"""Above each limit of the boot: what was there for so long was there in time."""
_FOLLOWING = w.WorkerPhase.FOLLOWING


class Judges:
    """The judges of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._expected: dict[str, tuple[int, float]] = {}
        """The code with which each calm worker must leave, and since when."""

    def _breaks(self, rule: str, how: str) -> None:
        self._world.rules.breaks(rule, how)

    # --- a harmless fault costs nothing -----------------------------------------------------------

    def head_decided(self, agent: Agent, before: h.HeadState, actions: Iterable[object]) -> None:
        """Check a head's decision: what it costs, and what the job finds."""
        if any(isinstance(one, SubmitJob) for one in of_job(before, agent.state)):
            self._world.harms.submission()
            self._all_is_ready(agent)
        if agent.state.earlier.number > before.earlier.number and not self._world.harms.why:
            ended = agent.state.durable.ended[-1]
            what = f"attempt {ended.number}: {ended.reason}"
            self._breaks("a harmless fault costs nothing", what)
        for action in actions:
            if isinstance(action, h.EndRun):
                self._costs_nothing(action.outcome)
                self._misses_nothing(agent, action.outcome)
                self._expect_of_workers(agent, action.outcome)

    def _costs_nothing(self, outcome: Outcome) -> None:
        setup = self._world.setup
        if self._world.harms.why or outcome.culprit == ends.MAX_HOURS.culprit:
            return
        if outcome.exit_code != setup.job_code or not outcome.is_jobs_verdict:
            self._breaks("a harmless fault costs nothing", outcome.sentence())

    # --- what a job finds -------------------------------------------------------------------------

    def _all_is_ready(self, agent: Agent) -> None:
        """Check that services answer and steps are done on all nodes of a job that begins."""
        state = agent.state
        by_ip = {machine.ip: machine for machine in self._world.machines}
        nodes = [(HERE, state.goal.rank, agent.machine)]
        for ip, key in state.fleet.agent_at.items():
            worker = state.fleet.workers.get(key)
            if ip not in state.fleet.alive or worker is None or ip not in by_ip:
                continue
            if state.expects(worker):  # with torchrun a spare takes no part, and delays nothing
                nodes.append((key, worker.effective_rank, by_ip[ip]))
        for key, rank, machine in nodes:
            is_head = key == HERE
            for spec in state.goal.services:
                if spec.where.kind == "group":
                    continue  # `min` of them suffice: group_judges.py
                is_given_up = (key, spec.name) in state.services.abandoned
                if spec.where.includes(rank, is_head=is_head) and not is_given_up:
                    self._is_ready(machine, spec.name)
            for step in wanted_steps(state.goal.steps) if not is_head else state.goal.steps:
                if step.where.includes(rank, is_head=is_head) and step.once:
                    self._is_done(machine, step.name, step.once)

    def _is_ready(self, machine: Machine, name: str) -> None:
        is_ready = any(one.name == name and one.is_ready for one in machine.services)
        if not is_ready and not self.changed_just_now(machine):
            self._breaks("services are ready at submission", f"{name} on {machine.label}")

    def _is_done(self, machine: Machine, name: str, marker: str) -> None:
        is_done = (self._world.data_of(machine) / marker.strip("/")).exists()
        if not is_done and not self.changed_just_now(machine):
            self._breaks("steps are done at submission", f"{name} on {machine.label}")

    def changed_just_now(self, machine: Machine) -> bool:
        """Return whether the head may not know yet how it is there."""
        disturbed = self._world.disturbed.get(machine.label, -math.inf)
        since = max(machine.service_ended_at, disturbed)
        is_away = not self._world.network.reaches(machine, self._world.head)
        return is_away or machine.is_paused or self._world.now < since + _JUST_NOW

    # --- calm workers have the head's code --------------------------------------------------------

    def _expect_of_workers(self, agent: Agent, outcome: Outcome) -> None:
        """Expect the code of a run that ends of the workers that follow it undisturbed."""
        self._expected.clear()
        if outcome.is_superseded or self._world.has_two_heads:
            return
        now = self._world.now
        for worker in self._world.workers:
            state = getattr(worker.agent, "state", None)
            if not isinstance(state, w.WorkerState) or state.phase is not _FOLLOWING:
                continue
            if state.head_ip == agent.machine.ip and self.is_calm(worker, 60.0):
                self._expected[worker.label] = (outcome.exit_code, now)

    def is_calm(self, machine: Machine, seconds: float) -> bool:
        """Return whether nothing has disturbed a machine, or the links, for so many seconds."""
        since = max(self._world.disturbed.get(name, 0.0) for name in ("", machine.label))
        reaches = self._world.network.reaches(machine, self._world.head)
        is_paused = machine.is_paused or self._world.head.is_paused
        return reaches and not is_paused and (not since or self._world.now >= since + seconds)

    def worker_left(self, machine: Machine, outcome: Outcome) -> None:
        """Check the code of a worker that leaves."""
        code, since = self._expected.pop(machine.label, (outcome.exit_code, 0.0))
        disturbed = self._world.disturbed
        is_disturbed = any(disturbed.get(name, 0.0) >= since for name in ("", machine.label))
        is_disturbed |= self._world.head.severed_at >= since
        if outcome.exit_code != code and not is_disturbed:
            how = f"{machine.label} leaves with {outcome.exit_code}, the head with {code}"
            self._breaks("calm workers have the head's code", f"{how}: {outcome.reason}")

    # --- what is there is not missed --------------------------------------------------------------

    def _misses_nothing(self, agent: Agent, end: Outcome) -> None:
        """Check the end of a run that is decided while the head boots."""
        is_in_boot = end.phase in {HeadPhase.BOOTING.value, ends.STARTING}
        waits = end.exit_code == ends.UNAVAILABLE.exit_code or is_loss(end)
        if not is_in_boot or not waits or self._world.has_two_heads or end.attempts_are_used_up:
            return
        if any(end.culprit == spec.name for spec in agent.state.goal.services):
            return  # a service that a fault ended, which no calm machine shows
        if not self._world.group_judges.is_complete():
            return
        if self._is_calm_head(agent) and len([*self._calm_workers()]) >= agent.state.required:
            self._breaks("what is there is not missed", end.sentence())

    def _is_calm_head(self, agent: Agent) -> bool:
        """Return whether nothing happened on the head for as long as a boot may wait."""
        cluster = self._world.given or agent.machine.cluster
        mute_until = 0.0 if cluster is None else cluster.mute_until
        was_mute = bool(mute_until) and self._world.now < mute_until + IN_BOOT
        return not was_mute and self.is_calm(agent.machine, IN_BOOT)

    def _calm_workers(self) -> Iterator[Machine]:
        given = self._world.given
        for machine in self._world.workers:
            there = machine.raylet is not None if given is not None else machine.agent is not None
            group = self._world.group_judges.group_of(machine)
            is_beside = group is not None and not group.ray
            if machine.is_on and there and not is_beside and self.is_calm(machine, IN_BOOT):
                yield machine
