"""The run's clock stands still while the agent is stopped, so that it reads first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base import times
from agent.decisions import worker
from agent.decisions.shared import Woke
from agent.decisions.worker import worker_state as w
from agent.processes.run_clock import CLOCK_LATE, WAKE_READS, RunClock
from support import workers
from support.heads import PAIR, TICK, Trace, goal

if TYPE_CHECKING:
    from pathlib import Path


class Machine:
    """A machine's monotonic clock."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def read(self) -> float:
        """Return the time."""
        return self.seconds


def test_it_stands_still_for_a_stop_and_a_moment_after() -> None:
    """Then it goes on from where it was; the missed time is returned once."""
    machine = Machine()
    clock = RunClock(1000.0, machine.read)
    assert clock.beat() == 0.0
    machine.seconds += times.CLOCK_BEAT + CLOCK_LATE
    assert (clock.now(), clock.beat()) == (4.0, 0.0)
    machine.seconds += 100.0
    assert clock.now() == 4.0 + times.CLOCK_BEAT
    machine.seconds += CLOCK_LATE
    assert clock.now() == 4.0 + times.CLOCK_BEAT
    assert clock.beat() == 100.0 - times.CLOCK_BEAT + WAKE_READS
    machine.seconds += 3.0
    assert clock.now() == 4.0 + times.CLOCK_BEAT + CLOCK_LATE + 3.0 - WAKE_READS
    assert clock.beat() == 0.0


def test_without_beats_it_is_the_machines_clock() -> None:
    """Nothing shows then whether the agent runs."""
    machine = Machine()
    clock = RunClock(1000.0, machine.read)
    machine.seconds += 500.0
    assert clock.now() == 500.0
    clock.beat()
    clock.end()
    machine.seconds += 500.0
    assert clock.now() == 1000.0


@given(st.lists(st.tuples(st.floats(0.1, 200.0), st.booleans()), max_size=30))
def test_it_never_goes_back(steps: list[tuple[float, bool]]) -> None:
    """Whatever is stopped, and whenever it is read; what it misses is what it lags."""
    machine = Machine()
    clock, last, missed = RunClock(1000.0, machine.read), 0.0, 0.0
    for seconds, beats in [(0.1, True), *steps]:
        machine.seconds += seconds
        missed += clock.beat() if beats else 0.0
        now = clock.now()
        assert now >= last - 1e-6
        last = now
    for _ in range(10):  # past the moment in which it stands still
        machine.seconds += times.CLOCK_BEAT
        missed += clock.beat()
    assert machine.seconds - 1000.0 - clock.now() == pytest.approx(missed, abs=1e-6)


PROGRAM = """
import sys, time
from pathlib import Path
import anyio
from support.node_runs import stopped_wait
anyio.run(stopped_wait, Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_stopped_agent_reads_first(tmp_path: Path) -> None:
    """A process that is stopped beyond a deadline gets the input that waits, not the deadline."""
    argv, here = [sys.executable, "-c", PROGRAM, str(tmp_path)], "tests"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(argv, env=env, **pipes) as agent:  # type: ignore[call-overload]  # a dict
        assert agent.stdout.readline() == "waiting\n"
        agent.send_signal(signal.SIGSTOP)
        agent.stdin.write("a line\n")
        agent.stdin.flush()

        time.sleep(6.0)  # the stop itself
        agent.send_signal(signal.SIGCONT)
        assert agent.stdout.readline() == "input\n"


def test_the_hours_of_a_stop_are_used() -> None:
    """AGENT_MAX_HOURS and the cost count what a pod bills."""
    trace = Trace(replace(goal(1, job=False), max_hours=1.0), [*PAIR[:2], (1000.0, Woke(1800.0))])
    trace.take(TICK, 1799.0)
    assert trace.outcomes == []
    trace.take(TICK, 1800.0)
    assert [end.culprit for end in trace.outcomes] == ["AGENT_MAX_HOURS"]


def test_the_fence_counts_a_stop() -> None:
    """A worker that wakes out of reach stops all soon: the head's clock did not stand still."""
    joined: workers.History = [
        (2.0, workers.replied()),
        (8.0, workers.RAY_UP),
        (30.0, workers.replied()),
    ]
    trace = workers.WorkerTrace(workers.goal(), [*joined, (31.0, Woke(100.0))])
    assert worker.deadline(trace.state) == 30.0 + 60.0  # it was in reach
    silent = w.HeadSilent("no answer")
    trace.take(silent, 32.0)
    assert worker.deadline(trace.state) == 32.0 + times.FENCE_LEAST
    trace = workers.WorkerTrace(workers.goal(), [*joined, (31.0, silent), (50.0, Woke(100.0))])
    assert worker.deadline(trace.state) == 50.0 + times.FENCE_LEAST
