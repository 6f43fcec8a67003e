"""A golden file that differs names the command that writes it anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.golden import SWITCH, assert_golden

if TYPE_CHECKING:
    from pathlib import Path


def test_a_stale_file_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the switch nothing is written; with it the file is what the test makes."""
    monkeypatch.delenv(SWITCH, raising=False)
    file = tmp_path / "plan.txt"
    file.write_text("before")
    command = rf"{SWITCH}=1 .venv/bin/pytest tests/unit/test_golden.py writes it anew"
    with pytest.raises(AssertionError, match=command):
        assert_golden(file, "after")
    assert file.read_text() == "before"
    monkeypatch.setenv(SWITCH, "1")
    assert_golden(file, "after")
    assert file.read_text() == "after"
