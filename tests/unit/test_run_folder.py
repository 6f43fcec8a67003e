"""The run folder: one for each run and node, with `latest` beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.base.errors import PreflightError
from agent.record.run_folder import RunFolder
from agent.settings.redact import MASK, Redactor
from unit.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path

REDACTOR = Redactor([SECRET])


def test_a_heads_folder(tmp_path: Path) -> None:
    """Logs go into <log dir>/<run id>/<node>/, and `latest` leads to the run."""
    folder = RunFolder(tmp_path / "logs", "run-1", "pod0", REDACTOR)
    assert folder.path == tmp_path / "logs" / "run-1" / "pod0"
    folder.file("agent.log").write_text("x")
    assert (tmp_path / "logs" / "latest" / "pod0" / "agent.log").read_text() == "x"


def test_latest_follows_the_last_run(tmp_path: Path) -> None:
    """A new run takes `latest` over, and leaves nothing else in the log dir."""
    for run in ("run-1", "run-2"):
        RunFolder(tmp_path, run, "pod0", REDACTOR)
    assert (tmp_path / "latest").resolve() == tmp_path / "run-2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "run-1", "run-2"]


def test_a_second_attempt_has_its_own_folder(tmp_path: Path) -> None:
    """The same node in the same run, once more: nothing of the first attempt is overwritten."""
    paths = [RunFolder(tmp_path, "run-1", "pod0", REDACTOR).path.name for _ in range(3)]
    assert paths == ["pod0", "pod0-2", "pod0-3"]


def test_a_workers_folder_moves_when_it_hears_the_run(tmp_path: Path) -> None:
    """What was written while waiting moves along, open files too."""
    folder = RunFolder.waiting(tmp_path, "pod1", REDACTOR)
    waiting = folder.path.parent
    assert waiting.name.startswith("no-head-")
    with folder.file("agent.log").open("w") as log:
        log.write("before\n")
        folder.belongs_to("run-1")
        log.write("after\n")
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert (tmp_path / "latest").resolve() == tmp_path / "run-1"
    assert not waiting.exists()


def test_a_worker_that_hears_its_run_again_stays(tmp_path: Path) -> None:
    """Every reply names the run; only another run moves the folder."""
    folder = RunFolder.waiting(tmp_path, "pod1", REDACTOR)
    for _ in range(2):
        folder.belongs_to("run-1")
    assert folder.path == tmp_path / "run-1" / "pod1"
    folder.belongs_to("run-2")
    assert folder.path == tmp_path / "run-2" / "pod1"


def test_nodes_on_a_shared_disk_do_not_mix(tmp_path: Path) -> None:
    """Head and workers of one run, and a worker's second attempt, each have their own folder."""
    head = RunFolder(tmp_path, "run-1", "pod0", REDACTOR)
    workers = [RunFolder.waiting(tmp_path, name, REDACTOR) for name in ("pod1", "pod1", "pod2")]
    for worker in workers:
        worker.belongs_to("run-1")
    names = [folder.path.name for folder in (head, *workers)]
    assert names == ["pod0", "pod1", "pod1-2", "pod2"]


@pytest.mark.parametrize(
    ("run", "node"), [("../../etc", ".."), ("a/b", "c/d"), ("", ""), ("run 1", "pod:0")]
)
def test_no_name_leads_out_of_the_log_dir(tmp_path: Path, run: str, node: str) -> None:
    """Names come from platforms and from the head: none may leave the log dir."""
    root = tmp_path / "logs"
    folder = RunFolder(root, run, node, REDACTOR)
    assert folder.path.resolve().parent.parent == root
    folder.belongs_to(f"{run}-other")
    assert folder.path.resolve().parent.parent == root


def test_an_unwritable_root_is_a_preflight_error(tmp_path: Path) -> None:
    """A log dir that cannot be made ends with 78 and names the variable."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError) as caught:
        RunFolder(tmp_path / "file" / "logs", "run-1", "pod0", REDACTOR)
    assert caught.value.culprit == "AGENT_LOG_DIR"
    assert "cannot be written: Not a directory" in caught.value.sentence()


def test_events_are_lines_of_json_without_secrets(tmp_path: Path) -> None:
    """Each event is one line; a secret in it is masked."""
    folder = RunFolder(tmp_path, "run-1", "pod0", REDACTOR)
    folder.record({"event": "a", "text": f"key {SECRET}"})
    folder.record({"event": "b", "path": tmp_path})
    first, second = map(json.loads, folder.file("events.jsonl").read_text().splitlines())
    assert first == {"event": "a", "text": f"key {MASK}"}
    assert second == {"event": "b", "path": str(tmp_path)}
