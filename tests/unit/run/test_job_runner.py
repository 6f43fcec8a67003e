"""The job as an item of the head's node: submitted, followed, stopped, or let go."""

from __future__ import annotations

import sys
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.bridge.link import JobNews, RayLink
from agent.decisions.attempts import FailureCause, JobReport
from agent.decisions.shared import JOB, ItemReport, JobItem, JobWant, Step
from agent.frameworks.recipe import JobBasis
from agent.record.run_folder import RunFolder
from agent.run.diagnose import Elsewhere
from agent.run.effects import REAL
from agent.run.head_job import Submission
from agent.run.job_runner import HeadView, JobRunner
from agent.settings.redact import redactor_for
from support.captured import changed, read
from support.captured import plan_of as captured_plan
from support.executing import executing
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from agent.base.ends import Outcome
    from support.executing import Executing

pytestmark = pytest.mark.anyio
SUBMIT = JobWant(1, id="run-1", may_submit=True)
FOLLOW = JobWant(1, id="run-1")
MADE = Submission("train", {}, basis=JobBasis(commit="abc"))
REFUSED = ends.RECIPE_DOES_NOT_FIT.outcome(job="trl-grpo", nodes="1", error="too small")
RUNNING = JobNews("job", "run-1", report=JobReport("RUNNING"))


async def make_at_once() -> Submission | Outcome:
    """Make a submission without any wait."""
    return MADE


class Runner(JobRunner):
    """The job's runner, without what makes its command and passes on its output."""

    make = staticmethod(make_at_once)
    copies: Any = None  # of its output

    async def _make_submission(self, *, is_followed: bool = False) -> Submission | Outcome:
        return MADE if is_followed else await self.make()

    async def _start_output(self, _job_id: str, _made: Submission | Outcome) -> Path | None:
        self._output = self.copies
        return None


class Link:
    """A link that notes what is asked of it, and takes each stop."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.tell: Callable[[JobNews], None] = lambda _news: None

    async def submit(
        self, job_id: str, _line: str, _env: object, _mirror: object, tell: Callable[..., None]
    ) -> None:
        """Note it."""
        self.orders.append(f"submit {job_id}")
        self.tell = tell

    async def follow(self, job_id: str, _mirror: object, tell: Callable[..., None]) -> None:
        """Note it."""
        self.orders.append(f"follow {job_id}")
        self.tell = tell

    async def stop_job(self, job_id: str) -> None:
        """Note it."""
        self.orders.append(f"stop {job_id}")

    def forget(self, job_id: str) -> None:
        """Note it."""
        self.orders.append(f"forget {job_id}")

    async def say(self, line: JobNews) -> None:
        """Tell something of the job, and let it be taken."""
        self.tell(line)
        await anyio.wait_all_tasks_blocked()


def job_of(there: Executing) -> JobItem:
    """Return the job as last reported."""
    assert isinstance(there.item, JobItem)
    return there.item


async def _nothing(*_: object) -> None:
    """Keep no steps."""


@asynccontextmanager
async def scene(  # noqa: PLR0913 - what a story may need
    root: Path,
    link: object,
    make: Callable[[], Awaitable[Submission | Outcome]] = make_at_once,
    *,
    given: bool = False,
    terminate: Callable[[str], str] = str,
    output: Copies | None = None,
) -> AsyncIterator[Executing]:
    """Run the job's runner on an executor."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0"}
    plan = plan_of(environ, command=["train"])
    if given:
        plan = captured_plan(changed("kuberay-head", environ), read("kuberay-head")[1])
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    processes = REAL.processes._replace(terminate_driver=terminate)
    effects = REAL._replace(processes=processes)
    run = made_run(plan, redactor, RunFolder(root, "run-1", "a"), effects=effects)
    steps: Any = SimpleNamespace(begin=_nothing, follow=lambda _number: None, look=_nothing)
    state: Any = SimpleNamespace(attempt=SimpleNamespace(number=1))
    nothing: Any = None
    runner: Runner
    try:
        async with executing(lambda _name: runner.run, lambda _name: runner.clear) as there:
            until_wanted = there.executor.until_wanted
            view = HeadView(lambda: state, nothing, Elsewhere, until_wanted)
            runner = Runner(run, nothing, nothing, steps, cast("Any", link), {}, view)
            runner.make = make  # type: ignore[assignment]
            runner.copies = output
            yield there
    finally:
        run.close()


def news(event: str, **said: Any) -> JobNews:  # noqa: ANN401 - fields of the bridge's line
    """Return what the bridge says of the job."""
    return JobNews(cast("Any", event), "run-1", **said)


ACCEPTED = news("submitted")
WAITS = news("submit-failed", evidence="no answer")
FINAL = news("submit-failed", evidence="bad runtime_env", final=True)
CANCELED = news("submit-failed", evidence="stopped before Ray took it", canceled=True)
UNKNOWN = news("never-submitted")
SUCCEEDED = news("job", report=JobReport("SUCCEEDED", driver_exit_code=0))


