"""Run this node's ranks of the all-reduce before the job, for the executor.

They end by themselves, within the limit of the program (bundled/all_reduce.py), or are ended where
the all-reduce is not wanted any more. Only the head's item has the result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.plan import environment
from agent.plan.make import GPUS, PREFLIGHT_RESULT
from agent.plan.plan import ALL_REDUCE as PROCESS
from agent.processes.waiting import Failure
from agent.record.background import in_thread
from agent.record.files import read_end, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.shared import Want
    from agent.job.services import Placeholders
    from agent.job.share import ShareArgs
    from agent.run.executor import OnProgress, Runner
    from agent.run.node_run import NodeRun

_LONGEST_RESULT = 1 << 20  # bytes


def all_reduce_runner(run: NodeRun, place: Callable[[], Placeholders]) -> Runner | None:
    """Return what runs this node's ranks; None if its plan has none."""
    is_planned = any(process.name == PROCESS for process in run.plan.processes)
    return partial(_run_part, run, place) if is_planned else None


async def _run_part(
    run: NodeRun, place: Callable[[], Placeholders], name: str, want: Want, progress: OnProgress
) -> str:
    """Run the ranks to their end; return why they failed, or ''."""
    if want.share is None:
        return "the head has not said which share"
    result = await run.best_effort(name, run_ranks, run, want.share, place())
    if isinstance(result, Failure):
        return result.reason
    words, failure = result
    if run.plan.topology.is_head:
        progress(words=words)
    return failure


async def run_ranks(run: NodeRun, share: ShareArgs, place: Placeholders) -> tuple[str, str]:
    """Run the ranks; return the result that they wrote, and why they failed without one."""
    plan = run.plan
    out = run.folder.file(PREFLIGHT_RESULT)
    await in_thread(partial(remove_file, out))

    # Which command runs here, with which GPUs and environment?
    process = plan.process(PROCESS)
    here = replace(place, rank=str(share.rank), log_dir=str(out.parent))
    gpus = ",".join(map(str, share.gpus))
    argv = [word.replace(GPUS, gpus) for word in process.command(here)]
    full = plan.environment(place.node_ip, place.head_ip, run.rank)
    env = environment.without_cluster_auth(full, plan.settings)

    # It ends by itself, or is stopped.
    grace = times.ALL_REDUCE_STOP
    running = run.running(process.name, argv, env, process.log, grace=grace, leader_ends_group=True)
    code: int | None = None
    async with running as child:
        with anyio.move_on_after(times.ALL_REDUCE + times.ALL_REDUCE_KILLED):
            code = await child.wait()

    result = await in_thread(partial(read_end, out, _LONGEST_RESULT)) or b""
    words = result.decode(errors="replace")
    if words or (code == 0 and not plan.topology.is_head):
        return words, ""
    return "", child.tail() or "its ranks ended without output"
