"""A head keeps the job's steps: of its own former agent, and of a head on another node."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from agent.base import ends, times
from agent.job.progress import Progress
from agent.job.series import MOST_KEYS, Series
from agent.port.status_model import ProgressStatus
from agent.record.background import MAX_QUEUED
from agent.record.files import write_atomically
from agent.record.job_lines import JobLines
from agent.record.run_folder import RunFolder
from agent.record.series_file import SERIES_FILE, ProgressFile, SavedLine
from agent.run.job_steps import StepKeeper, progress_path
from agent.settings.redact import Redactor
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio


class Head:
    """A head's agent, as far as it keeps steps."""

    def __init__(self, root: Path, node: str) -> None:
        folder = RunFolder(root, "run-1", node)
        self.run = made_run(plan_of({}), Redactor(()), folder, time.monotonic())
        self.lines = JobLines(str, self.run.now)
        self.keeper = StepKeeper(self.run, self.lines)

    async def work(self, attempt: int, *steps: int) -> None:
        """Continue the run with these steps of an attempt, in its output or its file."""
        await self.keeper.restore()
        await self.keeper.begin(attempt)
        for step in steps:
            self.lines.write(b"step %d/90 mean reward 0.5\n" % step, lambda _: False)
        await self.keeper.look()

    @property
    def progress(self) -> Progress:
        """The job's progress as this head knows it."""
        assert self.lines.progress is not None
        return self.lines.progress

    def end(self) -> None:
        """End, with everything on disk."""
        self.keeper.close()
        self.run.close()


async def worked(root: Path, node: str, attempt: int, *steps: int) -> None:
    """Have a head work, and end."""
    head = Head(root, node)
    await head.work(attempt, *steps)
    head.end()


async def restored(root: Path, node: str) -> Head:
    """Return what the next head on a node goes on with."""
    head = Head(root, node)
    await head.keeper.restore()
    head.end()
    return head


async def test_steps_that_were_not_read_are_not_missing(tmp_path: Path) -> None:
    """A job may print faster than its lines are read: its last step is not known then."""
    head = Head(tmp_path, "pod0")
    await head.work(1, 1, 2, 3)
    success = ends.JOB_SUCCEEDED.outcome(before="")
    assert head.keeper.warn_of_few(success, 1, "") == success
    head.lines.close()
    assert "after 3 of 90 steps" in head.keeper.warn_of_few(success, 1, "").reason
    head.end()


@pytest.mark.parametrize("second", ["pod0", "pod7"])
async def test_the_next_head_goes_on_with_the_steps(tmp_path: Path, second: str) -> None:
    """On the same node or another one; its own file then has everything."""
    await worked(tmp_path, "pod0", 1, 1, 2, 3)
    await worked(tmp_path, second, 2, 3, 4)
    if second != "pod0":
        (tmp_path / "run-1" / "pod0" / SERIES_FILE).unlink()
    third = await restored(tmp_path, second)
    known = third.progress
    assert (known.attempt, known.first, known.last, known.of) == (2, 3, 4, 90)
    assert third.lines.series().keys["reward"].steps == [1, 2, 3, 4]


async def test_a_node_that_is_the_head_again_goes_on_with_the_newest_steps(tmp_path: Path) -> None:
    """Its own file ends where it was the head before: the other head's goes further."""
    for node, attempt in (("pod1", 1), ("pod2", 2), ("pod1", 3), ("pod2", 4)):
        await worked(tmp_path, node, attempt, attempt)
    last = await restored(tmp_path, "pod1")
    assert last.lines.series().keys["reward"].steps == [1, 2, 3, 4]
    assert last.progress.attempt == 4


async def test_the_file_of_the_job_is_read(tmp_path: Path) -> None:
    """An attempt begins without what a former one of that number has left."""
    head = Head(tmp_path, "pod0")
    path = progress_path(head.run.folder, 1)
    write_atomically(path, json.dumps({"step": 80}) + "\n")
    await head.work(1)
    assert ProgressStatus.of_job(head.lines, str, is_running=True) is None
    write_atomically(path, json.dumps({"step": 3, "of": 9, "reward": 0.25}) + "\n")
    await head.keeper.look()
    known = head.progress
    assert (known.last, known.of, head.lines.newest()) == (3, 9, {"reward": 0.25})
    head.end()


async def test_a_long_series_moves_to_another_node(tmp_path: Path) -> None:
    """The line with everything is longer than what is queued for a disk."""
    series = Series()
    steps = [*range(1, 1_200)]
    for step in steps:
        series.add(1, step, {f"m{n}": step + n / 7 for n in range(MOST_KEYS - 1)}, 5_000)
    progress = Progress(1, time.time(), first=1, last=steps[-1], highest=steps[-1])
    line = SavedLine(5_000, "all", time.time(), 1, progress=progress, series=series.state)
    text = msgspec.json.encode(line).decode() + "\n"
    assert len(text) > MAX_QUEUED
    former = tmp_path / "run-1" / "pod0" / SERIES_FILE
    former.parent.mkdir(parents=True)
    write_atomically(former, text)

    second = Head(tmp_path, "pod7")
    await second.work(2)
    second.lines.write(b"step 1200/5000 mean reward 0.5\n", lambda _: False)
    await second.keeper.look()
    second.end()
    former.unlink()
    third = await restored(tmp_path, "pod7")
    keys = third.lines.series().keys
    assert keys["m0"].steps == steps
    assert keys["reward"].steps == [1_200]


async def test_a_frozen_disk_holds_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further read begins while one hangs; what it returns at last counts once."""
    monkeypatch.setattr(times, "STALLED_DISK", 0.05)
    answers = threading.Event()
    calls: list[int] = []
    read = ProgressFile.read_lines

    def frozen(file: ProgressFile) -> list[bytes]:
        calls.append(file.position)
        answers.wait(20)
        return read(file)

    monkeypatch.setattr(ProgressFile, "read_lines", frozen)
    head = Head(tmp_path, "pod0")
    text = json.dumps({"step": 3, "of": 9}) + "\n"
    await head.keeper.begin(1)
    write_atomically(progress_path(head.run.folder, 1), text)
    for _ in range(5):
        await head.keeper.look()
    assert calls == [0]
    answers.set()
    with anyio.fail_after(10):
        while len(calls) < 3:
            await head.keeper.look()
    assert calls[:3] == [0, len(text), len(text)]
    assert head.progress.last == 3
    head.end()


def test_the_path_of_the_jobs_file_is_that_of_every_head(tmp_path: Path) -> None:
    """Ray's line with the job's command, which has the path, is no output of the job."""
    first = Head(tmp_path, "pod0")
    other = Head(tmp_path, "pod1")
    assert progress_path(first.run.folder, 1) == progress_path(other.run.folder, 1)
    first.end()
    other.end()
