"""Submit the job to Ray, or follow it there, for the executor of the head's node.

One attempt after the other is the item `JOB` (decisions/shared.py). Its runner makes the submission
for the nodes that joined, moves secrets from its command to a file, starts to pass on the output of
Ray's driver, and hands the job over to the bridge. It says what the bridge reports: why Ray does
not take the job yet, that it did, and each status, at last that of its end. A job that is to be
stopped is stopped through Ray, within the grace that decisions have. One that is not wanted any
more is let go: its Ray ends it, or another head follows it. Where a launcher starts the job as one
share per node, the runner makes the submission, says what the shares are sized by, and lasts until
the job is let go. The job is over once its output was passed on to its end.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
from msgspec.structs import replace

from agent.base.ends import Outcome
from agent.base.text import error_text
from agent.bridge.link import JobNews
from agent.decisions.head.service_addresses import known_place, service_address
from agent.decisions.shared import JOB, JobWant, Step
from agent.job.services import REWARD, reward_url
from agent.plan.plan import JOB_LOG
from agent.processes.output import PreambleFilter, size_at_start
from agent.processes.waiting import Inbox
from agent.record.background import in_thread, result_in_thread
from agent.record.files import remove_file, safe_name
from agent.record.log import say
from agent.run.diagnose import find_cause
from agent.run.head_job import Submission, SubmissionMaker, read_basis
from agent.run.job_steps import progress_path
from agent.run.node_run import say_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.bridge.link import RayLink
    from agent.decisions.attempts import JobReport
    from agent.decisions.head.head_state import HeadState
    from agent.decisions.shared import Want
    from agent.job.services import Placeholders
    from agent.processes.output import OutputCopies, RecentOutput
    from agent.record.job_lines import JobLines
    from agent.run.diagnose import Elsewhere
    from agent.run.executor import OnProgress
    from agent.run.head_server import RunStatus
    from agent.run.job_steps import StepKeeper
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore

STOP_ACCEPTED = 5.0  # For Ray's dashboard to accept the stop of a job; it usually takes one.


class HeadView(NamedTuple):
    """What the job's runner is given of the head, as it is at that time."""

    state: Callable[[], HeadState]
    place: Callable[[], Placeholders]
    elsewhere: Callable[[], Elsewhere]  # where else the cause of a failed job may be
    until_wanted: Callable[[str, Callable[[Want], bool]], Awaitable[None]]
    """Returns once a thing is wanted in a certain way."""


class _Current:
    """The attempt that is being submitted or followed."""

    def __init__(self, want: JobWant, progress: OnProgress) -> None:
        self.id = want.id
        self.may_submit = want.may_submit
        self.progress = progress
        self.news = Inbox[JobNews](lambda news: news)
        self.preparing = anyio.CancelScope()  # a stop cancels a submission that is being made
        self.handed_over = anyio.Event()
        self.is_stopping = False

    def never(self, why: str) -> str:
        """Say that Ray has no such job, and will have none; return why."""
        self.progress(Step.LOST, why, never=True)
        return why


