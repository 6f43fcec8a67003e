"""The effects of a run: how it reaches its machine, as parameters of head and worker.

main.py hands them to `NodeRun`, and head, worker and takeover act by `run.effects`. The defaults
are the real ones, and named nowhere else. The simulated worlds of the tests give others.

Whatever is the same for all processes of this machine stays a plain call: time, threads, chance.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agent.base.open_files import raise_open_files
from agent.node.limits import oom_kills
from agent.node.read import taken_ports
from agent.port.node_network import NETWORK, Network
from agent.processes import driver, process, ray_parts, ray_temp, signals
from agent.processes.driver import CpuUse
from agent.processes.process import Child, StartChild
from agent.processes.stale_ray import stale_ray
from agent.record.background import ItemWriter
from agent.record.files import write_atomically
from agent.record.log import log_to_file
from agent.record.node_record import NodeRecorder
from agent.run.node_figures import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    import psutil
    from anyio.abc import TaskStatus

    from agent.node.facts import Folder
    from agent.node.limits import OomKills
    from agent.processes.driver import JobProcess
    from agent.processes.ray_parts import RayParts
    from agent.processes.waiting import BestEffort
    from agent.record.run_record import RunRecord
    from agent.run.late_effects import LateEffects


class WatchSignals(Protocol):
    """The form of `watch_signals`."""

    async def __call__(
        self,
        stop: Callable[[int], None],
        notify: Callable[[int], None],
        record_kill: Callable[[], object] = ...,
        *,
        task_status: TaskStatus[None] = ...,
    ) -> None:
        """Call `stop` and `notify` for signals."""


class Processes(NamedTuple):
    """The processes of this machine: how they are started, watched, found and ended."""

    # Children of the agent, and the signals that it is sent itself.
    start: StartChild = Child.start
    adopt: Callable[[str, int, int, Callable[[], Path]], Child | None] = process.adopt
    watch_signals: WatchSignals = signals.watch_signals

    # All descendants, of any session.
    descendants: Callable[[], list[psutil.Process]] = process.list_descendants
    reap: Callable[[], None] = process.reap
    kill_tree: Callable[[int], None] = process.kill_tree

    # The job's processes on this node.
    find_driver: Callable[[str], psutil.Process | None] = driver.find_driver
    find_first_rank: Callable[[str], psutil.Process | None] = driver.find_first_rank
    terminate_driver: Callable[[str], str] = driver.terminate_driver
    kill_leftovers: Callable[[], list[str]] = driver.kill_leftovers
    job_processes: Callable[[str | None], list[JobProcess]] = driver.job_processes
    cpu_use: type[CpuUse] = CpuUse

    # What goes on in those of Ray, and in this container.
    watch_ray_parts: Callable[[RayParts], Coroutine[Any, Any, None]] = ray_parts.RayParts.watch
    watch_ray_helpers: Callable[
        [Child, Callable[[str, bool], None], BestEffort], Coroutine[Any, Any, None]
    ] = ray_parts.watch_helpers
    oom_kills: Callable[[], OomKills] = oom_kills
    cpu_of: Callable[[int], float] = process.cpu_of


class StaleRay(Protocol):
    """The form of `stale_ray`."""

    def __call__(self, temp_dir: str, *, everything: bool) -> list[psutil.Process]:
        """Find Ray processes of an earlier run."""


class TakenPorts(Protocol):
    """The form of `taken_ports`."""

    def __call__(self, ports: Iterable[int]) -> dict[int, str]:
        """Return the ports in use, each with the process that listens."""


class MachineEffects(NamedTuple):
    """This machine itself, and what is prepared on it before Ray."""

    kernel_log: str = "/dev/kmsg"
    figures: type[Sources] = Sources
    raise_open_files: Callable[[], None] = raise_open_files
    stale_ray: StaleRay = stale_ray
    taken_ports: TakenPorts = taken_ports
    secure_folder: Callable[[str, int], Folder | None] = ray_temp.secure_folder
    prune_sessions: Callable[[str, BestEffort], Coroutine[Any, Any, None]] = ray_temp.prune_sessions


class WriteFile(Protocol):
    """The form of `write_atomically`."""

    def __call__(
        self, path: Path, text: str, *, durable: bool = ..., mode: int | None = ...
    ) -> OSError | None:
        """Replace a file as a whole; return the error on failure."""


class Disk(NamedTuple):
    """Files: those who write this run's records, and what a user's path means."""

    node_recorder: type[NodeRecorder] = NodeRecorder
    run_writer: type[ItemWriter[RunRecord]] = ItemWriter
    log_to_file: Callable[[Callable[[], Path]], None] = log_to_file
    write: WriteFile = write_atomically
    path: Callable[[str], Path] = Path


def _late() -> LateEffects:
    from agent.run.late_effects import REAL_LATE  # noqa: PLC0415 - aiohttp, after `ray start`

    return REAL_LATE


class Effects(NamedTuple):
    """All effects of a run on one node."""

    clock: Callable[[], float] = time.monotonic
    processes: Processes = Processes()
    machine: MachineEffects = MachineEffects()
    disk: Disk = Disk()
    network: Network = NETWORK
    late: Callable[[], LateEffects] = _late


REAL = Effects()
"""The effects on this machine."""
