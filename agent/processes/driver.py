"""The job's processes on this node: its driver, signals, leftovers, CPU use and stacks."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from functools import partial
from os import getsid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import psutil

from agent.base import times
from agent.job.node_command import NODE_MARK
from agent.job.torchrun_command import RANK_VARIABLE
from agent.node.limits import ProcessLimitError
from agent.processes.process import (
    Child,
    cpu_seconds,
    kill,
    known,
    list_descendants,
    send_signal,
    tree_of,
)
from agent.record.background import result_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DRIVER_MARK = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_WORKERS_MARK = "RAY_JOB_ID"  # In the environment of Ray's workers and below, not of drivers
_MARKS = (_DRIVER_MARK, _WORKERS_MARK)
_WORKERS_TITLE = "ray::"
_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox", "fish"}
_NO_ACTORS = (
    "ray::IDLE",
    "ray::JobSupervisor",
    "ray::_ray_internal_job_actor",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "ray::DashboardHead",
)
"""Ray's own processes and idle workers (2.60)."""
# Cores used by idle processes: a base, and per process
_IDLE_CORES = 0.05
_IDLE_EACH = 0.02


async def output_of(
    argv: Sequence[str], env: Mapping[str, str], log: Callable[[], Path], limit: float
) -> tuple[str, str]:
    """Run a tool; return its stdout, and why it failed or ''. Its stderr goes to a log."""
    try:
        child = await Child.start(argv[0].rpartition("/")[2], argv, env, log, piped=True)
    except (OSError, ProcessLimitError) as error:
        return "", str(error)

    text = b""
    code = None
    try:
        with anyio.move_on_after(limit):
            text = await child.stdout.read()
            code = await child.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop(0.0)

    if code is None:
        return "", f"{child.name} did not end within {limit:g} s"
    output = text.decode(errors="replace")
    return output, "" if code == 0 else child.end_sentence(code)


def find_driver(submission_id: str) -> psutil.Process | None:
    """Return the session leader of a job's driver, if it is a descendant of this agent."""
    return drivers_by_job().get(submission_id)


def find_first_rank(attempt: str) -> psutil.Process | None:
    """Return the process of rank 0 of an attempt without Ray, if it is on this node.

    Torchrun marks its ranks. Of a command that runs once on each node it is the rank 0 of a
    torchrun below it, or the command itself.
    """
    command: psutil.Process | None = None
    for process in _oldest_first():
        environ = known(process.environ, dict[str, str]())
        is_by_torchrun = RANK_VARIABLE in environ
        is_of_command = environ.get(NODE_MARK) == attempt
        is_of_attempt = environ.get(RANK_VARIABLE) == attempt or (is_of_command and is_by_torchrun)
        if is_of_attempt and environ.get("RANK") == "0":
            return process  # its own children, which inherit its environment, are younger
        if is_of_command and command is None:
            command = process
    return command


def _oldest_first() -> list[psutil.Process]:
    def age(process: psutil.Process) -> tuple[float, int]:
        return known(process.create_time, 0.0), process.pid

    return sorted(list_descendants(), key=age)


def handles_signal(process: psutil.Process | None, signum: int) -> bool:
    """Return whether the job handles a signal, which would otherwise end it."""
    if process is None:
        return False
    return known(lambda: catches_signal(_signal_target(process, signum), signum), otherwise=False)


def drivers_by_job() -> dict[str, psutil.Process]:
    """Return the drivers of jobs by submission id: session leaders below Ray's workers."""
    drivers: dict[str, psutil.Process] = {}
    for process in list_descendants():
        with suppress(psutil.Error, OSError, ValueError, LookupError, TypeError):
            above = process.parent() if getsid(process.pid) == process.pid else None
            if above is not None and above.name().startswith(_WORKERS_TITLE):
                config = json.loads(process.environ()[_DRIVER_MARK])
                drivers.setdefault(str(config["metadata"]["job_submission_id"]), process)
    return drivers


def kill_leftovers() -> list[str]:
    """Kill remaining processes of jobs and Ray workers; return their names."""
    with suppress(psutil.Error, OSError):
        return kill(_left_by_jobs(psutil.Process(), list_descendants()))
    return []


