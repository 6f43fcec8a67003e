"""A hung part of the head's Ray: when Ray is restarted for it, and when not."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.head import head_state as h
from agent.decisions.shared import ItemsReported
from agent.processes.process import Child
from agent.processes.ray_parts import stopped_helper, watch_helpers
from agent.processes.waiting import BestEffort, NotYet, until
from support.event_words import cases
from support.heads import (
    Trace,
    goal,
    ray_lost,
    ray_open,
)
from support.histories import Case, play

if TYPE_CHECKING:
    from pathlib import Path


RESISTS = "python (pid 7) cannot be ended"
WORDS = {"python (pid 7) resists": ray_lost("exit 1", generation=1, doubt=RESISTS)}

HANGING = cases(
    """\
borne for half a minute, before the workers are there [1 worker]
    3 nodes | 5 Ray hangs: its dashboard is stopped | 34.9 tick | 35 tick -> start Ray, generation 2
    log Ray hangs, its dashboard is stopped: Ray is started again unless it continues within 30 s
    log Ray was lost on the head: its dashboard is stopped for 30 s; starting it again: 1 of 2
a job is not submitted to it meanwhile, and to the next one [1 worker]
    3 nodes | 5 Ray hangs: its dashboard is stopped | 9 nodes 2 | 10 pod2 joined | 34.9 tick
    35 tick -> start Ray, generation 2 | 40 nodes 2 -> submit run-1
it goes on, and the job is submitted
    2 Ray hangs: its dashboard is stopped | 3 nodes | 20 Ray goes on -> submit run-1
    log Ray hangs, its dashboard is stopped | log Ray runs again: none of its processes is stopped
one that is not up yet is started again
    1 Ray opens | 2 Ray hangs: its dashboard is stopped | 32 tick -> start Ray, generation 2
    40 nodes -> submit run-1
it is waited for under the submission [1 retry]
    3 nodes -> submit run-1 | 5 Ray hangs: its dashboard is stopped | 100 tick | 101 Ray goes on
    102 accepted
Ray has the job, though it did not say so
    3 nodes -> submit run-1 | 5 Ray hangs beside the job: its dashboard is stopped | 60 tick
under a job it is left alone
    alone | 9 Ray hangs: its dashboard is stopped | 100 tick
    log Ray hangs, its dashboard is stopped: left alone, since a job runs that does not need it
where Ray only serves it is started again [1 worker, no job]
    3 nodes 2 | 9 Ray hangs: its dashboard is stopped | 38.9 tick
    39 tick -> start Ray, generation 2
a job runs that another has submitted: its time counts from that job's end [1 worker, no job]
    3 nodes 2 | 9 Ray hangs beside the job: its dashboard is stopped
    100 Ray hangs: its dashboard is stopped | 129.9 tick | 130 tick -> start Ray, generation 2
it is started again twice, then the run ends with the cause [1 worker]
    3 nodes | 4 Ray hangs: its dashboard is stopped | 34 tick -> start Ray, generation 2 | 39 nodes
    40 Ray hangs: its dashboard is stopped | 70 tick -> start Ray, generation 3 | 75 nodes
    76 Ray hangs: its dashboard is stopped | 106 tick -> end 69: …its dashboard is stopped for 30 s
# What was stopped of a lost Ray is gone with it
the next attempt has a Ray of its own, and nothing runs again [1 worker, 1 retry]
    pair | 9 Ray hangs: its dashboard is stopped
    10 Ray dies: its raylet is gone -> start Ray, generation 2 | 12 nodes 2 | 19.9 tick
    20 tick -> submit run-2
# Workers may be awaited longer than the head's Ray was, and must join again
where Ray is lost late, all have their time anew [1 worker]
    3 nodes | 150 Ray dies: its raylet is gone -> start Ray, generation 2
    waits waiting for Ray on this node, its raylet is gone (100 s left)
        & waiting for workers, 0 of 1 joined; … (3 min 20 s left)
one that is slow to start is not started again once its time is over [1 worker]
    100 Ray dies: exit 1 -> end 69: Ray did not start: exit 1
# What was stopped of it is gone with it
a lost Ray does not run again [1 worker, 1 retry]
    pair | 9 Ray hangs: its dashboard is stopped | 10 Ray dies: exit 1 -> start Ray, generation 2
    not logged Ray runs again
# It ran no attempt: the wait is that for the next
a former Ray that is still being ended is named in the wait [1 worker]
    1 Ray opens | 2 Ray dies: exit 1 -> start Ray, generation 2
    waits waiting for Ray on this node, exit 1 (…) & waiting for workers, …
    3 Ray dies, generation 1: exit 1
    waits waiting for Ray on this node, exit 1 (…) & waiting for workers, …
    12 python (pid 7) resists
    waits waiting for Ray on this node, python (pid 7) cannot be ended (…) & waiting for workers, …
""",
    WORDS,
)


@pytest.mark.parametrize("case", HANGING.values(), ids=HANGING)
def test_what_follows(case: Case) -> None:
    """Ray is restarted only if a job is to be submitted, or none runs."""
    play(case)


def test_what_is_repeated_of_ray_with_other_items_changes_nothing() -> None:
    """Each report has all items of the node; the last evidence is that of the bridge."""
    trace = Trace(goal(1), [(1, ray_open())])
    (up,) = ray_open(1).items
    trace.take(h.RaySeen(evidence="no answer"), 2)
    trace.take(ItemsReported((up,)), 3)
    assert trace.state.ray.item.evidence == "no answer"


def test_a_stopped_dashboard_is_found_below_ray(tmp_path: Path) -> None:
    """By its command line; each change is reported."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    (tmp_path / "dashboard").mkdir()
    program = tmp_path / "dashboard" / "dashboard.py"
    shutil.copy(sleep, program)
    noted: list[tuple[str, bool]] = []

    async def trace() -> tuple[int, str]:
        script = f"{program} 100 & echo $!; wait"
        child = await Child.start("ray", ["/bin/sh", "-c", script], {}, lambda: tmp_path / "log")

        async def pid() -> int | NotYet:
            text = (tmp_path / "log").read_text().strip() if (tmp_path / "log").exists() else ""
            return int(text) if text else NotYet()

        async def received(number: int) -> None:
            async def look() -> bool | NotYet:
                return True if len(noted) >= number else NotYet()

            await until(look, 20.0, longest=0.05)

        async with anyio.create_task_group() as tasks:
            dashboard = await until(pid, 20.0, longest=0.05)
            tell = (lambda evidence, job: noted.append((evidence, job)), BestEffort())
            tasks.start_soon(watch_helpers, child, *tell)
            os.kill(dashboard, signal.SIGSTOP)
            await received(1)
            seen = stopped_helper(child.pid)
            os.kill(dashboard, signal.SIGCONT)
            await received(2)
            tasks.cancel_scope.cancel()
        await child.stop(0.0)
        return dashboard, seen

    pid, seen = anyio.run(trace)
    assert seen == f"its dashboard (pid {pid}) is stopped"
    assert noted == [(seen, False), ("", False)]
