"""The effects of a run: how it reaches its machine, as parameters of head and worker.

main.py hands them to `NodeRun`, and head, worker and takeover act by `run.effects`. The defaults
are the real ones, and named nowhere else. The simulated worlds of the tests give others.

Whatever is the same for all processes of this machine stays a plain call: time, threads, chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agent.node.limits import oom_kills
from agent.processes import driver, process, ray_parts, signals
from agent.processes.process import Child, StartChild

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    import psutil
    from anyio.abc import TaskStatus

    from agent.node.limits import OomKills
    from agent.processes.ray_parts import RayParts
    from agent.processes.waiting import BestEffort


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

    # What goes on in those of Ray, and in this container.
    watch_ray_parts: Callable[[RayParts], Coroutine[Any, Any, None]] = ray_parts.RayParts.watch
    watch_ray_helpers: Callable[
        [Child, Callable[[str, bool], None], BestEffort], Coroutine[Any, Any, None]
    ] = ray_parts.watch_helpers
    oom_kills: Callable[[], OomKills] = oom_kills
    cpu_of: Callable[[int], float] = process.cpu_of


class Effects(NamedTuple):
    """All effects of a run on one node."""

    processes: Processes = Processes()


REAL = Effects()
"""The effects on this machine."""
