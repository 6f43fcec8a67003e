"""A job without a sign of work: when it is looked at, how busy it is, and where it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boot import stall
from agent.boot.asked import Asked
from agent.boot.head_logs import sent_by
from agent.boot.looks import BUSY, IDLE, STACKS
from agent.boot.node_run import NodeRun
from agent.boot.stall import StallWatch
from agent.bridge.link import RayLink
from agent.decisions import head
from agent.decisions.head.state import Phase
from agent.decisions.stall import LOOKS, Quiet, following, step, telling
from agent.decisions.worker import state as w
from agent.record.run_folder import RunFolder
from agent.runtime.job_processes import (
    NO_PTRACE,
    NO_PY_SPY,
    Business,
    Found,
    busy_cpus,
    busy_gpu,
    find_py_spy,
    stacks_of,
    worth_a_look,
)
from agent.runtime.tool import output_of
from agent.settings.redact import MASK, Redactor
from unit.heads import goal, word
from unit.test_orders import OneWorker, free_port, head_at
from unit.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.boot.watched import Watched
    from agent.control.protocol import Report
    from agent.control.reports import Reports
    from agent.decisions.head.state import HeadState

LIMIT = 100.0


# --- when ----------------------------------------------------------------------------------------


@given(st.floats(1, 100_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_job_is_looked_at_before_it_is_taken_to_hang(
    limit: float, since: float, now: float
) -> None:
    """Several times, where its limit is not tiny; a sign of work makes it young again."""
    quiet = Quiet(1, since)
    assert quiet.wants_a_look(limit, now) or not quiet.is_over(limit, now)
    assert step(limit) <= max(1.0, limit / LOOKS)
    assert not quiet.worked(now).wants_a_look(limit, now)
    assert quiet.worked(now).since == max(since, now)


def test_each_attempt_is_told_of_once() -> None:
    """What was told is told no more; another attempt begins anew, and between them is nothing."""
    told = Quiet(1, 0.0, is_told=True)
    assert not told.wants_a_look(LIMIT, 1e6)
    assert not told.is_over(LIMIT, 1e6)
    assert following(told, 1, 5.0) is told
    assert following(told, 2, 5.0) == Quiet(2, 5.0)
    assert following(told, None, 5.0) is None
    assert Quiet(1, 3.0).worked(None) == Quiet(1, 3.0)


STACKS_OF_ONE = """\
driver (pid 7):
Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    get (ray/_private/worker.py:3009)
    wait_for_the_trainers (train.py:15)
Thread 8 (idle): "PythonGCThread"
    Condition.wait (threading.py:327)
    PythonGCThread.run (ray/_private/gc_collect_manager.py:29)
Thread 9 (idle): "loader"
    get (queue.py:171)
    load (data.py:3)
busiest: ray::A (pid 9):
Thread 9 (idle): "MainThread"
    main_loop (ray/_private/worker.py:974)
Thread 10 (active)
    Thread.run (threading.py:982)"""


def test_threads_that_only_wait_are_left_out_of_the_log() -> None:
    """The main one is told always, others where more than Python and Ray is in them."""
    told = telling(STACKS_OF_ONE)
    kept = [line for line in STACKS_OF_ONE.splitlines() if line]
    assert told == [*kept[:6], *kept[9:15]]
    assert telling(NO_PY_SPY) == [NO_PY_SPY]
    assert telling("") == []


# --- how busy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        ("0, 0\n1, 0\n", ""),
        ("0, 4\n1, 87\n", "GPU 1 at 87 %"),
        ("0, [N/A]\n", ""),
        ("", ""),
        ("no devices were found\n", ""),
    ],
)
def test_gpus_that_work(text: str, busy: str) -> None:
    """By nvidia-smi's list."""
    assert busy_gpu(text) == busy


@pytest.mark.parametrize(
    ("used", "seconds", "processes", "is_busy"),
    [(0.0, 10.0, 4, False), (1.0, 10.0, 4, False), (5.0, 10.0, 4, True), (0.0, 0.0, 0, False)],
)
def test_processors_that_work(
    used: float, seconds: float, processes: int, *, is_busy: bool
) -> None:
    """Processes that only wait use a little each."""
    assert bool(busy_cpus(used, seconds, processes)) is is_busy


