"""docs/troubleshooting.md is up to date, and shows nearly every check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.checks import run_checks
from agent.checks.finding import Level
from support.worlds import MACHINE, settings_of, topology_of
from tools.troubleshooting.__main__ import main
from tools.troubleshooting.bad_machine import findings

if TYPE_CHECKING:
    import pytest

ONE_POD = {"RUNPOD_POD_ID": "poda"}
WITH_PACKAGES = replace(MACHINE, ray=replace(MACHINE.ray, packages={"numpy": "1.26.4"}))
BY_CHECK = {f.check for f in run_checks(WITH_PACKAGES, settings_of(ONE_POD), topology_of(ONE_POD))}


def test_the_page_is_not_stale(capsys: pytest.CaptureFixture[str]) -> None:
    """What is committed is what `./scripts/troubleshooting` writes."""
    assert (main(["--check"]), capsys.readouterr().out) == (0, "")


def test_the_bad_machine_shows_nearly_every_check() -> None:
    """Of all checks, only those that need another machine are not shown at their worst."""
    fine = {finding.check for finding in findings() if finding.level is Level.OK}
    hint = "change scripts/tools/troubleshooting/bad_machine.py, then run ./scripts/troubleshooting"
    assert fine <= {"proxies"}, hint
    assert {finding.check for finding in findings()} == BY_CHECK, hint
