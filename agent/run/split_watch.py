"""How a run divides its nodes, and whether its trainer or its engines wait.

`node_split` says how the run divides its nodes; diagnosis/node_split.py gives the advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import members
from agent.decisions.head.head_state import HeadPhase
from agent.frameworks.recipe import NodeSplit
from agent.job.job import is_sized_by
from agent.record.events import SplitAdvised
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.head.head_state import HeadState
    from agent.diagnosis.advice import Advice
    from agent.job.groups import NodeGroup
    from agent.job.job import Job
    from agent.job.progress import Progress
    from agent.job.services import ServiceSpec
    from agent.record.job_lines import JobLines
    from agent.run.front_link import FrontLink
    from agent.run.node_run import NodeRun

    Fronts = Mapping[str, FrontLink]
    """By service."""


class SplitWatch:
    """The division of the nodes of a run, and the advice on it."""

    def __init__(
        self,
        run: NodeRun,
        get_state: Callable[[], HeadState],
        job_lines: Callable[[], JobLines],
        fronts: Callable[[], Fronts],
    ) -> None:
        self._run = run
        self._get_state = get_state
        self._job_lines = job_lines
        self._fronts = fronts
        self.of_command: NodeSplit | None = None
        """The division that the present attempt's command makes, if it does."""
        self._advised_in = 0  # the last attempt in which advice was logged

    def advice(self) -> Advice | None:
        """Return the advice to move nodes, if there is any."""
        lines = self._job_lines()
        split = self.of_command
        if split is None:
            split = node_split(
                self._get_state(), self._fronts(), lines.progress, self._run.plan.job
            )
        return None if split is None else lines.split_advice(split)

    def log_once(self) -> None:
        """Log the advice, once in an attempt."""
        state = self._get_state()
        if state.phase is not HeadPhase.RUNNING or state.attempt.number == self._advised_in:
            return
        advice = self.advice()
        if advice is not None:
            self._advised_in = state.attempt.number
            self._run.record(SplitAdvised(advice.what, advice.remedy))
            say(f"{advice.what}. {advice.remedy}")


def node_split(
    state: HeadState, fronts: Fronts, progress: Progress | None, job: Job | None = None
) -> NodeSplit | None:
    """Return how the nodes are divided between the trainer and the engines of a group.

    The engines are a service of the group that the trainer updates; or the job starts them by Ray,
    on as many nodes as the group has. None where not exactly one group has engines, and where a
    shortage of engines explains why the trainer waited.
    """
    with_engines = [
        group
        for group in state.goal.groups
        if _engines_of(state, group)
        or (group.ray and job is not None and is_sized_by(job, group.name))
    ]
    if len(with_engines) != 1 or progress is None or progress.last_at is None:
        return None
    (group,) = with_engines

    # Were enough engines there, in the steps that are looked at?
    began = progress.last_at - sum(progress.durations)
    for shortage in state.durable.shortages:
        is_before = shortage.until is not None and shortage.until < began
        if shortage.group == group.name and not is_before:
            return None

    # For which share of these steps did the engines wait?
    idle: float | None = None
    behind_fronts = [spec.name for spec in _engines_of(state, group) if spec.name in fronts]
    if behind_fronts:
        idle = fronts[behind_fronts[0]].idle.share(began, progress.last_at)
        if idle is None:  # the front's replies do not go back so far
            return None

    in_ray = sum(other.nodes for other in state.goal.groups if other.ray)
    trainer = state.goal.expected_workers + 1 - in_ray
    setting = f"nodes = {{engines}} in [groups.{group.name}]"
    return NodeSplit(trainer, group.nodes, group.name, setting, idle)


def _engines_of(state: HeadState, group: NodeGroup) -> list[ServiceSpec]:
    return [spec for spec in members.services_of(state, group) if spec.weights]