@pytest.mark.parametrize(
    ("want", "says", "step", "evidence", "is_running", "never"),
    [
        (SUBMIT, [], Step.PENDING, "", True, False),
        (SUBMIT, [WAITS], Step.PENDING, "no answer", True, False),
        (SUBMIT, [WAITS, ACCEPTED], Step.READY, "", True, False),
        (SUBMIT, [WAITS, FINAL], Step.LOST, "bad runtime_env", False, False),
        (SUBMIT, [CANCELED], Step.LOST, "stopped before Ray took it", False, True),
        (SUBMIT, [ACCEPTED, RUNNING], Step.READY, "", True, False),
        (SUBMIT, [ACCEPTED, RUNNING, SUCCEEDED], Step.READY, "", False, False),
        (FOLLOW, [UNKNOWN], Step.LOST, "Ray has no job of this attempt", False, True),
        (FOLLOW, [RUNNING], Step.READY, "", True, False),
    ],
)
async def test_what_the_bridge_says_is_reported(  # noqa: PLR0913 - a row
    tmp_path: Path,
    want: JobWant,
    says: list[JobNews],
    step: Step,
    evidence: str,
    *,
    is_running: bool,
    never: bool,
) -> None:
    """A job is submitted once, or only followed, and its last status stays once it is over."""
    link = Link()
    async with scene(tmp_path, link) as there:
        await there.wants({JOB: want})
        for line in says:
            await link.say(line)
        item = job_of(there)
        assert (item.step, item.evidence, item.is_running) == (step, evidence, is_running)
        assert item.never == never
        assert item.report == (says[-1].report if says else None)
        assert link.orders[0] == f"{'submit' if want.may_submit else 'follow'} run-1"
    assert link.orders[1:] == ["forget run-1"]  # let go at the end, not stopped


@pytest.mark.parametrize("given", [False, True])
async def test_a_stop_that_ray_does_not_answer(tmp_path: Path, *, given: bool) -> None:
    """A Ray of our own ends with the attempt; on a given one the job may still begin."""
    link = Link()
    async with scene(tmp_path, link, given=given) as there:
        await there.wants({JOB: SUBMIT})
        link.tell(WAITS)
        await there.wants({JOB: replace(SUBMIT, is_to_stop=True)})
        assert link.orders == ["submit run-1", "stop run-1"]
        await link.say(WAITS)
        assert there.item.is_running == given
        assert there.item.step is (Step.PENDING if given else Step.LOST)


async def test_a_followed_job_that_is_to_be_stopped(tmp_path: Path) -> None:
    """A killed agent has begun the stop: it is followed first, so that its end is reported."""
    link = Link()
    async with scene(tmp_path, link) as there:
        await there.wants({JOB: replace(FOLLOW, is_to_stop=True)})
        assert link.orders == ["follow run-1", "stop run-1"]
        await link.say(news("job", report=JobReport("STOPPED")))
        assert (there.item.is_running, job_of(there).is_accepted) == (False, True)


@pytest.mark.parametrize("code", [0, 7])
async def test_a_failed_job_has_the_cause_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its output is searched before its end is reported; that of a success is not."""
    link = Link()
    cause = FailureCause("oom", "a GPU ran out of memory")
    searched: list[object] = []

    async def find(_run: object, path: object, _elsewhere: object) -> FailureCause:
        searched.append(path)
        return cause

    monkeypatch.setattr("agent.run.job_runner.find_cause", find)
    output = Copies(tmp_path / "job.log")
    output.may_end.set()
    report = JobReport("FAILED" if code else "SUCCEEDED", driver_exit_code=code)
    async with scene(tmp_path, link, output=output) as there:
        await there.wants({JOB: SUBMIT})
        await link.say(news("job", report=report))
        found = job_of(there).report
        assert found is not None
        assert found.cause == (cause if code else None)
        assert there.item.step is (Step.LOST if code else Step.READY)
    assert searched == ([output.path] if code else [])


async def test_a_job_that_is_not_wanted_any_more_is_let_go(tmp_path: Path) -> None:
    """Its Ray ends it, or another head follows it: it is not stopped."""
    link = Link()
    async with scene(tmp_path, link) as there:
        await there.wants({JOB: SUBMIT})
        link.tell(RUNNING)
        await there.wants({})
        assert (there.item.is_running, there.item.was_stopped) == (False, True)
    assert link.orders == ["submit run-1", "forget run-1"]


async def test_a_job_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """With the outcome that the run ends with, and nothing is submitted."""
    link = Link()

    async def refuse() -> Submission | Outcome:
        return REFUSED

    async with scene(tmp_path, link, refuse) as there:
        await there.wants({JOB: SUBMIT})
        assert (job_of(there).refusal, there.item.step) == (REFUSED, Step.LOST)
    assert link.orders == ["forget run-1"]


@pytest.mark.parametrize("want", [SUBMIT, FOLLOW])
async def test_without_ray_only_the_command_is_made(tmp_path: Path, want: JobWant) -> None:
    """The shares run it; those of a killed agent have ended with it."""
    is_made = want.may_submit
    async with scene(tmp_path, None) as there:
        await there.wants({JOB: want})
        item = job_of(there)
        assert item.step is (Step.READY if is_made else Step.LOST)
        assert item.basis == (MADE.basis if is_made else JobBasis())
        assert (item.is_running, item.never) == (is_made, not is_made)
        await there.wants({})  # once the shares have ended
        assert not there.item.is_running


class Copies:
    """Copies of a job's output that end once they may, in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.may_end = threading.Event()
        self.limits: list[float] = []

    def finish(self, limit: float) -> None:
        """Copy the rest."""
        self.limits.append(limit)
        self.may_end.wait(20)


