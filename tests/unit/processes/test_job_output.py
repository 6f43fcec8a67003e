"""The two copies of a job's output after the agent that writes them is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.conditions import await_true

if TYPE_CHECKING:
    from collections.abc import Iterator

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
left = None if folder.former is None else SurvivingProcesses(folder.former, ())
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
