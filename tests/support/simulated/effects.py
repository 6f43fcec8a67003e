"""The effects of an agent on a simulated machine, in the form in which agents take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio

from agent.node.limits import OomKills
from agent.run.effects import Effects, Processes
from support.simulated import programs
from support.simulated.virtual import LIFE

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus


async def watch_signals(
    stop: Callable[[int], None],
    notify: object,
    record_kill: object = None,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Take signals that ask for a stop."""
    del notify, record_kill
    life = LIFE.get()
    assert life is not None
    life.agent.on_stop = stop
    task_status.started()
    await anyio.sleep_forever()


def _nothing() -> None:
    """Do nothing."""


PROCESSES = Processes(
    start=cast("Any", programs.start_child),
    adopt=cast("Any", programs.adopt),
    watch_signals=watch_signals,
    descendants=cast("Any", programs.list_descendants),
    reap=_nothing,
    kill_tree=programs.kill_tree,
    find_driver=programs.find_driver,
    find_first_rank=programs.find_driver,
    terminate_driver=programs.terminate_driver,
    kill_leftovers=programs.kill_leftovers,
    watch_ray_parts=programs.watch_parts,
    watch_ray_helpers=cast("Any", programs.watch_helpers),
    oom_kills=lambda: OomKills(0, of_container=True),
    cpu_of=lambda _pid: 0.0,
)

SIMULATED = Effects(processes=PROCESSES)
"""What the shipped head and worker get in a world; each acts on the machine on which it runs."""
