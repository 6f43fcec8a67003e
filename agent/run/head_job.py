"""Make the job's submission, have the job save, read its checkpoints: on the head.

For each attempt the head makes a Submission: the recipe is sized by the nodes that joined, the
checkpoints in its folder are its own or the job is refused, and secrets move from its command to a
file. On a notice the job is sent the signal on which it saves. After each attempt the newest
checkpoint is looked up. job_runner.py submits the job.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Outcome
from agent.base.text import listed, mib
from agent.base.value import Value
from agent.decisions.head.head_state import ProgressKnown
from agent.decisions.head.members import group_sizes_of
from agent.decisions.head.probes import slowest_link
from agent.decisions.shared import JobWant, LogLine, Step
from agent.diagnosis.end_lines import RunEnd
from agent.frameworks import recipe_of
from agent.frameworks.recipe import CONFIG, JobBasis, MisfitError, NodeSplit, shape_of
from agent.job import checkpoints
from agent.job.addresses import unknown_addresses
from agent.job.checkpoints import resumes_from, step_of
from agent.job.job import (
    checkpoint_owner,
    entrypoint,
    fill,
    group_sizes,
    is_sized_by_links,
    sizes,
)
from agent.job.services import addressed
from agent.job.share import SharePlace
from agent.node.read import cached_model, model_config
from agent.plan.environment import without_proxy_to
from agent.processes import driver
from agent.processes.waiting import NotYet, until
from agent.record import checkpoint_folder
from agent.record.background import in_thread
from agent.record.files import safe_name
from agent.record.log import say
from agent.settings.jobs import notice_signal
from agent.settings.rules import TRAINER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.attempts import Attempt
    from agent.decisions.head.head_state import HeadState
    from agent.decisions.shared import Want
    from agent.diagnosis.find_cause import Diagnosis
    from agent.frameworks.recipe import Command
    from agent.job.job import Job, RecipeJob
    from agent.job.services import Placeholders
    from agent.plan.plan import Plan
    from agent.record.checkpoint_folder import CheckpointFiles
    from agent.run.executor import OnProgress
    from agent.run.node_run import NodeRun

_CHECKPOINT_POLL = 0.25  # A job that has saved goes on until it is stopped: further steps are lost.
_CHECKPOINT_QUIET = 2.0  # A checkpoint without changes for so long is whole, unless known before.


async def find_progress(run: NodeRun, attempt: int, last_step: int | None) -> ProgressKnown:
    """Return what an attempt has made: its last step is given, the newest checkpoint is read."""
    job = run.plan.job
    made = ProgressKnown(attempt, last_step=last_step)
    if job is None or not job.checkpoints:
        return made
    read = partial(checkpoint_folder.read_checkpoints, job.checkpoints)
    contents = await in_thread(read, times.CHECKPOINT_LISTING)
    if contents is None:
        return made
    name = resumes_from(contents, job.framework) if job.framework else ""
    path = f"{job.checkpoints}/{name}" if name else ""
    return replace(made, checkpoint=step_of(name or contents.newest), path=path)


async def known_end(
    run: NodeRun,
    outcome: Outcome,
    diagnosis: Diagnosis | None,
    attempt: Attempt,
    last_step: int | None,
) -> RunEnd:
    """Return what is known of a run's end: the last step, and where the job would continue."""
    submitted = attempt.submitted
    end = RunEnd(
        outcome,
        diagnosis,
        step=last_step,
        job_seconds=None if submitted is None else run.now() - submitted,
    )
    job = run.plan.job
    if not outcome.is_failure or last_step is None or job is None or not job.framework:
        return end

    # From which checkpoint does the recipe resume?
    with anyio.move_on_after(times.WAIT_READ):
        made = await find_progress(run, attempt.number, last_step)
        return end._replace(checkpoint=made.checkpoint) if made.path else end
    return end


