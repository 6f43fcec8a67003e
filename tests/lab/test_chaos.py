"""Chaos: one short seed of scripts/chaos."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.scenario import need_lab
from tools.chaos.seed import play

if TYPE_CHECKING:
    from pathlib import Path

SEED = 4


@pytest.mark.fault(
    "chaos",
    "a minute of random faults (`scripts/chaos` for more)",
    "the run ends as the model predicts, in time, with nothing left",
)
@pytest.mark.timeout(480)
def test_a_short_seed_ends_as_predicted(tmp_path: Path) -> None:
    """After a minute of faults, the run ends in time, with an allowed code, without leftovers."""
    need_lab()
    result = play(SEED, 60.0, tmp_path / "kept")
    assert not result.problems, result
