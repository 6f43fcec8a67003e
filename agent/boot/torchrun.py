"""A torchrun job: this node's share, and the head's link to all shares."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.decisions.attempts import submission_id_of
from agent.decisions.head import state as h
from agent.decisions.values import HERE, OrderKind
from agent.plan.plan import JOB_LOG
from agent.record.background import in_thread
from agent.record.files import read_end
from agent.record.log import say
from agent.runtime import descendants
from agent.runtime.output import OutputCopies, PreambleFilter
from agent.settings.jobs import TORCHRUN
from agent.work.job import JobPlaceholders, fill, sizes
from agent.work.services import reward_url
from agent.work.torchrun import (
    RANK_VARIABLE,
    ShareEnd,
    ShareOrder,
    ShareOver,
    closes_by_itself,
    exception_text,
    first_failure,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.boot.node_run import NodeRun
    from agent.control.reports import Reports
    from agent.decisions.head.state import HeadState
    from agent.runtime.output import ByteSink
    from agent.runtime.process import Child
    from agent.work.recipes.recipe import JobBasis
    from agent.work.services import Placeholders


_LONGEST_END = 1 << 20
"""Bytes of the output's end that are searched for torchrun's failure report."""


class LocalShare:
    """Runs this node's torchrun, one attempt after the other."""

    def __init__(self, run: NodeRun, send: Callable[[ShareOver], None]) -> None:
        self._run, self._send = run, send
        self._child: Child | None = None
        self._began = 0
        self._is_stopped = False

    async def start(
        self,
        tasks: anyio.abc.TaskGroup,
        attempt: int,
        share: ShareOrder,
        place: Placeholders,
        run_id: str,
    ) -> None:
        """Start the share of an attempt, after stopping an earlier one."""
        plan, run = self._run.plan, self._run
        assert plan.torchrun is not None  # noqa: S101 - ordered only where it starts the job
        assert plan.job is not None  # noqa: S101 - every node has one where torchrun starts it
        await self.stop(plan.budget.ray)
        log = run.folder.file(JOB_LOG)
        errors = run.folder.file(f"torchrun-error-{attempt}.json")
        self._began = await size_at_start(run, log, errors)
        attempt_id = submission_id_of(run_id, attempt)
        recipe, words, own = plan.job.recipe, plan.job.argv, {}
        if recipe is not None:  # the head checked that it fits
            command = recipe.command(share.nodes, run_id, share.basis)
            words, own = command.argv, {**command.env}
        nodes, least, total = sizes(share.gpus)
        joined = JobPlaceholders(
            nodes=nodes,
            gpus_per_node=least,
            total_gpus=total,
            head_ip=place.head_ip,
            reward_url=reward_url(plan.all_services, replace(place, node_ip=share.reward_ip)),
            log_dir=place.log_dir,
            attempt=attempt,
            checkpoints=plan.job.checkpoints,
        )
        rank, size = str(share.rank), str(len(share.nodes))
        filled = fill(words, joined)
        argv = plan.torchrun.command(filled, rank, size, attempt_id, place.head_ip)
        full = {**own, **plan.environment(place.node_ip, place.head_ip)}
        env = plan.torchrun.environment(full, attempt, str(errors))
        self._is_stopped = False
        say(f"starting torchrun: node rank {rank} of {size}")
        output = OutputCopies(log, PreambleFilter.disabled())
        if not plan.topology.is_head:  # there the job's output is scanned
            output.to_watcher(run.stats.share_lines(attempt), self._began)
        output.start()
        self._child = await run.start(TORCHRUN, argv, env, JOB_LOG)
        tasks.start_soon(self._watch, self._child, attempt, attempt_id, errors, output)

    async def stop(self, grace: float) -> None:
        """Stop the share: torchrun forwards the signal to its ranks.

        A torchrun that already stops its ranks after a failure gets no signal: it would forget
        which rank failed.
        """
        child = self._child
        if child is None or not child.running:
            return
        if closes_by_itself(await self._read_output()):
            with anyio.move_on_after(grace):
                await child.wait()
                return
        self._is_stopped = True
        await child.stop(grace, leader_ends_group=True)

    async def _watch(
        self, child: Child, attempt: int, attempt_id: str, errors: Path, output: OutputCopies
    ) -> None:
        code = await child.wait()
        self._run.node.remove_process(child.pid)
        if code != 0:  # a killed torchrun leaves its ranks, each in its own session
            for name in await anyio.to_thread.run_sync(
                descendants.kill_marked, RANK_VARIABLE, attempt_id.__eq__
            ):
                say(f"torchrun had left {name} running: killed", "warning")
        text = await self._read_output()
        errors_text = await in_thread(partial(text_of, errors)) or ""
        # Its findings are sent with the end, or before.
        await anyio.to_thread.run_sync(output.finish, times.STALLED_DISK)
        now = time.time()
        local = time.localtime(now)
        time_of_day = local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + now % 1
        failure = None if code == 0 else first_failure(text, time_of_day)
        if failure is not None:
            end = replace(failure, words=exception_text(errors_text))
        elif self._is_stopped:
            end = ShareEnd(code, by_order=True)
        else:
            end = ShareEnd(code, words="" if code == 0 else await child.tail())
        self._send(ShareOver(attempt, end))

    async def _read_output(self) -> str:
        """Return the end of this attempt's output."""
        path, began = self._run.folder.file(JOB_LOG), self._began
        return await in_thread(partial(text_of, path, began)) or ""


