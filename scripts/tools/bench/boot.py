"""One measured run: a fresh lab, one system in every pod, and the times."""

from __future__ import annotations

import time
from contextlib import suppress
from statistics import mean
from typing import TYPE_CHECKING

from tools.bench.figures import Run, known
from tools.bench.machine import (
    await_calm,
    birth,
    busy_seconds,
    cpu_seconds_with_children,
    others_seconds,
)
from tools.bench.systems import (
    ENDED,
    PATH,
    STARTED,
    SYSTEMS,
    WORKERS_NEVER_LEAVE,
    is_bridge,
    is_ours,
)
from tools.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.lab import Container, Pod

BOOT_LIMIT = 120.0
END_LIMIT = 150.0
STEP = 0.02
RAY_START = "/bin/ray start"


def measure(system: str, number: int, pods: int, keep: Path | None = None) -> Run:
    """Boot, run the job and wait for every exit; a missed deadline is put in `problem`."""
    with Lab(names=[f"pod{n}" for n in range(pods)], shm="8g") as lab:
        await_calm()
        busy, others, began = busy_seconds(), others_seconds(), time.time()
        containers = [_start(lab, pod, system) for pod in lab.pods]
        run = Run(system=system, round=number)
        try:
            run.to_job = await_time(lab.pods[0].tmp / STARTED, containers[0], BOOT_LIMIT) - began
            run.cpu_to_job = busy_seconds() - busy
            _set_own(run, containers)
            run.others_to_job = max(0.0, others_seconds() - others)
            run.launched = launched(containers[0])
            _follow(run, system, lab.pods[0].tmp, containers, began)
        except TimeoutError as late:
            run.problem = f"{late}{containers[0].tail()}"
        if keep is not None:
            keep_logs(lab, keep / f"{number}-{system}")
    return run


def _start(lab: Lab, pod: Pod, system: str) -> Container:
    boot = SYSTEMS[system](lab.pods, pod)
    return pod.start(boot.argv, env={"PATH": PATH, **boot.env})


def _set_own(run: Run, containers: list[Container]) -> None:
    """Fill in the CPU time of the agent's processes; a process that has exited is not counted."""
    run.own_head, *workers = [own_seconds(container, is_ours) for container in containers]
    run.own_bridge = own_seconds(containers[0], is_bridge)
    measured = known(workers)
    run.own_worker = mean(measured) if measured else None


def own_seconds(container: Container, is_counted: Callable[[str], bool]) -> float | None:
    """Return the CPU time of a pod's processes by their command lines; None if it has none."""
    counted = []
    for info in container.processes():
        if is_counted(info.cmdline):
            with suppress(FileNotFoundError):
                counted.append(cpu_seconds_with_children(info.host_pid))
    return sum(counted) if counted else None


def _follow(run: Run, system: str, tmp: Path, containers: list[Container], began: float) -> None:
    """Fill in the run's values as they appear."""
    ended = await_time(tmp / ENDED, containers[0], BOOT_LIMIT)
    run.job_end = ended - began
    stay = WORKERS_NEVER_LEAVE if len(containers) > 1 else frozenset()
    leaving = containers[:1] if system in stay else containers
    until = time.monotonic() + END_LIMIT
    for container in leaving:
        run.codes.append(container.wait(max(0.1, until - time.monotonic())))
    offset = time.time() - time.monotonic()
    gone = [c.ended_at + offset - ended for c in leaving if c.ended_at is not None]
    run.head_gone = gone[0]
    if leaving is containers:
        run.workers_gone = max(gone[1:], default=None)
        run.all_gone = ended + max(gone) - began


def await_time(path: Path, container: Container, limit: float) -> float:
    """Wait until the job has written the time into a file; return it."""
    until = time.monotonic() + limit
    while True:
        over = not container.running
        text = path.read_text() if path.exists() else ""
        if text.endswith("\n"):
            return float(text)
        if over:
            raise TimeoutError(f"{container.label}: ended before the job wrote {path.name}")
        if time.monotonic() > until:
            raise TimeoutError(f"{container.label}: no {path.name} within {limit:g} s")
        time.sleep(STEP)


def launched(container: Container) -> float | None:
    """Return the start time of a pod's `ray start`, in seconds from the entrypoint's exec.

    It is found while it runs, thus only with `--block`, which the agent uses.
    """
    found = [info for info in container.processes() if RAY_START in info.cmdline]
    return min((birth(info.host_pid) - container.started_at for info in found), default=None)


def keep_logs(lab: Lab, folder: Path) -> None:
    """Copy the agents' run folders and all output, which explain the times."""
    for pod in lab.pods:
        own = folder / pod.name
        own.mkdir(parents=True, exist_ok=True)
        sources = [log for c in pod.containers for log in c.log_paths]
        sources += [path for path in (pod.tmp / "logs").glob("*/*/*") if path.is_file()]
        for source in sources:
            (own / source.name).write_bytes(source.read_bytes())
