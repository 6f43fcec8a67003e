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
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import ItemsReported
from agent.processes.process import Child
from agent.processes.ray_parts import stopped_helper, watch_helpers
from agent.processes.waiting import BestEffort, NotYet, until
from support.heads import (
    PAIR,
    RUNNING,
    SERVING,
    SUBMITTED,
    TICK,
    History,
    Trace,
    goal,
    nodes,
    ray_doubt,
    ray_lost,
    ray_open,
    reported,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal

STOPPED = ray_doubt("its dashboard (pid 7) is stopped")
BESIDE = ray_doubt("its dashboard (pid 7) is stopped", beside_job=True)
GOES_ON = ray_doubt()
AGAIN = "Ray was lost on the head: its dashboard (pid 7) is stopped for 30 s; starting it again: "

CASES: dict[str, tuple[HeadGoal, History, HeadPhase, list[str]]] = {
    "borne for half a minute": (
        goal(1),
        [(3, nodes()), (5, STOPPED), (34, TICK)],
        HeadPhase.BOOTING,
        [],
    ),
    "a job is not submitted to it meanwhile": (
        goal(1),
        [(3, nodes()), (5, STOPPED), (9, nodes(2)), (10, reported(2)), (34, TICK)],
        HeadPhase.BOOTING,
        [],
    ),
    "it goes on, and the job is submitted": (
        goal(),
        [(2, STOPPED), (3, nodes()), (20, GOES_ON)],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "started again before the job": (
        goal(1),
        [(3, nodes()), (5, STOPPED), (35, TICK), (40, nodes(2)), (41, reported(2))],
        HeadPhase.SUBMITTING,
        ["RayStarted", "SubmitJob"],
    ),
    "a Ray that is not up yet is started again": (
        goal(),
        [(1, ray_open()), (2, STOPPED), (32, TICK), (40, nodes())],
        HeadPhase.SUBMITTING,
        ["RayStarted", "SubmitJob"],
    ),
    "under the submission it is waited for": (
        goal(retries=1),
        [(3, nodes()), (5, STOPPED), (100, TICK), (101, GOES_ON), (102, SUBMITTED)],
        HeadPhase.RUNNING,
        ["SubmitJob"],
    ),
    "a submission that Ray has taken, though it did not say so": (
        goal(),
        [(3, nodes()), (5, BESIDE), (60, TICK)],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "under a job it is left alone": (
        goal(),
        [*RUNNING, (9, STOPPED), (100, TICK)],
        HeadPhase.RUNNING,
        ["SubmitJob"],
    ),
    "started again where Ray only serves": (
        SERVING,
        [(3, nodes(2)), (9, STOPPED), (39, TICK)],
        HeadPhase.BOOTING,
        ["RayStarted"],
    ),
    "left alone where a job runs that another has submitted": (
        SERVING,
        [(3, nodes(2)), (9, BESIDE), (100, TICK)],
        HeadPhase.RUNNING,
        [],
    ),
    "time counts from that job's end": (
        SERVING,
        [(3, nodes(2)), (9, BESIDE), (100, STOPPED), (129, TICK)],
        HeadPhase.RUNNING,
        [],
    ),
    "half a minute after that job's end": (
        SERVING,
        [(3, nodes(2)), (9, BESIDE), (100, STOPPED), (130, TICK)],
        HeadPhase.BOOTING,
        ["RayStarted"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_follows(case: str) -> None:
    """Ray is restarted only if a job is to be submitted, or none runs."""
    of, history, phase, actions = CASES[case]
    trace = Trace(of, history)
    assert (trace.state.phase, list(trace.kinds())) == (phase, actions)


def test_the_half_minute_is_a_deadline() -> None:
    """The head checks at the deadline itself, before and after the job's nodes are present."""
    for of in (goal(1), SERVING):
        trace = Trace(of, [(3, nodes()), (5, STOPPED)])
        assert head.deadline(trace.state) == 35


def test_it_is_logged_once_with_its_consequence() -> None:
    """The effect, the reason; and the recovery."""
    trace = Trace(goal(1), [(3, nodes()), (5, STOPPED), (9, GOES_ON)])
    hangs = "Ray hangs, its dashboard (pid 7) is stopped"
    assert trace.log.splitlines()[-2:] == [
        f"{hangs}: Ray is started again unless it continues within 30 s",
        "Ray runs again: none of its processes is stopped",
    ]
    trace = Trace(goal(), [*RUNNING, (9, STOPPED)])
    assert trace.log.endswith(f"{hangs}: left alone, since a job runs that does not need it")


def test_it_is_bounded_as_other_restarts_are() -> None:
    """Twice; the third time the run ends, with the cause."""
    trace = Trace(goal(1), [(3, nodes())])
    for number in (1, 2):
        trace.take(STOPPED, trace.now + 1)
        trace.take(TICK, trace.now + 30)
        assert trace.log.endswith(f"{AGAIN}{number} of 2")
        trace.take(nodes(), trace.now + 5)
    trace.take(STOPPED, trace.now + 1)
    trace.take(TICK, trace.now + 30)
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (69, "ray")
    assert "its dashboard (pid 7) is stopped for 30 s" in end.reason


def test_where_ray_is_lost_late_all_have_their_time_anew() -> None:
    """Workers may be awaited longer than the head's Ray was, and must join again."""
    trace = Trace(goal(1), [(3, nodes()), (150, ray_lost("its raylet is gone"))])
    assert list(trace.kinds()) == ["RayStarted"]
    assert [wait.deadline for wait in head.pending_waits(trace.state)] == [
        250,
        350,
    ]  # Ray's, the workers'
    trace.take(nodes(2), 160)
    trace.take(reported(2), 161)
    assert trace.state.phase is HeadPhase.SUBMITTING


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


def test_a_lost_ray_does_not_run_again() -> None:
    """What was stopped of it is gone with it."""
    trace = Trace(goal(1, retries=1), [*PAIR, (9, STOPPED), (10, ray_lost("exit 1"))])
    assert "Ray runs again" not in trace.log


def test_ray_that_is_slow_to_start_is_not_started_again_once_its_time_is_over() -> None:
    """At the moment itself, too."""
    trace = Trace(goal(1), [(100, ray_lost("exit 1"))])
    assert [end.culprit for end in trace.outcomes] == ["ray"]


def test_the_next_attempt_starts_without_it() -> None:
    """It has a new Ray."""
    history = [*PAIR, (9, STOPPED), (10, ray_lost("its raylet is gone"))]
    trace = Trace(goal(1, retries=1), history)
    assert trace.state.ray.doubt == ""
    assert trace.state.durable.ended[0].id == "run-1"


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
