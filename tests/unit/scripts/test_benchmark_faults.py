"""The pure part of the benchmark of faults: medians, references, and the promises."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from tools.bench import cli
from tools.bench.fault_figures import FIGURES, FaultRound, fault_table, fault_targets

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

GOOD = FaultRound(0, 15.0, 1.0, 6.0, 7.5, 0.6, 1.4, 1.5, 1.2, 18.0)
SLOW = FaultRound(1, 16.0, 4.0, 6.0, 9.0, 0.6, 1.8, 1.7, 1.4, 25.0, others=31.0)
FAILED = FaultRound(2, 15.0, problem="no attempt 2 within 90 s")


def test_medians_are_held_against_the_promises() -> None:
    """Each against its reference: Ray's start, a cold boot, its own start."""
    values = [target.value for target in fault_targets([GOOD])]
    assert values == [1.0, 1.5, 1.2, 1.4 - 0.6, 1.5, 1.2]
    assert all(target.holds for target in fault_targets([GOOD]))
    slow = fault_targets([SLOW])
    assert [target.holds for target in slow] == [False, False, False, True, True, True]


def test_a_failed_round_is_named_and_its_figures_count() -> None:
    """A value that was not measured neither holds nor fails."""
    assert {target.holds for target in fault_targets([FAILED])} == {None}
    said = fault_table([GOOD, SLOW, FAILED])
    assert "FAILED        round 2: no attempt 2 within 90 s" in said
    assert "rounds: 3" in said
    assert "DISTURBED     round 1: others took 31.0 CPU-seconds" in said
    row = next(line for line in said.splitlines() if line.startswith(FIGURES[0].name))
    assert row.split()[-3:] == ["2.50", "4.00", "-"]


def test_rounds_that_are_known_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the stored raw values, only the missing rounds are measured."""
    file = tmp_path / "faults.json"
    file.write_text(json.dumps([asdict(GOOD)]))
    monkeypatch.setattr(cli, "fault_round", lambda number, _keep: FaultRound(number, 14.0))
    assert cli.measure_faults(2, file, None) == 0
    assert [one["round"] for one in json.loads(file.read_text())] == [0, 1]
    assert "rounds: 2" in capsys.readouterr().out
