"""Judges of the groups beside the trainer: their nodes and members, and what a loss costs.

They know which processes run on which machine, and when each began; the head knows reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.members import members_of, services_of
from agent.decisions.head.wanted import wanted_of
from agent.job.groups import group_of
from agent.job.services import service_of
from support.heads import SubmitJob, of_job
from support.simulated.judges import IN_BOOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_state import HeadState
    from agent.job.groups import NodeGroup
    from agent.job.services import ServiceSpec
    from support.simulated.agents import Agent
    from support.simulated.machines import Machine
    from support.simulated.programs import Service
    from support.simulated.world import World

_CALM = 60.0
"""Seconds after which a node runs what is wanted of it."""
_GROUP_IS_LOST = "are left in the group"


class GroupJudges:
    """The judges of one world's group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began_at: dict[str, float] = {}
        """When each attempt began, by its id."""

    def _breaks(self, rule: str, how: str) -> None:
        self._world.rules.breaks(rule, how)

    # --- which nodes are of a group --------------------------------------------------------------

    def group_of(self, machine: Machine) -> NodeGroup | None:
        """Return the group of a machine by the rank that its own agent has."""
        agent = machine.agent
        if agent is None or agent.is_head:
            return None
        return group_of(agent.plan.groups, getattr(agent.state, "rank", None))

    def may_be_lost(self, machine: Machine) -> bool:
        """Return whether the loss of a machine costs nothing now: its group waits for it."""
        head = self._world.head.agent
        group = self.group_of(machine)
        if head is None or not isinstance(head.state, h.HeadState) or group is None:
            return False
        runs = head.state.phase is HeadPhase.RUNNING
        return runs and group.lost == "wait" and not group.ray

    def is_complete(self) -> bool:
        """Return whether each group has as many calm nodes as it has ranks."""
        judges = self._world.judges
        calm = [one for one in self._world.workers if judges.is_calm(one, IN_BOOT)]
        of_group = [one for one in calm if self.group_of(one) is not None]
        group = self._world.setup.group
        return group is None or len(of_group) >= group.nodes

    def _nodes(self, state: HeadState, group: NodeGroup) -> Iterator[tuple[Worker, Machine]]:
        """Yield the workers in a group that the head takes for present, with their machines."""
        by_ip = {machine.ip: machine for machine in self._world.machines}
        for worker in state.fleet.workers.values():
            is_gone = worker.has_left or worker.refused or worker.silent
            if worker.effective_rank in group.ranks and worker.ip in by_ip and not is_gone:
                yield worker, by_ip[worker.ip]

    # --- decisions of the head -------------------------------------------------------------------

    def head_decided(self, agent: Agent, before: HeadState, actions: Iterable[object]) -> None:
        """Check a head's decision: how a job begins, who serves, and what ends by a group."""
        state: HeadState = agent.state
        groups = state.goal.groups
        if not groups or self._world.has_two_heads:
            return
        begins = any(isinstance(one, SubmitJob) for one in of_job(before, state))
        ends = [one.outcome.reason for one in actions if isinstance(one, h.EndRun)]
        if state.earlier.number > before.earlier.number:
            ends.append(state.durable.ended[-1].reason)
        for group in groups:
            if begins:
                self._began_at.setdefault(state.attempt.id, self._world.now)
                self._takes_no_part(state, group)
            for spec in services_of(state, group):
                if begins:
                    self._has_members(state, group, spec)
                if spec.weights == "nccl" and state.runs_attempt:
                    self._serves_current_weights(state, spec)
            for reason in ends:
                self._costs_nothing(before, group, reason)
        if any(isinstance(one, h.EndRun) for one in actions):
            for group in groups:
                self._runs_what_is_wanted(before, group)

    def _has_members(self, state: HeadState, group: NodeGroup, spec: ServiceSpec) -> None:
        """Check that enough members answer as a job begins."""
        answering = 0
        per_node = 1
        for worker, machine in self._nodes(state, group):
            per_node = worker.members.get(spec.name, 1)
            if self._world.judges.changed_just_now(machine):
                answering += per_node  # as far as the head knows
            else:
                answering += sum(one.is_ready for one in _members_on(machine, spec))
        needed = group.min or group.nodes * per_node
        if answering < needed:
            how = f"{answering} of {spec.name}, {needed} needed"
            self._breaks("a job begins with enough members", how)

    def _takes_no_part(self, state: HeadState, group: NodeGroup) -> None:
        """Check that no node of a group without Ray is one of the attempt's workers."""
        if group.ray:
            return
        for worker, machine in self._nodes(state, group):
            if worker.ip in state.attempt.workers or worker.ip in state.fleet.alive:
                self._breaks("a group takes no part in the job", f"{worker.name} is a worker")
            if machine.raylet is not None:
                self._breaks("a group takes no part in the job", f"Ray runs on {worker.name}")

    def _serves_current_weights(self, state: HeadState, spec: ServiceSpec) -> None:
        """Check that no member serves that began after the trainer sent the weights by NCCL."""
        began_at = self._began_at.get(state.attempt.id)
        by_ip = {machine.ip: machine for machine in self._world.machines}
        for member in members_of(state, spec):
            worker = state.fleet.workers[member.key[0]]
            machine = by_ip.get(worker.ip)
            if not member.serves or machine is None or began_at is None:
                continue
            for process in _members_on(machine, spec):
                if process.name == member.key[1] and process.began_at > began_at:
                    how = f"{member.title} began {process.began_at - began_at:.1f} s later"
                    self._breaks("a stale member never serves", how)

    def _costs_nothing(self, before: HeadState, group: NodeGroup, reason: str) -> None:
        """Check that a group that waits ends no attempt, and no run after its boot."""
        in_boot = before.phase is HeadPhase.BOOTING
        if group.lost == "wait" and _GROUP_IS_LOST in reason and not in_boot:
            self._breaks("a group that waits ends nothing", reason)

    def _runs_what_is_wanted(self, state: HeadState, group: NodeGroup) -> None:
        """Check that calm nodes run the members that are wanted of them, and no others."""
        judges = self._world.judges
        if not judges.is_calm(self._world.head, _CALM):
            return
        for worker, machine in self._nodes(state, group):
            if judges.changed_just_now(machine) or not judges.is_calm(machine, _CALM):
                continue
            names = {*state.service_names(worker.key)}
            wanted = names & wanted_of(state, worker.key).keys()
            runs = {one.name for one in machine.services}
            if runs != wanted:
                how = f"{machine.label} runs {sorted(runs)}, wanted: {sorted(wanted)}"
                self._breaks("a node runs what is wanted", how)

    # --- nodes -----------------------------------------------------------------------------------

    def ray_begins(self, machine: Machine) -> None:
        """Check that no Ray starts on a node of a group that joins none."""
        group = self.group_of(machine)
        if group is not None and not group.ray:
            self._breaks("a group takes no part in the job", f"Ray starts on {machine.label}")

    def agent_left(self, machine: Machine) -> None:
        """Check that an agent leaves no service behind."""
        left = [one.name for one in machine.services]
        if left:
            self._breaks("no service outlives its agent", f"{left} on {machine.label}")


def _members_on(machine: Machine, spec: ServiceSpec) -> list[Service]:
    """Return the members of a service that run on a machine."""
    return [one for one in machine.services if service_of(one.name) == spec.name]