async def save_job(run: NodeRun, _name: str, want: Want, progress: OnProgress) -> str:
    """Send the job the signal on which it saves; say once it has a new checkpoint, or why not.

    A job that does not handle the signal is not sent it: the signal would end the job.
    """
    # Would it save?
    assert isinstance(want, JobWant)  # noqa: S101 - no other is wanted by that name
    plan = run.plan
    signum = notice_signal(plan.settings)
    processes = run.effects.processes
    find = processes.find_driver if plan.share_launcher is None else processes.find_first_rank
    process = await in_thread(partial(find, want.id), times.NODE_EXAMINED)
    if not driver.handles_signal(process, signum):
        why = "no driver of it runs here" if process is None else "the job does not handle it"
        return driver.not_passed_on(signum, why)

    async def read_newest() -> CheckpointFiles | None:
        """Return None if there is none, or its disk is slow."""
        if plan.job is None or not plan.job.checkpoints:
            return None
        folder = plan.job.checkpoints
        framework = plan.job.framework
        read = partial(checkpoint_folder.read_newest_files, folder, framework)
        return await in_thread(read, times.CHECKPOINT_LISTING)

    before = await read_newest()
    newest = before
    changed_at = run.now()
    say(driver.forward_signal(process, signum))

    async def look() -> str | NotYet:
        nonlocal newest, changed_at
        former = newest
        newest = await read_newest()
        if newest != former:
            changed_at = run.now()
        if newest is None or newest == before:
            return NotYet()
        # A framework may mark a whole checkpoint; else it is whole once its files stay the same.
        is_quiet = run.now() >= changed_at + _CHECKPOINT_QUIET
        return newest.path if newest.is_marked_whole or is_quiet else NotYet()

    # The decision to stop has a deadline: then this is not wanted any more.
    saved = await until(look, None, longest=_CHECKPOINT_POLL)
    progress(Step.READY, f"the job has saved {saved}")
    return ""


class Submission(Value):
    """A job as it is submitted to Ray."""

    line: str  # the shell command that Ray runs
    runtime_env: dict[str, object]
    messages: tuple[LogLine, ...] = ()  # log lines for the user
    basis: JobBasis = JobBasis()  # what a recipe was sized by
    secrets: str = ""  # the content of the file from which that command reads its secrets
    secrets_file: str = ""
    split: NodeSplit | None = None  # of the nodes, where a recipe's command has one


async def read_basis(plan: Plan, state: HeadState) -> JobBasis:
    """Return what the recipe is sized by: the model's shape, and the slowest link between nodes.

    The model's `config.json` may have been fetched after the plan was made.
    """
    recipe = None if plan.job is None else plan.job.recipe
    if recipe is None or not recipe.input.model:
        return JobBasis()
    basis = recipe.input.basis
    model = recipe.input.model
    revision = recipe.input.revision or None
    environ = plan.environ

    # Which commit was fetched, and where is it?
    if not plan.facts.model_is_here:
        folder = await in_thread(lambda: cached_model(model, environ, revision))
        if folder is not None:
            framework = recipe_of(recipe.known).FRAMEWORK
            pinned = str(folder) if revision or framework.loads_folder else ""
            basis = replace(basis, commit=folder.name, folder=pinned)

    # Is the shape only guessed from the model's name so far?
    if basis.model is None or basis.model.source != CONFIG:
        config = await in_thread(lambda: model_config(model, environ, revision))
        basis = replace(basis, model=shape_of(model, config) or basis.model)

    if is_sized_by_links(plan.job):
        basis = replace(basis, link=slowest_link(state))
    return basis


