"""The job on the head: make, submit and stop it, pass on its output, read its checkpoints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Outcome
from agent.base.text import mib
from agent.base.value import Value
from agent.decisions.attempts import DriverSignaled
from agent.decisions.head.probes import slowest_link
from agent.decisions.head.state import CheckpointSeen, SaveOver
from agent.decisions.values import LogLine
from agent.node.read import cached_model, model_config
from agent.record import run_folder
from agent.record.background import in_thread
from agent.record.files import safe_name
from agent.record.log import say
from agent.runtime import driver
from agent.runtime.output import OutputCopies, PreambleFilter, driver_log
from agent.runtime.waiting import Failure, NotYet, TimedOutError, until
from agent.work import checkpoints
from agent.work.checkpoints import resumes_from, step_of
from agent.work.job import (
    Entrypoint,
    JobPlaceholders,
    checkpoint_owner,
    entrypoint,
    fill,
    is_sized_by_links,
    sizes,
    world_size,
)
from agent.work.recipes.model_shape import CONFIG, shape_of
from agent.work.recipes.recipe import JobBasis, MisfitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from agent.boot.node_run import NodeRun
    from agent.boot.torchrun import TorchrunLink
    from agent.bridge.link import RayLink
    from agent.decisions.head.state import HeadState
    from agent.plan.plan import Plan
    from agent.record.run_folder import CheckpointFiles
    from agent.runtime.output import ByteSink
    from agent.work.job import Job
    from agent.work.recipes.recipe import Command, NodeSize
    from agent.work.services import Placeholders


def start_job_output(
    run: NodeRun, job_id: str, command_line: str, watcher: ByteSink
) -> tuple[OutputCopies, Path | None]:
    """Start to pass on a job's output; return it, and the file that the bridge must write.

    `entrypoint` is the job's command, which Ray repeats before the output; '' where it is not
    known.
    """
    session, mirror = run.plan.launch.session, None
    if session is None:  # the driver's output is on another machine
        source = mirror = run.folder.file(f"ray-job.{safe_name(job_id)}.log")
    else:
        source = driver_log(session, job_id)
        run.node.update(session=str(source.parents[1]))
    rest = PreambleFilter(job_id, command_line) if command_line else PreambleFilter.disabled()
    known, output = run.node.record, OutputCopies(source, rest)
    output.to_stdout(known.passed_on, run.node.set_passed_on)
    output.to_file(run.folder.file("job.log"), known.copied, run.node.set_copied)
    output.to_watcher(watcher)
    output.start()
    return output, mirror


STOP_TIMEOUT = times.STOP_ACCEPTED


async def stop_job(
    link: RayLink | TorchrunLink,
    job_id: str,
    flush: Callable[[], Awaitable[None]],
    send: Callable[[DriverSignaled], None],
    task: SubmissionTask,
) -> None:
    """Stop a job through Ray, or signal its driver where the dashboard hangs.

    `flush` writes the reason first, for an agent that replaces this one. A submission in
    preparation is canceled.
    """
    if await task.cancel():
        return
    await flush()
    with anyio.move_on_after(STOP_TIMEOUT):
        await link.stop_job(job_id)
        return
    pids = driver.terminate_driver(job_id)
    if pids:  # else it runs on another machine, or has ended
        send(DriverSignaled(job_id))
        timeout = f"Ray did not take the stop of the job within {STOP_TIMEOUT:g} s"
        say(f"{timeout}: SIGTERM sent to its driver itself ({pids})", "warning")


async def newest_checkpoint(run: NodeRun, attempt: int) -> CheckpointSeen:
    """Return the newest checkpoint after an attempt; attempt 0 means those of earlier heads."""
    job = run.plan.job
    if job is None or not job.checkpoints:
        return CheckpointSeen(attempt)
    found = await run.best_effort("a look at the checkpoints", _find_checkpoint, job, attempt)
    return CheckpointSeen(attempt) if isinstance(found, Failure) else found


async def _find_checkpoint(job: Job, attempt: int) -> CheckpointSeen:
    with anyio.move_on_after(times.CHECKPOINT_LISTING):
        held = await anyio.to_thread.run_sync(
            run_folder.read_checkpoints, job.checkpoints, abandon_on_cancel=True
        )
        framework = "" if job.recipe is None else job.recipe.known.framework
        path = resumes_from(held, framework) if framework else ""
        return CheckpointSeen(
            attempt, step_of(held.newest), f"{job.checkpoints}/{path}" if path else ""
        )
    return CheckpointSeen(attempt)


async def save_job(run: NodeRun, job_id: str, signum: int) -> SaveOver | None:
    """Send a job the signal on which it saves; wait for a new checkpoint, or None if there is none.

    A job that does not handle the signal is not sent it: the signal would end the job.
    """
    plan = run.plan
    find = driver.find_driver if plan.torchrun is None else driver.find_first_rank
    process = await anyio.to_thread.run_sync(find, job_id)
    if not driver.handles_signal(process, signum):
        why = "no driver of it runs here" if process is None else "the job does not handle it"
        return SaveOver(job_id, driver.not_passed_on(signum, why))
    before = last = await _newest_checkpoint_files(plan.job)
    changed_at = run.now()
    say(driver.forward_signal(process, signum))

    async def look() -> str | NotYet:
        nonlocal last, changed_at
        former, last = last, await _newest_checkpoint_files(plan.job)
        changed_at = changed_at if last == former else run.now()
        if last is None or last == before:
            return NotYet()
        is_whole = last.is_marked_whole or run.now() >= changed_at + times.CHECKPOINT_QUIET
        return last.path if is_whole else NotYet()

    try:
        saved = await until(look, plan.settings.stop_grace, longest=times.CHECKPOINT_POLL)
    except TimedOutError:
        return None
    return SaveOver(job_id, f"the job has saved {saved}")


async def _newest_checkpoint_files(job: Job | None) -> CheckpointFiles | None:
    """Return the newest checkpoint and its files; None if there is none, or its disk is slow."""
    if job is None or not job.checkpoints:
        return None
    framework = "" if job.recipe is None else job.recipe.known.framework
    read = partial(run_folder.read_newest_files, job.checkpoints, framework)
    return await in_thread(read, times.CHECKPOINT_LISTING)


class Submission(Value):
    """A job as it is submitted to Ray."""

    entrypoint: Entrypoint
    runtime_env: dict[str, object]
    messages: tuple[LogLine, ...] = ()
    """Log lines for the user."""
    upload: str = ""
    """The uploaded folder with its number of files and its size, where they were counted."""
    basis: JobBasis = JobBasis()
    """What a recipe was sized by."""


async def read_basis(plan: Plan, state: HeadState) -> JobBasis:
    """Return what the recipe is sized by: the model's shape, and the slowest link between nodes.

    The model's `config.json` may have been fetched after the plan was made.
    """
    recipe = None if plan.job is None else plan.job.recipe
    if recipe is None or not recipe.input.model:
        return JobBasis()
    basis, model = recipe.input.basis, recipe.input.model
    revision, environ = recipe.input.revision or None, plan.environ
    if not plan.facts.model_is_here:
        folder = await in_thread(lambda: cached_model(model, environ, revision))
        if folder is not None:
            pinned = str(folder) if revision else ""
            basis = replace(basis, commit=folder.name, folder=pinned)
    if basis.model is None or basis.model.source != CONFIG:
        config = await in_thread(lambda: model_config(model, environ, revision))
        basis = replace(basis, model=shape_of(model, config) or basis.model)
    return replace(basis, link=slowest_link(state)) if is_sized_by_links(plan.job) else basis


async def make_submission(  # noqa: PLR0913 - all that it rests on
    plan: Plan,
    state: HeadState,
    placeholders: Placeholders,
    reward_url: str,
    env: Mapping[str, str],
    run_id: str,
    *,
    basis: JobBasis,
    clean: Callable[[str], str] = str,
    is_followed: bool = False,
) -> Submission | Outcome:
    """Make the submission for the nodes that joined, or the outcome that refuses it.

    `env` is Ray's environment here, which the job inherits. `clean` masks secrets, which Ray must
    not show: the job reads them from a file beside Ray's sessions. The checkpoint folder is not
    checked for a job that is followed again (`is_followed`): that job has already written to it.
    """
    job, nodes = plan.job, state.nodes()
    assert job is not None  # noqa: S101 - decided only where there is one
    count, least, total = sizes([node.gpus for node in nodes])
    joined = JobPlaceholders(
        nodes=count,
        gpus_per_node=least,
        total_gpus=total,
        head_ip=state.ray_head_ip or placeholders.head_ip,
        reward_url=reward_url,
        log_dir=placeholders.log_dir,
        attempt=state.attempt.number,
        checkpoints=job.checkpoints,
    )
    ray = plan.own_ray
    secrets = "" if ray is None else f"{ray.session}/{safe_name(run_id)}-{joined.attempt}.secrets"
    if job.recipe is None:
        line = entrypoint(fill(job.argv, joined), joined.attempt, secrets, clean)
        shown = _shown_secrets(line, clean)
        return Submission(line, job.runtime_env, shown, upload=_upload(job))
    held: checkpoints.FolderContents | None = None
    framework, given = job.recipe.known.framework, job.recipe.input
    if framework and given.revision and not (basis.folder or plan.facts.model_is_here):
        return ends.REVISION_NOT_FETCHED.outcome(model=given.model, revision=given.revision)
    if framework and not is_followed:
        held = await _read_checkpoints(job.checkpoints)
        kept = {} if held is None else checkpoints.kept_settings(held, framework)
        basis = replace(basis, kept=kept)
    try:
        command = job.recipe.command(nodes, run_id, basis)
    except MisfitError as error:
        end = ends.RECIPE_DOES_NOT_FIT.outcome(job=job.name, nodes=_listed(nodes), error=error)
        return _misfit(end, state.attempt.number)
    messages = [LogLine(text, "warning") for text in command.warnings]
    messages += [LogLine(note) for note in command.notes]
    if basis.commit:
        messages.append(LogLine(f"{given.model} is commit {basis.commit}"))
    if framework and not is_followed:
        ours = checkpoint_owner(job.recipe, world_size(nodes), command.format)
        found = await _take_checkpoints(job.checkpoints, held, ours, state.attempt.number)
        if isinstance(found, Outcome):
            return found
        messages += [*found, *_on_several_disks(plan, state, job.checkpoints)]
    runtime_env = _with_env(job.runtime_env, command, {} if ray is None else env)
    line = entrypoint(fill(command.argv, joined), joined.attempt, secrets, clean)
    messages += _shown_secrets(line, clean)
    return Submission(line, runtime_env, tuple(messages), _upload(job), basis)


def _shown_secrets(made: Entrypoint, clean: Callable[[str], str]) -> tuple[LogLine, ...]:
    """Warn of secrets that Ray shows: the driver of a platform's Ray may run on another machine."""
    if clean(made.line) == made.line:
        return ()
    text = (
        "the job's command holds a secret, which the dashboard of the platform's Ray shows: set it "
        "in the environment of that Ray's nodes instead"
    )
    return (LogLine(text, "warning"),)


