"""Blocked readers and full disks: neither delays the agent nor changes its exit code.

Each test runs real code in a separate process whose pipes nobody reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

LIMIT = 60.0
"""Maximum duration of each of these, on a busy machine."""
CLEAN = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}

CHATTER = """
import sys
from agent.record.log import log_to_file, say
from agent.processes.signals import exit_now
from pathlib import Path

if len(sys.argv) > 1:
    log_to_file(Path(sys.argv[1]))
for number in range(8_000):
    say(f"sentence {number} of many that nobody reads" + " and so on" * 20)
say("done: the last word")
exit_now(7)
"""

JOB = """
import sys
from pathlib import Path
from agent.record.log import say
from agent.processes.signals import exit_now
from agent.processes.output import OutputCopies, PreambleFilter

source, copy = map(Path, sys.argv[1:3])
passed = [0]
output = OutputCopies(source, PreambleFilter("run-1", "true"))
output.to_stdout(0, passed.append)
output.to_file(copy, 0, lambda _: None)
output.start()
output.finish(float(sys.argv[3]))
say(f"done: passed on {passed[-1]}")
exit_now(7)
"""
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@contextmanager
def unread_pipe() -> Iterator[int]:
    """Make a pipe with a reader that never reads; return its write end."""
    reader, writer = os.pipe()
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


def run(
    script: str | Path,
    *arguments: object,
    unbuffered: str = "",
    shell: str = "",
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> tuple[int, bytes, bytes]:
    """Run a script, within this line of a shell; return its exit code and its captured output."""
    env = {**CLEAN, "PYTHONUNBUFFERED": unbuffered} if unbuffered else CLEAN
    command = [sys.executable, "-c", str(script), *map(str, arguments)]
    if shell:
        command = ["sh", "-c", shell, "sh", *command]
    done = subprocess.run(
        command, env=env, stdout=stdout, stderr=stderr, timeout=LIMIT, check=False
    )
    return done.returncode, done.stdout or b"", done.stderr or b""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a job's output file of 5 MB."""
    path = tmp_path / "job-driver.log"
    path.write_bytes(b"".join(b"line %07d of the job's own output\n" % n for n in range(130_000)))
    return path


@BUFFERED
def test_a_stderr_that_nobody_reads_freezes_nothing(unbuffered: str) -> None:
    """A full pipe and a full queue: the exit code is the intended one."""
    with unread_pipe() as pipe:
        assert run(CHATTER, stderr=pipe, unbuffered=unbuffered)[0] == 7


def test_a_log_file_goes_on_where_stderr_is_blocked(tmp_path: Path) -> None:
    """The file gets the last line although nobody reads stderr."""
    file = tmp_path / "agent.log"
    with unread_pipe() as pipe:
        assert run(CHATTER, file, stderr=pipe)[0] == 7
    assert file.read_text().endswith(" done: the last word\n")


def test_a_disk_that_stalls_freezes_nothing(tmp_path: Path) -> None:
    """Opening a FIFO without a reader blocks for ever; stderr and the exit are not affected."""
    file = tmp_path / "agent.log"
    os.mkfifo(file)
    code, _, err = run(CHATTER, file)
    assert code == 7
    assert err.endswith(b" done: the last word\n")


def test_a_full_disk_is_logged_once() -> None:
    """One line, in the log's own format; the last line is still the last."""
    code, _, err = run(CHATTER, "/dev/full")
    assert code == 7
    warnings = [line for line in err.splitlines() if b"cannot be written" in line]
    assert len(warnings) == 1
    assert b" ! " in warnings[0]
    assert b"No space left on device" in warnings[0]
    assert err.endswith(b" done: the last word\n")


@BUFFERED
def test_a_chatty_job_cannot_hold_up_the_exit(
    source: Path, tmp_path: Path, unbuffered: str
) -> None:
    """Nobody reads the job's output: the copy is complete, and the exit code the intended one."""
    copy = tmp_path / "job.log"
    with unread_pipe() as pipe:
        code, _, err = run(JOB, source, copy, 2, stdout=pipe, unbuffered=unbuffered)
    assert code == 7
    assert copy.read_bytes() == source.read_bytes()
    assert b" done: passed on " in err.splitlines()[-1]