def fake(folder: Path, name: str, script: str) -> str:
    """Leave a tool that does what a shell script says; return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_nvidia_smi_is_asked_where_there_are_gpus(tmp_path: Path) -> None:
    """One that fails leaves the processors to tell; a first look at those cannot."""
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    async def look(gpus: int, script: str) -> str:
        fake(tmp_path, "nvidia-smi", script)
        return await Business(gpus, env, lambda: tmp_path / "smi.log").look(None)

    assert anyio.run(look, 8, "echo '0, 0'; echo '1, 55'") == "GPU 1 at 55 %"
    assert anyio.run(look, 8, "echo '0, 0'") == ""
    assert anyio.run(look, 8, "exit 9") == "looked at for the first time"
    assert anyio.run(look, 0, "echo '0, 55'") == "looked at for the first time"


# --- where it is ---------------------------------------------------------------------------------


def test_a_tool_has_its_time(tmp_path: Path) -> None:
    """What it prints, or why there is nothing; it is not waited for for ever."""
    log = tmp_path / "tool.log"

    async def ask(script: str, limit: float = 20.0) -> tuple[str, str]:
        return await output_of([fake(tmp_path, "tool", script)], {}, lambda: log, limit)

    assert anyio.run(ask, "echo one; echo two") == ("one\ntwo\n", "")
    said, fault = anyio.run(ask, "echo one; echo broken >&2; exit 3")
    assert (said, fault) == ("one\n", "exit code 3; its last words: broken")
    assert anyio.run(ask, "exec sleep 100", 0.3) == ("", "tool did not end within 0.3 s")
    missing = anyio.run(output_of, ["/none/py-spy"], {}, lambda: log, 5.0)
    assert missing == ("", "/none/py-spy: No such file or directory")


def myself(what: str) -> Found:
    """Return this very process in a role."""
    return Found(what, psutil.Process())


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "echo 'Thread 1 (idle): \"MainThread\"'",
            f"driver (pid {psutil.Process().pid}):\nThread 1 ",
        ),
        ("echo 'Error: Permission Denied: Try sudo' >&2; exit 1", NO_PTRACE),
        ("echo 'Operation not permitted (os error 1)' >&2; exit 1", NO_PTRACE),
        (
            "echo 'Failed to find python version' >&2; exit 1",
            "no stack: exit code 1; its last words",
        ),
    ],
)
def test_stacks(script: str, told: str, tmp_path: Path) -> None:
    """As py-spy gives them; without the right it is said what the container lacks."""
    tool = fake(tmp_path, "py-spy", script)
    text = anyio.run(stacks_of, [myself("driver")], tool, {}, lambda: tmp_path / "log")
    assert told in text


REAL = find_py_spy(sys.executable, None)
_DROPS = "setpriv --inh-caps=-sys_ptrace --bounding-set=-sys_ptrace"


@pytest.mark.skipif(REAL is None, reason="py-spy is not installed here")
@pytest.mark.parametrize("may_trace", [True, False])
def test_the_real_py_spy(tmp_path: Path, *, may_trace: bool) -> None:
    """It names the function in which a process waits; without SYS_PTRACE that is told."""
    if os.geteuid() != 0:
        pytest.skip("only root can do both")
    script = "def waits_here():\n    input()\nprint('up', flush=True)\nwaits_here()"
    tool = fake(tmp_path, "py-spy", f'exec {"" if may_trace else _DROPS} {REAL} "$@"')
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        found = [Found("driver", psutil.Process(child.pid))]
        text = anyio.run(stacks_of, found, tool, dict(os.environ), lambda: tmp_path / "log")
        child.kill()
    assert ("waits_here" in text) if may_trace else (text == NO_PTRACE)


def test_no_py_spy_and_nothing_to_look_at(tmp_path: Path) -> None:
    """Both are said."""
    assert anyio.run(stacks_of, [myself("driver")], None, {}, lambda: tmp_path / "log") == NO_PY_SPY
    nothing = anyio.run(stacks_of, [], None, {}, lambda: tmp_path / "log")
    assert nothing == "no Python process of the job runs here"


def test_py_spy_is_found_beside_its_python_or_on_path(tmp_path: Path) -> None:
    """An image's Python may have it where PATH does not lead."""
    python = str(tmp_path / "env/bin/python")
    assert find_py_spy(python, str(tmp_path)) is None
    on_path = fake(tmp_path, "py-spy", "true")
    assert find_py_spy(python, str(tmp_path)) == on_path
    (tmp_path / "env/bin").mkdir(parents=True)
    assert find_py_spy(python, str(tmp_path)) == on_path
    beside = fake(tmp_path / "env/bin", "py-spy", "true")
    assert find_py_spy(python, str(tmp_path)) == beside


