"""Runs for the page: made by the head's decisions and rendered by its status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from agent.base.text import iso_time
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.receipt import Receipt
from agent.job.services import Latency
from agent.node.figures import DiskFigures, Figures, GpuFigures
from agent.port.status_model import (
    CheckpointStatus,
    GpuHistoryStatus,
    HeadStatus,
    ItemStatus,
    JobStatus,
    MachineStatus,
    NodeStatus,
    PartStatus,
    ProgressStatus,
    ServiceStatus,
    StepStatus,
    WarningStatus,
)
from agent.record.job_lines import JobLines
from agent.record.run_record import AttemptOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

EVIL = "<img src=x onerror=alert(1)><b>bold</b>"
"""Markup in fields that other programs fill: the page must show it as text."""
MACHINE: dict[str, Any] = {
    "host_memory_used": 812 << 30,
    "host_memory_total": 2_000 << 30,
    "network_received": 2.1e9,
    "network_sent": 2.2e9,
}
"""The values of a machine."""
STEPS = 40
START = 1_795_331_520.0  # seconds since 1970 at the run's start
SPENT = Receipt(boot=40.0, wait=30.0, first_step=60.0, training=150.0, redone=32.0)
ANSWERS = Latency().with_answer(0.3).with_answer(0.031)


def status(nodes: int, *, step: int = 25) -> HeadStatus:
    """Return the status of a training run with this many workers, one of them slow to join."""
    now = 72.0
    lines = JobLines(str, lambda: now)
    lines.begin_attempt(2)
    for number in range(1, step + 1):
        now += 7.5
        reward = 0.1 + 0.85 * (1 - 0.9**number)
        lines.write(b"step %d/%d mean reward %.2f\n" % (number, STEPS, reward), lambda _pause: True)
    ifname = f"eth0 on pod2, podnet1 on the {nodes} others"
    lost = "lost a needed node (pod3)"
    return HeadStatus(
        run_id="run-20261122-0712",
        run_name="first sums",
        nodes_expected=nodes + 1,
        nodes_joined=nodes + 1,
        more_refused=0,
        attempts_allowed=3,
        loss_seconds_left=None,
        stall=None,
        advice=(),
        checkpoint=CheckpointStatus(20, "2026-11-22T07:05:00Z"),
        caches=PartStatus("seeded", "from /workspace/compile-caches/h100.tar.gz"),
        price=12.0,
        price_source="AGENT_PRICE_PER_HOUR",
        cost=12.5,
        max_cost=None,
        receipt=SPENT.to_status(12.0),
        epoch=1,
        platform="runpod",
        name="pod0",
        phase=HeadPhase.RUNNING,
        at=iso_time(START + 312.0 + step),
        seconds=312.0 + step,
        seconds_in_phase=240.0 + step,
        phases=(("booting", 0.0), ("submitting", 70.0), ("running", 72.0)),
        waits=(),
        ray=PartStatus("ready", ""),
        nodes=tuple(_workers(nodes)),
        services=(
            service("reward server", "ready", restarts=1, outages=1, seconds=7.5),
            service("retriever on rank 2 (pod2)", "pending", detail=f"refused {EVIL}"),
        ),
        prepare=(ItemStatus("gsm8k", "ready", ""),),
        outages=(),
        job=JobStatus("rehearsal", "running", 2),
        attempts=(
            AttemptOutcome(1, "2026-11-22T07:00:00Z", "2026-11-22T07:03:00Z", lost, 75),
            AttemptOutcome(2, "2026-11-22T07:03:10Z", None, "", None),
        ),
        figures=None,
        gpu_history=GpuHistoryStatus([], [], [], []),
        slow="",
        progress=ProgressStatus.of_job(lines, lambda at: iso_time(START + at), is_running=True),
        curves=lines.curves(),
        metrics=lines.newest(),
        prepare_lines={"head": {}, "pod2": {"fetch": "Fetching 5 files:  40%"}},
        job_tail=(*lines.tail()[-5:], EVIL),
        warnings=(WarningStatus("NCCL_SOCKET_IFNAME", ifname, "Set the same on all nodes"),),
        verdict=None,
    )


def without_private(status: HeadStatus) -> HeadStatus:
    """Return a status as readers without the token have it."""
    unset = dict.fromkeys(("warnings", "metrics", "job_tail", "prepare_lines", "what_runs"), UNSET)
    return replace(status, **unset)


def service(  # noqa: PLR0913 - a row of a table
    name: str,
    state: str,
    *,
    restarts: int = 0,
    outages: int = 0,
    seconds: float = 0.0,
    detail: str = "",
    latency: Latency = ANSWERS,
) -> ServiceStatus:
    """Return a service; one that is ready has answered."""
    return ServiceStatus(
        name=name,
        state=state,
        gpus=0,
        detail=detail,
        restarts=restarts,
        outages=outages,
        outage_seconds=seconds,
        outage_since=None,
        latency=latency if state == "ready" else None,
        judge=None,
    )


def _figures(number: int) -> MachineStatus:
    """Return a machine's figures; the GPUs of the second one are hot and slow."""
    gpu = GpuFigures(0, 97, 70_000, 81_559, 650, 700, 61 + number % 5, 1_395)
    if number == 2:
        gpu = replace(gpu, power=260, clock=690, throttled=("temperature",))
    gpus = tuple(replace(gpu, index=index) for index in range(8))
    disks = (DiskFigures("/workspace", 900 << 30, 2_000 << 30),)
    return MachineStatus.of(Figures(300.0, gpus, disks, **MACHINE))


def _workers(count: int) -> Iterator[NodeStatus]:
    slow = 2 if count < 10 else count * 2 // 3
    for number in range(1, count + 1):
        joined = 68.0 if number == slow else 18.0 + number * 7 % 11
        is_lost = count > 10 and number == count
        is_slow = number == 2 and count > 10
        phases = (
            ("finding the head", 1.0),
            ("joining Ray", 6.0 + number * 5 % 7),
            ("following the head", joined),
        )
        yield NodeStatus(
            name=f"pod{number}",
            ip=f"10.0.{number // 250}.{number % 250 + 1}",
            rank=number,
            state=NodeState.LOST if is_lost else NodeState.JOINED,
            phase="following the head",
            detail=EVIL if number == 1 else "",
            last_error="its Ray is gone" if is_lost else "",
            heard_seconds_ago=1.5,
            joined=not is_lost,
            phases=(*phases, ("silent", 200.0)) if is_lost else phases,
            steps=(StepStatus("fetch", "pending" if number == slow else "ready"),),
            figures=_figures(number),
            slow="GPU power 260 W, median of all nodes 650 W, for 5 min" if is_slow else "",
            slow_by="power" if is_slow else "",
            caches="cold" if number == 2 else "seeded",
        )
