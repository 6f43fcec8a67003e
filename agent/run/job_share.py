"""Run this node's share of a job without Ray, for the executor.

A job has one share for each node, which a launcher starts: the ranks of that node below one
torchrun, or the job's command and its processes. A share is run until its launcher exits; the
processes that this left are killed, and its output shows which rank failed first. The ends of all
shares decide the attempt (decisions/head/shares.py). A share ends with its agent: one that replaces
a killed agent follows none.
"""

from __future__ import annotations

import time
from functools import partial
from signal import SIGTERM
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.decisions.attempts import submission_id_of
from agent.decisions.shared import Step
from agent.diagnosis.flight_recorder import recorder_environment
from agent.job.job import PROGRESS_VARIABLE, fill
from agent.job.services import reward_url
from agent.job.share import ShareEnd, ShareLauncher, SharePlace, processes
from agent.plan import environment
from agent.plan.plan import JOB_LOG
from agent.processes import process
from agent.processes.job_stacks import STACKS_FOLDER, STACKS_VARIABLE
from agent.processes.output import PreambleFilter, RecentOutput
from agent.processes.recorder_dumps import has_pipes
from agent.record.background import in_thread, result_in_thread
from agent.record.log import say
from agent.run.job_steps import progress_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.decisions.shared import Want
    from agent.job.services import Placeholders
    from agent.job.share import ShareArgs
    from agent.processes.process import Child
    from agent.run.executor import OnProgress
    from agent.run.node_run import NodeRun


_LONGEST_END = 1 << 20  # bytes of the output's end that are searched for a failure report


async def _nothing(_recent: RecentOutput) -> None:
    """Pass nothing on."""