def test_the_driver_and_the_busiest_other_are_looked_at() -> None:
    """Of many actors the one that has worked most; a shell has no Python stack."""
    found = worth_a_look([myself("ray::A"), myself("driver"), myself("ray::B"), myself("driver")])
    assert [one.what for one in found] == ["driver", "busiest: ray::A"]
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        assert worth_a_look([Found("driver", psutil.Process(sleeper.pid))]) == []
        sleeper.kill()


# --- a worker, and the head ----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NodeRun]:
    """Return a head's run that takes a job to hang after ten seconds."""
    environ = {"AGENT_LOG_DIR": str(tmp_path), "AGENT_STALL": "10s", "PATH": str(tmp_path)}
    plan = plan_of(environ, command=[sys.executable])
    made = NodeRun(plan, Redactor((SECRET,)), RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    yield made
    made.close()


def test_a_worker_tells_how_busy_it_is_and_its_stacks(run: NodeRun) -> None:
    """By the names under which it is asked, with its next report."""
    asked, told = Asked(run), []

    async def tell_both() -> None:
        for what in (BUSY, BUSY, STACKS, "/etc/passwd"):
            await asked.log(what, lambda: told.append(1))

    anyio.run(tell_both)
    assert asked.to_send()[0] == {BUSY: IDLE, STACKS: "no Python process of the job runs here"}
    assert len(told) == 4


class Asks(OneWorker):
    """A worker behind a real link that also tells what it is asked for."""

    def __init__(self, port: int, asked: Asked) -> None:
        super().__init__(port)
        self.asked = asked

    def _report(self, ip: str) -> Report:
        logs, _ = self.asked.to_send()
        return replace(super()._report(ip), logs=logs)

    def _take(self, event: w.WorkerEvent) -> None:
        if isinstance(event, w.HeadSpoke):  # a reply has come
            self.asked.arrived()
        super()._take(event)

    async def obey(self) -> None:
        """Do what is ordered, as it comes."""
        while True:
            while self.deeds:
                deed = self.deeds.pop(0)
                if isinstance(deed, w.SendLog):
                    await self.asked.log(deed.name, self.link.report_now)
            await self.changed.wait()


def test_a_look_goes_to_a_worker_and_back(run: NodeRun) -> None:
    """By an order and a report over the real port, as a log's end does; none comes twice."""

    async def look_twice() -> list[str | None]:
        port = free_port()
        worker = Asks(port, Asked(run))
        found = []
        async with head_at(port) as reports, anyio.create_task_group() as tasks:
            tasks.start_soon(worker.link.run)
            tasks.start_soon(worker.obey)
            with anyio.fail_after(20):
                while not worker.state.heard:
                    await worker.changed.wait()
            for what in (BUSY, BUSY, STACKS):
                found += [await sent_by(reports, "agent1", what, 20.0)]
            tasks.cancel_scope.cancel()
        return found

    first, second, stacks = anyio.run(look_twice)
    assert first == "looked at for the first time"
    assert second == IDLE
    assert stacks == "no Python process of the job runs here"


class Job(NamedTuple):
    """What is known of the job's output."""

    heard: float | None = None


class Shown:
    """What a head shows."""

    def __init__(self) -> None:
        self.job = Job()
        self.stalls: tuple[object, ...] = ()


class Ray(RayLink):
    """A bridge that tells when a task finished last."""

    def __init__(self, finished: float | None) -> None:
        self.finished = finished

    async def last_finished(self, _limit: float) -> float | None:
        """Tell it."""
        return self.finished


class OneHead:
    """A head that watches a job, on a clock of its own."""

    def __init__(self, run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.time, self.said = run, 0.0, []  # type: ignore[var-annotated]  # of texts
        self.answers = {BUSY: IDLE, STACKS: f"driver (pid 7):\n{SECRET}"}
        self.workers = {BUSY: IDLE, STACKS: "rank 1 of this node (pid 9):\nwait"}
        self.asked: list[str] = []
        self.shown, self.ray = Shown(), Ray(None)
        monkeypatch.setattr(NodeRun, "now", lambda _run: self.time)
        monkeypatch.setattr(stall, "say", lambda text, _level="info": self.said.append(text))
        monkeypatch.setattr(stall, "sent_by", self._sent)
        state = head.first_state(goal(1))
        fleet = state.fleet.with_report(word(2).worker)
        self.state: HeadState = replace_state(state, fleet, Phase.RUNNING)
        shown, nobody = cast("Watched", self.shown), cast("Reports", None)
        self.watch = StallWatch(run, nobody, shown, self.ray, lambda: self.state)
        monkeypatch.setattr(self.watch._own, "tell", self._own)  # noqa: SLF001 - this machine's looks

    async def _own(self, what: str, _id: str | None) -> str:
        self.asked.append(what)
        return self.run.redactor.clean(self.answers[what])

    async def _sent(self, _reports: object, key: str, what: str, _limit: float) -> str | None:
        assert key == "agent2"
        return self.workers.get(what)

    def look(self, at: float) -> None:
        """Let the watch look at a time."""
        self.time = at
        anyio.run(self.watch._once)  # noqa: SLF001 - one turn of its loop


def replace_state(state: HeadState, fleet: object, phase: Phase) -> HeadState:
    """Return a state with other workers in another phase."""
    return replace(state, fleet=fleet, phase=phase)  # type: ignore[arg-type]  # a Fleet


@pytest.fixture
def watched(run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> OneHead:
    """Return a head whose job has begun."""
    one = OneHead(run, monkeypatch)
    one.look(0.0)
    return one


def test_a_quiet_job_is_told_with_all_stacks_once(watched: OneHead) -> None:
    """Not before its time; then in the log, in a file, and among the warnings, without a secret."""
    for at in range(1, 10):
        watched.look(float(at))
    assert watched.said == []
    watched.look(10.0)
    assert watched.said[0] == (
        "the job shows no sign of work for 10 s: no output, no Ray task finished and idle "
        "processors (AGENT_STALL): looking where it is"
    )
    assert f"stacks of node-a: {MASK}" in watched.said
    assert "stacks of pod2: wait" in watched.said
    file = watched.run.folder.file("stacks-1.log")
    assert file.read_text() == (
        f"--- node-a\ndriver (pid 7):\n{MASK}\n\n--- pod2\nrank 1 of this node (pid 9):\nwait\n"
    )
    assert watched.said[-1].startswith("stall: the job shows no sign of work for 10 s")
    assert str(file) in watched.said[-1]
    assert "`pod-agent stop`" in watched.said[-1]
    assert len(watched.shown.stalls) == 1
    count = len(watched.said)
    watched.look(1000.0)
    assert len(watched.said) == count


@pytest.mark.parametrize(
    "sign", ["output", "a busy node", "a busy worker", "a silent worker", "a finished task", "over"]
)
def test_any_sign_of_work_is_one(sign: str, watched: OneHead) -> None:
    """Output, a node that is busy or does not tell, a task that finished; a job that is over."""
    if sign == "output":
        watched.shown.job = Job(8.0)
    elif sign == "a busy node":
        watched.answers[BUSY] = "GPU 0 at 90 %"
    elif sign == "a busy worker":
        watched.workers[BUSY] = "1.00 cores"
    elif sign == "a silent worker":
        del watched.workers[BUSY]
    elif sign == "a finished task":
        watched.ray.finished = time.time() - 3.0
    else:
        watched.state = replace_state(watched.state, watched.state.fleet, Phase.STOPPING)
    watched.look(10.0)
    assert watched.said == []
    assert STACKS not in watched.asked


def test_a_job_that_prints_is_not_looked_at(watched: OneHead) -> None:
    """Nothing is asked of nodes while output comes."""
    for at in range(1, 30):
        watched.shown.job = Job(float(at))
        watched.look(float(at) + 0.5)
    assert watched.asked == []


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    """AGENT_STALL=0 looks at nothing."""
    plan = plan_of({"AGENT_LOG_DIR": str(tmp_path), "AGENT_STALL": "0"}, command=["true"])
    run = NodeRun(plan, Redactor(()), RunFolder(tmp_path, "run-1", "node-a"), 0.0, "run-1")
    shown, nobody = cast("Watched", Shown()), cast("Reports", None)
    watch = StallWatch(run, nobody, shown, Ray(None), lambda: head.first_state(goal()))

    async def ends() -> None:
        with anyio.fail_after(20):
            await watch.run()

    anyio.run(ends)
    run.close()
