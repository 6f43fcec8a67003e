"""Watch a job's progress; a job that makes none is looked at on all nodes, and examined.

The rules are in decisions/stall.py. At intervals `StallWatch` compares the job's steps and its
output with the limits of AGENT_STALL. Where one is near:
1. Does anything of the job work on any node, by its GPUs or CPUs, or does a checkpoint grow
   (`Diagnostics`)? Has a task of Ray finished lately?
2. If none of that explains it, the job is examined on all nodes, and the finding is logged.
3. A minute later once more, if AGENT_ON_STALL is to follow: where both agree, the head's decisions
   get `Stalled`, and end the attempt or the run.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec.structs import replace

from agent.base import times
from agent.base.text import escaped, map_texts
from agent.base.typed import convert
from agent.checks.finding import Finding, Level
from agent.decisions import stall
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.starvation import Starved, last_served_again, starved_services
from agent.decisions.shared import HERE
from agent.decisions.stall import JobSigns, Next, NodeActivity, Stalled, StallRules, look_of
from agent.diagnosis.stacks import same_suspects
from agent.job.job import prints_steps
from agent.port.protocol import BUSY, STACKS
from agent.processes.waiting import Failure
from agent.record.background import in_thread
from agent.record.checkpoint_folder import read_newest_files
from agent.record.log import say
from agent.record.run_folder import stacks_file
from agent.run.examine import JobExaminer, NodeExaminer
from agent.run.head_server import request_log
from agent.settings.jobs import on_stall

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.bridge.link import RayLink
    from agent.decisions.head.head_state import HeadState
    from agent.decisions.stall import Alarm, StallState
    from agent.diagnosis.stacks import Examination
    from agent.job.services import Placeholders
    from agent.node.figures import GpuFigures
    from agent.plan.plan import Plan
    from agent.port.reports import Reports
    from agent.record.checkpoint_folder import CheckpointFiles
    from agent.run.diagnose import Elsewhere
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun

_CHECKPOINT_GROWS = 60.0  # A checkpoint with a file that changed so recently is being written.
_STALL_BUSY = 15.0  # For all nodes to report whether they are busy.


class Diagnostics:
    """Examines the job's processes on this node."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._last_output: float | None = None
        """When this node's share of the job wrote output last, as of the last call."""
        self._checkpoint: CheckpointFiles | None = None  # the newest one at the last call
        self._cpu_use = run.effects.processes.cpu_use()
        self._examiner = NodeExaminer(run)

    async def collect(self, what: str, submission_id: str | None = None) -> str:
        """Return one of the diagnostics as text for the head."""
        if what == STACKS:
            return await self._examiner.examine(submission_id)
        activity = await self._run.best_effort(
            f"a look at the job here ({what})", self._look_at, submission_id
        )
        if isinstance(activity, Failure):  # no sign of an idle job
            activity = NodeActivity(unknown=activity.reason)
        return msgspec.json.encode(activity).decode()

    async def _look_at(self, submission_id: str | None) -> NodeActivity:
        """Return what works for the job on this node."""
        before = self._last_output
        self._last_output = self._run.stats.last_share_output
        if await self._checkpoint_grows():
            return NodeActivity(checkpoint_grows=True)
        if self._last_output != before:
            return NodeActivity(writes=True)
        gpus = self._read_gpus()
        if gpus:
            at_work = (gpu for gpu in gpus if gpu.is_working)
            return NodeActivity(next((f"GPU {gpu.index} at {gpu.use} %" for gpu in at_work), ""))

        # No GPU reports its use: do the processes of the job use the CPUs?
        used = await self._cpu_use.sample(submission_id)
        if used is None:  # CPU time is a difference of two looks
            return NodeActivity(unknown="looked at for the first time")
        return NodeActivity(used)

    def _read_gpus(self) -> list[GpuFigures]:
        """Return the GPUs as they were read last, with their power; none if it was long ago."""
        figures = self._run.figures.newest
        if figures is None or self._run.now() > figures.at + times.STALL_CHECK_LONGEST:
            return []
        of_job = (gpu for gpu in figures.gpus if not gpu.is_of_service)
        return [gpu for gpu in of_job if gpu.use is not None]

    async def _checkpoint_grows(self) -> bool:
        """Return whether the newest checkpoint here changed lately, or since the last call."""
        plan = self._run.plan
        folder = plan.settings.checkpoints if plan.job is None else plan.job.checkpoints
        if not folder:
            return False
        before = self._checkpoint
        read = partial(read_newest_files, folder, "")
        newest = self._checkpoint = await in_thread(read, times.CHECKPOINT_LISTING)
        if newest is None:
            return False
        changed_at = max((changed for _, _, changed in newest.files), default=0) / 1e9
        is_new = abs(time.time() - changed_at) < _CHECKPOINT_GROWS
        return is_new or (before is not None and newest != before)


