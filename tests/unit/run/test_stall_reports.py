"""A job without progress: the worker's reports, and the head's log."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from agent.bridge.link import RayLink, Unplaced
from agent.checks.finding import Finding
from agent.decisions.attempts import LostAttempt
from agent.decisions.head import head_decide as head
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import HERE, SAMPLE, SCORE, Answer, Question, QuestionKind
from agent.decisions.stall import NodeActivity, Stalled
from agent.diagnosis.advice import Advice
from agent.diagnosis.node_findings import NodeFindings, decode, encode
from agent.diagnosis.stacks import Frame, ProcessStack, ThreadStack
from agent.job.progress import Progress
from agent.job.services import Placeholders
from agent.node.figures import Figures, GpuFigures
from agent.port.protocol import BUSY, STACKS, Reply
from agent.processes import driver
from agent.record.run_folder import RunFolder
from agent.run import questions as asked_module
from agent.run import stall as looks_module
from agent.run.diagnose import Elsewhere
from agent.run.effects import REAL
from agent.run.head_server import request_log
from agent.run.node_run import NodeRun
from agent.run.questions import Prober, Questions
from agent.run.stall import Diagnostics, StallWatch, activity_of, rules_of
from agent.settings.redact import MASK, Redactor
from support.free_ports import free_port
from support.groups import RUNS, UP, a_goal, ends_with
from support.heads import NOTHING_DURABLE, Trace, after_losses, goal, reported
from support.linked_worker import LinkedWorker, head_at
from support.node_runs import made_run
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.decisions.head import head_state as h
    from agent.decisions.head.head_state import HeadState
    from agent.port.protocol import Report
    from agent.port.reports import Reports
    from agent.run.head_server import RunStatus


PLACE = Placeholders("127.0.0.1", "127.0.0.1", "0")
FIRST_LOOK = NodeActivity(unknown="looked at for the first time")


# --- a worker, and the head ----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NodeRun]:
    """Return a head's run that takes a job to hang after ten seconds."""
    made = run_of(tmp_path, AGENT_STALL="10s")
    yield made
    made.close()


def run_of(root: Path, **more: str) -> NodeRun:
    """Return the run of a head."""
    plan = plan_of(
        {"AGENT_LOG_DIR": str(root), "PATH": str(root), **more}, command=[sys.executable]
    )
    return made_run(plan, Redactor((SECRET,)), RunFolder(root, "run-1", "node-a"))


def busy(diagnostics: Diagnostics) -> NodeActivity:
    """Return what a node answers about its work for the job."""
    return activity_of(anyio.run(diagnostics.collect, BUSY))


