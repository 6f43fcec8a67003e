"""Child processes: their exit is observed, they are stopped as a group, and reaped once."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from agent.processes import process
from agent.processes.process import Child, start_time
from agent.record.background import DiskAlarm
from support.conditions import is_so, lives

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.anyio]

ENV = {"PATH": os.defpath}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Look that no child, open file or managed PID is left."""
    before = open_files()
    yield
    assert not psutil.Process().children()
    assert not process.managed
    late = time.monotonic() + 20
    while open_files() > before:  # a log is closed by its writer's thread
        assert time.monotonic() < late
        time.sleep(0.01)  # a step of this wait


def open_files() -> int:
    """Count this process's open files."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count


async def start(folder: Path, script: str, *, keep_group: bool = False) -> Child:
    """Start a shell script."""
    log = partial(Path, folder, "log")
    return await Child.start("child", ["sh", "-c", script], ENV, log, keep_group=keep_group)


async def written(path: Path) -> str:
    """Wait for a whole line in a file, and return it."""
    await is_so(lambda: text_of(path).endswith("\n"))
    return text_of(path).strip()


def text_of(path: Path) -> str:
    """Return a file's content so far."""
    return path.read_text() if path.exists() else ""


def await_end(pid: int, options: int = 0) -> None:
    """Wait for a child's exit without letting the loop see it."""
    os.waitid(os.P_PID, pid, os.WEXITED | options)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
