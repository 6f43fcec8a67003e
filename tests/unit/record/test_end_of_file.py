"""The end of a file, with the number of its first line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.record import files
from agent.record.files import read_end_from

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_end_begins_at_a_line_of_its_file(tmp_path: Path) -> None:
    """Also after an offset; a missing file has no end."""
    path = tmp_path / "job.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert read_end_from(path, 100) == (b"one\ntwo\nthree\n", 1)
    assert read_end_from(path, 6) == (b"three\n", 3)
    assert read_end_from(path, 100, 4) == (b"two\nthree\n", 2)
    assert read_end_from(tmp_path / "missing", 6) == (b"", None)


def test_the_lines_of_a_huge_file_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is read all the same."""
    monkeypatch.setattr(files, "_MOST_COUNTED", 3)
    path = tmp_path / "job.log"
    path.write_bytes(b"one\ntwo\n")
    assert read_end_from(path, 4) == (b"two\n", None)