@BUFFERED
def test_what_is_read_arrives_whole(source: Path, tmp_path: Path, unbuffered: str) -> None:
    """A reader that reads gets every byte of the job, and so does the copy."""
    copy = tmp_path / "job.log"
    copy.write_bytes(b"of the attempt before\n")
    code, out, err = run(JOB, source, copy, 30, unbuffered=unbuffered)
    assert code == 7
    assert out == source.read_bytes()
    assert copy.read_bytes() == b"of the attempt before\n" + out
    assert err.decode().endswith(f" done: passed on {len(out)}\n")


@pytest.mark.parametrize("place", ["/dev/full", "/no such folder/job.log", "a fifo"])
def test_a_copy_that_cannot_be_costs_the_copy_alone(
    source: Path, tmp_path: Path, place: str
) -> None:
    """The job's output still reaches stdout; the failure is logged once, a stalled disk is not."""
    if place == "a fifo":
        os.mkfifo(tmp_path / "job.log")
        place = str(tmp_path / "job.log")
    code, out, err = run(JOB, source, place, 3)
    assert code == 7
    assert out == source.read_bytes()
    warnings = [line for line in err.splitlines() if b"cannot be written" in line]
    assert len(warnings) == (0 if place.startswith(str(tmp_path)) else 1), err
    assert all(b" ! " in line for line in warnings)


def test_a_source_that_cannot_be_read_is_logged_once(tmp_path: Path) -> None:
    """One that is no file, or whose folder was removed; a job that never began is no error."""
    (tmp_path / "a folder").mkdir()
    for source in ("a folder", "gone/a.log", "a.log"):
        code, out, err = run(JOB, tmp_path / source, tmp_path / "job.log", 1)
        assert (code, out) == (7, b"")
        assert err.count(b"cannot be read") == (source != "a.log"), err
        assert b"Traceback" not in err


@BUFFERED
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(source: Path, tmp_path: Path, closed: str, unbuffered: str) -> None:
    """A closed stream is ignored, and affects no file that is opened later."""
    safe = "from agent.processes.signals import make_streams_safe\nmake_streams_safe()\n"
    copy = tmp_path / "job.log"
    line = f'exec "$@" {closed}'
    code, out, err = run(safe + JOB, source, copy, 10, unbuffered=unbuffered, shell=line)
    assert code == 7, err
    assert copy.read_bytes() == source.read_bytes()
    has_stdout = closed == "2>&-"
    assert out == (copy.read_bytes() if has_stdout else b"")
    assert (b"done: passed on" in err) == ("2>&-" not in closed)


@BUFFERED
def test_a_reader_that_leaves(source: Path, tmp_path: Path, unbuffered: str) -> None:
    """`| head -1` ends the reading, not the job: exit code and copy are unchanged."""
    copy = tmp_path / "job.log"
    line = f'("$@"; echo $? >{tmp_path}/code) | head -1'
    _, out, err = run(JOB, source, copy, 30, unbuffered=unbuffered, shell=line)
    assert out == b"line 0000000 of the job's own output\n"
    assert (tmp_path / "code").read_text() == "7\n"
    assert copy.read_bytes() == source.read_bytes()
    assert err.decode().endswith(f"passed on {source.stat().st_size}\n")


@pytest.mark.parametrize("stderr", ["unread", "full"])
def test_a_refusal_that_nobody_reads_still_ends(stderr: str) -> None:
    """Wrong settings end with 78, even if the message cannot be written."""
    agent = str(Path(sys.executable).parent / "pod-agent")
    env = {**CLEAN, "RAY_WORKER": "maybe"}
    with unread_pipe() as pipe, Path("/dev/full").open("wb") as full:
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError):  # until it is full
            while True:
                os.write(pipe, b"x" * 4096)
        os.set_blocking(pipe, True)
        end = full.fileno() if stderr == "full" else pipe
        done = subprocess.run([agent], env=env, stderr=end, timeout=LIMIT, check=False)
    assert done.returncode == 78


LITTLE_ROOM = """
import resource, sys, threading
from pathlib import Path
from agent.record.log import log_to_file, say
from agent.processes.signals import exit_now

def allow(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

file = Path(sys.argv[1])
allow(10_000)
log_to_file(file)
for number in range(1000):
    say(f"sentence {number}")
for line in sys.stdin:
    say(line.strip())
    allow(resource.RLIM_INFINITY)
exit_now(7)
"""


