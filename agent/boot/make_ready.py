"""What a Ray of our own needs here: limits raised, a stale Ray removed, ports proved free."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from agent.base.outcome import BEFORE_ALL, Kind, Outcome
from agent.checks import Finding, Level
from agent.checks.machine_checks import WANTED_FILES, free_ports, temp_dir
from agent.node.addresses import taken_ports
from agent.node.read_facts import look_at_folder
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.boot.left_behind import LeftBehind
    from agent.node.facts import Facts, Folder
    from agent.plan.plan import Plan

_RAY_MARKS = (
    "/ray/core/src/ray/gcs/gcs_server",
    "/ray/core/src/ray/raylet/raylet",
    "/ray/dashboard/",
    "/ray/_private/",
    "/ray/autoscaler/_private/monitor.py",
    "ray.util.client.server",
    "ray::",
    "ray-dashboard-",
)


def make_ready(plan: Plan, left: LeftBehind | None) -> Outcome | None:
    """Prepare this machine; return the refusal where this run could not live on it.

    What a killed agent left behind holds its ports, and a Ray among it lives here already.
    """
    raise_open_files(plan.facts.nofile_hard)
    if left is not None and left.has_ray:
        return None
    if plan.own_ray is not None:
        _remove_stale_ray(plan.own_ray.session, everything=plan.topology.owns_machine)
    lives = frozenset[str]() if left is None else left.names
    facts = replace(plan.facts, taken_ports=taken_ports(plan.ray_and_service_ports(lives)))
    busy = free_ports(facts, plan.settings, plan.topology)
    failed = [f for f in plan.failed() if f.check != busy.check]
    if not failed and plan.own_ray is not None:
        made = own_folder(plan.own_ray.session, plan.facts)
        if made is not None:
            failed = [temp_dir(replace(plan.facts, ray_temp=made), plan.settings, plan.topology)]
    return _refusal([*failed, busy] if busy.level is Level.FAIL else failed)


def own_folder(temp: str, facts: Facts) -> Folder | None:
    """Make the folder around Ray's temp dir, for us alone; return what is there if it is not ours.

    It is made or tightened first and looked at afterwards, when nobody can change it any more.
    """
    folder = Path(temp).parent
    with suppress(OSError):  # what cannot be made, Ray will name
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(handle)
            if found.st_uid == facts.uid and found.st_mode & 0o077:
                os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
    there = look_at_folder(str(folder))
    return None if there is None or facts.owns_wholly(there) else there


def _remove_stale_ray(temp_dir: str, *, everything: bool) -> None:
    stale = stale_ray(temp_dir, everything=everything)
    if stale:
        say(f"removing a stale Ray ({len(stale)} processes)", "warning")
        _end(stale)


def _refusal(failed: list[Finding]) -> Outcome | None:
    """Make one end of all findings that forbid a run."""
    if not failed:
        return None
    reason = "; ".join(f"{f.check}: {f.what}" for f in failed)
    remedy = " ".join(dict.fromkeys(f"{f.remedy}." for f in failed if f.remedy)).rstrip(".")
    return Outcome(Kind.REFUSED, 78, reason, BEFORE_ALL, failed[0].check, remedy)


def raise_open_files(hard: int) -> None:
    """Raise the limit of open files as far as it may be: Ray aborts on the usual 1024."""
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stale_ray(temp_dir: str, *, everything: bool) -> list[psutil.Process]:
    """Find Ray processes of a former run: on a shared host only those with our temp dir.

    A host sees its containers' processes, too, whose temp dir has the same name: never those.
    """
    found, here = [], _container(os.getpid())
    ours = {os.getpid(), os.getppid()}
    for pid, line in command_lines():
        if pid in ours or not any(mark in line for mark in _RAY_MARKS):
            continue
        if (everything or f"{temp_dir}/" in line) and _container(pid) == here:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def command_lines() -> Iterator[tuple[int, str]]:
    """Read every process's command line; whole psutil processes take six times as long."""
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended, or it is another user's
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            yield pid, os.fsdecode(words).replace("\0", " ")


def _container(pid: int) -> str:
    """Return what tells a process's container from others: the namespace of its pid."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended, or it is another user's
        return ""


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        _send(process, hard=False)
    _, alive = psutil.wait_procs(processes, timeout=2.0)
    for process in alive:
        _send(process, hard=True)
    psutil.wait_procs(alive, timeout=3.0)


def _send(process: psutil.Process, *, hard: bool) -> None:
    try:
        if hard:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        say(f"no right to end pid {process.pid} of a stale Ray", "warning")
