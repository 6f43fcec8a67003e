"""Uploads of a job's folder: logged by their size, and given time by it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.base import times
from agent.boot.plan_input import plan_from_environment
from agent.bridge import link
from agent.bridge.link import RayLink
from agent.decisions.head.state import Submitted
from agent.plan import waits as planned

if TYPE_CHECKING:
    from pathlib import Path

BRIDGE = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"event": "submitted", "id": json.loads(line)["id"]}), flush=True)
"""


def test_an_upload_is_logged_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line has its size, one how long it took; a job without an upload has neither."""
    lines: list[str] = []
    monkeypatch.setattr(link, "say", lambda line, _level="info": lines.append(line))
    submitted: list[object] = []

    async def submit() -> None:
        both = anyio.Event()

        def take(event: object) -> None:
            submitted.append(event)
            if len(submitted) == 2:
                both.set()

        ray = RayLink([sys.executable, "-c", BRIDGE], {}, lambda: tmp_path / "bridge.log", take)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ray.run)
            await ray.submit("run-1", "true", {}, upload="/code to Ray: 123 files, 60 MiB")
            await ray.submit("run-2", "true", {})
            with anyio.fail_after(20):
                await both.wait()
            tasks.cancel_scope.cancel()

    anyio.run(submit)
    assert submitted == [Submitted("run-1"), Submitted("run-2")]
    assert lines[0] == "uploading /code to Ray: 123 files, 60 MiB"
    assert lines[1].startswith("uploaded /code to Ray: 123 files, 60 MiB, in ")
    assert len(lines) == 2


def test_a_large_upload_has_more_time(tmp_path: Path) -> None:
    """The limit of the submission grows with the size of the working_dir."""
    (tmp_path / "weights.bin").write_bytes(b"x" * (4 << 20))
    plan = plan_from_environment({"AGENT_WORKING_DIR": str(tmp_path)}, ["true"])
    (wait,) = [wait for wait in plan.waits if wait.key == planned.SUBMIT]
    assert wait.seconds == pytest.approx(times.SUBMISSION + 8.0, abs=0.1)
