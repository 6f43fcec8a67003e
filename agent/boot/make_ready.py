"""Prepare this node for Ray: limits, stale processes, ports and folders."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
from msgspec.structs import replace

from agent.base import ends, times
from agent.checks import PORTS, TEMP_DIR, run_checks
from agent.checks.finding import Finding, Level
from agent.checks.machine import WANTED_FILES
from agent.node.addresses import taken_ports
from agent.node.limits import oom_kills
from agent.node.read import read_folder
from agent.plan.plan import RAY
from agent.record.log import say
from agent.record.node_record import NodeRecord, folder_of, running_processes
from agent.runtime import descendants, driver, parent
from agent.runtime.process import adopt
from agent.runtime.ray_watch import oom_sentence
from agent.settings.jobs import TORCHRUN
from agent.work.torchrun import RANK_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from agent.base.outcome import Outcome
    from agent.node.facts import Facts, Folder
    from agent.plan.plan import Plan
    from agent.record.run_folder import RunFolder
    from agent.runtime.process import Child
    from agent.runtime.waiting import BestEffort


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


def prepare_machine(plan: Plan, left: SurvivingProcesses | None) -> Outcome | None:
    """Prepare this machine; return the refusal if the run cannot start here.

    A killed agent's surviving processes keep their ports; if its Ray is one of them, nothing is
    prepared.
    """
    raise_open_files(plan.facts.nofile_hard)
    if left is not None and left.has_ray:
        return None
    if plan.own_ray is not None:
        _remove_stale_ray(plan.own_ray.session, everything=plan.topology.owns_machine)
    running = frozenset[str]() if left is None else left.names
    facts = replace(plan.facts, taken_ports=taken_ports(plan.ray_and_service_ports(running)))
    busy = run_checks(facts, plan.settings, plan.topology, only=PORTS)
    failed = [f for f in plan.failed() if f.check != PORTS]
    if not failed and plan.own_ray is not None:
        made = secure_folder(plan.own_ray.session, plan.facts)
        if made is not None:
            facts = replace(facts, ray_temp=made)
            failed = [*run_checks(facts, plan.settings, plan.topology, only=TEMP_DIR)]
    return _refusal([*failed, *(one for one in busy if one.level is Level.FAIL)])


def secure_folder(temp: str, facts: Facts) -> Folder | None:
    """Create the private folder around Ray's temp dir; return it if another user owns it.

    It is created or restricted first and checked afterwards, when nobody else can change it.
    """
    folder = Path(temp).parent
    with suppress(OSError):  # Ray reports a folder that cannot be created
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(handle)
            if found.st_uid == facts.uid and found.st_mode & 0o077:
                os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
    result = read_folder(str(folder))
    return None if result is None or facts.owns_exclusively(result) else result


def _remove_stale_ray(temp_dir: str, *, everything: bool) -> None:
    stale = stale_ray(temp_dir, everything=everything)
    if stale:
        say(f"removing a stale Ray ({len(stale)} processes)", "warning")
        _end(stale)


def _refusal(failed: list[Finding]) -> Outcome | None:
    """Combine all failed checks into one outcome."""
    if not failed:
        return None
    reason = "; ".join(f"{f.check}: {f.what}" for f in failed)
    remedy = " ".join(dict.fromkeys(f"{f.remedy}." for f in failed if f.remedy)).rstrip(".")
    return ends.MACHINE_UNFIT.outcome(reason=reason, culprit=failed[0].check, remedy=remedy)


def raise_open_files(hard: int) -> None:
    """Raise the limit of open files as far as allowed: Ray aborts on the usual 1024."""
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stale_ray(temp_dir: str, *, everything: bool) -> list[psutil.Process]:
    """Find Ray processes of an earlier run: on a shared host only those with our temp dir.

    Processes of other containers are skipped: a host sees them, and their temp dir may have the
    same name.
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
    """Yield every process's pid and command line; psutil.Process takes six times as long."""
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended, or it is another user's
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            yield pid, os.fsdecode(line).replace("\0", " ")


def _container(pid: int) -> str:
    """Return the id of a process's pid namespace, which identifies its container."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended, or it is another user's
        return ""


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        _terminate(process)
    _, alive = psutil.wait_procs(processes, timeout=2.0)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=3.0)


def _terminate(process: psutil.Process) -> None:
    try:
        process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        say(f"no right to end pid {process.pid} of a stale Ray", "warning")


_NAME = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
_SPILLED = "ray_spilled_objects*"
KEPT_SESSIONS = 3
"""Number of ended sessions whose logs are kept."""
_MOST = 64
_MOST_FILES = 10_000


def choose_removals(
    changed: Mapping[str, float], living: Container[str], now: float
) -> tuple[list[str], list[str]]:
    """Choose the sessions to remove, and those of which only spilled objects are removed.

    `changed` is when each session changed last. Nothing is chosen that a process uses or that
    changed recently.
    """
    dead = [
        name for name in changed if name not in living and changed[name] + times.SESSION_QUIET < now
    ]
    dead.sort(key=lambda name: (-changed[name], name))
    return dead[KEPT_SESSIONS:][-_MOST:], dead[:KEPT_SESSIONS]


async def prune_sessions(temp_dir: str, best_effort: BestEffort) -> None:
    """Remove old sessions from Ray's temp dir in the background."""
    path = Path(temp_dir)

    async def remove() -> int:
        return await anyio.to_thread.run_sync(_prune, path, abandon_on_cancel=True)

    removed = await best_effort("the removal of Ray's earlier sessions", remove)
    if isinstance(removed, int) and removed:
        rest = f"the last {KEPT_SESSIONS} stay"
        say(f"removed {removed} earlier session(s) of Ray's from {path}: {rest}")