def _upload(job: Job) -> str:
    if job.upload is None:
        return ""
    files = f"{job.upload.files} file{'s' if job.upload.files > 1 else ''}"
    return f"{job.runtime_env['working_dir']} to Ray: {files}, {mib(job.upload.size)}"


def _with_env(
    runtime_env: dict[str, object], command: Command, inherited: Mapping[str, str]
) -> dict[str, object]:
    """Add the recipe's variables that neither the environment nor the user sets."""
    missing = {name: text for name, text in command.env.items() if name not in inherited}
    if not missing:
        return runtime_env
    given = runtime_env.get("env_vars")
    return {**runtime_env, "env_vars": {**missing, **(given if isinstance(given, dict) else {})}}


async def _read_checkpoints(folder: str) -> checkpoints.FolderContents | None:
    """Return the contents of the checkpoint folder; None if its disk does not answer."""
    with anyio.move_on_after(times.IDLE_DISK):
        return await anyio.to_thread.run_sync(
            run_folder.read_checkpoints, folder, abandon_on_cancel=True
        )
    return None


async def _take_checkpoints(
    folder: str,
    held: checkpoints.FolderContents | None,
    ours: checkpoints.CheckpointOwner,
    attempt: int,
) -> Outcome | list[LogLine]:
    """Resume from the checkpoints in the folder, or refuse; never start over unasked."""
    fault = "it does not answer"
    if held is None:
        return ends.CHECKPOINTS_NOT_WRITABLE.outcome(folder=folder, error=fault)
    why = checkpoints.why_unusable(held, ours)
    if why:
        return ends.CHECKPOINTS_REFUSED.outcome(folder=folder, why=why)
    why = checkpoints.why_not_resumable(held, ours)
    if why:
        return _misfit(ends.CHECKPOINTS_REFUSED.outcome(folder=folder, why=why), attempt)
    with anyio.move_on_after(times.IDLE_DISK):
        fault = await anyio.to_thread.run_sync(
            run_folder.write_mark, folder, ours, abandon_on_cancel=True
        )
    if fault:
        return ends.CHECKPOINTS_NOT_WRITABLE.outcome(folder=folder, error=fault)
    return _about_resuming(folder, held, ours)


