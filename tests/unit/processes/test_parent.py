"""The parent over a run, as real processes: codes, signals, and an agent that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from support.sources import ROOT
from support.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

BEGIN = """
import os, signal, sys, time
from agent.processes import parent
code = parent.become_parent(restarts_agent={restarts_agent})
if code is not None:
    sys.exit(code)
lives = open("lives", "a")
print(os.getpid(), *(parent.former_agents or (0,)), file=lives, flush=True)
lived = len(open("lives").read().splitlines())
"""


NO_ROOM = """
import os
calls, fork = [], os.fork
def full():
    calls.append(1)
    if 2 <= len(calls) <= {last}:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = full
"""


def run(
    folder: Path, body: str, *, restarts_agent: bool = True, begin: str = ""
) -> subprocess.Popen[bytes]:
    """Start a program under a parent."""
    text = begin + BEGIN.format(restarts_agent=restarts_agent) + textwrap.dedent(body)
    with (folder / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=said,
        )


def said(folder: Path) -> str:
    """Return its output."""
    return (folder / "said").read_text()


def lives(folder: Path) -> list[tuple[int, int]]:
    """Return the PID of each agent and of the one before it."""
    path = folder / "lives"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


def await_ready(folder: Path) -> None:
    """Wait until an agent reports that it handles signals."""
    path, until = folder / "lives", time.monotonic() + 20
    while not path.exists() or "ready" not in path.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)  # a step of the wait above


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15); time.sleep(9)", 143),
        ("signal.signal(1, signal.SIG_DFL); os.kill(os.getpid(), 1); time.sleep(9)", 143),
        ("signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2); time.sleep(9)", 130),
    ],
)
def test_the_agents_own_end_is_the_runs(tmp_path: Path, body: str, code: int) -> None:
    """An agent that ends in order, or by a stop signal, is not started again."""
    process = run(tmp_path, body)
    assert process.wait(20) == code, said(tmp_path)
    assert len(lives(tmp_path)) == 1


def test_the_next_agent_is_given_the_killed_ones_id(tmp_path: Path) -> None:
    """After SIGKILL or a crash, another agent starts; the exit code is that of the last one."""
    crash = "os.kill(os.getpid(), {1: 9, 2: 11}[lived]) if lived < 3 else sys.exit(5)"
    process = run(tmp_path, crash)
    assert process.wait(20) == 5, said(tmp_path)
    (first, none), (second, before), (_, last) = lives(tmp_path)
    assert (none, before, last) == (0, first, second)


def test_it_gives_up_in_the_end(tmp_path: Path) -> None:
    """The fourth crash within ten minutes ends it with 70, and kills what is left."""
    body = """
    import subprocess
    if parent.gave_up_after is not None:
        print(*parent.gave_up_after, file=open("gave_up", "w"))
        sys.exit(0)
    subprocess.Popen(["sleep", "987"], start_new_session=True)
    os.kill(os.getpid(), 9)
    """
    process = run(tmp_path, body)
    assert process.wait(20) == 70
    assert "giving up" in said(tmp_path)
    assert len(lives(tmp_path)) == 5  # the last one only records the end
    assert (tmp_path / "gave_up").read_text() == "SIGKILL 4\n"
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "sleep 987" not in found.stdout


@pytest.mark.parametrize(("last", "code", "count"), [(4, 5, 2), (10**6, 69, 1)])
def test_an_agent_is_started_again_once_there_is_room(
    tmp_path: Path, last: int, code: int, count: int
) -> None:
    """The job may hold all of pids.max for a moment; without room, nothing of it is left."""
    shorter = "from agent.processes import parent\nparent._FORK_AGAIN = 1.0\n"
    seconds = f"986.{os.getpid()}{code}"  # tests beside this one have processes, too
    body = f"""
    import subprocess
    if lived > 1:
        sys.exit(5)
    subprocess.Popen(["sleep", "{seconds}"], start_new_session=True)
    os.kill(os.getpid(), 9)
    """
    process = run(tmp_path, body, begin=shorter + NO_ROOM.format(last=last))
    assert process.wait(20) == code, said(tmp_path)
    assert len(lives(tmp_path)) == count
    assert ("raise pids.max" in said(tmp_path)) == (code == 69)
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert f"sleep {seconds}" not in found.stdout


def test_a_mere_question_is_not_asked_again(tmp_path: Path) -> None:
    """As a container's first process another verb also has a parent, but runs once."""
    process = run(tmp_path, "os.kill(os.getpid(), 9)", restarts_agent=False)
    assert process.wait(20) == 137
    assert len(lives(tmp_path)) == 1


