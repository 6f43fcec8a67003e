"""The report of a run: one file that needs nothing, with no secret in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import to_builtins
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.job.series import PointsPart
from agent.port.glance import judged
from agent.port.page_status import page_status
from agent.record.log import disk_alarm
from agent.run import run_report
from agent.run.effects import REAL
from agent.run.run_report import report_page
from agent.settings.redact import MASK, Redactor
from support.worlds import SECRET
from tools.page.runs import EVIL
from tools.page.situations import made_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

END = "</script><script>alert(1)</script>"


def report(**logs: str) -> str:
    """Return the report of a failed run."""
    run = made_run("failed", 3)
    status = to_builtins(page_status(judged(run.private)))
    return report_page(status, to_builtins(run.series), logs or run.logs)


def test_it_needs_no_other_file() -> None:
    """Scripts, style and icons are inside."""
    text = report()
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_its_policy_allows_only_what_is_in_it() -> None:
    """By the digests of script and style; any other text in it stays text."""
    text = report()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


def test_text_of_the_job_does_not_end_the_data() -> None:
    """The data are one block, whatever the job prints."""
    text = report(job=f"{END}{EVIL}")
    assert END not in text
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    data = json.loads(block)
    assert data["logs"] == {"job": f"{END}{EVIL}"}
    assert data["status"]["glance"]["state"] == "end"


def ended(folder: Path) -> tuple[Any, Any]:
    """Return a head's run and status at its end; names of both hold a secret."""
    made = made_run("failed", 3)
    keys = {f"key/{SECRET}": PointsPart([1], [0.5])}
    run = SimpleNamespace(
        effects=REAL,
        folder=SimpleNamespace(path=folder, file=lambda name: folder / name),
        redactor=Redactor((SECRET,)),
        plan=SimpleNamespace(logs=lambda: {"job": "job.log", "agent": "agent.log"}),
    )
    status = SimpleNamespace(
        status=lambda _reader: made.status,
        with_private=lambda _status: replace(made.private, run_name=f"named {SECRET}"),
        series=lambda: replace(made.series, keys=keys),
    )
    return run, status


def test_what_the_head_writes_has_no_secret_and_is_private(tmp_path: Path) -> None:
    """Names, metrics and logs are masked; the explained end is in it."""
    (tmp_path / "job.log").write_text(f"step 1 {SECRET}\n")
    outcome = Outcome(Kind.JOB_FAILED, 1, "out of memory", remedy=f"not {SECRET}")
    file = anyio.run(run_report.write_report, *ended(tmp_path), outcome)
    assert file == tmp_path / "report.html"
    text = file.read_text()
    assert SECRET not in text
    assert text.count(MASK) >= 4
    assert "Out of memory." in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_disk_that_takes_no_report_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported once, as for the other records."""
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(disk_alarm, "report", lambda *words: said.append(words))
    run, status = ended(tmp_path / "absent")
    named = anyio.run(run_report.write_report, run, status, Outcome(Kind.DONE, 0, "fine"))
    assert named == tmp_path / "absent"
    ((name, why),) = said
    assert name == "report.html"
    assert "No such file" in why


def test_after_a_stop_the_report_has_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the grace of the platform that asked for the stop."""
    may_go_on = threading.Event()

    def page(*_: object) -> str:
        may_go_on.wait(20)
        return "<p>a report</p>"

    monkeypatch.setattr(run_report, "_page", page)
    monkeypatch.setattr("agent.run.run_report.REPORT_AT_STOP", 0.05)
    monkeypatch.setattr("agent.run.run_report.REPORT_MADE", 600.0)
    stopped = Outcome(Kind.STOPPED, 143, "asked to stop by SIGTERM")
    assert anyio.run(run_report.write_report, *ended(tmp_path), stopped) == tmp_path
    may_go_on.set()
    done = Outcome(Kind.DONE, 0, "fine")
    assert anyio.run(run_report.write_report, *ended(tmp_path), done) == tmp_path / "report.html"