def _left_by_jobs(own: psutil.Process, processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes with the marks of jobs, and the rest of their sessions."""
    # The agent may run in a job, too: marks that it inherited say nothing.
    inherited = known(own.environ, dict[str, str]())
    marked = []
    for process in processes:
        with suppress(psutil.Error, OSError):
            environ = process.environ()
            is_marked = any(environ.get(mark) != inherited.get(mark) for mark in _MARKS)
            if is_marked or process.name().startswith(_WORKERS_TITLE):
                marked.append(process)

    # The rest of their sessions goes, too, apart from the agent's own.
    session_of = {
        process: known(partial(getsid, process.pid), None) for process in (own, *processes)
    }
    sessions = {session_of[process] for process in marked} - {session_of[own], None}
    return [one for one in processes if one in marked or session_of[one] in sessions]


def terminate_driver(submission_id: str) -> str:
    """Send SIGTERM to a job's driver and its descendants, as Ray does; return the driver's name."""
    driver = find_driver(submission_id)
    if driver is None:
        return ""
    named = known(lambda: f"pid {driver.pid}, {driver.name()}", "")
    send_signal(tree_of(driver.pid), signal.SIGTERM)
    return named


def forward_signal(driver: psutil.Process | None, signum: int) -> str:
    """Forward a signal to the job; return a log line that says so, or why not."""
    if driver is None:
        return not_passed_on(signum, "no job of this run is running here")
    try:
        process = _signal_target(driver, signum)
        label = f"pid {process.pid}, {process.name()}"
        is_caught = catches_signal(process, signum)
        process.send_signal(signum)
    except (psutil.Error, OSError) as error:
        return not_passed_on(signum, f"the job cannot be signaled: {error}")
    name = signal.Signals(signum).name
    suffix = "" if is_caught else ", which does not catch it"
    return f"{name} passed on to the job ({label}){suffix}"


def not_passed_on(signum: int, why: str) -> str:
    """Return the log line of a signal that is not forwarded."""
    return f"{signal.Signals(signum).name} is not passed on: {why}"


def _signal_target(leader: psutil.Process, signum: int) -> psutil.Process:
    """Return the leader; if it is a shell without a handler, its only child that may have one."""
    process = leader
    # The process name of a script is its own.
    while not catches_signal(process, signum) and Path(process.exe()).name in _SHELLS:
        children = process.children()
        handling = [child for child in children if catches_signal(child, signum)] or children
        if len(handling) != 1:
            break
        process = handling[0]
    return process


def catches_signal(process: psutil.Process, signum: int) -> bool:
    """Return whether a process has a handler for a signal, by its mask in hexadecimal digits."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    mask = int(caught.split()[1], 16)
    return bool(mask >> (signum - 1) & 1)


class JobProcess(NamedTuple):
    """A process of the job and its role: driver, rank, Ray's process title, or a child of these."""

    role: str
    process: psutil.Process
    rank: int | None = None  # among all nodes, if its environment has one
    world: int | None = None
    is_child: bool = False  # started by a driver, an actor or a rank


def job_processes(submission_id: str | None) -> list[JobProcess]:
    """Return the job's processes on this node: driver, actors, tasks, ranks, and their children."""
    leader = None if submission_id is None else find_driver(submission_id)
    roles: dict[int, str] = {}
    children_of: set[int] = set()  # Pythons with a role: what they start is their child
    of_the_job = []
    for process in _oldest_first():  # parents first: a child has its parent's role
        parent = known(process.ppid, 0)
        role = roles.get(parent, "")
        if leader is not None and process.pid == leader.pid:
            role = "driver"

        # Actors, tasks and ranks show their role themselves, regardless of their parents.
        with suppress(psutil.Error, IndexError):
            title = "" if role else process.cmdline()[0]
            if title.startswith(_NO_ACTORS):
                role = ""
            elif title.startswith(_WORKERS_TITLE):
                role = title.strip()[:100]
            elif not role and RANK_VARIABLE in process.environ():
                role = f"rank {process.environ().get('RANK', '?')}"

        if role:
            roles[process.pid] = role
            is_child = parent in children_of
            if is_child or is_python(process):  # a shell only starts what has its role
                children_of.add(process.pid)
            of_the_job.append(_with_rank(role, process, is_child=is_child))
    return of_the_job


def service_processes(name: str, pid: int) -> list[JobProcess]:
    """Return the processes of a service, by its first one."""
    return [JobProcess(f"service {name}", process) for process in tree_of(pid)]


def _with_rank(role: str, process: psutil.Process, *, is_child: bool) -> JobProcess:
    """Return a process of the job, with its rank if it is no child, which inherits its parent's."""
    if is_child:
        return JobProcess(f"child of {role}", process, is_child=True)
    environ = known(process.environ, dict[str, str]())
    rank = environ.get("RANK", "")
    world = environ.get("WORLD_SIZE", "")
    if role != "driver" and rank.isdecimal() and world.isdecimal():
        return JobProcess(role, process, int(rank[:6]), int(world[:6]))
    return JobProcess(role, process)


def is_python(process: psutil.Process) -> bool:
    """Return whether a process is a Python."""
    return Path(known(process.exe, "")).name.startswith("python")


class CpuUse:
    """How busy the job keeps the CPUs of this node since the last sample."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    async def sample(self, submission_id: str | None) -> str | None:
        """Return how many cores the job's processes use, or ''; None at the first sample."""
        search = partial(job_processes, submission_id)
        processes = await result_in_thread(search, times.NODE_EXAMINED)
        used = sum(cpu_seconds(job.process) for job in processes)
        now = time.monotonic()
        last = self._last
        self._last = (used, now)
        if last is None:
            return None
        last_used, last_at = last
        return busy_cores(used - last_used, now - last_at, len(processes))


def busy_cores(used: float, seconds: float, processes: int) -> str:
    """Return the busy cores as text; '' where idle processes use as much."""
    cores = used / max(seconds, 1e-3)
    idle = _IDLE_CORES + _IDLE_EACH * processes
    return "" if cores < idle else f"{cores:.2f} cores"
