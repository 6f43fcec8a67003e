"""Prepare steps run in parallel, are stopped when necessary, and run again."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.base import times
from agent.decisions.shared import Step, Want
from agent.job.services import JUDGE_AWAITED, ON_EVERY, REWARD, Placeholders, PrepareStep
from agent.run import local_services
from agent.run.local_services import LocalWork
from support.conditions import is_so, lives
from support.executing import executing
from support.fake_server import Answer, fake_server
from support.node_runs import node_run_with, unheard

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.run.node_run import NodeRun


pytestmark = pytest.mark.anyio


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that are logged."""
    lines: list[str] = []
    monkeypatch.setattr(local_services, "say", lambda line, _level="info": lines.append(line))
    return lines


async def test_what_runs_is_stopped_and_may_be_run_again(tmp_path: Path) -> None:
    """All of them with their child processes; the next generation runs to its end."""
    go, pids = tmp_path / "go", tmp_path / "pids"
    command = f"[ -e {go} ] || {{ sleep 1000 & echo $! >> {pids}; wait; }}"
    names = ("one", "two")
    steps = tuple(PrepareStep(name, command, ON_EVERY, 60.0, "within") for name in names)
    run = node_run_with(tmp_path, steps)

    async with executing(LocalWork(run, Placeholders).runner_of) as there:
        there.executor.apply(dict.fromkeys(names, Want()))
        await is_so(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        await there.executor.close()
        assert not any(lives(int(pid)) for pid in pids.read_text().split())
        ends = {(item.step, item.was_stopped) for item in there.sent[-1].items}
        assert ends == {(Step.LOST, True)}
        go.touch()
        there.executor.apply(dict.fromkeys(names, Want(2)))
        await there.until(lambda item: item.step is Step.READY)
    run.close()


async def test_what_has_failed_is_reported_apart_from_what_it_printed_last(tmp_path: Path) -> None:
    """A step and a service alike: not everyone who may read the one may read the other."""
    steps = (PrepareStep("data", "echo no such set; exit 3", ON_EVERY, 60.0, "within"),)
    run = node_run_with(tmp_path, steps, AGENT_REWARD="echo no such port; exit 4")
    async with executing(LocalWork(run, Placeholders).runner_of) as there:
        there.executor.apply(dict.fromkeys(("data", REWARD), Want()))
        await there.until(lambda item: not item.is_running and len(there.sent[-1].items) == 2)
    run.close()
    items = there.sent[-1].items
    assert {item.name: (item.step, item.evidence, item.output) for item in items} == {
        "data": (Step.LOST, "exit code 3", "no such set"),
        REWARD: (Step.LOST, "exit code 4", "no such port"),
    }


OOM = "echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.5 GiB.; "


@pytest.mark.parametrize(
    ("command", "evidence"),
    [
        (f"{OOM}exit 1", "exit code 1 (a GPU ran out of memory)"),
        ("echo nothing that is known; exit 1", "exit code 1"),
        (f"{OOM}kill -9 $$", "exit code 137 (SIGKILL)"),
    ],
)
async def test_the_end_of_a_service_names_a_known_cause(
    tmp_path: Path, command: str, evidence: str
) -> None:
    """By its own output, unless it was killed from outside."""
    run = node_run_with(tmp_path, (), AGENT_REWARD=command)
    with anyio.fail_after(60):
        assert await LocalWork(run, Placeholders).serve(REWARD, Want(), unheard) == evidence
    run.close()


def with_marker(root: Path, marker: Path) -> tuple[NodeRun, LocalWork]:
    """Return a run whose one step has this marker."""
    run = node_run_with(
        root, (PrepareStep("data", "exit 0", ON_EVERY, 60.0, "within", once=str(marker)),)
    )
    return run, LocalWork(run, Placeholders)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
async def test_a_marker_that_cannot_be_read(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """It is read again, with a log line; then the step fails with the disk's error."""
    marker, found = tmp_path / "marker", [*(OSError(number, os.strerror(number)),) * 2]

    def broken(path: Path, exists: Callable[[Path], bool] = Path.exists) -> bool:
        if path == marker and found:
            raise found.pop()
        return exists(path)

    monkeypatch.setattr(Path, "exists", broken)
    run, work = with_marker(tmp_path / "runs", marker)
    assert await work.prepare("data", Want(), unheard) == ""
    assert any(os.strerror(number) in line for line in said)
    monkeypatch.setattr(times, "IDLE_DISK", 0.5)
    found.extend([OSError(number, os.strerror(number))] * 100)
    failure = f"{marker} cannot be read: {os.strerror(number)}"
    assert await work.prepare("data", Want(), unheard) == failure
    run.close()


def test_a_marker_on_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
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
    assert anyio.run(work.prepare, "data", Want(), unheard) == f"{marker} does not answer"
    assert f"data: waiting for its marker, {marker} does not answer" in said
    answers.set()
    run.close()


async def test_a_reward_server_whose_judge_is_away_is_ready_again(tmp_path: Path) -> None:
    """Only once it has scored: the first time the judge has to grade, as a wrong one never does."""
    late = Answer(b"no rewards yet", 503, {JUDGE_AWAITED: "yes"})
    with fake_server(lambda _: late) as server:
        run = node_run_with(tmp_path, (), AGENT_REWARD=f"{server.url}/get_reward")
        work = LocalWork(run, Placeholders)

        async def steps_until_ready() -> list[Step]:
            steps: list[Step] = []
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:

                    def note(step: Step | None = None, _evidence: str = "", /, **_: object) -> None:
                        steps.extend(() if step is None else (step,))
                        if step is Step.READY:
                            tasks.cancel_scope.cancel()
                        elif step is Step.PENDING:
                            server.answer = lambda _: Answer({"rewards": [1.0]})

                    await work.serve(REWARD, Want(), note)
            return steps

        assert Step.PENDING in await steps_until_ready()
        server.answer = lambda _: late
        assert await steps_until_ready() == [Step.READY]
        run.close()
