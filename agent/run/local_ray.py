"""Run this node's Ray for the executor, one after the other, or watch a given one.

A head's Ray is ready once its port is open, a worker's, which joins the head's, once its raylet
listens. While it runs, its processes are watched: a stopped dashboard or agent is a doubt of the
head's, a lost or stopped GCS or raylet ends it. Its end is reported at once. Then what jobs and
workers have left here is killed, and after an attempt the memory of this node's GPUs is waited for.
Only then it is over, and the next one may start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.shared import Step
from agent.job.gpu_split import JOB_GPUS
from agent.job.services import Placeholders
from agent.plan.plan import RAY
from agent.processes.waiting import NotYet, until
from agent.run.node_run import kill_leftovers, start_ray, stop_ray, watch_until_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from agent.bridge.link import RayLink
    from agent.decisions.head.head_state import HeadState
    from agent.decisions.shared import Want
    from agent.decisions.worker.worker_state import WorkerState
    from agent.platforms.rank_variables import GivenRay
    from agent.processes.process import Child
    from agent.run.executor import OnProgress
    from agent.run.node_run import NodeRun

_LEFTOVERS_KILLED = 10.0  # Then what resists is named, and waited for.
_OWN_PORT_LOOK = 0.1  # Between two looks at the port of our own Ray, which starts just now.
_GIVEN_PORT_LOOK = 1.0  # And at that of a given one, which is started at any time.
_RAYLET_LOOK = 0.2  # And at that of a worker's raylet.
_RETRY_PAUSE = 0.5  # After the end of a worker's Ray, before another may start.


class HeadRay:
    """This head's Ray, one generation after the other."""

    def __init__(  # noqa: PLR0913 - what Ray is started with, and what watches it
        self,
        run: NodeRun,
        early: Child | None,
        link: RayLink,
        place: Callable[[], Placeholders],
        env: Mapping[str, str],
        state: Callable[[], HeadState],
    ) -> None:
        """`early` runs already: started before any decision, or by a killed agent."""
        self._run = run
        self._early = early
        self._link = link
        self._place = place
        self._env = env
        self._state = state
        self._is_doubted = False
        self._begun = 0  # how many attempts had begun when this Ray started

    async def run(self, _name: str, want: Want, progress: OnProgress) -> str:
        """Run a Ray until it has ended; return how."""
        self._is_doubted = False
        self._begun = self._state().earlier.number
        child = self._early
        is_next = child is None
        self._early = None
        if child is None:
            child = await start_ray(self._run, self._place(), self._env)
        try:
            if is_next:  # what the bridge has of the former one does not apply to it
                await self._link.restart_bridge(want.generation)
            end = await self._watch(child, progress)
            progress(Step.LOST, end, memory=self._run.memory.recent(), output=child.tail())
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop(child)
        return end

    async def clear(self, progress: OnProgress) -> None:
        """End all that could run beside the next one; return when nothing of it is left.

        Actors may be detached, and their child processes have sessions of their own. Only what ran
        in an attempt has had memory of the GPUs.
        """
        state = self._state()
        has_run_job = state.attempt.is_submitted or state.earlier.number > self._begun
        resists = await kill_leftovers(self._run, "Ray", _LEFTOVERS_KILLED)
        if resists:
            progress(doubt=f"{resists} cannot be ended")
            await kill_leftovers(self._run, "Ray", None)
        if has_run_job:
            await self._run.gpu_memory.await_free()

    async def _watch(self, child: Child, progress: OnProgress) -> str:
        """Watch a Ray until it ends; return how it ended."""
        run = self._run

        def on_doubt(evidence: str, beside_job: bool) -> None:  # noqa: FBT001 - as it is emitted
            self._is_doubted = evidence != ""
            progress(doubt=evidence, beside_job=beside_job)

        async def watch_port() -> None:
            own_ip = self._place().node_ip
            await _until_open(run, own_ip, run.plan.ports.gcs, _OWN_PORT_LOOK, progress)

        async def watch_helpers() -> None:
            await run.effects.processes.watch_ray_helpers(child, on_doubt, run.best_effort)

        return await watch_until_end(run, child, watch_port, watch_helpers)

    async def _stop(self, child: Child) -> None:
        """Stop a Ray that still runs; one that hangs has no time to end by itself."""
        if child.running:
            await stop_ray(child, 0.0 if self._is_doubted else self._run.plan.budget.ray)
        self._run.node.remove_process(child.pid)