def test_a_disk_with_room_again_gets_all_lines(tmp_path: Path) -> None:
    """Full in the middle of a line; once there is space, the file continues without a gap."""
    file = tmp_path / "agent.log"
    with subprocess.Popen(
        [sys.executable, "-c", LITTLE_ROOM, str(file)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN,
        text=True,
    ) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        received = []
        while "File too large" not in (line := running.stderr.readline()):
            received.append(line)
        warnings = [line]
        assert file.stat().st_size == 10_000
        print("there is room again", file=running.stdin, flush=True)
        while "can be written again" not in line:
            line = running.stderr.readline()
            (received if "sentence" in line else warnings).append(line)
        running.stdin.close()
        assert running.wait(LIMIT) == 7
    assert warnings[0].startswith("! agent.log cannot be written: File too large. ", 9)
    assert [line[9:] for line in warnings] == [
        warnings[0][9:],
        "  there is room again\n",
        "! agent.log can be written again\n",
    ]
    kept = [line[9:] for line in file.read_text().splitlines(keepends=True)]
    sentences = [f"  sentence {number}\n" for number in range(1000)]
    assert [line for line in kept if line.startswith("  sentence")] == sentences
    assert [line for line in kept if line not in sentences] == [line[9:] for line in warnings]


TAKEOVER = """
import sys
from pathlib import Path
from agent.processes.signals import exit_now
from agent.processes.output import OutputCopies, PreambleFilter

for number, (name, skip) in enumerate(word.rsplit(":", 1) for word in sys.argv[3:]):
    own = PreambleFilter("run-1", "true")
    passed, output = [int(skip)], OutputCopies(Path(name), own)
    output.to_stdout(int(skip), passed.append)
    output.to_file(Path(sys.argv[1]), int(skip), lambda _: None)
    output.start()
    output.finish(float(sys.argv[2]))
    print(passed[-1], file=sys.stderr)
exit_now(7)
"""
RUNNING = b"Running entrypoint for job run-1: true\n"


@pytest.mark.parametrize("skip", [0, 5, 6, 20, 45, 46, 200_000], ids=str)
def test_an_agent_that_takes_over_goes_on_where_it_was(tmp_path: Path, skip: int) -> None:
    """From any byte that the former agent passed on: nothing is lost, Ray's lines are removed."""
    job = b"more of the job's\n" * 20_000
    text = b"early\n" + RUNNING + job + RUNNING
    source = tmp_path / "job-driver.log"
    source.write_bytes(text)
    held = skip if skip in {0, 5, 6, 200_000} else 6 if skip < 45 else 45
    code, out, err = run(TAKEOVER, tmp_path / "job.log", 30, f"{source}:{held}")
    whole = b"early\n" + job + RUNNING
    assert code == 7
    assert out == whole[held if held <= 6 else held - len(RUNNING) :]
    assert (tmp_path / "job.log").read_bytes() == out
    assert int(err) == len(text)


@contextmanager
def taking_over(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent that takes over, and look at its exit code."""
    command = [sys.executable, "-c", TAKEOVER, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=CLEAN, **pipes) as running:  # type: ignore[call-overload]  # a dict
        yield running
        assert running.wait(LIMIT) == 7


def test_an_attempt_waits_for_the_one_before(source: Path, tmp_path: Path) -> None:
    """A late reader gets all of the first attempt before the second."""
    second = tmp_path / "second.log"
    second.write_bytes(b"second attempt\n" * 5)
    log = tmp_path / "job.log"
    parts = (f"{source}:0", f"{second}:0", f"{second}:0", f"{tmp_path}/none:0")
    with taking_over(log, 1, *parts) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        passed = [int(running.stderr.readline()) for _ in range(2)]
        out = running.stdout.read()
    assert passed == [passed[0], 0]
    assert passed[0] < source.stat().st_size
    assert source.read_bytes().startswith(out[: source.stat().st_size])
    assert log.read_bytes() == source.read_bytes() + second.read_bytes() * 2


def test_an_output_without_a_line_s_end_is_not_held_back(tmp_path: Path) -> None:
    """A job that writes without a line end is passed on, and does not fill the memory."""
    source = tmp_path / "job-driver.log"
    source.write_bytes(b"." * 100_000)
    with taking_over(tmp_path / "job.log", 20, f"{source}:0") as running:
        assert running.stdout is not None
        assert running.stdout.read() == source.read_bytes()
