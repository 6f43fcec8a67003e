"""The job's output on the page: its reward curve, and its last lines."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.find_cause import rank_of
from agent.processes.output import OutputCopies, PreambleFilter
from agent.record import job_lines
from agent.record.job_lines import MOST_LINES, MOST_POINTS, JobLines
from agent.settings.redact import Redactor
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
    assert lines.curve() == {"steps": 2, "points": [[1, 0.5], [2, 0.5]]}
    assert len([line for line in said if "ValueError: a defect" in line]) == 1


def test_what_another_attempt_does_again_counts_anew() -> None:
    """It resumes from a checkpoint: the steps after it are replaced."""
    first = [b"step %d/9 mean reward 0.%d\n" % pair for pair in [(1, 1), (2, 2), (3, 3)]]
    lines = fed(*first)
    lines.begin_attempt()
    lines.write(b"step 2/9 mean reward 0.5\n", lambda _pause: False)
    assert lines.curve() == {"steps": 9, "points": [[1, 0.1], [2, 0.5]]}


@given(st.lists(st.integers(0, 200), max_size=6))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    """The result does not depend on how the output is split."""
    text = b"hello\rbusy 10 %\rbusy 20 %\r\nstep 1/2 mean reward 0.5\nstep 2/2 mean reward 1\nend"
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines = fed(*(text[a:b] for a, b in itertools.pairwise(edges)))
    lines.close()
    assert lines.curve() == {"steps": 2, "points": [[1, 0.5], [2, 1.0]]}
    assert lines.tail()[-1] == "end"
    assert lines.tail()[0] == "busy 20 %"


def test_the_tail_is_masked_and_steers_nothing() -> None:
    """No secret and no control character of the job reaches the page."""
    (line,) = fed(f"token {SECRET} \x1b[31mred\u202e\n".encode()).tail()
    assert SECRET not in line
    assert line.isprintable()
    assert r"\x1b[31mred" in line


def test_a_secret_at_the_cut_of_a_line_is_masked() -> None:
    """The line is masked before it is cut: no part of the secret is left."""
    (line,) = fed(f"{'x' * 390} {SECRET}\n".encode()).tail()
    assert SECRET[:6] not in line


def test_output_without_an_end_stays_small() -> None:
    """A line without an end and a run of a million steps use bounded memory."""
    endless = fed(*[b"x" * 60_000] * 50)
    assert sum(map(len, endless.tail())) < 100_000
    many = fed(*(b"step %d/9999999 mean reward 0.5\n" % step for step in range(5000)))
    curve = many.curve()["points"]
    assert isinstance(curve, list)
    assert len(curve) <= MOST_POINTS
    assert (curve[0][0], curve[-1][0]) == (0, 4999)
    assert len(many.tail()) == MOST_LINES


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[default{}]:", "x rank={} "])
def test_a_rank_of_too_many_digits_is_none(prefix: str) -> None:
    """No message or record holds a number without limit."""
    assert rank_of(prefix.format("12")) == 12
    assert rank_of(prefix.format("7" * 150)) is None