@pytest.mark.parametrize("what", [STACKS, BUSY])
def test_a_search_for_processes_that_hangs(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It does not hold the agent's end."""
    answers = threading.Event()

    def search(_id: str | None) -> list[driver.JobProcess]:
        answers.wait(8)
        return []

    monkeypatch.setattr(driver, "job_processes", search)
    processes = REAL.processes._replace(job_processes=search)
    run.effects = REAL._replace(processes=processes)

    async def collect() -> None:
        with anyio.move_on_after(0.3) as scope:
            await Diagnostics(run).collect(what)
        assert scope.cancelled_caught

    began = time.monotonic()
    anyio.run(collect)
    assert time.monotonic() - began < 6
    answers.set()


@pytest.mark.anyio
async def test_a_worker_reports_utilization_and_stacks(run: NodeRun) -> None:
    """By the names under which it is asked, with its next report."""
    events: list[int] = []
    asked = Questions(run, Placeholders, lambda: events.append(1))
    for what in (BUSY, BUSY, STACKS, "/etc/passwd"):
        await asked.fetch_log(what)
    (busy, stacks) = (asked.for_report()[0] or {}).values()
    assert activity_of(busy) == NodeActivity()
    assert decode(stacks, "pod2").stacks == ()
    assert len(events) == 4


@pytest.mark.parametrize(
    ("power", "at", "answer"),
    [
        (400, 1.0, NodeActivity("GPU 0 at 100 %")),
        (131, 1.0, NodeActivity()),
        (400, -100.0, FIRST_LOOK),
    ],
    ids=["at work", "in a hung collective", "read long ago"],
)
def test_a_gpu_that_waits_does_not_work(
    run: NodeRun, power: int, at: float, answer: NodeActivity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its utilization alone says that a hung collective does."""
    gpu = GpuFigures(0, use=100, power=power, usual_power=500)
    run.figures.newest = Figures(at=at, gpus=(gpu,))
    monkeypatch.setattr(NodeRun, "now", lambda _run: 2.0)
    assert busy(Diagnostics(run)) == answer


def test_a_checkpoint_that_grows_is_work(run: NodeRun, tmp_path: Path) -> None:
    """By a file that changed lately, or since the last look where the disk's clock is wrong."""
    settings = replace(run.plan.settings, checkpoints=str(tmp_path / "saved"))
    run.plan = replace(run.plan, settings=settings, job=None)
    shard = tmp_path / "saved/global_step_20/actor.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"x")
    diagnostics = Diagnostics(run)
    assert busy(diagnostics).checkpoint_grows
    os.utime(shard, (1e9, 1e9))
    assert busy(diagnostics).checkpoint_grows
    assert not busy(diagnostics).checkpoint_grows
    shard.write_bytes(b"xx")
    os.utime(shard, (1e9, 1e9))
    assert busy(diagnostics).checkpoint_grows


def test_a_share_that_writes_is_no_share_that_hangs(run: NodeRun) -> None:
    """Output since the last look is progress; otherwise CPU use decides."""
    diagnostics, lines = Diagnostics(run), run.stats.share_lines(1)
    assert busy(diagnostics) == FIRST_LOOK
    assert busy(diagnostics) == NodeActivity()
    lines.write(b"step 1\n", lambda _: False)
    assert busy(diagnostics) == NodeActivity(writes=True)
    assert busy(diagnostics) == NodeActivity()


@pytest.mark.anyio
async def test_no_answer_is_lost_to_another(run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is sent, also that of a probe finished while another report was answered."""
    may_end = anyio.Event()

    class Slow(Prober):
        async def probe(self, probe: str, at: str, *_: object) -> Answer:
            if probe == SAMPLE:
                await may_end.wait()
            return Answer(probe, at)

    monkeypatch.setattr(asked_module, "Prober", Slow)
    place = Placeholders("127.0.0.1", "127.0.0.1", "1")
    asked = Questions(run, lambda: place, lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked.probe, Question(1, QuestionKind.PROBE, SAMPLE))
        await anyio.wait_all_tasks_blocked()
        await asked.probe(Question(2, QuestionKind.PROBE, SCORE))
        assert asked.for_report()[1] == (Answer(SCORE, ""),)
        asked.clear_sent()
        may_end.set()
    assert asked.for_report()[1] == (Answer(SAMPLE, ""),)


class Asks(LinkedWorker):
    """A worker behind a real link that also answers questions."""

    def __init__(self, port: int, run: NodeRun, tasks: anyio.abc.TaskGroup) -> None:
        super().__init__(port)
        self.asked = Questions(run, Placeholders, self.link.report_now)
        self._tasks = tasks

    def _report(self, ip: str) -> Report:
        logs, _ = self.asked.for_report()
        return replace(super()._report(ip), logs=logs)

    def _on_reply(self, reply: Reply) -> None:
        self.asked.clear_sent()
        if reply.wanted is not None:
            self.asked.take(reply.wanted, self._tasks)


@pytest.mark.anyio
async def test_a_request_for_stacks_goes_to_a_worker_and_back(run: NodeRun) -> None:
    """By a question and a report over the real port, as a log's end does; none comes twice."""
    port = free_port()
    async with head_at(port) as reports, anyio.create_task_group() as tasks:
        worker = Asks(port, run, tasks)
        tasks.start_soon(worker.link.run)
        with anyio.fail_after(20):
            while not worker.state.last_reply_at:
                await worker.changed.wait()
        found = [await request_log(reports, "agent1", what, 20.0) for what in (BUSY, BUSY, STACKS)]
        tasks.cancel_scope.cancel()
    first, second, stacks = [text or "" for text in found]
    assert activity_of(first) == FIRST_LOOK
    assert activity_of(second) == NodeActivity()
    assert decode(stacks, "pod2").stacks == ()


def encoded(work: str = "") -> str:
    """Return what a node reports of its work for the job."""
    return msgspec.json.encode(NodeActivity(work)).decode()


class Job(NamedTuple):
    """What is known of the job's output."""

    last_output: float | None = None
    progress: Progress | None = None


class Shown:
    """What a head shows."""

    def __init__(self) -> None:
        self.job_lines = Job()
        self.stalls: tuple[object, ...] = ()
        self.advised: tuple[Advice, ...] = ()

    def advice(self) -> tuple[Advice, ...]:
        """Return the advice on the job."""
        return self.advised


class Ray(RayLink):
    """A bridge that reports when a task finished last."""

    def __init__(self, finished: float | None) -> None:
        self.finished = finished

    async def last_finished(self, _limit: float) -> float | None:
        """Tell it."""
        return self.finished

    async def unplaced(self, _limit: float) -> Unplaced:
        """Return what has no node."""
        groups = [f"a placement group waits for a node with GPU: {gpus}" for gpus in (8, 4, 2)]
        return Unplaced(tuple(groups), ("an actor of class A waits for a node with GPU: 1",))


def found_on(  # noqa: PLR0913 - a process
    node: str, rank: int, function: str, note: str, line: int = 44, cpu: float = 0.0
) -> str:
    """Return what a node reports: a rank in a function."""
    frame = Frame(function, "/app/reward.py", line)
    threads = (ThreadStack("MainThread", (frame,)),)
    stack = ProcessStack(
        node, 7 + rank, f"rank {rank}", rank=rank, world=2, cpu_seconds=cpu, threads=threads
    )
    return encode(NodeFindings((stack,), (), (note,) if note else ()), 9_000)


class OneHead:
    """A head that watches a job, with a test clock."""

    def __init__(self, run: NodeRun, monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
        run.plan = replace(run.plan, settings=replace(run.plan.settings, **settings))
        self.run, self.time = run, 0.0
        self.said: list[str] = []
        self.answers = {
            BUSY: encoded(),
            STACKS: found_on(HERE, 0, "compute_score", f"GPU 0: {SECRET}"),
        }
        self.workers = {BUSY: encoded(), STACKS: found_on("agent2", 1, "train", "")}
        self.asked: list[str] = []
        self.shown, self.ray = Shown(), Ray(None)
        monkeypatch.setattr(NodeRun, "now", lambda _run: self.time)
        monkeypatch.setattr(looks_module, "say", lambda text, _level="info": self.said.append(text))
        monkeypatch.setattr(looks_module, "request_log", self._sent)
        state = head.first_state(goal(1), NOTHING_DURABLE)
        fleet = state.fleet.with_report(reported(2).worker)
        self.state: HeadState = replace(state, fleet=fleet, phase=HeadPhase.RUNNING)
        self.events: list[h.HeadEvent] = []
        self.watch = watch_of(run, self.shown, self.ray, lambda: self.state, self.events.append)
        monkeypatch.setattr(self.watch._diagnostics, "collect", self._own)  # noqa: SLF001 - this machine's evidence

    async def _own(self, what: str, _id: str | None) -> str:
        self.asked.append(what)
        return self.run.redactor.clean(self.answers[what])

    async def _sent(self, _reports: object, key: str, what: str, _limit: float) -> str | None:
        assert key in {"agent2", "agent3"}
        return self.workers.get(what)

    def look(self, *at: float) -> None:
        """Let the watch look at these times."""
        rules = rules_of(self.run.plan)
        assert rules is not None
        for self.time in at:
            anyio.run(self.watch._check, rules)  # noqa: SLF001 - one turn of its loop

    @property
    def stalls(self) -> list[Stalled]:
        """Return what the head's decisions were sent."""
        return [event for event in self.events if isinstance(event, Stalled)]

    @property
    def followed(self) -> list[tuple[str, str]]:
        """Return what the head's decisions were sent, and what follows."""
        assert all("compute_score" in event.suspects for event in self.stalls)
        return [(event.sentence, event.then) for event in self.stalls]


def watch_of(
    run: NodeRun,
    shown: Shown,
    ray: Ray,
    get_state: Callable[[], HeadState],
    send: Callable[[h.HeadEvent], None],
) -> StallWatch:
    """Return a watch of a head to which no worker is connected."""
    status, nobody = cast("RunStatus", shown), cast("Reports", None)
    return StallWatch(run, nobody, status, ray, get_state, send, lambda: PLACE, Elsewhere)


@pytest.fixture
def watched(run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> OneHead:
    """Return a head whose job has begun."""
    one = OneHead(run, monkeypatch)
    one.look(0.0)
    return one


def test_a_quiet_job_is_logged_with_all_stacks_once(watched: OneHead) -> None:
    """Not before its time; then in the log, in a file, and among the warnings, without a secret."""
    watched.look(*range(1, 10))
    assert watched.said == []
    watched.look(10.0)
    assert watched.said[:4] == [
        (
            "the job shows no sign of work for 10 s (AGENT_STALL): examining the job on all nodes, "
            "up to 30 s"
        ),
        "stall: a placement group waits for a node with GPU: 2",
        "stall: an actor of class A waits for a node with GPU: 1",
        f"stall: node-a: GPU 0: {MASK}",
    ]
    sentence = (
        "a placement group waits for a node with GPU: 8; "
        "a placement group waits for a node with GPU: 4; "
        "rank 0 on node-a is in `compute_score` (reward.py:44); "
        "rank 1 on pod2 is in `train` (reward.py:44) since "
    )
    assert watched.said[-1].startswith(f"stall: the job shows no sign of work for 10 s: {sentence}")
    path = watched.run.folder.file("stacks-1.log")
    assert watched.said[-1].endswith(
        f"; all stacks are in {path}. Look at the named process first; `pod-agent stop` ends the "
        "run. AGENT_ON_STALL=retry ends a stalled attempt; a longer AGENT_STALL delays this alarm"
    )
    file = path.read_text()
    assert file.startswith(sentence)
    assert "--- node-a\n" in file
    assert "compute_score (/app/reward.py:44)" in file
    assert SECRET not in file
    assert len(watched.shown.stalls) == 1
    count = len(watched.said)
    watched.look(1000.0)
    assert len(watched.said) == count


def test_a_stall_says_what_the_output_shows_so_far(watched: OneHead) -> None:
    """As the end would: also what no line has ended yet, and without a secret."""
    trace = f"""Traceback (most recent call last):
  File "/app/reward.py", line 44, in compute_score
    ask({SECRET!r})
openai.APIConnectionError: Connection error of {SECRET}.
"""
    watched.run.folder.file("job.log").write_text(trace)
    watched.look(10.0)
    (shown,) = [said for said in watched.said if "the job's output so far" in said]
    assert shown.startswith("stall: the job's output so far: ")
    assert f"It shows in job.log:4: 'openai.APIConnectionError: Connection error of {MASK}" in shown


def test_a_stall_ends_an_attempt_that_had_lost_a_node(watched: OneHead) -> None:
    """The limit counts from the loss; the head's decisions get an event, and stop the job."""
    what = "the job shows no sign of work for 10 s"
    watched.look(10.0)
    assert watched.followed == [(what, "log")]
    watched.state = watched.state.with_attempt(lost_nodes=("pod2",))
    watched.look(15.0, 24.0)
    assert len(watched.events) == 1
    watched.look(25.0)
    assert watched.followed[1:] == [(what, "lost")]
    assert len(watched.shown.stalls) == 2
    watched.look(1000.0)
    assert len(watched.events) == 2


def test_a_job_that_goes_on_is_no_hang(watched: OneHead) -> None:
    """The log says so, and a later stall is another one; without steps there is none to name."""
    watched.shown.job_lines = Job(1.0, Progress(1, 0.0, 3, 4, last_at=1.0, durations=(1.0,) * 20))
    watched.look(11.5, 12.5)
    what = "the job has made no step for 10 s since step 4 (usually 1 s)"
    assert watched.followed == [(what, "log")]
    watched.shown.job_lines = Job(13.0, Progress(1, 0.0, 3, 5, last_at=13.0, durations=(2.0,) * 20))
    watched.look(13.5)
    assert watched.said[-1] == "the job made step 5 after 12 s without one"
    (shown,) = watched.shown.stalls
    assert isinstance(shown, Finding)
    assert shown.what.endswith("; the job made step 5 after 12 s without one")
    watched.look(30.0)
    assert len(watched.events) == 2


def test_a_job_without_steps_goes_on(watched: OneHead) -> None:
    """Then there is no step to name."""
    watched.look(10.0)
    watched.shown.job_lines = Job(12.0)
    watched.look(12.5)
    assert watched.said[-1] == "the job works again after 12 s without a sign of work"


def test_a_late_first_step_names_its_own_setting(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer AGENT_STALL would not delay that alarm."""
    one = OneHead(run, monkeypatch, first_step=5.0)
    one.look(0.0)
    one.shown.job_lines = Job(5.5)
    one.look(6.0)
    what = "the job has made no step for 6 s since it began (AGENT_FIRST_STEP)"
    assert one.said[0] == f"{what}: examining the job on all nodes, up to 30 s"
    assert one.said[-1].endswith("; a longer AGENT_FIRST_STEP delays this alarm")
    (event,) = one.stalls
    assert event.setting == "AGENT_FIRST_STEP"
    assert event.cause_key == "first step: compute_score reward.py, train reward.py"


def steps_of(retries: int, run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> OneHead:
    """Return a head whose job made its last step at 1 s; the run has so many retries."""
    one = OneHead(run, monkeypatch, job_retries=retries)
    one.state = replace(one.state, goal=replace(one.state.goal, retries=retries))
    steps = Progress(1, 0.0, 3, 4, last_at=1.0, durations=(1.0,) * 20, highest=4, of=9)
    one.shown.job_lines = Job(1.0, steps)
    return one


@pytest.mark.parametrize(("retries", "then"), [(1, "log"), (2, "retry")])
def test_the_last_attempt_is_not_ended_by_default(
    retries: int, then: str, run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss has used one of AGENT_JOB_RETRIES."""
    one = steps_of(retries, run, monkeypatch)
    one.state = one.state.with_durable(ended=after_losses(LostAttempt(9.0)).ended)
    one.look(0.0, 11.5, 72.0)
    assert one.followed[-1][1] == then


@pytest.mark.parametrize("moves", [False, True])
def test_a_stall_is_acted_on_after_two_examinations(
    moves: bool,  # noqa: FBT001 - a row
    run: NodeRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute apart, with the same suspects in the same frames."""
    one = steps_of(1, run, monkeypatch)
    one.look(0.0, 11.5, 70.0)
    what = "the job has made no step for {} since step 4 (usually 1 s)"
    first = (what.format("10 s"), "log")
    assert one.followed == [first]
    if moves:
        one.answers[STACKS] = found_on(HERE, 0, "compute_score", "", line=45, cpu=55.0)
    one.look(72.0)
    assert one.followed == [first] if moves else [first, (what.format("1 min 11 s"), "retry")]
    one.look(1000.0)
    assert len(one.shown.stalls) == 1


@pytest.mark.parametrize(
    "sign", ["output", "a busy node", "a busy worker", "a silent worker", "a finished task", "over"]
)
def test_any_sign_of_work_is_one(sign: str, watched: OneHead) -> None:
    """Output, a node that is busy or does not tell, a task that finished; a job that is over."""
    if sign == "output":
        watched.shown.job_lines = Job(8.0)
    elif sign == "a busy node":
        watched.answers[BUSY] = encoded("GPU 0 at 90 %")
    elif sign == "a busy worker":
        watched.workers[BUSY] = encoded("1.00 cores")
    elif sign == "a silent worker":
        del watched.workers[BUSY]
    elif sign == "a finished task":
        watched.ray.finished = time.time() - 3.0
    else:
        watched.state = replace(watched.state, phase=HeadPhase.STOPPING)
    watched.look(10.0)
    assert watched.said == []
    assert STACKS not in watched.asked


def test_a_job_that_prints_is_not_examined(watched: OneHead) -> None:
    """Nothing is asked of nodes while output comes."""
    for at in range(1, 30):
        watched.shown.job_lines = Job(float(at))
        watched.look(float(at) + 0.5)
    assert watched.asked == []


NO_REWARDS = "the reward server did not answer"


@pytest.mark.parametrize(
    ("setting", "lost_by", "then"),
    [
        ("retry", NO_REWARDS, ["retry"]),
        ("stop", NO_REWARDS, ["stop"]),
        ("log", NO_REWARDS, []),
        ("retry", "", []),  # nothing has failed that is known: it is only advised on
    ],
)
def test_rewards_that_are_lost_end_an_attempt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, lost_by: str, then: list[str]
) -> None:
    """As AGENT_ON_STALL says, where a service failed in that step."""
    run = run_of(tmp_path, AGENT_ON_STALL=setting)
    watched = OneHead(run, monkeypatch)
    advice = Advice("the reward fell", "mend it", is_reward_lost=True, lost_by=lost_by)
    watched.shown.advised = (advice,)
    watched.look(1.0, 2.0)
    assert [event.then for event in watched.stalls] == then
    run.close()


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    """AGENT_STALL=0 examines nothing."""
    run = run_of(tmp_path, AGENT_STALL="0")
    state = head.first_state(goal(), NOTHING_DURABLE)
    watch = watch_of(run, Shown(), Ray(None), lambda: state, print)

    async def ends() -> None:
        with anyio.fail_after(20):
            await watch.run()

    anyio.run(ends)
    run.close()


def test_a_group_of_which_nothing_serves_is_the_cause(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stall names it and not the trainer's stacks, and is over once a member serves."""
    one = OneHead(run, monkeypatch)
    oom = "exit code 1 (CUDA out of memory)"
    events = [*RUNS, (7.0, ends_with(2, oom)), (8.0, ends_with(3, oom))]
    one.state = Trace(a_goal(weights="sglang"), [*UP, *events]).state
    one.look(8.0, 18.5)
    (stalled,) = one.stalls
    since = "no engine serves since 00:00 UTC"
    waits = f"{since}: all 4 on pod2 and pod3: {oom}; the trainer waits for samples"
    assert (stalled.suspects, stalled.nodes) == (waits, ("pod2", "pod3"))
    assert stalled.cause_key == "quiet: nothing of engine serves"
    assert f"{waits}; all stacks are in" in one.said[-1]
    assert "See the logs of engine on its nodes" in one.said[-1]
    count = len(one.said)

    # A member serves again: that is no step of the job, and no stall.
    durable = one.state.durable
    short = durable.shortage_of("engine")
    assert short is not None
    one.state = replace(one.state, durable=durable.with_shortage(short.over(20.0)))
    one.look(21.0)
    assert len(one.said) == count
    one.look(30.5)
    assert "compute_score" in one.stalls[-1].suspects
