"""Stopping a job: by Ray, and past a dashboard that takes nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.bridge.link import RayLink
from agent.decisions.attempts import DriverSignaled
from agent.run.head_job import SubmissionTask, stop_job

if TYPE_CHECKING:
    from pathlib import Path

BRIDGE = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    if TAKES:
        print(json.dumps({"event": "stop-taken", "id": order["id"]}), flush=True)
"""


@pytest.mark.parametrize("takes", [True, False])
def test_ray_first_then_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, takes: bool
) -> None:
    """The driver is asked only where Ray has not taken the stop in time."""
    asked: list[str] = []

    def ask_to_end(job_id: str) -> str:
        asked.append(job_id)
        return "pid 7, sleep"

    monkeypatch.setattr("agent.run.head_job.STOP_ACCEPTED", 5.0 if takes else 0.5)
    argv = [sys.executable, "-c", f"TAKES = {takes}\n{BRIDGE}"]
    events: list[object] = []

    async def scenario() -> None:
        link = RayLink(argv, {}, lambda: tmp_path / "bridge.log", events.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            with anyio.fail_after(20):
                await stop_job(
                    link,
                    "run-1",
                    send=events.append,
                    task=SubmissionTask(),
                    terminate=ask_to_end,
                )
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    assert asked == ([] if takes else ["run-1"])
    assert events == ([] if takes else [DriverSignaled("run-1")])
