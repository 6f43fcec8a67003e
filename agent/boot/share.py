"""This node's share of a job that torchrun starts: started, stopped, and its end told."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from agent.decisions.attempts import id_of
from agent.plan.plan import JOB_LOG
from agent.record.log import say
from agent.runtime import orphans
from agent.runtime.last_words import in_thread
from agent.settings.jobs import TORCHRUN
from agent.work.job import Joined, fill, sizes
from agent.work.services import reward_url
from agent.work.torch_failure import closes_by_itself, first_failure, words_in
from agent.work.torchrun import RANKS_MARK, PartEnd, PartOver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.boot.node_run import NodeRun
    from agent.runtime.output import Ways
    from agent.runtime.process import Child
    from agent.work.torchrun import Seat
    from agent.work.where import Place

LOG = JOB_LOG
_LOOKED_LIMIT = 2.0
_LONGEST_END = 1 << 20
"""So much of the end of its output is searched for torchrun's word of a failure."""


class Share:
    """Runs this node's torchrun, one attempt after the other."""

    def __init__(self, run: NodeRun, tell: Callable[[PartOver], None]) -> None:
        self._run = run
        self._tell = tell
        self._child: Child | None = None
        self._began = 0
        self._is_stopped = False

    async def start(
        self, tasks: anyio.abc.TaskGroup, attempt: int, seat: Seat, place: Place, run_id: str
    ) -> None:
        """Start the share of an attempt; what is left of an earlier one is stopped first."""
        plan, run = self._run.plan, self._run
        assert plan.torchrun is not None  # noqa: S101 - ordered only where it starts the job
        await self.stop(run.plan.budget.ray)
        errors = run.folder.file(f"torchrun-error-{attempt}.json")
        self._began = await size_at_start(run, run.folder.file(LOG), errors)
        env = plan.torchrun.environment(
            plan.environment(place.node_ip, place.head_ip), attempt, str(errors)
        )
        attempt_id = id_of(run_id, attempt)
        argv = self._argv(attempt, seat, place, attempt_id)
        self._is_stopped = False
        say(f"starting torchrun: node rank {seat.rank} of {len(seat.nodes)}")
        output = self._looked_at(attempt)
        self._child = await run.start(TORCHRUN, argv, env, LOG)
        tasks.start_soon(self._watch, self._child, attempt, attempt_id, errors, output)

    def _looked_at(self, attempt: int) -> Ways:
        """Look at what is written here; on the head that is done where it is passed on."""
        from agent.runtime.output import Ways, WithoutPreamble  # noqa: PLC0415 - once a job runs

        output = Ways()
        if not self._run.plan.topology.is_head:
            source, nothing = self._run.folder.file(LOG), WithoutPreamble.nothing()
            output.look(source, nothing, self._run.seen.share(attempt), self._began)
        output.start()
        return output

    def _argv(self, attempt: int, seat: Seat, place: Place, attempt_id: str) -> list[str]:
        plan = self._run.plan
        assert plan.job is not None  # noqa: S101 - every node has one where torchrun starts it
        assert plan.torchrun is not None  # noqa: S101 - same
        nodes, least, total = sizes(seat.gpus)
        joined = Joined(
            nodes=nodes,
            gpus_per_node=least,
            total_gpus=total,
            head_ip=place.head_ip,
            reward_url=reward_url(plan.all_services, replace(place, node_ip=seat.reward_ip)),
            log_dir=place.log_dir,
            attempt=attempt,
            checkpoints=plan.job.checkpoints,
        )
        recipe = plan.job.recipe  # the head has seen that it fits
        words = plan.job.argv if recipe is None else recipe.command(seat.nodes).argv
        return plan.torchrun.part(fill(words, joined), seat, attempt_id, place.head_ip)

    async def stop(self, grace: float) -> None:
        """Stop it: torchrun hands the signal on to its ranks.

        One that stops its ranks already, since one has failed, would forget which if it were told.
        """
        child = self._child
        if child is None or not child.running:
            return
        if closes_by_itself(await self._said()):
            with anyio.move_on_after(grace):
                await child.wait()
                return
        self._is_stopped = True
        await child.stop(grace, leader_ends_group=True)

    async def _watch(
        self, child: Child, attempt: int, attempt_id: str, errors: Path, output: Ways
    ) -> None:
        code = await child.wait()
        self._run.child_ended(child)
        if code != 0:  # one that was killed leaves its ranks, each in a session of its own
            for name in await anyio.to_thread.run_sync(
                orphans.kill_marked, RANKS_MARK, attempt_id.__eq__
            ):
                say(f"torchrun had left {name} running: killed", "warning")
        text, told = await self._said(), await in_thread(lambda: _text_of(errors))
        await anyio.to_thread.run_sync(output.finish, _LOOKED_LIMIT)  # told with the end, or before
        failure = None if code == 0 else first_failure(text, _time_of_day())
        if failure is not None:
            end = PartEnd(failure.code, failure.local_rank, words_in(told), failure.ago)
        elif self._is_stopped:
            end = PartEnd(code, by_order=True)
        else:
            end = PartEnd(code, words="" if code == 0 else await child.tail())
        self._tell(PartOver(attempt, end))

    async def _said(self) -> str:
        """Return the end of what this attempt has written."""
        path, began = self._run.folder.file(LOG), self._began
        return await in_thread(lambda: _text_of(path, began))


async def size_at_start(run: NodeRun, log: Path, former: Path | None = None) -> int:
    """Return the size of a log as an attempt begins, and remove a file of a former life.

    A disk that stalls costs 2 s, and what was written before may be passed on again.
    """

    def look() -> str:
        if former is not None:
            with suppress(OSError):
                former.unlink(missing_ok=True)
        return str(size_of(log))

    size = await in_thread(look, _LOOKED_LIMIT)
    if not size:
        late = f"{run.folder.path} does not answer within {_LOOKED_LIMIT:g} s"
        say(f"{late}: output of an earlier attempt may be repeated", "warning")
    return int(size or 0)


def size_of(path: Path) -> int:
    """Return how much is in a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text_of(path: Path, began: int = 0) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(began, size_of(path) - _LONGEST_END))
            return file.read(_LONGEST_END).decode(errors="replace")
    except OSError:
        return ""


def _time_of_day() -> float:
    now = time.time()
    local = time.localtime(now)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + now % 1