class JobRunner:
    """Runs the job, one attempt after the other."""

    def __init__(  # noqa: PLR0913 - what a job is made of, and where what it does is kept
        self,
        run: NodeRun,
        store: RunStore,
        status: RunStatus,
        steps: StepKeeper,
        link: RayLink | None,
        env: Mapping[str, str],
        head: HeadView,
    ) -> None:
        """`link` is None where a launcher starts the job; `env` is Ray's environment here."""
        self._run = run
        self._plan = run.plan
        self._store = store
        self._status = status
        self._steps = steps
        self._link = link
        self._env = env
        self._head = head
        self._output: OutputCopies | None = None
        self._secrets: Path | None = None  # the file from which the driver reads its secrets

    async def run(self, _name: str, want: Want, progress: OnProgress) -> str:
        """Run an attempt's job to its end, or let it go; return why it failed, or ''."""
        assert isinstance(want, JobWant)  # noqa: S101 - no other is wanted by that name
        job = _Current(want, progress)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_once_wanted, job)
                begin = self._submit if job.may_submit else self._follow
                failure = await begin(job)
                tasks.cancel_scope.cancel()
        finally:
            if self._link is not None:
                self._link.forget(job.id)
        return failure

    async def _submit(self, job: _Current) -> str:
        """Submit the attempt, and follow it; a stop cancels it until it is handed over."""
        with job.preparing:
            submission = await self._make_submission()
        if job.preparing.cancelled_caught:
            return job.never("stopped before it was submitted")
        if isinstance(submission, Outcome):
            job.progress(Step.LOST, submission.reason, refusal=submission)
            return submission.reason
        for message in submission.messages:
            say_line(message)

        # Without Ray every node starts its share; decisions let the job go once all have ended.
        await self._steps.begin(self._head.state().attempt.number)
        if self._link is None:
            job.progress(Step.READY, "", basis=submission.basis)
            await anyio.sleep_forever()
            return ""

        # Through Ray. Its output first.
        mirror = await self._start_output(job.id, submission)

        # Then the secrets, which the driver reads from a file.
        if submission.secrets:
            self._secrets = Path(submission.secrets_file)
            write_file = self._run.effects.disk.write
            write = partial(write_file, self._secrets, submission.secrets, mode=0o600)
            error = await result_in_thread(write)
            if error is not None:
                return error_text(error)
        env = submission.runtime_env
        await self._link.submit(job.id, submission.line, env, mirror, job.news.put)
        return await self._follow_to_end(job)

    async def _follow(self, job: _Current) -> str:
        """Follow a job that an earlier agent submitted; shares have ended with that agent."""
        if self._link is None:
            return job.never("its shares have ended with their agent")
        self._steps.follow(self._head.state().attempt.number)
        submission = await self._make_submission(is_followed=True)
        mirror = await self._start_output(job.id, submission)
        await self._link.follow(job.id, mirror, job.news.put)
        return await self._follow_to_end(job)

    async def _follow_to_end(self, job: _Current) -> str:
        """Say what the bridge reports of a job; return why it failed, or '', once it is over."""
        job.handed_over.set()
        while True:
            news = await job.news.take(None)
            if news is None:
                continue
            if news.event == "never-submitted":
                return job.never("Ray has no job of this attempt")
            if news.event == "submit-failed" and news.canceled:
                return job.never(news.evidence)
            if news.event == "submit-failed":
                ends_with_ray = job.is_stopping and self._plan.own_ray is not None
                if news.final or ends_with_ray:
                    return news.evidence
                job.progress(Step.PENDING, news.evidence)
            elif news.report is None:
                job.progress(Step.READY, "", status_at=self._run.now())
            else:
                report = await self._with_cause(news.report)
                job.progress(Step.READY, "", report=report, status_at=self._run.now())
                if report.ended:
                    return "" if report.succeeded else report.status.lower()

    async def _with_cause(self, report: JobReport) -> JobReport:
        """Return the report of a failed job with the cause that its output has."""
        if not report.ended or report.succeeded:
            return report
        memory = self._run.memory.recent()
        cause = None
        if self._output is not None:
            cause = await find_cause(self._run, self._output.path, self._head.elsewhere())
        return replace(report, memory=memory, cause=cause)

    # --- stop -----------------------------------------------------------------------------------

    async def _stop_once_wanted(self, job: _Current) -> None:
        await self._head.until_wanted(JOB, _is_to_stop)
        if job.may_submit:
            job.preparing.cancel()
        await job.handed_over.wait()
        job.is_stopping = True
        if self._link is not None:
            await self._stop(self._link, job)

    async def _stop(self, link: RayLink, job: _Current) -> None:
        """Stop a job through Ray, or signal its driver where the dashboard hangs."""
        with anyio.move_on_after(STOP_ACCEPTED):
            await link.stop_job(job.id)
            return

        # No driver is here if it runs on another machine, or has ended.
        pids = self._run.effects.processes.terminate_driver(job.id)
        if pids:
            job.progress(signaled=True)
            timeout = f"Ray did not take the stop of the job within {STOP_ACCEPTED:g} s"
            say(f"{timeout}: SIGTERM sent to its driver itself ({pids})", "warning")

    # --- its command ----------------------------------------------------------------------------

    async def _make_submission(self, *, is_followed: bool = False) -> Submission | Outcome:
        """Make the job's command for the nodes that joined, or refuse it."""
        # All attempts of a run are sized by the same model and links.
        state = self._head.state()
        basis = self._store.measured.basis
        if basis is None:
            basis = await read_basis(self._plan, state)
            self._store.measure(basis=basis)

        maker = SubmissionMaker(
            self._plan,
            state,
            state.durable.run_id,
            basis,
            str(progress_path(self._run.folder, state.attempt.number)),
            is_followed=is_followed,
        )
        place = self._head.place()
        reward_ip = service_address(state, REWARD) or place.node_ip
        url = reward_url(self._plan.all_services, replace(place, node_ip=reward_ip))
        here = known_place(place, state)
        return await maker.make(here, url, self._env, self._run.redactor.clean)

    # --- its output -----------------------------------------------------------------------------

    async def _start_output(self, job_id: str, submission: Submission | Outcome) -> Path | None:
        """Start to pass on the job's output; return the file that the bridge must write."""
        line = ""
        self._status.split.of_command = None
        if isinstance(submission, Submission):
            line = submission.line
            self._status.split.of_command = submission.split
        self._status.command = line
        watcher = self._status.job_lines
        self._output, mirror = await start_job_output(self._run, job_id, line, watcher)
        return mirror

    async def pass_on(self, recent: RecentOutput) -> None:
        """Pass on the output of this node's share."""
        self._run.output_begins = await size_at_start(recent.path)
        output = self._run.effects.late().copy_output(recent, PreambleFilter())
        output.to_stdout(0, lambda _count: None)
        output.to_watcher(self._status.job_lines)
        output.start()
        self._output = output

    async def clear(self, _progress: OnProgress) -> None:
        """Pass on the rest of an attempt's output, within a limit, and remove its secrets."""
        if self._secrets is not None:
            await in_thread(partial(remove_file, self._secrets))  # of a job that never started
            self._secrets = None
        if self._output is not None:
            limit = self._plan.budget.output
            await in_thread(partial(self._output.finish, limit), 2 * limit)
            await self._steps.look()
            self._output = None


