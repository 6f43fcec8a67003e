"""docs/troubleshooting.md is up to date, and each row's answer exists and is tested."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.checks import run_checks
from agent.checks.finding import Level
from agent.diagnosis.rows import table
from support.sources import ROOT
from support.worlds import MACHINE, settings_of, topology_of
from tools.troubleshooting.__main__ import main
from tools.troubleshooting.bad_machine import findings
from tools.troubleshooting.pains import PAINS, Pain

if TYPE_CHECKING:
    from pathlib import Path

ONE_POD = {"RUNPOD_POD_ID": "poda"}
WITH_PACKAGES = replace(MACHINE, ray=replace(MACHINE.ray, packages={"numpy": "1.26.4"}))
BY_CHECK = {f.check for f in run_checks(WITH_PACKAGES, settings_of(ONE_POD), topology_of(ONE_POD))}
ELSEWHERE = {
    *("versions of hello", "agreement", "links between nodes", "reward from each node"),
    "Ray's GPUs",
    *("AGENT_WORKING_DIR", "AGENT_RAY_ARGS"),
}
"""Answers that are checked apart from `examine`: between nodes, or as a setting."""


def test_the_page_is_not_stale(capsys: pytest.CaptureFixture[str]) -> None:
    """What is committed is what `./scripts/troubleshooting` writes."""
    assert (main(["--check"]), capsys.readouterr().out) == (0, "")


def test_a_stale_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check writes nothing; without it the page is written."""
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("tools.troubleshooting.__main__.ROOT", tmp_path)
    monkeypatch.setattr("tools.troubleshooting.__main__.page", lambda _root: "a page")
    assert main(["--check"]) == 1
    assert (
        "docs/troubleshooting.md is stale: run ./scripts/troubleshooting" in capsys.readouterr().out
    )
    assert not (tmp_path / "docs/troubleshooting.md").exists()
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_all_rows_are_there() -> None:
    """44 rows; one without an answer names the open part."""
    assert [pain.number for pain in PAINS] == list(range(1, 45))
    assert all(pain.answers or pain.is_open for pain in PAINS)


@pytest.mark.parametrize("pain", PAINS, ids=lambda pain: str(pain.number))
def test_each_answers_test_exists(pain: Pain) -> None:
    """A row names tests that are in the file that it names, down to the row of their table."""
    for answer in pain.answers:
        path, _, test = answer.test.partition("::")
        name, _, row = test.partition("[")
        text = (ROOT / path).read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), answer.test
        assert not row or f'"{row.rstrip("]")}": (' in text, answer.test


@pytest.mark.parametrize("pain", PAINS, ids=lambda pain: str(pain.number))
def test_each_answer_is_known_to_the_agent(pain: Pain) -> None:
    """What is checked is a check's name, what is explained the key of a known line."""
    keys = {row.key for row in table().values()}
    for answer in pain.answers:
        if answer.how == "checked":
            assert answer.what in BY_CHECK | ELSEWHERE, "name it in ELSEWHERE of this file"
        elif answer.how == "explained":
            assert answer.what in keys


def test_the_bad_machine_shows_nearly_every_check() -> None:
    """Of all checks, only those that need another machine are not shown at their worst."""
    fine = {finding.check for finding in findings() if finding.level is Level.OK}
    hint = "change scripts/tools/troubleshooting/bad_machine.py, then run ./scripts/troubleshooting"
    assert fine <= {"proxies"}, hint
    assert {finding.check for finding in findings()} == BY_CHECK, hint
