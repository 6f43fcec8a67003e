"""The outcome of a run: codes, sentences, how the grace is divided, and outcome.json."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base import ends
from agent.base.ends import Kind, Outcome, name_of_code, shell_code, stopped
from agent.base.errors import PreflightError, Problem, SettingsError, UnavailableError
from agent.decisions.attempts import JobReport, verdict_of
from agent.decisions.shared import Shortage
from agent.plan.plan import stop_budget
from agent.record import node_record, outcome_file
from agent.record.background import DiskAlarm
from agent.record.files import NoRecord
from agent.record.node_record import folder_of
from agent.record.outcome_file import (
    OutageRecord,
    RunFacts,
    ShortageRecord,
    outcome_text,
    read_outcome,
    write_outcome,
)
from agent.record.run_folder import RunFolder
from agent.record.run_record import AttemptOutcome

if TYPE_CHECKING:
    from pathlib import Path


def test_the_last_line() -> None:
    """The last line says kind, reason, code and remedy."""
    outcome = Outcome(Kind.LOST, 75, "Ray was lost", remedy="Run again")
    assert outcome.sentence() == "lost: Ray was lost (exit code 75). Run again"
    assert Outcome(Kind.DONE, 0, "it worked").sentence() == "done: it worked (exit code 0)"


@pytest.mark.parametrize(
    ("code", "shell", "name"),
    [
        (0, 0, "0"),
        (7, 7, "7"),
        (-9, 137, "137 (SIGKILL)"),
        (-15, 143, "143 (SIGTERM)"),
        (143, 143, "143 (SIGTERM)"),
        (128, 128, "128"),
        (255, 255, "255"),
    ],
)
def test_codes_are_those_of_a_shell(code: int, shell: int, name: str) -> None:
    """A process killed by signal n is 128+n, with the signal's name."""
    assert shell_code(code) == shell
    assert name_of_code(shell) == name


@pytest.mark.parametrize(
    ("signum", "expected", "code", "name"),
    [
        (15, False, 143, "SIGTERM"),
        (2, False, 130, "SIGINT"),
        (1, False, 143, "SIGHUP"),
        (24, False, 143, "SIGXCPU"),
        (37, False, 143, "signal 37"),
        (15, True, 0, "SIGTERM"),
        (1, True, 0, "SIGHUP"),
        (2, True, 0, "SIGINT"),
    ],
)
def test_a_stop(signum: int, expected: bool, code: int, name: str) -> None:  # noqa: FBT001 - a table's column
    """The signal is named; the code is 143 or 130, or 0 for a run without a job."""
    outcome = stopped(signum, expected=expected)
    assert (outcome.kind, outcome.exit_code) == (Kind.STOPPED, code)
    assert (outcome.culprit, outcome.reason) == (name, f"asked to stop by {name}")


def test_a_stop_on_request() -> None:
    """It stands for SIGTERM, which nobody sent."""
    outcome = stopped(15, expected=False, on_request=True)
    assert (outcome.exit_code, outcome.culprit) == (143, "SIGTERM")
    assert outcome.reason == "asked to stop by `pod-agent stop` or the page"