def activity_of(text: str) -> NodeActivity:
    """Read what a node reports of the job; any other text is why it does not."""
    try:
        return convert(map_texts(msgspec.json.decode(text), escaped), NodeActivity)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError):
        return NodeActivity(unknown=escaped(text) or "no answer")


_MOST_FINDINGS = 20  # most stalls in /status, the newest
_REMEDY = (
    "Look at the named process first; `pod-agent stop` ends the run. AGENT_ON_STALL=retry ends a "
    "stalled attempt; a longer {setting} delays this alarm"
)
_REMEDY_OF_GROUP = (
    "See the logs of {service} on its nodes: the job goes on once one serves. `pod-agent stop` "
    "ends the run"
)
LEAST = "POD_AGENT_STALL_LEAST"
"""For tests: the least limit of a step, in seconds."""


def rules_of(plan: Plan) -> StallRules | None:
    """Return the rules about stalls of a run's job; None if it is not watched."""
    settings = plan.settings
    job = plan.job
    if job is None or not settings.stall:
        return None
    return StallRules(
        limit=None if settings.stall == "auto" else settings.stall,
        first_step=settings.first_step,
        prints_steps=prints_steps(job),
        on_stall=on_stall(settings),
        is_set_by_hand=settings.on_stall is not None,
        has_debugger=settings.debug_ray != "0",
        least=float(plan.environ.get(LEAST, times.STALL_LEAST)),
    )


def _agree(first: Examination | Starved | None, second: Examination | Starved) -> bool:
    """Return whether two examinations found the same."""
    if isinstance(first, Starved) and isinstance(second, Starved):
        return first.cause_key == second.cause_key
    if first is None or isinstance(first, Starved) or isinstance(second, Starved):
        return False
    return same_suspects(first, second)


