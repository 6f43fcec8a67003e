"""Runs for the page: made by the head's decisions and rendered by its status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from agent.decisions.receipt import Receipt
from agent.job.services import Latency
from agent.node.figures import DiskFigures, Figures, GpuFigures
from agent.record.files import iso_time
from agent.record.job_lines import JobLines

if TYPE_CHECKING:
    from collections.abc import Iterator

EVIL = "<img src=x onerror=alert(1)><b>bold</b>"
"""Markup in fields that other programs fill: the page must show it as text."""
STEPS = 40
START = 1_795_331_520.0  # seconds since 1970 at the run's start
SPENT = Receipt(boot=40.0, wait=30.0, first_step=60.0, training=150.0, redone=32.0)
ANSWERS = Latency().with_answer(0.3).with_answer(0.031)


def status(nodes: int, *, step: int = 25) -> dict[str, Any]:
    """Return the status of a training run with this many workers, one of them slow to join."""
    now = 72.0
    lines = JobLines(str, lambda: now)
    lines.begin_attempt(2)
    for number in range(1, step + 1):
        now += 7.5
        reward = 0.1 + 0.85 * (1 - 0.9**number)
        lines.write(b"step %d/%d mean reward %.2f\n" % (number, STEPS, reward), lambda _pause: True)
    return {
        "run_id": "run-20261122-0712",
        "run_name": "first sums",
        "nodes_expected": nodes + 1,
        "nodes_joined": nodes + 1,
        "more_refused": 0,
        "attempts_allowed": 3,
        "loss_seconds_left": None,
        "stall": None,
        "advice": [],
        "checkpoint": {"step": 20, "at": "2026-11-22T07:05:00Z"},
        "caches": {"state": "seeded", "detail": "from /workspace/compile-caches/h100.tar.gz"},
        "price": 12.0,
        "price_source": "AGENT_PRICE_PER_HOUR",
        "cost": 12.5,
        "max_cost": None,
        "receipt": SPENT.to_dict(12.0),
        "epoch": 1,
        "role": "head",
        "platform": "runpod",
        "name": "pod0",
        "phase": "running",
        "at": iso_time(START + 312.0 + step),
        "seconds": 312.0 + step,
        "seconds_in_phase": 240.0 + step,
        "phases": [["booting", 0.0], ["submitting", 70.0], ["running", 72.0]],
        "waits": [],
        "ray": {"state": "ready", "detail": ""},
        "nodes": [*_workers(nodes)],
        "services": [
            _service("reward server", "ready", restarts=1, outages=1, seconds=7.5),
            _service("retriever on rank 2 (pod2)", "pending", detail=f"refused {EVIL}"),
        ],
        "prepare": [{"name": "gsm8k", "state": "ready", "detail": ""}],
        "outages": [],
        "job": {"name": "rehearsal", "status": "running", "attempt": 2},
        "attempts": [
            {
                "number": 1,
                "start": "2026-11-22T07:00:00Z",
                "end": "2026-11-22T07:03:00Z",
                "reason": "lost a needed node (pod3)",
                "exit_code": 75,
            },
            {
                "number": 2,
                "start": "2026-11-22T07:03:10Z",
                "end": None,
                "reason": "",
                "exit_code": None,
            },
        ],
        "figures": None,
        "gpu_history": {"seconds": [], "use": [], "lowest": [], "memory": []},
        "slow": "",
        "progress": lines.to_status(lambda at: iso_time(START + at), is_running=True),
        "curves": {**lines.curves(), "checkpoints": []},
        "metrics": lines.newest(),
        "prepare_lines": {"head": {}, "pod2": {"fetch": "Fetching 5 files:  40%"}},
        "job_tail": [*lines.tail()[-5:], EVIL],
        "warnings": [
            {
                "check": "NCCL_SOCKET_IFNAME",
                "what": f"eth0 on pod2, podnet1 on the {nodes} others",
                "remedy": "Set the same on all nodes",
            }
        ],
        "verdict": None,
    }


def _service(  # noqa: PLR0913 - a row of a table
    name: str,
    state: str,
    *,
    restarts: int = 0,
    outages: int = 0,
    seconds: float = 0.0,
    detail: str = "",
) -> dict[str, object]:
    return {
        "name": name,
        "state": state,
        "gpus": 0,
        "detail": detail,
        "restarts": restarts,
        "outages": outages,
        "outage_seconds": seconds,
        "outage_since": None,
        "latency": asdict(ANSWERS) if state == "ready" else None,
        "judge": None,
    }


def _figures(number: int) -> dict[str, object]:
    """Return a machine's figures; the GPUs of the second one are hot and slow."""
    gpu = GpuFigures(0, 97, 70_000, 81_559, 650, 700, 61 + number % 5, 1_395)
    if number == 2:
        gpu = replace(gpu, power=260, clock=690, throttled=("temperature",))
    gpus = tuple(replace(gpu, index=index) for index in range(8))
    disks = (DiskFigures("/workspace", 900 << 30, 2_000 << 30),)
    return Figures(300.0, gpus, "", 812 << 30, 2_000 << 30, disks, 2.1e9, 2.2e9).to_status()


def _workers(count: int) -> Iterator[dict[str, object]]:
    slow = 2 if count < 10 else count * 2 // 3
    for number in range(1, count + 1):
        joined = 68.0 if number == slow else 18.0 + number * 7 % 11
        is_lost = count > 10 and number == count
        phases: list[list[object]] = [
            ["finding the head", 1.0],
            ["joining Ray", 6.0 + number * 5 % 7],
            ["following the head", joined],
        ]
        yield {
            "name": f"pod{number}",
            "ip": f"10.0.{number // 250}.{number % 250 + 1}",
            "rank": number,
            "state": "lost" if is_lost else "joined",
            "phase": "following the head",
            "detail": EVIL if number == 1 else "",
            "last_error": "its Ray is gone" if is_lost else "",
            "heard_seconds_ago": 1.5,
            "joined": not is_lost,
            "phases": [*phases, ["silent", 200.0]] if is_lost else phases,
            "steps": [{"name": "fetch", "state": "pending" if number == slow else "ready"}],
            "figures": _figures(number),
            "slow": "GPU power 260 W, median of all nodes 650 W, for 5 min"
            if number == 2 and count > 10
            else "",
            "caches": "cold" if number == 2 else "seeded",
        }