@pytest.mark.parametrize("is_let_go", [False, True])
async def test_a_job_is_over_once_its_output_was_passed_on(
    tmp_path: Path, *, is_let_go: bool
) -> None:
    """Its end is reported at once; whether it ended by itself, or is not wanted any more."""
    link = Link()
    output = Copies(tmp_path / "job.log")
    async with scene(tmp_path, link, output=output) as there:
        await there.wants({JOB: SUBMIT})
        link.tell(RUNNING if is_let_go else SUCCEEDED)
        await there.wants({} if is_let_go else {JOB: SUBMIT})
        assert (there.item.is_running, there.item.was_stopped) == (True, is_let_go)
        await there.wants({JOB: replace(SUBMIT, generation=2, id="run-2")})
        assert link.orders == ["submit run-1", "forget run-1"]
        output.may_end.set()
        await there.until(lambda item: item.generation == 2)
        assert there.item.is_running
        await anyio.wait_all_tasks_blocked()
        assert link.orders[2:] == ["submit run-2"]
        assert len(output.limits) == 1


async def test_the_output_of_a_stalled_stream_has_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the time that its copies have, whatever holds them up."""
    monkeypatch.setattr("agent.base.times.STOP_OUTPUT", 0.1)
    link = Link()
    output = Copies(tmp_path / "job.log")
    async with scene(tmp_path, link, output=output) as there:
        await there.wants({JOB: SUBMIT})
        link.tell(SUCCEEDED)
        await there.executor.end(JOB)
        assert (there.item.is_running, job_of(there).report) == (False, SUCCEEDED.report)
    assert output.limits == [0.1]
    output.may_end.set()


async def test_a_submission_whose_disk_stalls_is_given_up(tmp_path: Path) -> None:
    """The thread that waits for the disk is left to it; nothing is submitted, nothing stopped."""
    answers = threading.Event()
    link = Link()

    async def stalled() -> Submission | Outcome:
        await anyio.to_thread.run_sync(answers.wait, abandon_on_cancel=True)
        return MADE

    try:
        async with scene(tmp_path, link, stalled) as there:
            there.executor.apply({JOB: SUBMIT})
            await anyio.lowlevel.checkpoint()
            there.executor.apply({JOB: replace(SUBMIT, is_to_stop=True)})
            await there.executor.until_over(JOB)
            assert job_of(there).never
            assert there.item.evidence == "stopped before it was submitted"
    finally:
        answers.set()
    assert link.orders == ["forget run-1"]


async def test_a_submission_that_is_handed_over_is_stopped_after_that(tmp_path: Path) -> None:
    """Else the job would be submitted after the order to stop it."""
    link = Link()
    async with scene(tmp_path, link) as there:
        await there.wants({JOB: SUBMIT})
        await there.wants({JOB: replace(SUBMIT, is_to_stop=True)})
        await there.wants({JOB: replace(SUBMIT, is_to_stop=True)})
        assert link.orders == ["submit run-1", "stop run-1"]


BRIDGE = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "stop" and TAKES:
        print(json.dumps({"event": "stop-taken", "id": order["id"]}), flush=True)
        status = {"status": "STOPPED"}
        print(json.dumps({"event": "job", "id": order["id"], "report": status}), flush=True)
"""


@pytest.mark.parametrize("takes", [True, False])
async def test_ray_first_then_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, takes: bool
) -> None:
    """The driver is asked only where Ray has not taken the stop in time."""
    asked: list[str] = []

    def ask_to_end(job_id: str) -> str:
        asked.append(job_id)
        return "pid 7, sleep"

    monkeypatch.setattr("agent.run.job_runner.STOP_ACCEPTED", 5.0 if takes else 0.5)
    argv = [sys.executable, "-c", f"TAKES = {takes}\n{BRIDGE}"]
    link = RayLink(argv, {}, lambda: tmp_path / "bridge.log", lambda _event: None)

    def is_stopped(item: ItemReport) -> bool:
        return not item.is_running or (isinstance(item, JobItem) and item.signaled)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        async with scene(tmp_path, link, terminate=ask_to_end) as there:
            there.executor.apply({JOB: replace(FOLLOW, is_to_stop=True)})
            await there.until(is_stopped)
            assert job_of(there).signaled != takes
        tasks.cancel_scope.cancel()
    assert asked == ([] if takes else ["run-1"])