class StallWatch:
    """Watches the job's progress, and examines a job that makes none."""

    def __init__(  # noqa: PLR0913 - all that it looks at
        self,
        run: NodeRun,
        reports: Reports,
        status: RunStatus,
        link: RayLink | None,
        get_state: Callable[[], HeadState],
        send: Callable[[Stalled], None],
        place: Callable[[], Placeholders],
        elsewhere: Callable[[], Elsewhere],
    ) -> None:
        self._run = run
        self._reports = reports
        self._status = status
        self._link = link
        self._get_state = get_state
        self._send = send
        self._diagnostics = Diagnostics(run)
        self._examiner = JobExaminer(run, link, place, self._ask_all, elsewhere)
        self._rules = rules_of(run.plan)
        self._state: StallState | None = None
        self._last_found: Examination | Starved | None = None  # of the alarm that stands
        self._without_reward = 0  # the last attempt whose rewards were lost

    async def run(self) -> None:
        """Watch until canceled, if AGENT_STALL is set."""
        rules = self._rules
        if rules is not None:
            what = "a look for a job without progress"
            await self._run.best_effort.every(
                rules.between_ticks, what, partial(self._check, rules)
            )

    async def _check(self, rules: StallRules) -> None:
        """Compare the running attempt with its limits; look at the nodes if one is near."""
        signs = self._signs()
        before = self._state
        self._state, follows = stall.tick(before, rules, signs, self._run.now())
        if signs is None or self._state is None:
            return
        self._look_at_rewards(rules, signs)
        self._log_progress(before, self._state, signs)
        if follows is Next.LOOK:
            await self._look(rules, signs)

    def _signs(self) -> JobSigns | None:
        """Return what is known of the running attempt; None if none runs."""
        state = self._get_state()
        if state.phase is not HeadPhase.RUNNING:
            return None
        attempt = state.attempt
        lines = self._status.job_lines
        served_at = last_served_again(state)
        return JobSigns(
            attempt.number,
            began_at=attempt.submitted or 0.0,
            has_lost_node=bool(attempt.lost_nodes),
            last_output=self._run.run_time(lines.last_output),
            progress=lines.progress,
            may_be_retried=state.last_attempt_number > attempt.number,
            is_starved=any(one.may_recover for one in starved_services(state, self._run.now())),
            served_at=-math.inf if served_at is None else served_at,
        )

    def _look_at_rewards(self, rules: StallRules, signs: JobSigns) -> None:
        """Have an attempt ended whose rewards were lost as a service failed: before it saves them.

        What turned to 0 without a failure that was seen is only advised on.
        """
        if self._without_reward == signs.attempt:
            return
        lost = [advice for advice in self._status.advice() if advice.lost_by]
        if not lost:
            return
        self._without_reward = signs.attempt
        then = rules.on_stall
        may_end = signs.may_be_retried or rules.is_set_by_hand
        if then == "log" or not may_end:
            return  # the advice says it
        self._send(
            Stalled(
                signs.attempt,
                lost[0].plain,
                then=then,
                setting="AGENT_ON_STALL",
                cause_key=f"reward: {lost[0].lost_by}",
                is_without_reward=True,
            )
        )

    async def _look(self, rules: StallRules, signs: JobSigns) -> None:
        """Look at all nodes, and at Ray's tasks; examine the job if the alarm stands."""
        # Does it work on any node, or has a task finished lately?
        reports = await self._ask_all(BUSY, _STALL_BUSY)
        look = look_of(map(activity_of, reports.values()))
        asks_ray = stall.is_limit_over(self._state, rules, signs, self._run.now())
        if self._link is not None and asks_ray and not look.work:
            finished = await self._link.last_finished(times.STALL_TASKS)
            if finished is not None:
                look = replace(look, task_at=self._run.now() - (time.time() - finished))

        # Does the same attempt still run, and without progress?
        latest = self._signs()
        if latest is None or self._state is None or latest.attempt != signs.attempt:
            return
        before = self._state
        self._state, follows = stall.after_look(before, rules, latest, look, self._run.now())
        self._log_progress(before, self._state, latest)
        if follows is Next.EXAMINE:
            await self._examine(rules, latest, self._state.alarm)

    async def _examine(self, rules: StallRules, signs: JobSigns, alarm: Alarm | None) -> None:
        """Examine the job on all nodes; log what was found, and send what follows."""
        assert alarm is not None  # noqa: S101 - the reason of the examination
        is_first = not alarm.examinations
        stalled = stall.stalled(alarm, signs, self._run.now())
        if is_first:
            doing = f"examining the job on all nodes, up to {times.STALL_STACKS:g} s"
            say(f"{stalled.with_setting}: {doing}", "warning")
        since = self._run.utc(alarm.since)[11:16]
        examined = await self._examiner.examine(signs.attempt, since)

        # Does nothing of a group serve? Then the job waits for it, wherever its processes are.
        starved = next(starved_services(self._get_state(), self._run.now()), None)
        found = examined if starved is None else starved
        agrees = not is_first and _agree(self._last_found, found)
        self._last_found = found

        # Has it gone on meanwhile?
        latest = self._signs()
        if latest is None or self._state is None or latest.attempt != signs.attempt:
            return
        before = self._state
        now = self._run.now()
        self._state, then = stall.after_examination(before, rules, latest, now, agrees=agrees)
        self._log_progress(before, self._state, latest)

        # The finding, and what follows.
        if is_first:
            self._report(stalled, found)
        if is_first or then != "log":
            examination = replace(
                stalled,
                suspects=found.sentence,
                then=then,
                cause_key=f"{alarm.rule.value}: {found.cause_key}",
                nodes=found.suspected_nodes,
            )
            self._send(examination)

    def _report(self, stalled: Stalled, found: Examination | Starved) -> None:
        """Log a stall, and show it among the warnings."""
        for line in found.evidence:
            say(f"stall: {line}")
        path = self._run.folder.file(stacks_file(stalled.attempt))
        where = f"{found.sentence}; all stacks are in {path}"
        remedy = _REMEDY.format(setting=stalled.setting)
        if isinstance(found, Starved):
            remedy = _REMEDY_OF_GROUP.format(service=found.service)
        finding = Finding("stall", Level.WARN, f"{stalled.sentence}: {where}", remedy)
        self._status.stalls = (*self._status.stalls, finding)[-_MOST_FINDINGS:]
        say(finding.sentence(), "warning")

    def _log_progress(self, before: StallState | None, after: StallState, signs: JobSigns) -> None:
        """Log that a stalled job has gone on, and say so in its warning."""
        if before is None or before.alarm is None or after.alarm is not None:
            return
        if before.attempt != after.attempt or before.has_lost_node != after.has_lost_node:
            return
        self._status.stalled = None
        if not stall.is_over(replace(after, alarm=before.alarm), signs):
            return  # nothing of a group served, and now it does: the limits count anew
        went_on = stall.after_stall(before.alarm, signs, self._run.now())
        say(went_on)
        if before.alarm.examinations and self._status.stalls:
            *earlier, last = self._status.stalls
            self._status.stalls = (*earlier, replace(last, what=f"{last.what}; {went_on}"))

    async def _ask_all(self, what: str, limit: float) -> dict[str, str]:
        """Request diagnostics from all present nodes concurrently; name those without answer."""
        state = self._get_state()
        id_ = None if state.goal.by_shares else state.attempt.id
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
