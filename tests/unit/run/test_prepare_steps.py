"""Prepare steps run in parallel, are stopped when necessary, and run again."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from agent.base import times
from agent.decisions.shared import ItemsReported, Step, Want
from agent.job.services import JUDGE_AWAITED, ON_EVERY, REWARD, Placeholders, PrepareStep
from agent.processes.waiting import NotYet, until
from agent.run import local_services
from agent.run.executor import Executor
from agent.run.local_services import LocalWork
from support.fake_server import Answer, fake_server
from support.node_runs import node_run_with, unheard

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.run.node_run import NodeRun


def test_what_runs_is_stopped_and_may_be_run_again(tmp_path: Path) -> None:
    """All of them with their child processes; the next generation runs to its end."""
    go, pids = tmp_path / "go", tmp_path / "pids"
    command = f"[ -e {go} ] || {{ sleep 1000 & echo $! >> {pids}; wait; }}"
    names = ("one", "two")
    steps = tuple(PrepareStep(name, command, ON_EVERY, 60.0, "within") for name in names)
    run = node_run_with(tmp_path, steps)
    work = LocalWork(run, Placeholders)
    sent: list[ItemsReported] = []

    async def have_begun() -> bool | NotYet:
        return True if pids.exists() and len(pids.read_text().split()) == 2 else NotYet()

    def is_gone(pid: str) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
        return True

    async def are_done() -> bool | NotYet:
        steps = {item.step for item in sent[-1].items}
        return True if steps == {Step.READY} else NotYet()

    async def scenario() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                executor = Executor(tasks, work.runner_of, sent.append)
                executor.apply(dict.fromkeys(names, Want()))
                await until(have_begun, None, longest=0.05)
                await executor.close()
                assert all(map(is_gone, pids.read_text().split()))
                assert {(item.step, item.was_stopped) for item in sent[-1].items} == {
                    (Step.LOST, True)
                }
                go.touch()
                executor.apply(dict.fromkeys(names, Want(2)))
                await until(are_done, None, longest=0.05)

    anyio.run(scenario)
    run.close()


def test_what_has_failed_is_reported_apart_from_what_it_printed_last(tmp_path: Path) -> None:
    """A step and a service alike: not everyone who may read the one may read the other."""
    steps = (PrepareStep("data", "echo no such set; exit 3", ON_EVERY, 60.0, "within"),)
    run = node_run_with(tmp_path, steps, AGENT_REWARD="echo no such port; exit 4")
    work = LocalWork(run, Placeholders)
    sent: list[ItemsReported] = []

    async def are_over() -> bool | NotYet:
        items = sent[-1].items if sent else ()
        return True if len(items) == 2 and not any(i.is_running for i in items) else NotYet()

    async def scenario() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                executor = Executor(tasks, work.runner_of, sent.append)
                executor.apply(dict.fromkeys(("data", REWARD), Want()))
                await until(are_over, None, longest=0.05)

    anyio.run(scenario)
    run.close()
    ends = {item.name: (item.step, item.evidence, item.output) for item in sent[-1].items}
    assert ends == {
        "data": (Step.LOST, "exit code 3", "no such set"),
        REWARD: (Step.LOST, "exit code 4", "no such port"),
    }


@pytest.mark.parametrize(
    ("command", "evidence"),
    [
        (
            "echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.5 GiB.; exit 1",
            "exit code 1 (a GPU ran out of memory)",
        ),
        ("echo nothing that is known; exit 1", "exit code 1"),
        ("echo torch.OutOfMemoryError: CUDA out of memory.; kill -9 $$", "exit code 137 (SIGKILL)"),
    ],
)
def test_the_end_of_a_service_names_a_known_cause(
    tmp_path: Path, command: str, evidence: str
) -> None:
    """By its own output, unless it was killed from outside."""
    run = node_run_with(tmp_path, (), AGENT_REWARD=command)
    ends: list[str] = []

    async def scenario() -> None:
        with anyio.fail_after(60):
            ends.append(await LocalWork(run, Placeholders).serve(REWARD, Want(), unheard))

    anyio.run(scenario)
    run.close()
    assert ends == [evidence]


def with_marker(root: Path, marker: Path) -> tuple[NodeRun, LocalWork]:
    """Return a run whose one step has this marker."""
    run = node_run_with(
        root, (PrepareStep("data", "exit 0", ON_EVERY, 60.0, "within", once=str(marker)),)
    )
    return run, LocalWork(run, Placeholders)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_marker_that_cannot_be_read(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again, with a log line; then the step fails with the disk's error."""
    marker, found = tmp_path / "marker", [*(OSError(number, os.strerror(number)),) * 2]

    def broken(path: Path, exists: Callable[[Path], bool] = Path.exists) -> bool:
        if path == marker and found:
            raise found.pop()
        return exists(path)

    monkeypatch.setattr(Path, "exists", broken)
    run, work = with_marker(tmp_path / "runs", marker)
    said: list[str] = []
    monkeypatch.setattr(local_services, "say", lambda line, _level="info": said.append(line))

    async def scenario() -> None:
        assert await work.prepare("data", Want(), unheard) == ""
        assert any(os.strerror(number) in line for line in said)
        monkeypatch.setattr(times, "IDLE_DISK", 0.5)
        found.extend([OSError(number, os.strerror(number))] * 100)
        failure = f"{marker} cannot be read: {os.strerror(number)}"
        assert await work.prepare("data", Want(), unheard) == failure

    anyio.run(scenario)
    run.close()


def test_a_marker_on_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is logged; the step fails at its limit, and a stop does not wait for the disk."""
    marker, answers = tmp_path / "marker", threading.Event()

    def hangs(path: Path, exists: Callable[[Path], bool] = Path.exists) -> bool:
        if path == marker:
            answers.wait(30)
        return exists(path)

    monkeypatch.setattr(Path, "exists", hangs)
    monkeypatch.setattr(times, "IDLE_DISK", 1.0)
    monkeypatch.setattr(times, "STALLED_DISK", 0.1)
    run, work = with_marker(tmp_path / "runs", marker)
    said: list[str] = []
    monkeypatch.setattr(local_services, "say", lambda line, _level="info": said.append(line))
    assert anyio.run(work.prepare, "data", Want(), unheard) == f"{marker} does not answer"
    assert f"data: waiting for its marker, {marker} does not answer" in said
    answers.set()
    run.close()


def test_a_reward_server_whose_judge_is_away_is_ready_again(tmp_path: Path) -> None:
    """Only once it has scored: the first time the judge has to grade, as a wrong one never does."""
    steps: list[Step] = []
    late = Answer(b"no rewards yet", 503, {JUDGE_AWAITED: "yes"})

    async def until_ready(work: LocalWork, on_pending: Callable[[], None]) -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                def note(step: Step | None = None, _evidence: str = "", /, **_: object) -> None:
                    if step is None:
                        return
                    steps.append(step)
                    if step is Step.READY:
                        tasks.cancel_scope.cancel()
                    else:
                        on_pending()

                await work.serve(REWARD, Want(), note)

    async def scenario() -> None:
        with fake_server(lambda _: late) as server:
            run = node_run_with(tmp_path, (), AGENT_REWARD=f"{server.url}/get_reward")
            work = LocalWork(run, Placeholders)

            def grade() -> None:
                server.answer = lambda _: Answer({"rewards": [1.0]})

            await until_ready(work, grade)
            assert Step.PENDING in steps
            steps.clear()
            server.answer = lambda _: late
            await until_ready(work, lambda: None)
            assert steps == [Step.READY]
            run.close()

    anyio.run(scenario)
