"""The job's driver: how its process is found, and which processes get a signal.

The process trees are those of Ray 2.60: a worker of Ray with its title, below it the driver in a
new session with the job's ID in its environment, and Ray's watcher beside it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from agent.processes.driver import (
    find_driver,
    forward_signal,
    kill_leftovers,
    not_passed_on,
)
from support.conditions import await_true

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKER = """
import json, os, subprocess, sys
title, *drivers = json.loads(sys.argv[1])
open("/proc/self/comm", "w").write(title)
bare = {"PATH": os.environ["PATH"]}
pids = [
    subprocess.Popen(
        ["/bin/sh", "-c", script], env=bare | environ, start_new_session=True,
        stdin=subprocess.DEVNULL,
    ).pid
    for script, environ in drivers
]
print(json.dumps(pids), flush=True)
sys.stdin.read()
"""
WATCHER = ("while :; do sleep 1; done", {"RAY_JOB_ID": "01000000"})


def job(name: str) -> dict[str, str]:
    """Return the variables that Ray sets for a driver."""
    metadata = {"job_submission_id": name, "job_name": name}
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {}, "metadata": metadata})}


@contextmanager
def worker(
    *drivers: tuple[str, dict[str, str]], title: str = "ray::JobSupervisor"
) -> Iterator[list[int]]:
    """Run a stand-in for Ray's worker with drivers below it; return their PIDs."""
    words = [sys.executable, "-c", WORKER, json.dumps([title, *drivers])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        try:
            yield pids
        finally:
            for pid in pids:
                os.killpg(pid, signal.SIGKILL)  # not reaped: the worker does not wait for them
            process.kill()


def found(name: str) -> int | None:
    """Return the PID of a job's driver."""
    driver = find_driver(name)
    return None if driver is None else driver.pid


def test_it_is_found_by_its_id() -> None:
    """Of several jobs it is this run's, and never Ray's watcher."""
    with worker(WATCHER, ("sleep 1000", job("run-1")), ("sleep 1000", job("run-12"))) as pids:
        await_true(lambda: found("run-1") == pids[1])  # a shell has no environment as it execs
        await_true(lambda: found("run-12") == pids[2])
        assert found("run-2") is None
    assert found("run-1") is None


def test_what_else_carries_the_id_is_not_it() -> None:
    """A daemon that the job started in a new session is no driver."""
    with worker(("sleep 1000", job("run-1")), title="sh"):
        assert found("run-1") is None


def test_broken_marks_are_nobodys() -> None:
    """An ID in another form than Ray's is ignored."""
    marks = ["", "{", "[]", "null", '{"metadata": {}}', '{"metadata": 7}']
    drivers = [("sleep 1000", {"RAY_JOB_CONFIG_JSON_ENV_VAR": mark}) for mark in marks]
    with worker(*drivers):
        assert found("run-1") is None


TRAP = 'trap "echo received > log" USR1; echo > up; while :; do sleep 0.02; done'
CATCHES = (
    "import pathlib, signal, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path('log').touch())\n"
    "pathlib.Path('up').touch()\n"
    "time.sleep(1000)"
)
PYTHON = shlex.join([sys.executable, "-c", CATCHES])


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (f"exec sh -c {shlex.quote(TRAP)}", "sh"),
        (f"exec {PYTHON}", "python"),
        (f"{PYTHON}; exit 3", "python"),
        (f"bash -c {shlex.quote(PYTHON + '; exit 3')}; exit 4", "python"),
        (f"{PYTHON} | sleep 1000; exit 3", "python"),
    ],
    ids=["a shell that traps", "the leader", "its child", "two shells deep", "in a pipe"],
)
def test_a_signal_goes_to_the_process_that_handles_it(
    tmp_path: Path, script: str, name: str
) -> None:
    """The leader, unless that is a shell without a handler: then its child."""
    with worker((f"cd {tmp_path}; {script}", job("run-1"))) as pids:
        await_true((tmp_path / "up").exists)
        sentence = forward_signal(find_driver("run-1"), signal.SIGUSR1)
        await_true((tmp_path / "log").exists)
        assert psutil.Process(pids[0]).status() != psutil.STATUS_ZOMBIE
    assert sentence.startswith("SIGUSR1 passed on to the job (pid ")
    assert f", {name}" in sentence
    assert sentence.endswith(")")


def test_a_process_that_ignores_it_is_named() -> None:
    """Handling it is up to the job; a warning says that the signal will end it."""
    with worker(("exec sleep 1000", job("run-1"))) as pids:
        await_true(lambda: psutil.Process(pids[0]).name() == "sleep")
        sentence = forward_signal(find_driver("run-1"), signal.SIGUSR2)
    assert (
        sentence == f"SIGUSR2 passed on to the job (pid {pids[0]}, sleep), which does not catch it"
    )


def test_no_driver_and_a_dead_one() -> None:
    """Without a job there is no target, and the log says so."""
    assert forward_signal(None, signal.SIGUSR1) == not_passed_on(
        10, "no job of this run is running here"
    )
    with worker(("exec sleep 1000", job("run-1"))) as pids:
        await_true(lambda: psutil.Process(pids[0]).name() == "sleep")
        driver = find_driver("run-1")
    assert driver is not None
    await_true(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE)
    said = forward_signal(driver, signal.SIGUSR1)
    assert said.startswith("SIGUSR1 is not passed on: the job cannot be signaled: ")


def test_all_that_ray_left_is_ended() -> None:
    """Drivers, processes of Ray's workers, and their sessions; our services are spared."""
    tree = "sleep 1000 & env -i sleep 1000 & wait"
    left = ((tree, job("run-1")), (tree, {"RAY_JOB_ID": "02000000"}))
    with worker(*left, ("sleep 1000", {}), title="sh") as (driver, actor, service):
        await_true(lambda: len(in_session(driver) + in_session(actor)) == 6)
        assert len(kill_leftovers()) == 6
        await_true(lambda: not in_session(driver) + in_session(actor))
        assert service in in_session(service)
        assert kill_leftovers() == []


def in_session(leader: int) -> list[int]:
    """Return the running processes of a session."""
    return [process.pid for process in psutil.process_iter() if _is_in(process, leader)]


def _is_in(process: psutil.Process, leader: int) -> bool:
    try:
        return os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False
