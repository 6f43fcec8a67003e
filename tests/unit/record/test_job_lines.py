"""The job's output on the page: its reward curve, and its last lines."""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from agent.diagnosis.errors.prefixes import read_line
from agent.job.series import FEW_POINTS, PointsPart
from agent.port.status_model import ProgressStatus
from agent.processes.output import OutputCopies, PreambleFilter
from agent.record import job_lines
from agent.record.job_lines import MOST_LINES, JobLines
from agent.settings.redact import MASK, Redactor
from support.job_series import rewards
from support.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path


def fed(*pieces: bytes) -> JobLines:
    """Return the result for an output in these pieces."""
    lines = JobLines(Redactor((SECRET,)).clean)
    for piece in pieces:
        assert lines.write(piece, lambda _pause: False)
    return lines


def test_a_failure_in_a_line_does_not_end_the_reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is logged once, and the lines that follow are read."""

    def clean(text: str) -> str:
        if "poison" in text:
            raise ValueError("a defect")
        return text

    said: list[str] = []
    monkeypatch.setattr(job_lines, "say", lambda line, _level: said.append(line))
    source = tmp_path / "driver.log"
    lines = JobLines(clean)
    source.write_bytes(b"")
    output = OutputCopies(source, PreambleFilter())
    output.to_watcher(lines)
    output.start()
    with source.open("ab", buffering=0) as file:
        for step in (1, 2):
            file.write(b"torch.OutOfMemoryError: CUDA out of memory. poison\n")
            file.write(b"step %d/2 mean reward 0.5\n" % step)
    output.finish(20)
    assert rewards(lines) == (2, [(1, 0.5), (2, 0.5)])
    assert len([line for line in said if "ValueError: a defect" in line]) == 1


def test_an_output_that_is_not_read_to_its_end(tmp_path: Path) -> None:
    """The reader is behind when the time for the rest is over; later it is not."""
    may_read = threading.Event()

    def clean(text: str) -> str:
        may_read.wait(20)
        return text

    source = tmp_path / "driver.log"
    source.write_bytes(b"step 1/2 mean reward 0.5\nstep 2/2 mean reward 0.5\n")
    lines = JobLines(clean)
    output = OutputCopies(source, PreambleFilter())
    output.to_watcher(lines)
    output.start()
    output.finish(0.1)
    assert not lines.is_at_end
    may_read.set()
    output.finish(20)
    assert lines.is_at_end
    assert rewards(lines) == (2, [(1, 0.5), (2, 0.5)])
    lines.begin_attempt(2)
    assert not lines.is_at_end


def test_what_another_attempt_does_again_counts_anew() -> None:
    """It resumes from a checkpoint: the steps after it are replaced."""
    first = [b"step %d/9 mean reward 0.%d\n" % pair for pair in [(1, 1), (2, 2), (3, 3)]]
    lines = fed(*first)
    lines.begin_attempt(2)
    lines.write(b"step 2/9 mean reward 0.5\n", lambda _pause: False)
    assert rewards(lines) == (9, [(1, 0.1), (2, 0.5)])


@given(st.lists(st.integers(0, 200), max_size=6))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    """The result does not depend on how the output is split."""
    text = b"hello\rbusy 10 %\rbusy 20 %\r\nstep 1/2 mean reward 0.5\nstep 2/2 mean reward 1\nend"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines = fed(*(text[a:b] for a, b in itertools.pairwise(edges)))
    lines.close()
    assert rewards(lines) == (2, [(1, 0.5), (2, 1.0)])
    assert lines.tail()[-1] == "end"
    assert lines.tail()[0] == "busy 20 %"


def test_the_tail_is_masked_and_steers_nothing() -> None:
    """No control character of the job reaches the page, and no secret, also none that is cut."""
    said = f"token {SECRET} \x1b[31mred\u202e {SECRET[:3]}\x1b[0m{SECRET[3:]}\n"
    steered, cut = fed(f"{said}{'x' * 390} {SECRET}\n".encode()).tail()
    assert steered == rf"token {MASK} red\u202e {MASK}"
    assert SECRET[:6] not in cut


def test_output_without_an_end_stays_small() -> None:
    """A line without an end and a run of a million steps use bounded memory."""
    endless = fed(*[b"x" * 60_000] * 50)
    assert sum(map(len, endless.tail())) < 100_000
    many = fed(*(b"step %d/9999999 mean reward 0.5\n" % step for step in range(5000)))
    _, curve = rewards(many)
    assert len(curve) <= FEW_POINTS + 1
    assert (curve[0][0], curve[-1][0]) == (0, 4999)
    assert len(many.tail()) == MOST_LINES


def test_a_bar_without_a_line_end_is_read_at_once() -> None:
    """Such a bar overwrites itself for hours; the tail has it as a terminal shows it."""
    lines = fed(*(b"\r %d%%|# | %d/90 [00:0%d<00:20, 1.2it/s]" % (n, n, n) for n in range(1, 9)))
    progress = lines.progress
    assert progress is not None
    assert (progress.last, progress.of) == (7, 90)  # the last one may not be whole
    assert lines.tail() == []
    lines.write(b"\r\n", lambda _: False)
    assert lines.progress is not None
    assert lines.progress.last == 8
    assert lines.tail() == [" 8%|# | 8/90 [00:08<00:20, 1.2it/s]"]


def test_what_is_too_long_is_skipped_up_to_its_end() -> None:
    """Its beginning is a line; what follows in it is none, whatever it looks like."""
    long = b"x" * 200_000 + b"step 3/9 mean reward 0.5"
    lines = fed(*(long[at : at + 60_000] for at in range(0, len(long), 60_000)))
    lines.write(b"\nstep 4/9 mean reward 0.5\n", lambda _: False)
    assert lines.progress is not None
    assert (lines.progress.first, lines.progress.last) == (4, 4)
    assert [len(line) for line in lines.tail()] == [400, 24]


def test_progress_and_series() -> None:
    """All readers see the same lines; times are those at which they were read."""
    now = 10.0
    lines = JobLines(str, lambda: now)
    assert lines.progress is None
    lines.begin_attempt(3)
    for step in range(1, 5):
        now += 10
        lines.write(b"step %d/9 mean reward 0.%d kl=1\n" % (step, step), lambda _: False)
    progress = lines.progress
    assert progress is not None
    assert (progress.attempt, progress.began_at, progress.last_at) == (3, 10.0, 50.0)
    assert progress.durations == (10.0,) * 3
    assert lines.series(2).keys == {
        "reward": PointsPart([3, 4], [0.3, 0.4]),
        "kl": PointsPart([3, 4], [1.0, 1.0]),
    }
    assert lines.newest() == {"reward": 0.4, "kl": 1.0}
    shown = ProgressStatus.of_job(lines, str, is_running=True)
    assert shown is not None
    assert (shown.step, shown.of, shown.seconds_per_step) == (4, 9, 10.0)
    assert (shown.ends_at, shown.last_step_at) == ("100.0", "50.0")
    assert shown.reward_trend == pytest.approx(0.2)


@pytest.mark.parametrize(
    "line",
    [
        *(b"\r\r\r", b"step:1 - a:1 - b:2", b"x" * 100, b"\x1b]" * 9, b"\xff" * 99, b"{'loss': 1"),
        *(b"Traceback (most recent call last):", b"CUDA out of memory", b"99%|#| 1/2 [0<1, 1it/s"),
    ],
)
def test_twenty_thousand_lines_cost_about_a_second_at_most(line: bytes) -> None:
    """Whatever a job prints, it takes little from the node: a tenth of them is measured."""
    chunk = (line + b"\n") * 200
    lines = JobLines(Redactor((SECRET,)).clean)
    lines.write(chunk, lambda _: False)  # what is read once for all

    def measure() -> float:
        began = time.process_time()
        for _ in range(10):
            lines.write(chunk, lambda _: False)
        return time.process_time() - began

    # half as much on an idle machine
    assert min(measure() for _ in range(5)) < 0.2


_HOSTILE = st.sampled_from(
    [
        *(b"step:1 - ", b"step 2/9 ", b"\n", b"\r", b"\r\n", b"\x1b]", b"\x1b[31m", b"\xff", b"\0"),
        *(b"Global step 3: {", b"'reward': ", b"1e999", b"9" * 400, b" 4%|# | 4/9 [0<1, 1it/s]"),
        *(
            b"{'loss': ",
            b"a:1 - ",
            b"mean reward ",
            b"nan",
            b"\xc2",
            b"x" * 40_000,
            b'{"step": 5, ',
        ),
    ]
)


@given(st.lists(st.one_of(st.binary(max_size=30), _HOSTILE), max_size=30))
def test_any_bytes_are_read(pieces: list[bytes]) -> None:
    """Nothing raises, and what is shown is JSON without infinite numbers."""
    lines = fed(*pieces)
    lines.close()
    assert not lines._has_failed  # noqa: SLF001 - such a bug is only logged
    shown = to_builtins([lines.series(), lines.newest(), lines.curves(), lines.tail()])
    json.dumps(shown, allow_nan=False)
    assert all(len(line) <= 4_000 for line in lines.tail())


@pytest.mark.parametrize(
    "part",
    [
        *(b"step:1 - a:1 - ", b"hf_", b"sk-", b"eyJa-", b"ghp_", b"key=", b'"a":"', b"://a:b"),
        *(b"--opt ", b" 4%|# | 4/9 [0<1, 1it/s]", b" 4%|# | 4/9 [0<1, 1it/s]\r", b"1", b"\x1b[31m"),
        *(b"\"'", b"\\", b"{", b"CUDA out of memory ", b"Error: ", b"\xff", b"\r", b"[rank0]: "),
    ],
)
def test_lines_of_a_megabyte(part: bytes) -> None:
    """Ten lines that repeat the same cost little, whatever that is: a policy may have collapsed."""
    chunk = part * ((1 << 16) // len(part))
    lines = JobLines(Redactor((SECRET,)).clean)
    began = time.process_time()
    for _ in range(10):
        for _ in range(16):
            lines.write(chunk, lambda _: False)
        lines.write(b"\n", lambda _: False)
    assert time.process_time() - began < 1  # a quarter of it at most on an idle machine


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[default{}]:", "(x rank={} pid=1) "])
def test_a_rank_of_too_many_digits_is_none(prefix: str) -> None:
    """No message or record holds a number without limit."""
    assert read_line(prefix.format("12") + "x").rank == 12
    assert read_line(prefix.format("7" * 150) + "x").rank is None
