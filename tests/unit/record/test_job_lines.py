"""The job's output on the page: its reward curve, and its last lines."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.find_cause import rank_of
from agent.processes.output import OutputCopies, PreambleFilter
from agent.record import job_lines
from agent.record.job_lines import MOST_LINES, MOST_POINTS, JobLines, point_in
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


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 3/40 mean reward 0.61 kl 0.02 nodes 3", ((3, 0.61), 40)),
        ("step 3/40 mean reward -0.5 kl", ((3, -0.5), 40)),
        (
            (
                "\x1b[36m(TaskRunner pid=9)\x1b[0m step:4 - actor/lr:0.0 - critic/score/mean:-0.643"
                " - critic/rewards/mean:-0.125 - critic/rewards/max:1.000"
            ),
            ((4, -0.125), None),
        ),
        ("step:7 - critic/rewards/mean:np.float64(0.25) - x:1", ((7, 0.25), None)),
        ("step:7 - critic/rewards/mean:1e-05", ((7, 1e-05), None)),
        ("step:0 - val-core/openai/gsm8k/acc/mean@1:0.508", None),
        (
            (
                "(PPOTrainer pid=1) INFO ppo_trainer.py:90] ✨ Global step 12: "
                "{'policy_loss': -0.01, 'reward': 0.375, 'return': 0.3}"
            ),
            ((12, 0.375), None),
        ),
        ("Global step 12: {'policy_loss': -0.01}", None),
        ("step:7 - critic/rewards/mean:nan - x:1", None),
        ("one more step 3/40 of the way", None),
        ("", None),
        (f"step {'7' * 4301}/40 mean reward 0.5", None),
        (f"step 3/{'7' * 4301} mean reward 0.5", None),
        (f"step:{'7' * 4301} - critic/rewards/mean:0.5", None),
        (f"Global step {'7' * 4301}: {{'reward': 0.5}}", None),
        ("step 3/40 mean reward 1e999", None),
        ("step 3/40 mean reward " + "9" * 400, None),
        ("step:7 - critic/rewards/mean:-1e999", None),
        ("step:7 - critic/rewards/mean:nan - val/critic/rewards/mean:3", None),
    ],
)
def test_lines_of_steps(line: str, found: object) -> None:
    """The rehearsal's, verl's and OpenRLHF's; validations and invalid numbers are skipped."""
    assert point_in(line) == found


def test_long_lines_are_read_in_time() -> None:
    """The time for a line grows with its length, not with the square of it."""
    began = time.process_time()
    for start in ("step:1 - ", "Global step 1: {", "step 1/2 "):
        assert point_in(start * 32_768) is None
        assert point_in(start * 32_768 + "critic/rewards/mean: 'reward': ") is None
    assert time.process_time() - began < 5


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
    text = b"".join(
        b"step %d/9 mean reward 0.%d\n" % pair for pair in [(1, 1), (2, 2), (3, 3), (2, 5)]
    )
    assert fed(text).curve() == {"steps": 9, "points": [[1, 0.1], [2, 0.5]]}


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
