"""Each word of a bridge about Ray is of the Ray for which that bridge was started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio

from agent.bridge.link import RayLink
from agent.decisions.head import head_state as h
from agent.processes.waiting import NotYet, until

if TYPE_CHECKING:
    from pathlib import Path

BRIDGE = """
import json, time
print(json.dumps({"event": "nodes", "nodes": []}), flush=True)
print(json.dumps({"event": "silent", "evidence": "no answer"}), flush=True)
time.sleep(1000)
"""


def test_a_bridge_that_ends_is_reported_apart_from_what_it_printed_last(tmp_path: Path) -> None:
    """Its output is text of a log."""
    events: list[h.HeadEvent] = []

    async def is_received() -> bool | NotYet:
        return True if events else NotYet()

    async def scenario() -> None:
        argv = [sys.executable, "-c", "raise SystemExit('no such Ray')"]
        link = RayLink(argv, {}, lambda: tmp_path / "bridge.log", events.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await until(is_received, 20.0)
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    ended = "the ray bridge ended, exit code 1"
    assert events == [h.RaySeen(evidence=ended, output="no such Ray", generation=1)]


def test_what_it_saw_of_a_former_ray_does_not_apply_to_the_next(tmp_path: Path) -> None:
    """What is queued of a bridge that was restarted for another Ray is of the one before."""
    events: list[h.HeadEvent] = []

    async def received(number: int) -> None:
        async def look() -> bool | NotYet:
            return True if len(events) >= number else NotYet()

        await until(look, 20.0)

    async def scenario() -> None:
        argv = [sys.executable, "-c", BRIDGE]
        link = RayLink(argv, {}, lambda: tmp_path / "bridge.log", events.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await received(2)
            await link.restart_bridge(3)
            await received(4)
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    assert events == [
        h.RaySeen(generation=1),
        h.RaySeen(evidence="no answer", generation=1),
        h.RaySeen(generation=3),
        h.RaySeen(evidence="no answer", generation=3),
    ]
