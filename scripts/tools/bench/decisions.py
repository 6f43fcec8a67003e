"""The CPU time of the head's agent per report, in each phase, with thousands of workers."""

from __future__ import annotations

import json
import time
from statistics import mean
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.decisions.attempts import JobReport
from agent.decisions.durable import Durable
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode, Worker
from agent.decisions.head.head_goal import HeadGoal
from agent.decisions.shared import JOB, RAY, ItemReport, ItemsReported, JobItem, Step, StopAsked
from agent.job.services import ON_EVERY, Latency, ServiceSpec, TcpProbe
from agent.node.figures import DiskFigures, Figures, GpuFigures
from agent.plan import waits as wait_keys
from agent.port.protocol import Report, WorkerStats
from agent.record.events import WaitLog

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (1_000, 5_000)
LIMIT = 0.2
"""Milliseconds per report: reading it, the decision, the waits, the deadline, their log lines."""
REPORTS = 400
SERVICE = ServiceSpec(
    "retriever", "serve", ("serve",), TcpProbe(8000), 1e9, "within", where=ON_EVERY
)
GPU = GpuFigures(0, 100, 72_000, 81_559, 697, 700, 61, 1_395, ("power",), usual_power=650)
STATS = WorkerStats(
    {SERVICE.name: Latency().with_answer(0.02).with_answer(0.3)},
    figures=Figures(
        at=12_345.6,
        gpus=tuple(replace(GPU, index=index) for index in range(8)),
        host_memory_used=900 << 30,
        host_memory_total=2_000 << 30,
        disks=(DiskFigures("/workspace", 900 << 30, 1_000 << 30),),
        network_received=9e9,
        network_sent=9e9,
    ),
)
LIMITS = {
    wait_keys.HEAD: 600.0,
    wait_keys.WORKERS: 600.0,
    wait_keys.SUBMIT: 120.0,
    wait_keys.JOB: 1e9,
    wait_keys.NODE: 60.0,
}


def main() -> int:
    """Print a line for each phase and size; return 1 if one is over the limit."""
    slow = False
    print(f"{'':8}a report with the figures of eight GPUs: {len(sent(STATS)):,} bytes")
    for size in SIZES:
        for phase, state in (*states(size), *states(size, by_torchrun=True)):
            took = cost(state, size)
            slow |= took > LIMIT
            word = "MISSED" if took > LIMIT else "holds"
            print(f"{word:8}{phase:22}{size:6} workers: {took:.3f} ms a report (at most {LIMIT})")
    return int(slow)


def sent(stats: WorkerStats) -> bytes:
    """Return the body of a report of a node that follows the head."""
    ready = (service(joined=True), ray(joined=True))
    report = Report(*("agent1", "10.0.0.2", "following the head"), items=ready, stats=stats)
    return json.dumps(report.to_dict()).encode()


def worker(number: int, *, joined: bool, reported_at: float = 0.0) -> h.WorkerReported:
    """Return one worker's report; its service answers once it has joined."""
    phase = "following the head" if joined else "joining Ray"
    return h.WorkerReported(
        Worker(
            key=f"agent{number}",
            name=f"pod{number}",
            ip=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            rank=number,
            phase=phase,
            last_report_at=reported_at,
            items=(service(joined=joined), ray(joined=joined)),
        )
    )


def ray(*, joined: bool) -> ItemReport:
    """Return a worker's report about its Ray."""
    step = Step.READY if joined else Step.PENDING
    return ItemReport(RAY, step, generation=1 << 50, is_running=True)


def service(*, joined: bool, word: str = "") -> ItemReport:
    """Return a worker's report about its service."""
    return ItemReport(SERVICE.name, Step.READY if joined else Step.PENDING, word)


def states(size: int, *, by_torchrun: bool = False) -> Iterator[tuple[str, h.HeadState]]:
    """Return a head in each phase, first with half of its workers joined, then with all."""
    goal = HeadGoal(LIMITS, 1e9, expected_workers=size, min_workers=size, services=(SERVICE,))
    goal = replace(goal, shares_by="torchrun" if by_torchrun else "")
    how = ", torchrun" if by_torchrun else ""
    state = head.first_state(goal, Durable("run"))
    nodes = [RayNode("head", "10.255.0.1", is_head=True)]
    for number in range(1, size + 1):
        report = worker(number, joined=number <= size // 2)
        state, _ = head.decide(state, report, 1.0)
        nodes.append(RayNode(f"node{number}", report.worker.ip))
    for number in range(1, size + 1):  # the head orders a service on the worker's first report
        state, _ = head.decide(state, worker(number, joined=number <= size // 2), 1.5)
    state, _ = head.decide(state, ItemsReported((ItemReport(SERVICE.name, Step.READY),)), 1.6)
    if not by_torchrun:
        state, _ = head.decide(state, h.RaySeen(tuple(nodes)), 2.0)
    yield f"booting{how}", state
    for number in range(size // 2, size + 1):
        state, _ = head.decide(state, worker(number, joined=True), 3.0)
    yield f"submitting{how}", state
    job = JobItem(JOB, Step.READY, status_at=4.0)
    state, _ = head.decide(state, ItemsReported((job,)), 4.0)
    if not by_torchrun:
        running = replace(job, report=JobReport("RUNNING"), status_at=5.0)
        state, _ = head.decide(state, ItemsReported((running,)), 5.0)
    yield f"running{how}", state
    yield f"stopping{how}", head.decide(state, StopAsked(15), 6.0)[0]


def cost(state: h.HeadState, size: int) -> float:
    """Return the mean of milliseconds for a report, each from another worker, without outliers.

    Each report has a change, for example a service that is not ready.
    """
    teller = WaitLog(lambda _row: None, lambda _sentence, _level: None)
    took = []
    bodies = (sent(STATS), sent(replace(STATS, figures=None)))
    every = round(times.FIGURES_SENT / times.REPLY_HELD)
    for turn in range(REPORTS):
        number = 1 + turn * 7 % size
        now = 10.0 + turn * 0.001
        known = state.fleet.workers[f"agent{number}"]
        items = (service(joined=known.joined, word=f"word {turn}"),)
        said = replace(known, last_report_at=now, detail=f"word {turn}", items=items)
        event = h.WorkerReported(said)
        began = time.perf_counter()
        Report.from_dict(json.loads(bodies[turn % every > 0]))
        state, _ = head.decide(state, event, now)
        teller.update(head.pending_waits(state), now)
        teller.next_due(head.deadline(state), now)
        took.append((time.perf_counter() - began) * 1000)
    return mean(sorted(took)[REPORTS // 10 : -REPORTS // 10])
