"""Run a job without Ray: this node's share, and on the head the shares of all nodes.

A job has one share for each node, which a launcher starts: the ranks of that node below one
torchrun, or the job's command and its processes.
ShareLink is on the head, where RayLink is for a job on Ray. It orders the share of an attempt
from every worker's agent, and starts the head's own. LocalShare is on every node: it stops the
share of the former attempt, starts the launcher, watches it until it exits, kills the processes
that it left, and reads from its output which rank failed first. The ends of all shares decide the
attempt (decisions/head/shares.py). An agent that replaces a killed one follows no share: a share
ends with its agent.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.decisions.attempts import submission_id_of
from agent.decisions.head import head_state as h
from agent.decisions.head.service_addresses import known_place
from agent.decisions.shared import HERE, OrderKind
from agent.diagnosis.flight_recorder import recorder_environment
from agent.job.job import PROGRESS_VARIABLE, fill
from agent.job.services import reward_url
from agent.job.share import ShareEnd, ShareLauncher, ShareOrder, ShareOver, SharePlace, processes
from agent.plan import environment
from agent.plan.plan import JOB_LOG
from agent.processes import process
from agent.processes.job_stacks import STACKS_FOLDER, STACKS_VARIABLE
from agent.processes.output import PreambleFilter, RecentOutput, size_at_start
from agent.processes.recorder_dumps import has_pipes
from agent.record.background import in_thread, result_in_thread
from agent.record.log import say
from agent.run.job_steps import progress_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.frameworks.recipe import JobBasis
    from agent.job.services import Placeholders
    from agent.port.reports import Reports
    from agent.processes.output import OutputCopies
    from agent.processes.process import Child
    from agent.record.job_lines import JobLines
    from agent.run.node_run import NodeRun


_LONGEST_END = 1 << 20  # bytes of the output's end that are searched for a failure report


class LocalShare:
    """Runs this node's share of the job, one attempt after the other."""

    def __init__(
        self, run: NodeRun, tasks: anyio.abc.TaskGroup, send: Callable[[ShareOver], None]
    ) -> None:
        self._run = run
        self._tasks = tasks
        self._send = send
        self._child: Child | None = None
        self._recent = self.new_output()
        self._is_stopped = False

    @property
    def _launcher(self) -> ShareLauncher:
        launcher = self._run.plan.share_launcher
        assert launcher is not None  # noqa: S101 - shares are ordered only where one runs the job
        return launcher

    def new_output(self) -> RecentOutput:
        """Return the place in memory for a share's output: a full log disk loses none of it."""
        return RecentOutput(self._run.folder.file(JOB_LOG))

    async def start(
        self, attempt: int, share: ShareOrder, place: Placeholders, recent: RecentOutput
    ) -> None:
        """Start the share of an attempt, after an earlier one; `recent` gets its output."""
        plan = self._run.plan
        run = self._run
        assert plan.job is not None  # noqa: S101 - every node has one without Ray
        await self.stop(plan.budget.ray)
        self._recent = recent

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
        reward = reward_url(plan.all_services, replace(place, node_ip=share.reward_ip))
        attempt_id = submission_id_of(run.run_id, attempt)
        here = SharePlace(str(share.rank), str(len(share.nodes)), place.head_ip, attempt_id)
        own = launcher.placeholders(here)
        words = fill(argv, share.gpus, place, reward, attempt, plan.job.checkpoints, own)

        # The launcher's command line for it, and the environment of both.
        command = launcher.command(words, here)
        full = {**recipe_env, **plan.environment(place.node_ip, place.head_ip, self._run.rank)}
        full = {name: place.fill_addresses(text) for name, text in full.items()}
        full = run.with_wandb_run(full)
        full |= environment.without_proxy_to(full, [share.reward_ip])
        folder = run.folder.path
        pipes = await in_thread(partial(has_pipes, folder), times.STALLED_DISK)
        full |= recorder_environment(str(folder), full, has_pipes=bool(pipes))
        full[STACKS_VARIABLE] = str(run.folder.file(STACKS_FOLDER))
        env = launcher.environment(full, here)
        env["AGENT_ATTEMPT"] = str(attempt)
        env[PROGRESS_VARIABLE] = str(progress_path(run.folder, attempt))

        self._is_stopped = False
        say(f"starting {launcher.name}: node rank {here.rank} of {here.nodes}")
        output = run.effects.late().copy_output(recent, PreambleFilter())
        if not plan.topology.is_head:  # there the job's output is scanned
            output.to_watcher(run.stats.share_lines(attempt))
        output.start()
        self._child = await run.start(launcher.name, command, env, JOB_LOG, on_output=recent.add)
        self._tasks.start_soon(self._watch, self._child, attempt, attempt_id, output)

    async def stop(self, grace: float) -> None:
        """Stop the share: torchrun forwards the signal, a command's whole group gets it.

        A torchrun that already stops its ranks after a failure gets no signal: it would forget
        which rank failed.
        """
        child = self._child
        if child is None or not child.running:
            return
        launcher = self._launcher
        if launcher.is_closing(self._read_output(), _time_of_day()):
            with anyio.move_on_after(grace):
                await child.wait()
                return
            grace = 0.0
        self._is_stopped = True
        await child.stop(grace, leader_ends_group=launcher.stops_its_group)

    async def _watch(
        self, child: Child, attempt: int, attempt_id: str, output: OutputCopies
    ) -> None:
        code = await child.wait()
        self._run.node.remove_process(child.pid)

        # A killed launcher leaves processes in sessions of their own, as torchrun's ranks are.
        if code != 0:
            is_of_attempt = attempt_id.__eq__
            descendants = self._run.effects.processes.descendants
            kill = partial(process.kill_marked, self._launcher.mark, is_of_attempt, descendants)
            killed = await result_in_thread(kill)
            for name in killed:
                say(f"{self._launcher.name} had left {name} running: killed", "warning")

        # What its output shows is sent with the end, or before.
        text = self._read_output()
        await in_thread(partial(output.finish, times.STALLED_DISK), 2 * times.STALLED_DISK)
        self._send(ShareOver(attempt, self._end_of(child, code, text)))

    def _end_of(self, child: Child, code: int, text: str) -> ShareEnd:
        """Return how a share ended: by its first failed rank, by order, or by its own code."""
        failure = None if code == 0 else self._launcher.end(code, text, _time_of_day())
        if failure is not None:
            return failure
        if self._is_stopped:
            return ShareEnd(code, by_order=True)
        return ShareEnd(code, words="" if code == 0 else child.tail())

    def _read_output(self) -> str:
        return self._recent.end(_LONGEST_END).decode(errors="replace")


