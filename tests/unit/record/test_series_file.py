"""The job's steps on disk: what the next agent finds, whatever happened to the file."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.job.series import AttemptMark
from agent.record import series_file
from agent.record.job_lines import JobLines
from agent.record.series_file import ProgressFile, SavedLine, SeriesFile, read_steps, shifted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

ZERO = 1_700_000_000.0  # when the run's clock was 0


class Agent:
    """One agent of a run: it reads output and saves what it has read."""

    def __init__(self, path: Path, zero: float = ZERO) -> None:
        self.now = 0.0
        self.zero = zero
        self.lines = JobLines(str, lambda: self.now)
        saved = read_steps(path, zero)
        if saved is not None:
            self.lines.restore(saved)

        @contextmanager
        def where() -> Iterator[Path]:
            yield path

        self.file = SeriesFile(where, self.everything)

    def everything(self) -> SavedLine:
        """Return the line with all that it knows."""
        line = self.lines.everything()
        progress = None if line.progress is None else shifted(line.progress, self.zero)
        return replace(line, at=self.zero + self.now, progress=progress)

    def output(self, data: bytes) -> None:
        """Read output of the job."""
        self.lines.write(data, lambda _: False)

    def save(self) -> None:
        """Save what is new."""
        for line in self.lines.take_unsaved():
            self.file.add(replace(line, at=line.at + self.zero))

    def end(self) -> None:
        """End, with all that was saved on disk."""
        self.save()
        self.file.finish(5.0)


def step(number: int) -> bytes:
    """Return the line of a step."""
    return b"step %d/90 mean reward 0.%02d kl=0.5\n" % (number, number)


def test_the_next_agent_knows_which_steps_are_a_bars(tmp_path: Path) -> None:
    """They may be no steps of the job: the rules about stalls ask for it."""
    path = tmp_path / "series.jsonl"
    first = Agent(path)
    first.lines.begin_attempt(1)
    first.output(b" 12%|#  | 3/25 [00:10<01:12,  3.3s/it]\r\n")
    first.end()
    second = Agent(path)
    assert second.lines.progress is not None
    assert second.lines.progress.only_bar


def test_the_next_agent_goes_on(tmp_path: Path) -> None:
    """It reads the attempt's output again from the start, and neither times nor series change."""
    path = tmp_path / "series.jsonl"
    first = Agent(path)
    first.lines.begin_attempt(2)
    for number in range(1, 6):
        first.now += 10
        first.output(step(number))
    first.output(b"local_global_step_folder: /x\n")
    before = first.lines.progress
    first.end()

    # Another one starts 100 s later, by its own clock at 0.
    second = Agent(path, ZERO + 150)
    assert second.lines.follow_attempt(2) == 0
    second.now = 5.0
    whole = b"".join(map(step, range(1, 6))) + b"local_global_step_folder: /x\n"
    for at in range(0, len(whole), 37):
        second.output(whole[at : at + 37])
    assert before is not None
    assert second.lines.progress == shifted(before, -150)
    assert second.lines.series() == first.lines.series()
    second.output(step(6))
    after = second.lines.progress
    assert after is not None
    assert (after.last, after.durations) == (6, (10.0, 10.0, 10.0, 10.0, 105.0))


def test_the_next_attempt_goes_on(tmp_path: Path) -> None:
    """A head that was lost: the series have its steps, as far as they are not made again."""
    path = tmp_path / "series.jsonl"
    first = Agent(path)
    first.lines.begin_attempt(1)
    first.output(b"".join(map(step, range(1, 6))))
    first.end()
    second = Agent(path, ZERO + 60)
    second.lines.begin_attempt(2)
    second.output(step(4))
    second.end()
    third = Agent(path, ZERO + 90)
    series = third.lines.series()
    assert series.keys["reward"].steps == [1, 2, 3, 4]
    assert series.attempts == (AttemptMark(1, 1), AttemptMark(2, 4, 5))
    progress = third.lines.progress
    assert progress is not None
    assert (progress.attempt, progress.first, progress.last, progress.highest) == (2, 4, 4, 5)


def test_a_file_that_is_too_long_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays bounded, and nothing is lost."""
    monkeypatch.setattr(series_file, "MOST_BYTES", 20_000)
    path = tmp_path / "series.jsonl"
    agent = Agent(path)
    agent.lines.begin_attempt(1)
    for number in range(1, 90):
        agent.now += 1
        agent.output(step(number))
        agent.save()
        if number % 10 == 0:
            agent.output(b"x\n" * 100)
    agent.end()
    again = Agent(path)
    assert again.lines.series() == agent.lines.series()
    assert again.lines.progress == agent.lines.progress


def test_a_torn_or_broken_file(tmp_path: Path) -> None:
    """What can be read counts; what follows is appended to whole lines."""
    path = tmp_path / "series.jsonl"
    assert read_steps(path) is None
    first = Agent(path)
    first.lines.begin_attempt(1)
    first.output(step(1) + step(2))
    first.end()
    whole = path.read_bytes()
    path.write_bytes(b"\xff{}\n[1]\n" + whole + whole.splitlines()[-1][:40])
    second = Agent(path)
    second.lines.begin_attempt(2)
    second.output(step(3))
    second.end()
    known = Agent(path).lines.progress
    assert known is not None
    assert (known.attempt, known.last, known.highest) == (2, 3, 3)

    chance = random.Random(5)  # noqa: S311 - the same damage each time
    text = bytearray(path.read_bytes())
    for _ in range(200):
        damaged = bytearray(text)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        Agent(path).lines.series()


def test_the_jobs_own_file(tmp_path: Path) -> None:
    """Whole lines, in pieces, also by the next agent; a file that is written anew counts."""
    path = tmp_path / "progress-1.jsonl"
    file = ProgressFile(path)
    assert file.read_lines() == []
    path.write_bytes(b'{"step": 1}\n{"st')
    assert file.read_lines() == [b'{"step": 1}']
    with path.open("ab") as appended:
        appended.write(b'ep": 2}\n')
    later = ProgressFile(path, file.position)
    assert later.read_lines() == [b'{"step": 2}']
    assert later.read_lines() == []
    path.write_bytes(b'{"step": 3}\n')
    assert later.read_lines() == [b'{"step": 3}']
    path.write_bytes(b"x" * (3 << 20) + b"\n" + b'{"step": 4}\n')
    seen = [line for _ in range(99) for line in later.read_lines()]
    assert seen[-1] == b'{"step": 4}'
    assert all(len(line) <= 1 << 16 for line in seen)


def test_steps_of_the_jobs_own_file_go_on(tmp_path: Path) -> None:
    """They count more than any output, also for the next agent."""
    path = tmp_path / "series.jsonl"
    first = Agent(path)
    first.lines.begin_attempt(1)
    first.output(step(1))
    first.lines.read_file([b'{"step": 7, "of": 9, "reward": 0.5}'], 40)
    first.output(step(2))
    first.end()
    second = Agent(path)
    assert second.lines.follow_attempt(1) == 40
    second.output(step(1) + step(2) + step(3))
    second.lines.read_file([b'{"step": 8, "of": 9, "reward": 0.6}'], 80)
    known = second.lines.progress
    assert known is not None
    assert (known.last, known.of, known.metrics["reward"]) == (8, 9, 0.6)