class SubmissionMaker:
    """Makes the submission of an attempt for the nodes that joined."""

    def __init__(  # noqa: PLR0913 - what a submission is made of
        self,
        plan: Plan,
        state: HeadState,
        run_id: str,
        basis: JobBasis,
        progress_file: str = "",
        *,
        is_followed: bool,
    ) -> None:
        self._progress_file = progress_file
        self._plan = plan
        self._state = state
        self._run_id = run_id
        self._basis = basis
        self._writes_first = not is_followed  # else it has written to its checkpoint folder

    async def make(
        self,
        placeholders: Placeholders,
        reward_url: str,
        env: Mapping[str, str],
        clean: Callable[[str], str] = str,
    ) -> Submission | Outcome:
        """Return the submission, or the outcome that refuses it.

        `env` is Ray's environment here, which the job inherits. `clean` masks secrets, which Ray
        must not show: the job reads them from a file beside Ray's sessions.
        """
        state = self._state
        job = self._plan.job
        ray = self._plan.own_ray
        assert job is not None  # noqa: S101 - decided only where there is one

        # The command, and the environment that only the job gets: a recipe is sized by the nodes.
        argv = job.argv
        split = None
        messages = list[LogLine]()
        job_env = {} if ray is None else without_proxy_to(env, state.fleet.alive)
        if job.recipe is not None:
            sized = await self._size_recipe(job, job.recipe)
            if isinstance(sized, Outcome):
                return sized
            command, messages = sized
            argv = command.argv
            split = command.split
            inherited = {} if ray is None else env
            job_env |= {name: text for name, text in command.env.items() if name not in inherited}

        # Addresses of services' nodes, in variables that Ray's actors cannot inherit filled in.
        runtime_env = job.runtime_env
        given = runtime_env.get("env_vars")
        of_user = given if isinstance(given, dict) else {}
        named = {name: text for name, text in {**env, **of_user}.items() if addressed(str(text))}
        texts = (*argv, *map(str, named.values()))
        unknown = unknown_addresses(texts, self._plan.all_services, placeholders)
        if unknown:
            return ends.ADDRESS_UNKNOWN.outcome(services=listed(unknown))
        filled = {name: placeholders.fill_addresses(str(text)) for name, text in named.items()}
        filled = {name: text for name, text in filled.items() if text != named[name]}
        shown = sorted(name for name, text in filled.items() if clean(text) != text)
        if ray is not None and shown:
            text = f"{listed(shown)} has a secret and an address: Ray's dashboard shows it"
            messages.append(LogLine(text, "warning"))

        # What the user set wins over what the agent would choose.
        if job_env or filled:
            runtime_env = {**runtime_env, "env_vars": {**job_env, **of_user, **filled}}

        # The words of this attempt, as a shell command without secrets.
        attempt = state.attempt.number
        place = replace(placeholders, head_ip=state.ray.head_ip or placeholders.head_ip)
        gpus = [node.gpus for node in state.nodes()]
        own = self._further_values(gpus, place)
        try:
            words = fill(argv, gpus, place, reward_url, attempt, job.checkpoints, own)
        except MisfitError as error:
            return self._misfit("the job's command", error)
        name = f"{safe_name(self._run_id)}-{attempt}.secrets"
        file = "" if ray is None else f"{ray.session}/{name}"
        line, secrets = entrypoint(words, attempt, file, clean, self._progress_file)

        # Is one left? The driver of a given Ray may run on another machine than its file.
        if clean(line) != line:
            text = (
                "the job's command holds a secret, which the dashboard of the platform's Ray "
                "shows: set it in the environment of that Ray's nodes instead"
            )
            messages.append(LogLine(text, "warning"))
        if job.upload is not None:
            size = f"{job.upload.files} file(s), {mib(job.upload.size)}"
            messages.append(LogLine(f"uploading {runtime_env['working_dir']} to Ray: {size}"))
        return Submission(line, runtime_env, tuple(messages), self._basis, secrets, file, split)

    def _further_values(self, gpus: list[int], place: Placeholders) -> Mapping[str, str]:
        """Return the values of a launcher's placeholders, and of those of groups."""
        own: Mapping[str, str] = {}
        if self._plan.share_launcher is not None:
            here = SharePlace("{rank}", str(len(gpus)), place.head_ip, "")
            own = self._plan.share_launcher.placeholders(here)
        of_groups = {TRAINER: (sizes(gpus)[0], sum(gpus)), **group_sizes_of(self._state)}
        return {**own, **group_sizes(of_groups)}

    async def _size_recipe(
        self, job: Job, recipe: RecipeJob
    ) -> tuple[Command, list[LogLine]] | Outcome:
        """Return a recipe's command for the nodes that joined, and log lines, or refuse."""
        nodes = self._state.nodes()
        framework = job.framework
        model = recipe.input.model
        revision = recipe.input.revision
        is_here = self._basis.folder or self._plan.facts.model_is_here
        if framework and revision and not is_here:
            return ends.REVISION_NOT_FETCHED.outcome(model=model, revision=revision)

        # Which settings do the checkpoints keep?
        contents: checkpoints.FolderContents | None = None
        if framework and self._writes_first:
            read = partial(checkpoint_folder.read_checkpoints, job.checkpoints)
            contents = await in_thread(read, times.IDLE_DISK)
            kept = {} if contents is None else checkpoints.kept_settings(contents, framework)
            self._basis = replace(self._basis, kept=kept)

        # Does it fit these nodes?
        try:
            command = recipe.command(nodes, self._run_id, self._basis)
        except MisfitError as error:
            return self._misfit(job.name, error)
        messages = [LogLine(text, "warning") for text in command.warnings]
        messages += [LogLine(note) for note in command.notes]
        if self._basis.commit:
            messages.append(LogLine(f"{model} is commit {self._basis.commit}"))

        # Can it write and resume its checkpoints?
        if framework and self._writes_first:
            ours = checkpoint_owner(recipe, nodes, command.format)
            lines = await self._take_checkpoints(job.checkpoints, contents, ours)
            if isinstance(lines, Outcome):
                return lines
            messages += [*lines, *self._on_several_disks(job.checkpoints)]
        return command, messages

    async def _take_checkpoints(
        self,
        folder: str,
        contents: checkpoints.FolderContents | None,
        ours: checkpoints.CheckpointOwner,
    ) -> Outcome | list[LogLine]:
        """Resume from the checkpoints in the folder, or refuse; never start over unasked."""
        refused = partial(ends.CHECKPOINTS_REFUSED.outcome, folder=folder)
        no_place = "no place for them: {}"
        if contents is None:
            return refused(why=no_place.format("it does not answer"))

        # Are they this job's, and can these nodes resume from them?
        why = checkpoints.why_unusable(contents, ours)
        if why:
            return refused(why=why)
        why = checkpoints.why_not_resumable(contents, ours)
        if why:
            return self._refused(refused(why=why))

        # Mark the folder as this job's.
        fault = await in_thread(
            partial(checkpoint_folder.write_mark, folder, ours), times.IDLE_DISK
        )
        if fault != "":
            return refused(why=no_place.format(fault or "it does not answer"))

        # Say from where the job resumes.
        overlooked = checkpoints.why_untracked(contents, ours.framework)
        if overlooked:
            return [LogLine(f"checkpoints in {folder}: {overlooked}", "warning")]
        step = resumes_from(contents, ours.framework)
        if not step:
            return [LogLine(f"checkpoints go to {folder}")]
        lines = [LogLine(f"resumes from {folder}/{step}")]
        if self._basis.kept:
            listed = ", ".join(f"{name} {value}" for name, value in self._basis.kept.items())
            lines.append(LogLine(f"keeps the settings of the checkpoints: {listed}"))
        return lines

    def _on_several_disks(self, folder: str) -> list[LogLine]:
        """Warn if the folder is on different disks: each rank writes its shard on its own node."""
        own = self._plan.facts.checkpoints
        others = self._state.fleet.facts.values()
        if own is None or not others:
            return []
        known = [facts.checkpoints for facts in others if facts.checkpoints is not None]
        mounts = {(mount.source, mount.kind) for mount in known}
        if own.is_shared and mounts <= {(own.source, own.kind)}:
            return []

        apart_only = "each node keeps its own part, and only the same nodes can go on from them"
        what = f"checkpoints: {folder} is no disk that all nodes share ({own.kind} here)"
        remedy = "Set AGENT_CHECKPOINTS to a shared one"
        return [LogLine(f"{what}: {apart_only}. {remedy}", "warning")]

    def _misfit(self, job: str, error: MisfitError) -> Outcome:
        """Return the end where a recipe or a command does not fit the nodes."""
        kinds = Counter((node.gpus, node.cpus) for node in self._state.nodes()).items()
        listed = ", ".join(f"{n} of {gpus} GPUs and {cpus} CPUs" for (gpus, cpus), n in kinds)
        end = ends.RECIPE_DOES_NOT_FIT.outcome(job=job, nodes=listed, error=error)
        return self._refused(end)

    def _refused(self, refusal: Outcome) -> Outcome:
        """Return the end where the nodes do not fit the job: refused, or lost in later attempts.

        An earlier attempt had fitting nodes, so a later run may succeed once they are back.
        """
        if self._state.attempt.number == 1:
            return refusal
        return ends.NODES_NO_LONGER_FIT.outcome(reason=refusal.reason, culprit=refusal.culprit)
