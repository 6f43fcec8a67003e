"""A job that shows no sign of work: looked for on all nodes, told with stacks, once an attempt."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from agent.base.words import listed
from agent.boot.head_logs import sent_by
from agent.boot.looks import BUSY, IDLE, STACKS, Looks, tell_stacks
from agent.bridge.link import RayLink
from agent.checks.finding import Finding, Level
from agent.decisions.head.state import Phase
from agent.decisions.items import HERE
from agent.decisions.stall import Quiet, StalledSinceLoss, following, step
from agent.plan.show import duration
from agent.record.log import say
from agent.runtime.last_words import in_thread
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.node_run import NodeRun
    from agent.boot.torchrun_head import TorchrunLink
    from agent.boot.watched import Watched
    from agent.control.reports import Reports
    from agent.decisions.head.state import HeadState

_BUSY_LIMIT, _STACKS_LIMIT, _TASKS_LIMIT = 15.0, 45.0, 30.0
_DISK_LIMIT = 2.0
_MOST_NODES = 8
"""So many nodes' stacks are told in the log; the file has all."""
_REMEDY = (
    "Look in the stacks for who waits for whom: a collective whose rank is missing, a result that "
    "nobody makes, a lock; `pod-agent stop` ends it. AGENT_STALL sets after how long this is said"
)


class StallWatch:
    """Looks at a quiet job now and then, and at its stacks once it has been quiet for too long."""

    def __init__(  # noqa: PLR0913 - all that it looks at
        self,
        run: NodeRun,
        reports: Reports,
        watched: Watched,
        link: RayLink | TorchrunLink,
        look: Callable[[], HeadState],
        tell: Callable[[StalledSinceLoss], None],
    ) -> None:
        self._run = run
        self._reports = reports
        self._watched = watched
        self._link = link
        self._look = look
        self._tell_head = tell
        self._own = Looks(run)
        self._limit = run.plan.settings.stall
        self._quiet: Quiet | None = None

    async def run(self) -> None:
        """Watch for as long as the run lives, where that is wanted."""
        if not self._limit or self._run.plan.job is None:
            return
        pause = step(self._limit)

        async def turn() -> NotYet:
            await self._run.best_effort("a look for a job without a sign of work", self._once)
            return NotYet()

        await until(turn, None, step=pause, longest=pause)

    async def _once(self) -> None:
        """Take in what is known of the attempt that runs; look at the nodes where it is quiet."""
        state, now = self._look(), self._run.now()
        runs = state.phase is Phase.RUNNING
        number, lost = state.attempt.number if runs else None, bool(state.attempt.gone)
        quiet = following(self._quiet, number, now, lost_a_node=lost)
        if quiet is not None:
            quiet = quiet.worked(self._run.at(self._watched.job.heard))
        if quiet is not None and quiet.wants_a_look(self._limit, now):
            quiet = await self._looked(quiet, state)
        self._quiet = quiet

    async def _looked(self, quiet: Quiet, state: HeadState) -> Quiet:
        """Look for work on all nodes, then at Ray's tasks; tell of a job that shows neither."""
        answers = await self._ask_all(BUSY, _BUSY_LIMIT, state)
        if any(answer != IDLE for answer in answers.values()):
            return quiet.worked(self._run.now())
        quiet = quiet.worked(self._run.at(self._watched.job.heard))
        if not quiet.is_over(self._limit, self._run.now()):
            return quiet
        if isinstance(self._link, RayLink):
            finished = await self._link.last_finished(_TASKS_LIMIT)
            if finished is not None:
                quiet = quiet.worked(self._run.now() - (time.time() - finished))
        if not quiet.is_over(self._limit, self._run.now()) or not self._is_on(quiet):
            return quiet
        await self._tell(quiet, state)
        return replace(quiet, is_told=True)

    def _is_on(self, quiet: Quiet) -> bool:
        """Say whether the attempt still runs, and has written nothing meanwhile."""
        state, heard = self._look(), self._run.at(self._watched.job.heard)
        same = state.phase is Phase.RUNNING and state.attempt.number == quiet.attempt
        return same and quiet.worked(heard) == quiet

    async def _tell(self, quiet: Quiet, state: HeadState) -> None:
        """Bring the stacks of all nodes, and say what they are of."""
        long = duration(round(self._run.now() - quiet.since))
        signs = listed(_signs(self._run, state, by_ray=isinstance(self._link, RayLink)))
        what = f"the job shows no sign of work for {long}: {signs}"
        say(f"{what} (AGENT_STALL): looking where it is", "warning")
        stacks = await self._ask_all(STACKS, _STACKS_LIMIT, state)
        path = self._run.folder.file(f"stacks-{quiet.attempt}.log")
        for name, text in [*stacks.items()][:_MOST_NODES]:
            tell_stacks(name, text, f"in {path.name}")
        whole = "\n".join(f"--- {name}\n{text}\n" for name, text in stacks.items())
        fault = await in_thread(lambda: _written(path.write_text, whole), _DISK_LIMIT)
        where = f"; the stacks of {listed([*stacks][:_MOST_NODES])} are in {path}"
        finding = Finding("stall", Level.WARN, f"{what}{'' if fault else where}", _REMEDY)
        self._watched.stalls = (*self._watched.stalls, finding)
        say(finding.sentence(), "warning")
        if quiet.lost_a_node:
            self._tell_head(StalledSinceLoss(quiet.attempt, long))

    async def _ask_all(self, what: str, limit: float, state: HeadState) -> dict[str, str]:
        """Ask this node and all workers that are there, side by side; who says nothing is named."""
        id_ = None if state.goal.by_torchrun else state.attempt.id
        everybody = state.fleet.workers.values()
        workers = [one for one in everybody if not (one.gone or one.silent or one.refused)]
        found = dict.fromkeys([HERE, *(one.key for one in workers)], "")

        async def ask(key: str) -> None:
            if key == HERE:
                found[key] = await self._own.tell(what, id_)
                return
            text = await sent_by(self._reports, key, what, limit)
            found[key] = f"no word within {limit:g} s" if text is None else text

        async with anyio.create_task_group() as tasks:
            for key in found:
                tasks.start_soon(ask, key)
        told = {self._run.plan.topology.node_name: found[HERE]}
        for one in workers:
            told[f"{one.name} ({one.ip})" if one.name in told else one.name] = found[one.key]
        return told


def _signs(run: NodeRun, state: HeadState, *, by_ray: bool) -> list[str]:
    """Name the signs of work that are missing, of those that can be seen."""
    signs = ["no output"]
    if by_ray:
        signs.append("no Ray task finished")
    if run.plan.topology.given_ray is None:  # else the job's processes are not below us
        gpus = any(facts.gpus for facts in (run.plan.facts, *state.fleet.facts.values()))
        signs.append("idle GPUs" if gpus else "idle processors")
    return signs


def _written(write: Callable[[str], object], text: str) -> str:
    try:
        write(text)
    except OSError as error:
        return error.strerror or str(error)
    return ""
