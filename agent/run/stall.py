"""Detect a job without sign of work: check all nodes, then report process stacks.

A job counts as quiet from its last output on. At intervals `StallWatch` looks further:
1. Does anything of the job work on any node, by its CPU and GPUs (`Diagnostics`)?
2. Has a task of Ray finished lately?
3. After AGENT_STALL without any of these signs, the job is examined on all nodes
   (run/examine.py), and the finding is logged, once for each attempt. The job goes on, unless it
   has lost a node: then the head decides what follows (`StalledSinceLoss`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.base.text import duration_text
from agent.bridge.link import RayLink
from agent.checks.finding import Finding, Level
from agent.decisions.attempts import (
    Quiet,
    StalledSinceLoss,
    diagnostics_interval,
    quiet_period,
)
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import HERE
from agent.node.gpus import TOOLS
from agent.processes.driver import Utilization
from agent.processes.waiting import Failure
from agent.record.log import say
from agent.run.examine import FOR_TOOLS, STACKS, JobExaminer, NodeExaminer, stacks_file
from agent.run.head_server import request_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.head.head_state import HeadState
    from agent.job.services import Placeholders
    from agent.port.reports import Reports
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun
    from agent.run.torchrun import TorchrunLink


BUSY = "how busy"
"""What a worker sends like a log; no service has such a name."""
IDLE = "idle"


class Diagnostics:
    """Examines the job's processes on this node."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._last_output: float | None = None
        """When this node's share of the job wrote output last, as of the last call."""

        # The tools get an environment without secrets.
        plan = run.plan
        self._env = {name: plan.environ[name] for name in FOR_TOOLS if name in plan.environ}
        tools = TOOLS.get(plan.facts.gpu_maker, ()) if plan.facts.gpus else ()
        self._utilization = Utilization(tools, self._env, run.folder.file)
        self._examiner = NodeExaminer(run)

    async def collect(self, what: str, submission_id: str | None = None) -> str:
        """Return one of the diagnostics, or why it failed: a failure is no sign of an idle job."""
        if what == STACKS:
            return await self._examiner.examine(submission_id)
        text = await self._run.best_effort(
            f"a look at the job here ({what})", self._examine_activity, submission_id
        )
        return f"it cannot be looked at: {text.reason}" if isinstance(text, Failure) else text

    async def _examine_activity(self, submission_id: str | None) -> str:
        """Return what works for the job on this node, or that nothing does."""
        before = self._last_output
        self._last_output = self._run.stats.last_share_output
        if self._last_output != before:
            return "its share of the job writes"
        return await self._utilization.sample(submission_id) or IDLE


_REMEDY = "`pod-agent stop` ends it; AGENT_STALL sets after how long this is logged"


