"""A hung part of the head's Ray: when Ray is restarted for it, and when not."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.shared import ItemsReported
from agent.processes.process import Child
from agent.processes.ray_parts import stopped_helper, watch_helpers
from agent.processes.waiting import BestEffort, NotYet, until
from support.heads import (
    PAIR,
    SERVING,
    SUBMITTED,
    TICK,
    Trace,
    goal,
    nodes,
    ray_doubt,
    ray_lost,
    ray_open,
    reported,
)
from support.histories import ALONE_RUNS, PAIR_RUNS, Case, Logged, Waits, play

if TYPE_CHECKING:
    from pathlib import Path


STOPPED = ray_doubt("its dashboard (pid 7) is stopped")
BESIDE = ray_doubt("its dashboard (pid 7) is stopped", beside_job=True)
GOES_ON = ray_doubt()
HANGS = "Ray hangs, its dashboard (pid 7) is stopped"
IS_LOST = "its dashboard (pid 7) is stopped for 30 s"
RAY_AGAIN = "start Ray, generation 2"

HANGING: dict[str, Case] = {
    "borne for half a minute, before the workers are there": [
        goal(1),
        (3, nodes()),
        (5, STOPPED),
        (34.9, TICK),
        (35, TICK, RAY_AGAIN),
        Logged(f"{HANGS}: Ray is started again unless it continues within 30 s"),
        Logged(f"Ray was lost on the head: {IS_LOST}; starting it again: 1 of 2"),
    ],
    "a job is not submitted to it meanwhile, and to the next one": [
        goal(1),
        (3, nodes()),
        (5, STOPPED),
        (9, nodes(2)),
        (10, reported(2)),
        (34.9, TICK),
        (35, TICK, RAY_AGAIN),
        (40, nodes(2), "submit run-1"),
    ],
    "it goes on, and the job is submitted": [
        goal(),
        (2, STOPPED),
        (3, nodes()),
        (20, GOES_ON, "submit run-1"),
        Logged(HANGS),
        Logged("Ray runs again: none of its processes is stopped"),
    ],
    "one that is not up yet is started again": [
        goal(),
        (1, ray_open()),
        (2, STOPPED),
        (32, TICK, RAY_AGAIN),
        (40, nodes(), "submit run-1"),
    ],
    "it is waited for under the submission": [
        goal(retries=1),
        (3, nodes(), "submit run-1"),
        (5, STOPPED),
        (100, TICK),
        (101, GOES_ON),
        (102, SUBMITTED),
    ],
    "Ray has the job, though it did not say so": [
        goal(),
        (3, nodes(), "submit run-1"),
        (5, BESIDE),
        (60, TICK),
    ],
    "under a job it is left alone": [
        goal(),
        *ALONE_RUNS,
        (9, STOPPED),
        (100, TICK),
        Logged(f"{HANGS}: left alone, since a job runs that does not need it"),
    ],
    "where Ray only serves it is started again": [
        SERVING,
        (3, nodes(2)),
        (9, STOPPED),
        (38.9, TICK),
        (39, TICK, RAY_AGAIN),
    ],
    "a job runs that another has submitted: its time counts from that job's end": [
        SERVING,
        (3, nodes(2)),
        (9, BESIDE),
        (100, STOPPED),
        (129.9, TICK),
        (130, TICK, RAY_AGAIN),
    ],
    "it is started again twice, then the run ends with the cause": [
        goal(1),
        (3, nodes()),
        (4, STOPPED),
        (34, TICK, RAY_AGAIN),
        (39, nodes()),
        (40, STOPPED),
        (70, TICK, "start Ray, generation 3"),
        (75, nodes()),
        (76, STOPPED),
        (106, TICK, f"end 69: …{IS_LOST}"),
    ],
    # What was stopped of a lost Ray is gone with it
    "the next attempt has a Ray of its own, and nothing runs again": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (9, STOPPED),
        (10, ray_lost("its raylet is gone"), RAY_AGAIN),
        (12, nodes(2)),
        (19.9, TICK),
        (20, TICK, "submit run-2"),
    ],
    # Workers may be awaited longer than the head's Ray was, and must join again
    "where Ray is lost late, all have their time anew": [
        goal(1),
        (3, nodes()),
        (150, ray_lost("its raylet is gone"), RAY_AGAIN),
        Waits(
            "waiting for Ray on this node, its raylet is gone (100 s left)",
            "waiting for workers, 0 of 1 joined; … (3 min 20 s left)",
        ),
    ],
    "one that is slow to start is not started again once its time is over": [
        goal(1),
        (100, ray_lost("exit 1"), "end 69: Ray did not start: exit 1"),
    ],
}


@pytest.mark.parametrize("case", HANGING.values(), ids=HANGING)
def test_what_follows(case: Case) -> None:
    """Ray is restarted only if a job is to be submitted, or none runs."""
    play(case)


def test_a_lost_ray_does_not_run_again() -> None:
    """What was stopped of it is gone with it."""
    trace = Trace(goal(1, retries=1), [*PAIR, (9, STOPPED), (10, ray_lost("exit 1"))])
    assert "Ray runs again" not in trace.log


def test_what_is_repeated_of_ray_with_other_items_changes_nothing() -> None:
    """Each report has all items of the node; the last evidence is that of the bridge."""
    trace = Trace(goal(1), [(1, ray_open())])
    (up,) = ray_open(1).items
    trace.take(h.RaySeen(evidence="no answer"), 2)
    trace.take(ItemsReported((up,)), 3)
    assert trace.state.ray.item.evidence == "no answer"


def test_a_former_ray_that_is_still_being_ended_is_named_in_the_wait() -> None:
    """One that was lost in the boot ran no attempt: the wait is that for the next."""
    trace = Trace(goal(1), [(1, ray_open()), (2, ray_lost("exit 1"))])
    assert next(wait.evidence for wait in head.pending_waits(trace.state)) == "exit 1"
    trace.take(ray_lost("exit 1", generation=1), 3)
    assert next(wait.evidence for wait in head.pending_waits(trace.state)) == "exit 1"
    trace.take(ray_lost("exit 1", generation=1, doubt="python (pid 7) cannot be ended"), 12)
    (wait, _) = head.pending_waits(trace.state)
    assert (wait.what, wait.evidence) == ("Ray on this node", "python (pid 7) cannot be ended")


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
