"""Which checkpoints of the run appear in its folder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from agent.base import ends
from agent.port.status_model import CheckpointStatus
from agent.run.checkpoint_watch import CheckpointWatch, checkpoint_line
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path


class Folder:
    """A run whose job saves into a folder, and its clock."""

    def __init__(self, path: Path, framework: str = "") -> None:
        self.path = path
        self.now = 10.0
        job = SimpleNamespace(checkpoints=str(path), framework=framework)
        plan = SimpleNamespace(job=job)
        run: Any = SimpleNamespace(plan=plan, now=lambda: self.now, utc=lambda at: f"at {at:g}")
        self.watch = CheckpointWatch(run)

    def look(self) -> None:
        """Look ten seconds later."""
        self.now += 10
        anyio.run(self.watch.look)


def test_each_new_checkpoint_is_marked_once(tmp_path: Path) -> None:
    """One that was there before the run has no time."""
    folder = Folder(tmp_path)
    (tmp_path / "global_step_20").mkdir()
    folder.look()
    assert folder.watch.to_status() == CheckpointStatus(20, None)
    folder.look()
    (tmp_path / "global_step_40").mkdir()
    folder.look()
    folder.look()
    assert folder.watch.to_status() == CheckpointStatus(40, "at 40")
    assert folder.watch.to_series() == ((20, None), (40, "at 40"))


def test_the_first_checkpoint_of_a_run_has_its_time(tmp_path: Path) -> None:
    """An empty folder at the first look, or none."""
    folder = Folder(tmp_path / "absent")
    folder.look()
    assert folder.watch.to_status() is None
    (tmp_path / "absent" / "global_step_5").mkdir(parents=True)
    folder.look()
    assert folder.watch.to_status() == CheckpointStatus(5, "at 30")


def test_what_a_framework_would_not_resume_from_is_none(tmp_path: Path) -> None:
    """Verl resumes from what its own file names: a checkpoint in the making is not listed."""
    folder = Folder(tmp_path, "verl")
    for step in (20, 40):
        (tmp_path / f"global_step_{step}").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    folder.look()
    assert folder.watch.to_status() == CheckpointStatus(20, None)


def test_a_job_without_checkpoints_is_not_looked_at() -> None:
    """A cluster without a job has none, either."""
    run: Any = SimpleNamespace(plan=SimpleNamespace(job=None))
    watch = CheckpointWatch(run)
    anyio.run(watch.look)
    assert watch.to_status() is None


DONE = ends.JOB_SUCCEEDED.outcome(before="")
STOPPED = ends.stopped(15, expected=False)


@pytest.mark.parametrize(
    ("whole", "partial", "newest"),
    [
        ("checkpoint-20", "checkpoint-40", "checkpoint-20"),  # its save was killed
        ("checkpoint-40", "", "checkpoint-40"),
        ("", "global_step_40", "global_step_40"),  # nothing marks the end of a save
    ],
)
def test_the_last_lines_name_the_newest_whole_checkpoint(
    whole: str, partial: str, newest: str, tmp_path: Path
) -> None:
    """Also of a command of one's own, however the run ended."""
    for name in filter(None, (whole, partial)):
        (tmp_path / name).mkdir()
    if whole:
        (tmp_path / whole / "trainer_state.json").write_text("{}")
    run: Any = SimpleNamespace(
        plan=plan_of({"AGENT_CHECKPOINTS": str(tmp_path)}, command=["train"])
    )
    for outcome in (DONE, STOPPED):
        line = anyio.run(checkpoint_line, run, outcome)
        assert line == f"newest checkpoint: {tmp_path}/{newest}"


@pytest.mark.parametrize(
    ("words", "variable", "line"),
    [
        (["train"], "AGENT_CHECKPOINTS", "no checkpoint in {folder}"),
        (
            ["train", "--out={checkpoints}"],
            "AGENT_LOG_DIR",
            "no checkpoint in {folder}/checkpoints",
        ),
        (["train"], "AGENT_LOG_DIR", ""),
    ],
)
def test_a_job_that_saved_nothing(
    words: list[str], variable: str, line: str, tmp_path: Path
) -> None:
    """The line is of a job that was to save there, once it has ended by itself."""
    run: Any = SimpleNamespace(plan=plan_of({variable: str(tmp_path)}, command=words))
    found = anyio.run(checkpoint_line, run, DONE)
    assert found.startswith(line.format(folder=tmp_path))
    assert bool(found) == bool(line)
    assert anyio.run(checkpoint_line, run, STOPPED) == ""