def _prune(temp_dir: Path) -> int:
    """Remove them; return the number of sessions that were removed entirely."""
    changed = {path.name: _changed(path) for path in _sessions(temp_dir)}
    if not changed:
        return 0
    in_use = {name for _, line in command_lines() for name in _NAME.findall(line)}
    whole, spilled_only = choose_removals(changed, in_use, time.time())
    for name in spilled_only:
        for folder in (temp_dir / name).glob(_SPILLED):
            shutil.rmtree(folder, ignore_errors=True)  # a failure costs only disk space
    for name in whole:
        shutil.rmtree(temp_dir / name, ignore_errors=True)  # same
    return sum(not (temp_dir / name).exists() for name in whole)


def _sessions(temp_dir: Path) -> Iterator[Path]:
    """Yield this user's sessions; links are skipped."""
    with suppress(OSError):  # there is none yet, or it was just removed
        for path in temp_dir.iterdir():
            about = path.lstat()
            if (
                stat.S_ISDIR(about.st_mode)
                and about.st_uid == os.getuid()
                and _NAME.fullmatch(path.name)
            ):
                yield path


def _changed(session: Path) -> float:
    """Return when a session changed last; now if it cannot be read."""
    try:
        newest = session.stat().st_mtime
        logs = session / "logs"
        if logs.is_dir():
            with os.scandir(logs) as entries:
                changed = [one.stat().st_mtime for one in islice(entries, _MOST_FILES)]
            newest = max([newest, *changed])
    except OSError:
        return time.time()
    return newest


class SurvivingProcesses:
    """A killed agent's node record, and those of its child processes that still run."""

    def __init__(self, record: NodeRecord, names: Iterable[str], memory: str = "") -> None:
        """Keep the processes with these names, and kill the others.

        `memory` is the kernel's out-of-memory evidence in this container since the kill, or ''. A
        node whose Ray has ended keeps nothing, not even services; a node that never started Ray
        keeps its services.
        """
        self.record = record
        self._memory = memory
        self._running = {one.name: one for one in running_processes(record) if one != record.agent}
        lost_ray = RAY not in self._running and RAY in {one.name for one in record.started}
        useful = set() if lost_ray else {*names}
        for name in {*self._running} - useful:
            descendants.kill_tree(self._running.pop(name).pid)
        if TORCHRUN in {one.name for one in record.started}:  # ranks have their own sessions
            descendants.kill_marked(RANK_VARIABLE, lambda id_: id_.startswith(f"{record.run_id}-"))

    @property
    def has_ray(self) -> bool:
        """Return whether this node's Ray still runs and was not adopted yet."""
        return RAY in self._running

    @property
    def oom_evidence(self) -> str:
        """Return the out-of-memory evidence if Ray has ended since; else ''."""
        return "" if self.has_ray else self._memory

    def end_ray(self) -> None:
        """Kill a Ray that cannot be used, and leftovers of a Ray that has ended."""
        one = self._running.pop(RAY, None)
        if one is not None:
            say(f"ending {RAY} (pid {one.pid}), which an earlier attempt ran on", "warning")
            descendants.kill_tree(one.pid)
        driver.kill_leftovers()

    @property
    def names(self) -> frozenset[str]:
        """Return the names of processes that run and were not adopted yet."""
        return frozenset(self._running)

    def adopt(self, name: str, log: Callable[[], Path]) -> Child | None:
        """Adopt a process, once."""
        one = self._running.pop(name, None)
        if one is None:
            return None
        return adopt(name, one.pid, one.start, log)


def find_resumed_run(root: Path, node: str) -> str:
    """Return the id of the killed agent's run that this agent resumes, or ''."""
    killed = parent.former_agents()
    folder = folder_of(root, node, killed) if killed else None
    return "" if folder is None else folder.parent.name


def find_surviving_processes(folder: RunFolder, names: Iterable[str]) -> SurvivingProcesses | None:
    """Return what the killed agents that this one replaces left running, if there are any.

    The last of them may have no record, where the disk was full: then the record of an earlier one
    counts.
    """
    record, killed = folder.former, parent.former_agents()
    if record is None or record.ended or record.agent.pid not in killed:
        return None
    kills = oom_kills()
    more = kills.number - record.oom_kills
    evidence = oom_sentence(kills, more) if more > 0 else ""
    why = f" ({evidence})" if evidence else ""
    say(f"the agent (pid {killed[0]}) was killed{why}: this one continues its run", "warning")
    return SurvivingProcesses(record, names, evidence if kills.of_container else "")