class JobShare:
    """This node's share of the job, one attempt after the other."""

    def __init__(
        self,
        run: NodeRun,
        place: Callable[[], Placeholders],
        pass_on: Callable[[RecentOutput], Awaitable[None]] = _nothing,
    ) -> None:
        """`pass_on` is given the output of each share before it starts."""
        self._run = run
        self._place = place
        self._pass_on = pass_on
        self._grace = run.plan.budget.job
        self._stopping: anyio.CancelScope | None = None  # the limit of the last stop

    @property
    def _launcher(self) -> ShareLauncher:
        launcher = self._run.plan.share_launcher
        assert launcher is not None  # noqa: S101 - shares are wanted only where one runs the job
        return launcher

    def hurry(self) -> None:
        """Leave a share less time to end, also one that is being stopped: the run ends."""
        self._grace = self._run.plan.budget.ray
        if self._stopping is not None:
            until = anyio.current_time() + self._grace
            self._stopping.deadline = min(self._stopping.deadline, until)

    async def run(self, _name: str, want: Want, progress: OnProgress) -> str:
        """Run the share of an attempt to its end, and say how it ended."""
        args = want.share
        if args is None:
            return "the head has not said which share"

        # Its output is in memory: a full log disk loses none of it.
        recent = RecentOutput(self._run.folder.file(JOB_LOG))
        attempt = want.generation
        attempt_id = submission_id_of(self._run.run_id, attempt)
        output = self._run.effects.late().copy_output(recent, PreambleFilter())
        if not self._run.plan.topology.is_head:  # there the job's output is scanned
            output.to_watcher(self._run.stats.share_lines(attempt))
        output.start()
        child: Child | None = None

        # It ends by itself, or is stopped; what its output shows is sent with the end, or before.
        try:
            await self._pass_on(recent)
            child = await self._start(args, attempt, attempt_id, recent)
            progress(Step.READY, "")
            await child.wait()
        finally:
            with anyio.CancelScope(shield=True):
                end = await self._end(child, attempt_id, recent)
                ended_at = self._run.now()
                limit = times.STALLED_DISK
                await in_thread(partial(output.finish, limit), 2 * limit)
                if end.failed:
                    end = replace(end, ago=end.ago + self._run.now() - ended_at)
                progress(Step.LOST if end.code else Step.READY, end.words, share=end)
        return end.words or (f"exit code {end.code}" if end.code else "")

    async def _end(self, child: Child | None, attempt_id: str, recent: RecentOutput) -> ShareEnd:
        """End what is left of a share; return how it ended."""
        if child is None:  # stopped before it began
            return ShareEnd(128 + SIGTERM, by_stop=True)
        is_stopped = child.running and await self._stop(child, recent)
        code = await child.wait()
        ended_at = self._run.now()
        self._run.node.remove_process(child.pid)
        await self._kill_leftovers(code, attempt_id)

        # By its first failed rank, as it was stopped, or by its own code.
        failure = None
        if code != 0:
            failure = self._launcher.end(code, _end_of(recent), _time_of_day())
        if failure is not None:
            return failure
        if is_stopped:
            return ShareEnd(code, by_stop=True)
        words = "" if code == 0 else child.tail()
        return ShareEnd(code, words=words, ago=self._run.now() - ended_at)

    async def _start(
        self, share: ShareArgs, attempt: int, attempt_id: str, recent: RecentOutput
    ) -> Child:
        """Start the launcher of an attempt's share."""
        plan = self._run.plan
        run = self._run
        place = self._place()
        assert plan.job is not None  # noqa: S101 - every node has one without Ray

        # The job's command for these nodes: a recipe is sized as on the head, which has checked
        # that it fits.
        recipe = plan.job.recipe
        argv = plan.job.argv
        launcher = self._launcher.with_processes(processes(share.gpus[share.rank], plan.settings))
        recipe_env = {}
        if recipe is not None:
            sized = recipe.command(share.nodes, run.run_id, share.basis)
            argv = sized.argv
            recipe_env = {**sized.env}
        reward_ip = share.reward_ip or place.head_ip
        reward = reward_url(plan.all_services, replace(place, node_ip=reward_ip))
        here = SharePlace(str(share.rank), str(len(share.nodes)), place.head_ip, attempt_id)
        own = launcher.placeholders(here)
        words = fill(argv, share.gpus, place, reward, attempt, plan.job.checkpoints, own)

        # The launcher's command line for it, and the environment of both.
        command = launcher.command(words, here)
        full = {**recipe_env, **plan.environment(place.node_ip, place.head_ip, self._run.rank)}
        full = {name: place.fill_addresses(text) for name, text in full.items()}
        full = run.with_wandb_run(full)
        full |= environment.without_proxy_to(full, [reward_ip])
        folder = run.folder.path
        pipes = await in_thread(partial(has_pipes, folder), times.STALLED_DISK)
        full |= recorder_environment(str(folder), full, has_pipes=bool(pipes))
        full[STACKS_VARIABLE] = str(run.folder.file(STACKS_FOLDER))
        env = launcher.environment(full, here)
        env["AGENT_ATTEMPT"] = str(attempt)
        env[PROGRESS_VARIABLE] = str(progress_path(run.folder, attempt))

        say(f"starting {launcher.name}: node rank {here.rank} of {here.nodes}")
        return await run.start(launcher.name, command, env, JOB_LOG, on_output=recent.add)

    async def _stop(self, child: Child, recent: RecentOutput) -> bool:
        """Stop a share; return whether it was stopped before any failure.

        Torchrun forwards the signal, a command's whole group gets it. A torchrun that already stops
        its ranks after a failure gets no signal: it would forget which rank failed.
        """
        launcher = self._launcher
        stop = partial(child.stop, leader_ends_group=launcher.stops_its_group)
        with anyio.move_on_after(self._grace) as self._stopping:  # less once the run ends
            if not launcher.is_closing(_end_of(recent), _time_of_day()):
                await stop(self._grace)
                return True
            await child.wait()
            return False
        await stop(0.0)
        return True

    async def _kill_leftovers(self, code: int, attempt_id: str) -> None:
        """Kill what a killed launcher leaves in sessions of their own, as torchrun's ranks are."""
        if code == 0:
            return
        descendants = self._run.effects.processes.descendants
        mark = self._launcher.mark
        kill = partial(process.kill_marked, mark, attempt_id.__eq__, descendants)
        for name in await result_in_thread(kill):
            say(f"{self._launcher.name} had left {name} running: killed", "warning")


def _end_of(recent: RecentOutput) -> str:
    return recent.end(_LONGEST_END).decode(errors="replace")


def _time_of_day() -> float:
    """Return the seconds since midnight, local time, as torchrun's failure report has them."""
    now = time.time()
    local = time.localtime(now)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + now % 1