def _about_resuming(
    folder: str, held: checkpoints.FolderContents, ours: checkpoints.CheckpointOwner
) -> list[LogLine]:
    step = checkpoints.resumes_from(held, ours.framework)
    overlooked = checkpoints.why_untracked(held, ours.framework)
    if overlooked:
        return [LogLine(f"checkpoints in {folder}: {overlooked}", "warning")]
    if not step:
        return [LogLine(f"checkpoints go to {folder}")]
    found = [LogLine(f"resumes from {folder}/{step}")]
    if held.owner is not None and held.owner.version != ours.version:
        found.append(LogLine(f"it was written by {ours.framework} {held.owner.version}"))
    kept = checkpoints.kept_settings(held, ours.framework)
    if kept:
        listed = ", ".join(f"{name} {value}" for name, value in kept.items())
        found.append(LogLine(f"keeps the settings of the checkpoints: {listed}"))
    return found


def _on_several_disks(plan: Plan, state: HeadState, folder: str) -> list[LogLine]:
    """Warn if the folder is on different disks: each rank writes its shard on its own node."""
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
    what = f"checkpoints: {folder} is no disk that all nodes share ({where}): {apart_only}"
    return [LogLine(f"{what}. Set AGENT_CHECKPOINTS to a shared one", "warning")]


