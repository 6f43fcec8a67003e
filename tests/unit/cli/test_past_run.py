"""`status`, `logs` and `explain` after a run: from the newest run folder."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from agent.base import ends
from agent.cli.command_line import main
from agent.port.log_filter import LogFilter, time_since
from agent.record.events import EVENTS_FILE, Began, Ended, EventRecorder
from agent.record.outcome_file import outcome_text, write_outcome
from agent.record.run_search import newest_run, node_folders
from support.run_folders import leave_run
from support.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a log folder with two runs, in an environment whose head does not answer."""
    leave_run(tmp_path, "run-1", 2e9)
    leave_run(tmp_path, "run-2", 1e9)
    monkeypatch.setenv("AGENT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("AGENT_PORT", "21998")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return tmp_path


def test_the_newest_run_is_the_one_written_last(tmp_path: Path) -> None:
    """It is found from any folder above it, or from itself; checkpoints are not searched."""
    old = leave_run(tmp_path / "a" / "logs", "z", 1e9)
    new = leave_run(tmp_path / "b" / "logs", "a", 2e9)
    leave_run(tmp_path / "b" / "checkpoints", "never", 3e9)
    assert newest_run(tmp_path) == new
    assert newest_run(tmp_path / "a") == newest_run(old) == newest_run(old / "pod0") == old
    assert newest_run(tmp_path / "nothing") is None
    assert [node.name for node in node_folders(new)] == ["pod0", "pod1"]


def test_status(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The outcome, with the folder it is from."""
    assert main(["status"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:2] == [
        "run run-1 is over: job-failed: the job failed with exit code 7 (exit code 7)",
        "job.log shows why",
    ]
    assert f"from the newest run folder, {root}/run-1" in shown.err
    assert "no head's agent answers: 127.0.0.1:21998" in shown.err
    assert main(["status", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["run_id"], data["is_over"], data["outcome"]["exit_code"]) == ("run-1", True, 7)


def test_status_of_other_ends(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A doubtful success begins with `warning`; without an outcome the agent was killed."""
    end = ends.JOB_MADE_FEW_STEPS.outcome(steps="after 3 of 400 steps", before="")
    write_outcome(root / "run-1/pod0", outcome_text(end))
    assert main(["status"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("run run-1 is over: warning: the job exited with 0 after 3 of 400")
    (root / "run-1/pod0/outcome.json").rename(root / "run-1/pod0/node.json")
    assert main(["status"]) == 0
    assert "no outcome.json" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [True, False])
def test_status_of_a_run_whose_outcome_cannot_be_read(
    root: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """It is not called a run without an end."""
    (root / "run-1/pod0/outcome.json").write_text("{")
    assert main(["status", *(["--json"] if as_json else [])]) == 69
    assert "run run-1: outcome.json cannot be read: it is broken: " in capsys.readouterr().err


def test_logs_that_are_not_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes and logs that there are, are named; the head by the name of its node."""
    assert main(["logs", "compile-caches"]) == 69
    said = "node 'pod0' has no log 'compile-caches': nodes are pod0 and pod1"
    assert said in capsys.readouterr().err
    assert main(["logs", "pod9", "job"]) == 69
    assert capsys.readouterr().err.endswith("no node is named 'pod9': nodes are pod0 and pod1\n")
    for file in (root / "run-1/pod1").glob("*.log"):
        file.unlink()
    assert main(["logs", "pod1", "job"]) == 69
    assert capsys.readouterr().err.endswith("its logs are none\n")


@pytest.mark.parametrize(
    ("words", "code", "out"),
    [
        ([], 0, "run-1 pod0 one\n********\nthree\n"),
        (["job"], 0, "run-1 pod0 one\n********\nthree\n"),
        (["pod0"], 0, "run-1 pod0 one\n********\nthree\n"),
        (["head", "job"], 0, "run-1 pod0 one\n********\nthree\n"),
        (["pod1"], 0, "run-1 pod1 one\n********\nthree\n"),
        (["-n", "1"], 0, "three\n"),
        (["--grep", "o.e|three", "-n", "2"], 0, "run-1 pod0 one\nthree\n"),
        (["reward server"], 0, "scored\n"),
        (["reward-server"], 0, "scored\n"),
        (["AGENT_PREPARE"], 0, "prepared\n"),
        (["prepare"], 0, "prepared\n"),
        (["head", "ray"], 0, "started\n"),
        (["head", "ray-start"], 0, "started\n"),
        (["pod1", "job"], 69, ""),
        (["../../secrets"], 69, ""),
    ],
)
@pytest.mark.usefixtures("root")
def test_logs(words: list[str], code: int, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Node and log are named as for a run; secrets of the environment are masked."""
    assert main(["logs", *words]) == code
    shown = capsys.readouterr()
    assert shown.out == out
    assert "run-1" in shown.err
    assert ("has no log" in shown.err) is (code == 69)


def test_neither_head_nor_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """69."""
    monkeypatch.setenv("AGENT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("AGENT_PORT", "21998")
    assert [main(["status"]), main(["logs"])] == [69, 69]
    assert "no head's agent answers" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--grep", "("), ("--since", "soon"), ("-n", "many")])
def test_wrong_options(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error names the option."""
    with pytest.raises(SystemExit) as caught:
        main(["logs", *words])
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("10m", NOON - timedelta(minutes=10)),
        ("2026-11-23T11:30Z", NOON - timedelta(minutes=30)),
        ("2026-11-23 11:30:15Z", NOON - timedelta(minutes=29, seconds=45)),
        ("2026-11-23T13:00+02:00", NOON - timedelta(hours=1)),
    ],
)
def test_since(text: str, since: datetime) -> None:
    """A duration before now, or a time."""
    assert time_since(text, NOON) == since


@pytest.mark.parametrize(
    ("text", "minutes", "left"),
    [
        ("11:40:00 a\nmore of a\n11:55:00 b\nmore of b\n", 10, "11:55:00 b\nmore of b\n"),
        ("23:59:00 a\n00:01:00 b\n11:59:00 c\n", 13 * 60, "23:59:00 a\n00:01:00 b\n11:59:00 c\n"),
        ("23:59:00 a\n00:01:00 b\n11:59:00 c\n", 12 * 60, "00:01:00 b\n11:59:00 c\n"),
        ("(x) 2026-11-23T11:00:00Z a\nt=2026-11-23T11:58:00Z\n", 10, "t=2026-11-23T11:58:00Z\n"),
        ("11:40:00 a\n", 10, ""),
        ("step 1\nstep 2\n", 0, "step 1\nstep 2\n"),
    ],
    ids=["agent", "midnight", "since midnight", "full times", "nothing since", "no times"],
)
def test_lines_since(text: str, minutes: int, left: str) -> None:
    """A line without a time belongs to the one before it; a time of day is that of the last day."""
    chosen = LogFilter(since=NOON - timedelta(minutes=minutes))
    assert chosen.apply(text, NOON) == left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_run_of_another_user(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None is chosen where others may write, and the message names it; a named one is read."""
    root.chmod(0o777)
    theirs = root / "run-1"
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, 12_345, 12_345)
    left_out = f"run-1 in {root} is left out: another user made it"
    assert main(["status"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("run run-2 is over")
    assert left_out in shown.err
    assert main(["logs", "job"]) == 0
    assert left_out in capsys.readouterr().err

    # The only run is another user's.
    shutil.rmtree(root / "run-2")
    for verb in (["status"], ["logs", "job"], ["explain"]):
        assert main(verb) == 69
        err = capsys.readouterr().err
        assert left_out in err
        assert f"{root} (AGENT_LOG_DIR) holds no run of this user" in err
    theirs.chmod(0o775)
    began = Began("head", "run-1", "2026-11-22T06:48:25.000Z", "1.0")
    events = theirs / "pod0" / EVENTS_FILE
    recorder = EventRecorder(lambda: nullcontext(events), str, began, lambda: 0.0)
    recorder.add(Ended(1.0))
    recorder.finish()
    assert main(["explain", str(theirs)]) == 0
    assert capsys.readouterr().out.startswith("run run-1")

    # -v: why a line is the cause.
    (theirs / "pod0" / "job.log").write_text("starting\nValueError: bad row\n")
    assert main(["explain", "-v", str(theirs)]) == 0
    assert "job.log:2: 'ValueError: bad row': an exception" in capsys.readouterr().out