def _is_to_stop(want: Want) -> bool:
    return isinstance(want, JobWant) and want.is_to_stop


async def start_job_output(
    run: NodeRun, job_id: str, command_line: str, watcher: JobLines
) -> tuple[OutputCopies, Path | None]:
    """Start to pass on a job's output; return it, and the file that the bridge must write."""
    # Where is it? The bridge writes that of a driver on another machine.
    session = run.plan.launch.session
    mirror = None
    if session is None:
        source = mirror = run.folder.file(f"ray-job.{safe_name(job_id)}.log")
    else:
        latest = Path(session, "session_latest").resolve()  # noqa: ASYNC240 - a link on a local disk
        source = latest / "logs" / f"job-driver-{job_id}.log"
        run.node.update(session=str(latest))

    # How much of it did a killed agent pass on?
    update = run.node.update
    if run.node.record.output_of != job_id:
        update(output_of=job_id, passed_on=0, copied=0)
    known = run.node.record
    log = run.folder.file(JOB_LOG)
    run.output_begins = max(0, await size_at_start(log) - known.copied)

    output = run.effects.late().copy_output(source, PreambleFilter(job_id, command_line))
    output.to_stdout(known.passed_on, lambda count: update(passed_on=count))
    output.to_file(log, known.copied, lambda count: update(copied=count))
    output.to_watcher(watcher)
    output.start()
    return output, mirror