class StallWatch:
    """Checks a quiet job at intervals, and logs its stacks after AGENT_STALL without work."""

    def __init__(  # noqa: PLR0913 - all that it looks at
        self,
        run: NodeRun,
        reports: Reports,
        status: RunStatus,
        link: RayLink | TorchrunLink,
        get_state: Callable[[], HeadState],
        send: Callable[[StalledSinceLoss], None],
        place: Callable[[], Placeholders],
    ) -> None:
        self._run = run
        self._reports = reports
        self._status = status
        self._link = link
        self._get_state = get_state
        self._send = send
        self._diagnostics = Diagnostics(run)
        self._examiner = JobExaminer(run, link, place, self._ask_present)
        self._limit = run.plan.settings.stall
        self._quiet: Quiet | None = None

    async def run(self) -> None:
        """Watch until canceled, if AGENT_STALL is set."""
        if not self._limit or self._run.plan.job is None:
            return
        what = "a look for a job without a sign of work"
        await self._run.best_effort.every(diagnostics_interval(self._limit), what, self._check)

    async def _check(self) -> None:
        """Update the state of the running attempt; check the nodes if it is quiet."""
        # Since when has it been quiet, by its output?
        state = self._get_state()
        now = self._run.now()
        is_running = state.phase is HeadPhase.RUNNING
        number = state.attempt.number if is_running else None
        lost = bool(state.attempt.lost_nodes)
        quiet = quiet_period(self._quiet, number, now, lost_a_node=lost)
        if quiet is not None:
            quiet = self._with_output(quiet)

        # Long enough to look for other signs of work?
        if quiet is not None and quiet.lasts(diagnostics_interval(self._limit), now):
            quiet = await self._check_nodes(quiet, state)
        self._quiet = quiet

    async def _check_nodes(self, quiet: Quiet, state: HeadState) -> Quiet:
        """Check all nodes, then Ray's tasks, for work; report a job that shows neither."""
        # Does a node work?
        answers = await self._ask_all(BUSY, times.STALL_BUSY, state)
        if any(answer != IDLE for answer in answers.values()):
            return quiet.with_work_at(self._run.now())
        quiet = self._with_output(quiet)
        if not quiet.lasts(self._limit, self._run.now()):
            return quiet

        # Did a task of Ray finish lately?
        if isinstance(self._link, RayLink):
            finished = await self._link.last_finished(times.STALL_TASKS)
            if finished is not None:
                quiet = quiet.with_work_at(self._run.now() - (time.time() - finished))
        if not quiet.lasts(self._limit, self._run.now()):
            return quiet

        # Does the attempt still run, without output meanwhile?
        latest = self._get_state()
        runs_on = latest.phase is HeadPhase.RUNNING and latest.attempt.number == quiet.attempt
        if not runs_on or self._with_output(quiet) != quiet:
            return quiet
        await self._report(quiet)
        return replace(quiet, is_reported=True)

    def _with_output(self, quiet: Quiet) -> Quiet:
        last_output = self._run.run_time(self._status.job_lines.last_output)
        return quiet.with_work_at(last_output)

    async def _report(self, quiet: Quiet) -> None:
        """Examine the job on all nodes, and log the finding."""
        long = duration_text(round(self._run.now() - quiet.since))
        what = f"the job shows no sign of work for {long}"
        say(f"{what} (AGENT_STALL): looking where it is", "warning")
        since = self._run.utc(quiet.since)[11:16]
        found = await self._examiner.examine(quiet.attempt, since)
        for line in found.evidence:
            say(f"stall: {line}")

        # The finding.
        where = f"{found.sentence}; all stacks are in {stacks_file(quiet.attempt)}"
        finding = Finding("stall", Level.WARN, f"{what}: {where}", _REMEDY)
        self._status.stalls = (*self._status.stalls, finding)
        say(finding.sentence(), "warning")
        if quiet.has_lost_node:
            self._send(StalledSinceLoss(quiet.attempt, long))

    async def _ask_present(self, what: str, limit: float) -> dict[str, str]:
        return await self._ask_all(what, limit, self._get_state())

    async def _ask_all(self, what: str, limit: float, state: HeadState) -> dict[str, str]:
        """Request diagnostics from all present nodes concurrently; name those without answer."""
        id_ = None if state.goal.by_torchrun else state.attempt.id
        workers = [
            worker
            for worker in state.fleet.workers.values()
            if not (worker.has_left or worker.silent or worker.refused)
        ]
        answers = dict.fromkeys([HERE, *(worker.key for worker in workers)], "")

        async def ask(key: str) -> None:
            if key == HERE:
                answers[key] = await self._diagnostics.collect(what, id_)
                return
            text = await request_log(self._reports, key, what, limit)
            answers[key] = f"no answer within {limit:g} s" if text is None else text

        async with anyio.create_task_group() as tasks:
            for key in answers:
                tasks.start_soon(ask, key)

        # Nodes of one name are distinguished by their addresses.
        by_name = {self._run.plan.topology.node_name: answers[HERE]}
        for worker in workers:
            is_taken = worker.name in by_name
            name = f"{worker.name} ({worker.ip})" if is_taken else worker.name
            by_name[name] = answers[worker.key]
        return by_name