def test_a_stop_waits_until_the_next_agent_handles_signals(tmp_path: Path) -> None:
    """The next agent gets it, since the killed agent's processes must be stopped in order."""
    body = """
    from agent.processes import parent
    if lived == 1:
        os.kill(os.getpid(), 9)
    os.kill(os.getpid(), 15)
    os.kill(os.getpid(), 2)
    received = []
    parent.set_handler(received.append)
    print(sorted(received), file=sys.stderr)
    sys.exit(6)
    """
    process = run(tmp_path, body)
    assert process.wait(20) == 6
    assert said(tmp_path).splitlines()[-1] == "[2, 15]"


def test_requests_are_handed_down(tmp_path: Path) -> None:
    """Signals to the parent reach the agent."""
    body = """
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
    print("ready", file=lives, flush=True)
    time.sleep(60)
    """
    process = run(tmp_path, body)
    await_ready(tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(20) == 3


def test_without_its_parent_the_agent_is_asked_to_stop(tmp_path: Path) -> None:
    """Nobody would restart it: it ends as on SIGTERM."""
    body = """
    signal.signal(signal.SIGTERM, lambda *_: (open("asked", "w").close(), os._exit(0)))
    print("ready", file=lives, flush=True)
    time.sleep(60)
    """
    process = run(tmp_path, body)
    await_ready(tmp_path)
    until = time.monotonic() + 20
    process.kill()
    process.wait(20)
    while not (tmp_path / "asked").exists():
        assert time.monotonic() < until
        time.sleep(0.01)  # a step of the wait above


def test_a_code_that_was_sent_needs_no_end_of_the_process(tmp_path: Path) -> None:
    """A thread blocked by a disk keeps the process alive: its parent exits with the code."""
    body = """
    parent.send_exit_code(7)
    print("ready", file=lives, flush=True)
    time.sleep(60)
    """
    process = run(tmp_path, body)
    assert process.wait(20) == 7
    assert "a thread is blocked by a disk" in said(tmp_path)


HIDE = """
import json, os, pathlib, subprocess, sys
if sys.argv[1] == "hide":
    from agent.processes.parent import hide_secrets
    hide_secrets()
if os.fork() == 0:  # as the agent is forked by its parent
    inherited = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    print(json.dumps({
        "proc": pathlib.Path("/proc/self/environ").read_text(),
        "parent": pathlib.Path(f"/proc/{os.getppid()}/environ").read_text(),
        "own": os.environ.get("RAY_AUTH_TOKEN"),
        "child": inherited,
    }), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("mode", ["hide", "show"])
def test_the_token_is_not_in_proc(mode: str) -> None:
    """Other processes of the user, such as services, do not find it there; children inherit it."""
    done = subprocess.run(
        [sys.executable, "-c", HIDE, mode],
        cwd=ROOT,
        env={**os.environ, "RAY_AUTH_TOKEN": SECRET, "AGENT_LOG": "json"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (SECRET in found["proc"], SECRET in found["parent"]) == (mode == "show",) * 2
    assert "AGENT_LOG=json" in found["proc"]
    assert found["own"] == SECRET
    assert f"RAY_AUTH_TOKEN={SECRET}" in found["child"]
