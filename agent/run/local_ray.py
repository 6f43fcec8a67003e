"""Run this node's Ray on a worker, for the executor.

A Ray is started with the head's address and is ready once its raylet listens. It is lost as soon as
`ray start --block` exits, and over once nothing of it is left: no process, and no memory of the
GPUs. The head then wants the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.shared import Step
from agent.job.gpu_split import JOB_GPUS
from agent.job.services import Placeholders
from agent.plan.plan import RAY
from agent.processes.waiting import NotYet, until
from agent.run.node_run import kill_leftovers, stop_ray, watch_until_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.shared import Want
    from agent.decisions.worker.worker_state import WorkerState
    from agent.processes.process import Child
    from agent.run.executor import OnProgress
    from agent.run.node_run import NodeRun

_RETRY_PAUSE = 0.5  # After the end of one Ray, before another may start.


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
            attempt=state.ray_attempt,
            ray_generation=want.generation,
        )

        async def check() -> bool | NotYet:
            evidence = await network.port_answers(node_ip, self._run.plan.ports.node_manager)
            return NotYet(evidence) if evidence else True

        async def watch_until_up() -> None:
            if not is_adopted:
                silent = lambda evidence: progress(Step.PENDING, evidence)  # noqa: E731 - one use
                await until(check, None, longest=0.2, on_evidence=silent)
            progress(Step.READY, "")

        # It runs until it exits, or is not wanted any more.
        with anyio.CancelScope(shield=True):
            child = await self._start(node_ip, head_ip)
        try:
            return await watch_until_end(self._run, child, watch_until_up)
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await stop_ray(child, self._run.plan.budget.ray)
                self._run.node.remove_process(child.pid)

    async def clear(self, _progress: OnProgress) -> None:
        """End what a Ray has left, and wait for the memory of the GPUs and for the next try."""
        await kill_leftovers(self._run, "Ray", None)
        await self._run.gpu_memory.await_free()
        await anyio.sleep(_RETRY_PAUSE)

    async def _start(self, node_ip: str, head_ip: str) -> Child:
        plan = self._run.plan
        process = plan.process(RAY)
        gpus = str(len(plan.gpu_split.of_job(self._run.rank)))
        argv = process.command(Placeholders(node_ip, head_ip))
        argv = [word.replace(JOB_GPUS, gpus) for word in argv]
        env = self._run.with_wandb_run(plan.environment(node_ip, head_ip, self._run.rank))
        return await self._run.start(process.name, argv, env, process.log)