@pytest.mark.parametrize(
    ("report", "kind", "code", "words"),
    [
        (JobReport("SUCCEEDED", driver_exit_code=0), Kind.DONE, 0, "succeeded"),
        (JobReport("SUCCEEDED"), Kind.DONE, 0, "succeeded"),
        (JobReport("STOPPED"), Kind.STOPPED, 143, "stopped from outside"),
        (JobReport("FAILED", driver_exit_code=7), Kind.JOB_FAILED, 7, "exit code 7"),
        (JobReport("FAILED", driver_exit_code=1), Kind.JOB_FAILED, 1, "exit code 1"),
        (JobReport("FAILED", driver_exit_code=-9), Kind.JOB_FAILED, 137, "137 (SIGKILL)"),
        (JobReport("FAILED", "driver lost\nmore"), Kind.LOST, 75, "driver lost"),
        (JobReport("FAILED"), Kind.LOST, 75, "no message"),
        (JobReport("FAILED", "ok", 0), Kind.LOST, 75, "without an exit code"),
        (
            JobReport("FAILED", "pip failed", error_type="RUNTIME_ENV_SETUP_FAILURE"),
            Kind.REFUSED,
            78,
            "pip failed",
        ),
        (JobReport("FAILED", "runtime_env setup failed: x"), Kind.REFUSED, 78, "runtime_env"),
    ],
)
def test_verdict(report: JobReport, kind: Kind, code: int, words: str) -> None:
    """The job's own code, unchanged, or the contract's for an end without one."""
    outcome = verdict_of(report)
    assert report.ended
    assert (outcome.kind, outcome.exit_code) == (kind, code)
    assert outcome.is_jobs_verdict == (kind not in {Kind.LOST, Kind.REFUSED})
    assert words in outcome.reason


def test_a_verdict_names_the_loss_before_it() -> None:
    """A job that ended by itself after a loss gives its own code, and the loss is named."""
    outcome = verdict_of(JobReport("FAILED", driver_exit_code=1), "lost a needed node (pod2)")
    assert outcome.exit_code == 1
    assert "before that, lost a needed node (pod2)" in outcome.reason


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "", "SUBMITTED"])
def test_a_job_that_has_not_ended(status: str) -> None:
    """Only Ray's three terminal states end a job."""
    assert not JobReport(status).ended


@given(st.floats(1, 3600))
def test_the_grace_is_never_exceeded(grace: float) -> None:
    """The parts of a stop fit into it, parallel ones counted once; the job gets the most."""
    parts = stop_budget(grace)
    together = max(parts.final_replies, parts.services, parts.ray)
    assert parts.job + parts.output + together + parts.leftovers + parts.bundle < grace
    assert parts.job >= grace / 2
    shares = (parts.final_replies, parts.services, parts.ray, parts.leftovers, parts.output)
    assert min(*shares, parts.bundle) > 0


def test_errors_have_what_why_and_remedy() -> None:
    """One line has all three; each class has its exit code and kind."""
    error = PreflightError("no room", why="disk full", remedy="Make room", culprit="/tmp")
    assert error.sentence() == "no room: disk full. Make room"
    assert error.end is ends.REFUSED
    assert UnavailableError("x").end is ends.UNAVAILABLE


def test_a_settings_error_counts_and_names() -> None:
    """One problem is printed in full; several are counted, with every name once."""
    a, b = Problem("A", "1", "2"), Problem("B", "x", "y")
    assert SettingsError((a,)).what == "A: got 1; expected 2"
    assert "3 problems in the settings (A, B)" in SettingsError((a, b, b)).sentence()


# --- outcome.json -----------------------------------------------------------------------------


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
    begin, end = "2025-01-01T00:00:00Z", "2025-01-01T01:00:00Z"
    attempt = AttemptOutcome(1, begin, end, "lost", 75, "out")
    outage = OutageRecord("reward server", "pod0", begin)
    write_outcome(tmp_path, outcome_text(outcome, RunFacts([attempt], [outage])))
    data = json.loads((tmp_path / "outcome.json").read_text())
    (shown,) = data["attempts"]
    ended = {"number": 1, "start": begin, "end": end}
    assert shown == {**ended, "reason": "lost", "exit_code": 75, "plain": "out"}
    (shown,) = data["outages"]
    assert shown == {"service": "reward server", "node": "pod0", "from": begin, "to": None}
    assert [file.name for file in tmp_path.iterdir()] == ["outcome.json"]


def test_an_outcome_that_cannot_be_written_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing folder changes no outcome: it is a warning."""
    said: list[str] = []
    word = DiskAlarm(lambda sentence, _level: said.append(sentence))
    monkeypatch.setattr(outcome_file, "disk_alarm", word)
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