class WatchedRay:
    """A given Ray, which others start and stop: it is only watched."""

    def __init__(self, run: NodeRun, given: GivenRay) -> None:
        self._run = run
        self._given = given

    async def run(self, _name: str, _want: Want, progress: OnProgress) -> str:
        """Say once its port is open; it has no end here."""
        given = self._given
        await _until_open(self._run, given.gcs_host, given.gcs_port, _GIVEN_PORT_LOOK, progress)
        await anyio.sleep_forever()
        return ""

    async def clear(self, _progress: OnProgress) -> None:
        """Wait until the job of an attempt has left no GPU memory in use on this node."""
        await self._run.gpu_memory.await_free()


async def _until_open(
    run: NodeRun, host: str, port: int, step: float, progress: OnProgress
) -> None:
    """Say once a port of Ray accepts connections: a bridge, which imports Ray, is later."""

    async def is_open() -> bool | NotYet:
        evidence = await run.effects.network.port_answers(host, port)
        return NotYet(evidence) if evidence else True

    await until(is_open, None, longest=step, on_evidence=lambda why: progress(Step.PENDING, why))
    progress(Step.READY, "")


class WorkerRay:
    """This node's Ray, one after the other."""

    def __init__(self, run: NodeRun, state: Callable[[], WorkerState]) -> None:
        """`state` has the head whose Ray is joined."""
        self._run = run
        self._state = state
        self.node_ip = ""  # the address with which it was started

    async def run(self, _name: str, want: Want, progress: OnProgress) -> str:
        """Join the head's Ray until this one ends; return how it ended."""
        state = self._state()
        head_ip = state.head_ip or ""
        network = self._run.effects.network
        node_ip = self._run.plan.address.ip or network.source_towards(head_ip)
        if node_ip is None:
            return f"no route to the head at {head_ip}"
        self.node_ip = node_ip

        # A killed agent's Ray may still run: it is this one, or must end.
        surviving = self._run.surviving
        is_adopted = surviving is not None and surviving.has_generation(want.generation)
        if surviving is not None and not is_adopted:
            surviving.end_ray()
        self._run.node.update(
            epoch=state.epoch or 0,
            head_ip=head_ip,
            ray_generation=want.generation,
        )

        async def watch_port() -> None:
            if not is_adopted:  # else it is ready already
                port = self._run.plan.ports.node_manager
                await _until_open(self._run, node_ip, port, _RAYLET_LOOK, progress)

        # It runs until it exits, or is not wanted any more.
        async with self._running(node_ip, head_ip) as child:
            end = await watch_until_end(self._run, child, watch_port)
            progress(Step.LOST, end, output=child.tail())
            return end

    async def clear(self, _progress: OnProgress) -> None:
        """End what a Ray has left, and wait for the memory of the GPUs and for the next try."""
        await kill_leftovers(self._run, "Ray", None)
        await self._run.gpu_memory.await_free()
        await anyio.sleep(_RETRY_PAUSE)

    def _running(self, node_ip: str, head_ip: str) -> AbstractAsyncContextManager[Child]:
        """Start Ray; it ends with the context."""
        plan = self._run.plan
        process = plan.process(RAY)
        gpus = str(len(plan.gpu_split.of_job(self._run.rank)))
        argv = process.command(Placeholders(node_ip, head_ip))
        argv = [word.replace(JOB_GPUS, gpus) for word in argv]
        env = self._run.with_wandb_run(plan.environment(node_ip, head_ip, self._run.rank))
        grace = plan.budget.ray
        return self._run.running(
            process.name, argv, env, process.log, grace=grace, leader_ends_group=True
        )
