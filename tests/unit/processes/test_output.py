"""The job's output without Ray's lines, and otherwise unchanged."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bridge.child import ResumableCopy
from agent.processes.output import PreambleFilter

SETTING_UP = b"2026-11-21 14:50:43,460\tINFO job_manager.py:581 -- Runtime env is setting up.\n"
RUNNING = b"Running entrypoint for job run-1: exec echo hi\n"


def read(chunks: list[bytes]) -> bytes:
    """Feed chunks one by one."""
    own = PreambleFilter("run-1", "exec echo hi")
    return b"".join(own.feed(chunk) for chunk in chunks) + own.feed(b"", last=True)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (SETTING_UP + RUNNING + b"hi\n", b"hi\n"),
        (SETTING_UP + b"hi\n" + RUNNING, b"hi\n"),
        (SETTING_UP + b"hi\n" + RUNNING + b"no newline", b"hi\nno newline"),
        (RUNNING, b""),
        (b"hi\n", b"hi\n"),
        (b"", b""),
        (
            SETTING_UP + b"Running entrypoint for job run-1: exec",
            b"Running entrypoint for job run-1: exec",
        ),
        (RUNNING + RUNNING, RUNNING),
    ],
    ids=[
        "usual",
        "late",
        "no newline",
        "silent job",
        "no preamble",
        "empty",
        "cut",
        "an echo of it",
    ],
)
@given(data=st.data())
def test_ray_s_lines_are_taken_out(text: bytes, own: bytes, data: st.DataObject) -> None:
    """For any split of the file into chunks, the result is the job's own output."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    edges = [0, *cuts, len(text)]
    chunks = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert read(chunks) == own


@given(st.text("ab\n", max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 7))))
def test_a_stream_that_begins_anew_is_written_once(text: str, drops: list[tuple[int, int]]) -> None:
    """After any number of reconnects, the copy is the stream, without gaps and duplicates."""
    file = io.StringIO()
    copy = ResumableCopy(file)
    for length, step in [*drops, (len(text), 3)]:
        copy.position = 0
        heard = text[:length]
        for at in range(0, len(heard), step):
            copy.write(heard[at : at + step])
        assert text.startswith(file.getvalue())
    assert file.getvalue() == text
