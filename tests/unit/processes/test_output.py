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


EXPORTED = b"Running entrypoint for job run-1: export AGENT_PROGRESS_FILE=%s; exec echo a\nb\n"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (b"1\n" + EXPORTED % b"/logs/run-1/progress-1.jsonl" + b"2\n", b"1\n2\n"),
        (b"1\n" + EXPORTED % b"/logs/\n/x" + b"2\n", b"1\n" + EXPORTED % b"/logs/\n/x" + b"2\n"),
        (EXPORTED[:60] + b"\n" + EXPORTED + b"2\n", EXPORTED[:60] + b"\n2\n"),
        (EXPORTED[:-2], EXPORTED[:-2]),
    ],
    ids=["another path", "another line", "an echo of its begin", "cut"],
)
@given(data=st.data())
def test_the_exports_may_be_those_of_another_agent(
    text: bytes, own: bytes, data: st.DataObject
) -> None:
    """The agent that submitted the job had another run folder; the job's words are the same."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    edges = [0, *cuts, len(text)]
    line = "export AGENT_PROGRESS_FILE=/logs/run-1-2/progress-1.jsonl; exec echo a\nb"
    filtered = PreambleFilter("run-1", line)
    found = b"".join(filtered.feed(text[a:b]) for a, b in itertools.pairwise(edges))
    assert found + filtered.feed(b"", last=True) == own


@given(st.text("ab\n", max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 7))))
def test_a_stream_that_begins_anew_is_written_once(text: str, drops: list[tuple[int, int]]) -> None:
    """After any number of reconnects, the copy is the stream, without gaps and duplicates."""
    file = io.StringIO()
    copy = ResumableCopy(file)
    for length, step in [*drops, (len(text), 3)]:
        copy.position = 0
        written = text[:length]
        for at in range(0, len(written), step):
            copy.write(written[at : at + step])
        assert text.startswith(file.getvalue())
    assert file.getvalue() == text
