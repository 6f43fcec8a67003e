"""Uploads of a job's folder: logged by their size, and given time by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.plan import waits as wait_keys
from agent.run.plan_input import plan_from_environment

if TYPE_CHECKING:
    from pathlib import Path


def test_a_large_upload_has_more_time(tmp_path: Path) -> None:
    """The limit of the submission grows with the size of the working_dir."""
    (tmp_path / "weights.bin").write_bytes(b"x" * (4 << 20))
    plan = plan_from_environment({"AGENT_WORKING_DIR": str(tmp_path)}, ["true"])
    (wait,) = [wait for wait in plan.waits if wait.key == wait_keys.SUBMIT]
    assert wait.seconds == pytest.approx(wait_keys.SUBMISSION + 8.0, abs=0.1)