def _misfit(refusal: Outcome, attempt: int) -> Outcome:
    """Return the end where the nodes do not fit the job: refused, or lost in later attempts.

    An earlier attempt had fitting nodes, so a later run may succeed once they are back.
    """
    if attempt == 1:
        return refusal
    return ends.NODES_NO_LONGER_FIT.outcome(reason=refusal.reason, culprit=refusal.culprit)


def _listed(nodes: tuple[NodeSize, ...]) -> str:
    """Summarize the nodes: 2 of 8 GPUs and 32 CPUs, 1 of 4 GPUs and 16 CPUs."""
    kinds: dict[tuple[int, int | None], int] = {}
    for node in nodes:
        size = (node.gpus, node.cpus)
        kinds[size] = kinds.get(size, 0) + 1
    return ", ".join(f"{n} of {gpus} GPUs and {cpus} CPUs" for (gpus, cpus), n in kinds.items())


T = TypeVar("T")


class SubmissionTask:
    """Runs a submission as a task that can be canceled until it is handed to Ray."""

    def __init__(self) -> None:
        self._current: tuple[anyio.CancelScope, anyio.Event] | None = None
        """The scope that makes it, and the event set once it was handed over or canceled."""

    def start(
        self, tasks: anyio.abc.TaskGroup, submit: Callable[..., Awaitable[None]], *arguments: object
    ) -> None:
        """Start a task that makes a submission, by `make`, and hands it over."""
        self._current = anyio.CancelScope(), anyio.Event()
        tasks.start_soon(self._run, self._current[1], submit, *arguments)

    async def _run(
        self, done: anyio.Event, submit: Callable[..., Awaitable[None]], *arguments: object
    ) -> None:
        try:
            await submit(*arguments)
        finally:
            done.set()

    async def make(self, make: Callable[..., Awaitable[T]], *arguments: object) -> T | None:
        """Return the result of `make`; None if the submission was canceled."""
        assert self._current is not None  # noqa: S101 - called by what `start` has started
        with self._current[0]:
            return await make(*arguments)
        return None

    async def cancel(self) -> bool:
        """Cancel it, or wait until it is handed over; return whether it was canceled."""
        if self._current is None:
            return False
        scope, done = self._current
        scope.cancel()
        await done.wait()
        return scope.cancelled_caught