async def test_any_number_of_waiters_get_the_code(tmp_path: Path, script: str, code: int) -> None:
    """Each waiter, early or late, gets the same code."""
    child = await start(tmp_path, script)
    received: list[int] = []

    async def wait() -> None:
        received.append(await child.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
    assert [*received, await child.wait()] == [code] * 3
    assert not child.running


async def test_it_ends_without_a_waiter(tmp_path: Path) -> None:
    """Its exit is observed and it is reaped without a waiter."""
    child = await start(tmp_path, "exit 3")
    await is_so(lambda: not child.running)
    assert not psutil.pid_exists(child.pid)


async def test_the_rest_of_its_group_ends_before_it_is_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is signaled only while its leader, a zombie, keeps the PID reserved."""
    leaders: list[str] = []
    killpg = os.killpg

    def noted(pid: int, signum: int) -> None:
        leaders.append(psutil.Process(pid).status())
        killpg(pid, signum)

    monkeypatch.setattr(os, "killpg", noted)
    child = await start(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; exit 5")
    assert await child.wait() == 5
    pid = int(await written(tmp_path / "pid"))
    await is_so(lambda: not lives(pid))
    assert leaders == [psutil.STATUS_ZOMBIE]
    await child.stop(1.0)
    assert leaders == [psutil.STATUS_ZOMBIE]


async def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping a reaped child sends no signal."""
    child = await start(tmp_path, "true")
    await child.wait()

    def fail(*_: object) -> None:
        pytest.fail("a signal was sent to a pid that is not ours")

    monkeypatch.setattr(os, "killpg", fail)
    monkeypatch.setattr(os, "kill", fail)
    await child.stop(1.0)
    await child.stop(1.0, leader_ends_group=True)


async def test_what_a_prepare_step_leaves_behind_stays(tmp_path: Path) -> None:
    """If its background processes are to continue, they do."""
    script = f"sleep 1000 & echo $! > {tmp_path}/pid"
    child = await start(tmp_path, script, keep_group=True)
    assert await child.wait() == 0
    pid = int(await written(tmp_path / "pid"))
    assert lives(pid)
    os.kill(pid, signal.SIGKILL)
    await is_so(lambda: not lives(pid))


@pytest.mark.parametrize("leader_only", [False, True])
@pytest.mark.parametrize(
    ("script", "code"),
    [("trap 'exit 4' TERM; {wait}", 4), ("trap '' TERM; {wait}", 137)],
    ids=["heeds", "deaf"],
)
async def test_stop_ends_it_and_its_group(
    tmp_path: Path, script: str, code: int, *, leader_only: bool
) -> None:
    """TERM, and KILL for a process that ignores it; none of the group is left."""
    wait = (
        f"sh -c 'echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done' & while :; do wait; done"
    )
    child = await start(tmp_path, script.replace("{wait}", wait))
    pid = int(await written(tmp_path / "pid"))
    await child.stop(0.5 if code == 137 else 20.0, leader_ends_group=leader_only)
    assert await child.wait() == code
    await is_so(lambda: not lives(pid))


async def test_what_a_shell_started_has_the_grace_too(tmp_path: Path) -> None:
    """A shell ends by the signal at once; the program that it runs may still save."""
    saves = f"trap 'sleep 0.7; echo > {tmp_path}/saved; exit' TERM; echo > {tmp_path}/up"
    (tmp_path / "job.sh").write_text(f"{saves}\nwhile :; do sleep 0.05; done\n", encoding="utf-8")
    child = await start(tmp_path, f"sh {tmp_path}/job.sh; :")
    await written(tmp_path / "up")
    began = anyio.current_time()
    await child.stop(20.0)
    assert await child.wait() == 143
    assert (tmp_path / "saved").exists()
    assert anyio.current_time() - began < 15


async def test_a_stop_that_is_canceled_still_kills(tmp_path: Path) -> None:
    """A canceled stop leaves no process behind."""
    child = await start(tmp_path, f"trap '' TERM; echo > {tmp_path}/up; while :; do :; done")
    await written(tmp_path / "up")
    with anyio.move_on_after(0.1):
        await child.stop(60.0)
    assert await child.wait() == 137


async def test_the_reaper_leaves_children_alone(tmp_path: Path) -> None:
    """A child that has exited, and is not yet reaped by us, is left to its owner."""
    child = await start(tmp_path, "exit 9")
    await_end(child.pid, os.WNOWAIT)
    process.reap()
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert await child.wait() == 9


async def test_a_child_that_others_reaped_is_no_success(tmp_path: Path) -> None:
    """Its code is unknown, which is a failure."""
    child = await start(tmp_path, "exit 0")
    await_end(child.pid)
    assert await child.wait() == 255


async def test_talking_through_pipes(tmp_path: Path) -> None:
    """Input arrives, output is read to the end, and a closed pipe is reported."""
    script = "read line; echo received $line; echo bye; echo oops >&2"
    log = partial(Path, tmp_path, "log")
    child = await Child.start("child", ["sh", "-c", script], ENV, log, piped=True)
    assert child.stdin is not None
    child.stdin.write(b"you\n")
    await child.stdin.drain()
    assert await child.stdout.readline() == b"received you\n"
    assert await child.wait() == 0
    assert await child.stdout.readline() == b"bye\n"
    assert await child.stdout.readline() == b""
    assert child.stdin.is_closing()
    assert child.end_sentence(0).endswith("oops")
    await child.stop(0.0)


async def test_a_deaf_child_with_pipes_is_stopped(tmp_path: Path) -> None:
    """Neither a full pipe nor unread output keeps it running, or a file open."""
    script = "import sys; print('x' * 20_000_000, flush=True); sys.stdin.read()"
    log = partial(Path, tmp_path, "log")
    child = await Child.start("child", [sys.executable, "-c", script], ENV, log, piped=True)
    assert child.stdin is not None
    child.stdin.write(b"x" * 1_000_000)
    with anyio.move_on_after(0.3) as scope:
        await child.stdin.drain()
    assert scope.cancelled_caught
    await child.stop(0.2)
    assert await child.wait() in {137, 143}


async def test_a_program_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    """The error is the system's own."""
    log = partial(Path, tmp_path, "log")
    with pytest.raises(FileNotFoundError):
        await Child.start("child", ["/no/such/program"], ENV, log)
    with pytest.raises(FileNotFoundError):
        await Child.start("child", ["/no/such/program"], ENV, log, piped=True)


async def test_a_log_that_cannot_be_opened_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a missing folder costs a child's output, and not the run."""
    said: list[str] = []
    word = DiskAlarm(lambda text, _level: said.append(text))
    monkeypatch.setattr(process, "disk_alarm", word)
    log = partial(Path, tmp_path, "gone", "ray-start.log")
    for _ in range(2):
        child = await Child.start("ray start", ["sh", "-c", "echo hi; exit 6"], ENV, log)
        assert await child.wait() == 6
        assert child.end_sentence(6) == "exit code 6; last output: hi"
    piped = await Child.start("bridge", ["sh", "-c", "echo hi >&2"], ENV, log, piped=True)
    assert await piped.wait() == 0
    await piped.stop(0.0)
    (line,) = said
    assert line.startswith("ray-start.log cannot be written: No such file or directory. ")


async def test_a_fast_child_loses_nothing(tmp_path: Path) -> None:
    """If it writes faster than the disk, it waits, and every byte arrives."""
    child = await start(tmp_path, "seq 1000000")
    assert await child.wait() == 0
    assert (tmp_path / "log").read_text().split() == [str(n) for n in range(1, 1_000_001)]


async def test_a_child_is_known_by_its_start_too(tmp_path: Path) -> None:
    """PID and start time identify a process; a program's name may contain anything."""
    child = await start(tmp_path, "printf ') 1 2 (' > /proc/self/comm; exec sleep 1000")
    ticks = os.sysconf("SC_CLK_TCK")
    since_boot = psutil.Process(child.pid).create_time() - psutil.boot_time()
    assert abs(start_time(child.pid) / ticks - since_boot) < 2
    await child.stop(5.0)
    assert start_time(child.pid) == 0