def _time_of_day() -> float:
    """Return the seconds since midnight, local time, as torchrun's failure report has them."""
    now = time.time()
    local = time.localtime(now)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + now % 1


class ShareLink:
    """Starts, stops and follows attempts on all nodes, as RayLink does for Ray."""

    def __init__(
        self,
        run: NodeRun,
        tasks: anyio.abc.TaskGroup,
        place: Placeholders,
        send: Callable[[h.HeadEvent], None],
        watcher: JobLines,
    ) -> None:
        self._run = run
        self._tasks = tasks
        self._place = place
        self._send = send
        self._watcher = watcher
        self.share = LocalShare(run, tasks, lambda over: send(h.OwnShareOver(over)))
        self._stops: list[Callable[[], object]] = []  # they stop the last attempt's shares

    async def run(self) -> None:
        """Run until canceled: the nodes' agents report their shares."""
        await anyio.sleep_forever()

    async def launch(
        self, state: h.HeadState, reports: Reports, reward_ip: str, basis: JobBasis
    ) -> OutputCopies:
        """Start every node's share of the attempt; return this node's output."""
        number = state.attempt.number
        nodes = state.shares.sizes

        # Order the workers' shares, and keep for each how it is stopped.
        self._stops = [partial(self._tasks.start_soon, self.share.stop, self._run.plan.budget.job)]
        for rank, key in enumerate(state.shares.by_node):
            if key != HERE:
                order = partial(reports.order, key)
                share = ShareOrder(rank, nodes, reward_ip, basis)
                order(OrderKind.RUN_SHARE, "job", number, share=share)
                self._stops.append(partial(order, OrderKind.STOP_SHARE, "job", number))

        # Pass on this node's output, then start its share, which has rank 0.
        log = self._run.folder.file(JOB_LOG)
        self._run.output_begins = await size_at_start(log)
        recent = self.share.new_output()
        output = self._run.effects.late().copy_output(recent, PreambleFilter())
        output.to_stdout(0, lambda _count: None)
        output.to_watcher(self._watcher)
        output.start()
        own = ShareOrder(0, nodes, reward_ip, basis)
        place = known_place(self._place, state)
        await self.share.start(number, own, place, recent)
        self._send(h.Submitted(state.attempt.id))
        return output

    async def follow(self, job_id: str, _mirror: object = None) -> None:
        """Report that the job was never submitted: its shares ended with the earlier agent."""
        self._send(h.NeverSubmitted(job_id))

    async def stop_job(self, _job_id: str) -> None:
        """Stop every node's share."""
        for stop in self._stops:
            stop()

    def forget(self, _job_id: str) -> None:
        """Forget an attempt that is over."""
        self._stops = []
