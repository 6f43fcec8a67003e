"""The job's output: without Ray's lines, and otherwise unchanged for all readers."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bridge.child import ResumableCopy
from agent.processes.output import OutputCopies, PreambleFilter, RecentOutput
from agent.processes.process import Child
from agent.record.job_lines import JobLines
from support.conditions import await_true
from support.job_series import rewards

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# --- a disk that is full or stalls, and a slow reader -------------------------------------------

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no full disk here")
def test_an_output_whose_disk_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    """Stdout and the watcher get all of it, and the exit code is the child's."""
    recent, lines = RecentOutput(FULL), JobLines(str)
    output = OutputCopies(recent, PreambleFilter())
    output.to_stdout(0, lambda _count: None)
    output.to_watcher(lines)
    output.start()
    argv = ["sh", "-c", "for n in 1 2 3; do echo step $n/3 mean reward 0.5 || exit 1; done; exit 7"]

    async def run() -> int:
        add = recent.add
        child = await Child.start("job", argv, os.environ, lambda: FULL, on_output=add)
        return await child.wait()

    assert anyio.run(run) == 7
    output.finish(20.0)
    text = "".join(f"step {n}/3 mean reward 0.5\n" for n in (1, 2, 3))
    assert capfd.readouterr().out == recent.end(1000).decode() == text
    assert rewards(lines) == (3, [(n, 0.5) for n in (1, 2, 3)])


def test_a_slow_reader_gets_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    """What is no longer kept is counted in a line; memory is bounded."""
    recent = RecentOutput(FULL, most=100)
    for number in range(100):
        recent.add(b"line %3d\n" % number)
    assert recent.size == 900
    output = OutputCopies(recent, PreambleFilter())
    output.to_stdout(0, lambda _count: None)
    output.start()
    output.finish(20.0)
    out = capfd.readouterr().out
    first, last = out.index("(") + 1, len("line  99\n")
    lost = int(out[first : out.index(" bytes were lost here)\n")])
    assert out.endswith("line  99\n")
    kept = out.partition("here)\n")[2]
    assert lost + len(kept) == 900
    assert 100 <= len(kept) <= 200 + last


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize("place", ["/dev/full", "fifo"], ids=["full", "stalled"])
async def test_a_disk_that_takes_nothing_holds_no_child_up(tmp_path: Path, place: str) -> None:
    """3 MB to a full or stalled disk: the child runs on to its own exit and output."""
    path = Path(place) if place == "/dev/full" else tmp_path / place
    if place == "fifo":
        os.mkfifo(path)  # opening it without a reader blocks for ever
    script = "yes 'a line that no disk takes' | head -c 3000000; echo last words; exit 6"
    child = await Child.start("child", ["sh", "-c", script], {"PATH": os.defpath}, lambda: path)
    with anyio.fail_after(30):
        assert await child.wait() == 6
    assert child.tail(1).endswith("last words")


# --- after the agent that copies it is killed -------------------------------------------------

ROOT = Path(__file__).parents[3]
LIFE = """
import sys, time
from pathlib import Path
import anyio
from agent.run.job_runner import start_job_output
from agent.run.takeover import SurvivingProcesses
from agent.record.job_lines import JobLines
from agent.record.run_folder import RunFolder
from agent.settings.redact import Redactor
from support.captured import read
from support.node_runs import made_run
from support.worlds import plan_of

environ, facts = read("kuberay-submitter-head")
plan = plan_of({**environ, "AGENT_LOG_DIR": sys.argv[1]}, facts, ["true"])
folder = RunFolder(Path(sys.argv[1]), "run-1", "node-a")
left = None if folder.former is None else SurvivingProcesses(folder.former)
run = made_run(plan, Redactor(()), folder, time.monotonic(), "run-1", left)
output, _ = anyio.run(start_job_output, run, sys.argv[2], "", JobLines(str))
sys.stdin.readline()
output.finish(20)
run.close()
"""
"""The part of an agent that copies a job's output, until its stdin is closed."""
OUTPUT = b"a line of the job\n" * 100


@contextmanager
def life(root: Path, job: str = "run-1-1") -> Iterator[subprocess.Popen[bytes]]:
    """Start that part of an agent; killed at the end in any case."""
    with subprocess.Popen(
        [sys.executable, "-c", LIFE, root, job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    ) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def recorded(record: Path, field: str) -> int:
    """Return a number from a node's record; -1 if there is none."""
    try:
        return int(json.loads(record.read_text())[field])
    except (OSError, KeyError, ValueError):
        return -1


def test_each_copy_resumes_where_it_was(tmp_path: Path) -> None:
    """An agent is killed while job.log is behind stdout: the next one writes the missing lines."""
    folder = tmp_path / "run-1" / "node-a"
    folder.mkdir(parents=True)
    record, copy = folder / "node.json", folder / "job.log"
    (folder / "ray-job.run-1-1.log").write_bytes(OUTPUT)
    os.mkfifo(copy)  # without a reader it blocks its writer, like a stalled disk
    with life(tmp_path) as first:
        await_true(lambda: recorded(record, "passed_on") == len(OUTPUT), 30)
        first.kill()
        assert first.communicate()[0] == OUTPUT
    copy.unlink()
    with life(tmp_path) as second:
        assert second.communicate(b"\n", 60)[0] == b""
    assert copy.read_bytes() == OUTPUT


def test_the_output_of_a_job_that_has_ended_is_not_repeated(tmp_path: Path) -> None:
    """An agent is killed before the end is durable: the next follows the job; another begins."""
    folder = tmp_path / "run-1" / "node-a"
    folder.mkdir(parents=True)
    again = b"a line of another job\n"
    (folder / "ray-job.run-1-1.log").write_bytes(OUTPUT)
    (folder / "ray-job.run-1-2.log").write_bytes(again)
    for job, expected in (("run-1-1", OUTPUT), ("run-1-1", b""), ("run-1-2", again)):
        with life(tmp_path, job) as agent:
            assert agent.communicate(b"\n", 60)[0] == expected
    assert (folder / "job.log").read_bytes() == OUTPUT + again