async def size_at_start(run: NodeRun, log: Path, former: Path | None = None) -> int:
    """Return a log's size as an attempt begins, and remove an earlier attempt's error file.

    On a stalled disk this takes 2 s, and earlier output may be passed on again.
    """

    def read_size() -> int:
        if former is not None:
            remove_file(former)
        with suppress(OSError):
            return log.stat().st_size
        return 0

    size = await in_thread(read_size, times.STALLED_DISK)
    if size is None:
        problem = f"{run.folder.path} does not answer within {times.STALLED_DISK:g} s"
        say(f"{problem}. Output of an earlier attempt may be repeated", "warning")
    return size or 0


def remove_file(path: Path) -> None:
    """Remove a file if it is there; writing the new one reports an error of the disk."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def text_of(path: Path, began: int = 0) -> str:
    """Return the end of a file from an offset on; '' if it cannot be read."""
    return (read_end(path, _LONGEST_END, began) or b"").decode(errors="replace")


class TorchrunLink:
    """Starts, stops and follows attempts on all nodes, as RayLink does for Ray."""

    def __init__(
        self,
        run: NodeRun,
        place: Placeholders,
        send: Callable[[h.HeadEvent], None],
        watcher: ByteSink,
    ) -> None:
        self._run, self._place, self._send, self._watcher = run, place, send, watcher
        self._share = LocalShare(run, lambda over: send(h.OwnShareOver(over)))
        self._tasks: anyio.abc.TaskGroup | None = None
        self._reports: Reports | None = None
        self._others: dict[str, int] = {}
        """The agents with a share of the last attempt, and its number."""

    async def run(self) -> None:
        """Run until canceled: the nodes' agents report their shares."""
        await anyio.sleep_forever()

    async def launch(  # noqa: PLR0913 - all that a share needs
        self,
        tasks: anyio.abc.TaskGroup,
        state: HeadState,
        reports: Reports,
        run_id: str,
        reward_ip: str,
        basis: JobBasis,
    ) -> OutputCopies:
        """Start every node's share of the attempt; return this node's output."""
        number, nodes = state.attempt.number, state.shares.sizes
        self._tasks, self._reports, self._others = tasks, reports, {}
        for rank, key in enumerate(state.shares.by_node):
            if key != HERE:
                self._others[key] = number
                share = ShareOrder(rank, nodes, reward_ip, basis)
                reports.order(key, OrderKind.RUN_SHARE, "job", number, share=share)
        log = self._run.folder.file(JOB_LOG)
        begins = self._run.output_begins = await size_at_start(self._run, log)
        output = OutputCopies(log, PreambleFilter.disabled())
        output.to_stdout(begins, lambda count: self._run.node.update(passed_on=count))
        output.to_watcher(self._watcher, begins)
        output.start()
        own = ShareOrder(0, nodes, reward_ip, basis)
        await self._share.start(tasks, number, own, self._place, run_id)
        self._send(h.Submitted(state.attempt.id))
        return output

    async def follow(self, job_id: str, _mirror: object = None) -> None:
        """Report that the job was never submitted: its shares ended with the earlier agent."""
        self._send(h.NeverSubmitted(job_id))

    async def stop_job(self, _job_id: str) -> None:
        """Order every node to stop its share."""
        for key, number in self._others.items():
            assert self._reports is not None  # noqa: S101 - they were ordered through it
            self._reports.order(key, OrderKind.STOP_SHARE, "job", number)
        assert self._tasks is not None  # noqa: S101 - stopped only after it was launched
        self._tasks.start_soon(self._share.stop, self._run.plan.budget.job)

    def forget(self, _job_id: str) -> None:
        """Forget an attempt that is over."""
        self._others = {}

    async def stop_local(self, grace: float) -> None:
        """Stop this node's share if it still runs."""
        await self._share.stop(grace)
