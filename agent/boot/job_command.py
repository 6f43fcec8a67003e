"""The job's command, made of what joined: what a head submits, or why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.base.outcome import Kind, Outcome
from agent.base.value import dataclass
from agent.decisions.shared import Said
from agent.record import checkpoint_folder
from agent.work import checkpoints
from agent.work.job import Joined, entrypoint, fill, sizes
from agent.work.recipe_job import mark_of, world_size
from agent.work.recipes.recipe import MisfitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.head.state import HeadState
    from agent.plan.plan import Plan
    from agent.work.job import Job
    from agent.work.recipes.recipe import Command, NodeSize
    from agent.work.where import Place

_DISK_LIMIT = 20.0
"""Longest that the folder for checkpoints may take to answer."""


@dataclass(frozen=True)
class Submission:
    """What Ray is told of a job."""

    line: str
    runtime_env: dict[str, object]
    said: tuple[Said, ...] = ()
    """What a person should know of it."""
    upload: Mapping[str, object] | None = None
    """The folder that is sent to Ray, its files and bytes, as far as they were counted."""


async def submission(  # noqa: PLR0913 - all that it rests on
    plan: Plan,
    state: HeadState,
    place: Place,
    reward_url: str,
    env: Mapping[str, str],
    *,
    is_followed: bool = False,
) -> Submission | Outcome:
    """Make what is submitted, for the nodes that are there; or the end of a run that cannot be.

    `env` is what Ray was started with here, and so what the job finds anyway. A job that an earlier
    agent submitted and that is followed again fills its folder already: nothing there is judged.
    """
    job, nodes = plan.job, state.nodes()
    assert job is not None  # noqa: S101 - decided only where there is one
    count, least, total = sizes([node.gpus for node in nodes])
    joined = Joined(
        nodes=count,
        gpus_per_node=least,
        total_gpus=total,
        head_ip=state.ray_head or place.head_ip,
        reward_url=reward_url,
        log_dir=place.log_dir,
        attempt=state.attempt.number,
        checkpoints=job.checkpoints,
    )
    if job.recipe is None:
        line = entrypoint(fill(job.argv, joined), joined.attempt)
        return Submission(line, job.runtime_env, upload=_upload(job))
    try:
        command = job.recipe.command(nodes)
    except MisfitError as error:
        reason = f"{job.name} does not fit what joined ({_listed(nodes)}): {error}"
        remedy = "Change what it says, or bring other nodes"
        return _misfit(reason, "AGENT_JOB", remedy, state.attempt.number)
    said = [Said(note) for note in command.notes]
    if job.recipe.known.framework and not is_followed:
        ours = mark_of(job.recipe, world_size(nodes))
        found = await _checkpoints(job.checkpoints, ours, state.attempt.number)
        if isinstance(found, Outcome):
            return found
        said += [*found, *_on_several_disks(plan, state, job.checkpoints)]
    runtime_env = _with_env(job.runtime_env, command, {} if plan.own_ray is None else env)
    line = entrypoint(fill(command.argv, joined), joined.attempt)
    return Submission(line, runtime_env, tuple(said), _upload(job))


def _upload(job: Job) -> dict[str, object] | None:
    if job.upload is None:
        return None
    folder = str(job.runtime_env["working_dir"])
    return {"folder": folder, "files": job.upload.files, "size": job.upload.size}


def _with_env(
    runtime_env: dict[str, object], command: Command, there: Mapping[str, str]
) -> dict[str, object]:
    """Add what the recipe needs and nothing brings yet; what the user set stays."""
    missing = {name: text for name, text in command.env.items() if name not in there}
    if not missing:
        return runtime_env
    own = runtime_env.get("env_vars")
    return {**runtime_env, "env_vars": {**missing, **(own if isinstance(own, dict) else {})}}


async def _checkpoints(folder: str, ours: checkpoints.Mark, attempt: int) -> Outcome | list[Said]:
    """Go on from what the folder holds, or refuse; nothing there is ever begun anew unasked."""
    held: checkpoints.Held | None = None
    fault = "it does not answer"
    with anyio.move_on_after(_DISK_LIMIT):
        held = await anyio.to_thread.run_sync(
            checkpoint_folder.look, folder, abandon_on_cancel=True
        )
        why = checkpoints.why_not(held, ours)
        if why:
            reason = f"checkpoints in {folder}: {why}"
            return _refused(reason, "AGENT_CHECKPOINTS", checkpoints.REMEDY)
        why = checkpoints.why_not_resized(held, ours)
        if why:
            reason = f"checkpoints in {folder}: {why}"
            return _misfit(reason, "AGENT_CHECKPOINTS", checkpoints.REMEDY, attempt)
        fault = await anyio.to_thread.run_sync(
            checkpoint_folder.put_mark, folder, ours, abandon_on_cancel=True
        )
    if fault or held is None:
        reason = f"no place for checkpoints: {folder}: {fault}"
        return _refused(reason, "AGENT_CHECKPOINTS", "Name a folder that can be written")
    return _about_resuming(folder, held, ours)


def _about_resuming(folder: str, held: checkpoints.Held, ours: checkpoints.Mark) -> list[Said]:
    step = checkpoints.resumes_from(held, ours.framework)
    overlooked = checkpoints.untracked(held, ours.framework)
    if overlooked:
        return [Said(f"checkpoints in {folder}: {overlooked}", "warning")]
    if not step:
        return [Said(f"checkpoints go to {folder}")]
    found = [Said(f"resumes from {folder}/{step}")]
    if held.mark is not None and held.mark.version != ours.version:
        found.append(Said(f"it was written by {ours.framework} {held.mark.version}"))
    return found


def _on_several_disks(plan: Plan, state: HeadState, folder: str) -> list[Said]:
    """Warn where a folder is another one on each node: shards are written where each rank runs."""
    own, fleet = plan.facts.checkpoints, state.fleet
    if own is None or not fleet.facts:
        return []
    others = {
        fleet.workers[key].name: facts.checkpoints
        for key, facts in fleet.facts.items()
        if key in fleet.workers
    }
    apart = [
        name
        for name, mount in others.items()
        if mount is not None and (mount.source, mount.kind) != (own.source, own.kind)
    ]
    if own.is_shared and not apart:
        return []
    where = f"{own.kind} here" + (f", another disk on {', '.join(apart[:8])}" if apart else "")
    apart_only = "each node keeps its own part, and only the same nodes can go on from them"
    told = f"checkpoints: {folder} is no disk that all nodes share ({where}): {apart_only}"
    return [Said(f"{told}. Set AGENT_CHECKPOINTS to a shared one", "warning")]


def _misfit(reason: str, culprit: str, remedy: str, attempt: int) -> Outcome:
    """End a run whose nodes do not suit its job: at first a refusal, later a loss.

    A further attempt had the right ones before, and with them back another run may go on.
    """
    if attempt == 1:
        return _refused(reason, culprit, remedy)
    remedy = "Run again once the lost nodes are back"
    return Outcome(Kind.LOST, 75, reason, "submitting", culprit, remedy)


def _refused(reason: str, culprit: str, remedy: str) -> Outcome:
    return Outcome(Kind.REFUSED, 78, reason, "submitting", culprit, remedy)


def _listed(nodes: tuple[NodeSize, ...]) -> str:
    """Write what joined in short: 2 of 8 GPUs and 32 CPUs, 1 of 4 GPUs and 16 CPUs."""
    kinds: dict[tuple[int, int | None], int] = {}
    for node in nodes:
        size = (node.gpus, node.cpus)
        kinds[size] = kinds.get(size, 0) + 1
    return ", ".join(f"{n} of {gpus} GPUs and {cpus} CPUs" for (gpus, cpus), n in kinds.items())
