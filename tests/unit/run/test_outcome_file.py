"""outcome.json: the fields that the contract fixes, and its readers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from agent.base.ends import Kind, Outcome
from agent.decisions.shared import Shortage
from agent.record import node_record, run_folder
from agent.record.background import DiskAlarm
from agent.record.files import NoRecord
from agent.record.node_record import folder_of
from agent.record.run_folder import (
    OutageRecord,
    RunFacts,
    RunFolder,
    ShortageRecord,
    outcome_text,
    read_outcome,
    write_outcome,
)
from agent.record.run_record import AttemptOutcome

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_outcome_has_the_contracts_fields(tmp_path: Path) -> None:
    """outcome.json has the fields that the contract names, and no half-written twin beside it."""
    outcome = Outcome(Kind.LOST, 75, "Ray was lost", "running", "ray", "Run again")
    contract: dict[str, object] = {
        "kind": "lost",
        "exit_code": 75,
        "phase": "running",
        "culprit": "ray",
        "reason": "Ray was lost",
        "remedy": "Run again",
        "attempts": [],
        "outages": [],
    }
    assert write_outcome(tmp_path, outcome_text(outcome)) is None
    data = json.loads((tmp_path / "outcome.json").read_text())
    assert {field: data.get(field) for field in contract} == contract
    attempt = AttemptOutcome(1, "2025-01-01T00:00:00Z", "2025-01-01T01:00:00Z", "lost", 75, "out")
    outage = OutageRecord("reward server", "pod0", "2025-01-01T00:00:00Z")
    write_outcome(tmp_path, outcome_text(outcome, RunFacts([attempt], [outage])))
    data = json.loads((tmp_path / "outcome.json").read_text())
    assert data["attempts"] == [
        {
            "number": 1,
            "start": "2025-01-01T00:00:00Z",
            "end": "2025-01-01T01:00:00Z",
            "reason": "lost",
            "exit_code": 75,
            "plain": "out",
        }
    ]
    assert data["outages"] == [
        {"service": "reward server", "node": "pod0", "from": "2025-01-01T00:00:00Z", "to": None}
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["outcome.json"]


def test_an_outcome_that_cannot_be_written_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing folder changes no outcome: it is a warning."""
    said: list[str] = []
    word = DiskAlarm(lambda sentence, _level: said.append(sentence))
    monkeypatch.setattr(run_folder, "disk_alarm", word)
    error = write_outcome(tmp_path / "gone", outcome_text(Outcome(Kind.DONE, 0, "done")))
    assert isinstance(error, FileNotFoundError)
    (line,) = said
    assert line.startswith("outcome.json cannot be written: No such file or directory. ")


def test_a_verdict_is_found_by_the_agent_after_a_killed_one(tmp_path: Path) -> None:
    """An agent killed while it held the pod left a verdict; one killed under the job did not."""
    folder = RunFolder(tmp_path, "20261124-1", "pod0")
    folder.own.write(folder.path / node_record.NODE_FILE)
    found = folder_of(tmp_path, "pod0", (os.getpid(),))
    assert found == folder.path
    assert read_outcome(found) == NoRecord("there is none", is_missing=True)
    outcome = Outcome(Kind.JOB_FAILED, 5, "the job failed", is_jobs_verdict=True)
    write_outcome(folder.path, outcome_text(outcome))
    assert read_outcome(found) == outcome
    assert folder_of(tmp_path, "pod1", (os.getpid(),)) is None
    assert folder_of(tmp_path, "pod0", ()) is None
    (folder.path / "outcome.json").write_text("[]")
    broken = read_outcome(folder.path)
    assert isinstance(broken, NoRecord)
    assert not broken.is_missing
    folder.close()


def test_the_outcome_has_the_shortages_of_groups() -> None:
    """When too few members served, how long, how long none did, and why."""
    why = "0 of 4 serve, 2 needed"
    short = Shortage("rollout", "engine", 60.0, 240.0, nothing_seconds=90.0, why=why)
    record = ShortageRecord.of(short, 500.0, lambda at: f"T{at:g}")
    text = outcome_text(Outcome(Kind.DONE, 0, "done"), RunFacts(shortages=[record]))
    assert json.loads(text)["shortages"] == [
        {
            "group": "rollout",
            "service": "engine",
            "from": "T60",
            "to": "T240",
            "seconds": 180.0,
            "seconds_without_any": 90.0,
            "why": why,
        }
    ]
