"""The pod lab without root: names that it refuses, labs that it removes, its command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tools.lab import lab, leftovers
from tools.lab.errors import LabError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("pods", "names", "word"),
    [
        (0, None, "1 to"),
        (1000, None, "1 to"),
        (1, ["Pod_A"], "host name"),
        (1, ["-a"], "host name"),
        (1, ["a.b"], "host name"),
        (2, ["a", "a"], "differ"),
    ],
)
def test_wrong_names(pods: int, names: list[str] | None, word: str) -> None:
    """Invalid host names are refused before anything is made."""
    with pytest.raises(LabError, match=word):
        lab.checked_names(pods, names)


def test_is_dead_goes_by_start_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running creator's lab is kept; a reused PID does not count."""
    monkeypatch.setattr(leftovers, "STATE_DIR", tmp_path)
    me = os.getpid()
    assert not leftovers.is_dead("podlab-1-1", me)
    owner = tmp_path / "podlab-1-1" / lab.OWNER
    owner.parent.mkdir()
    owner.write_text(lab.start_time(me))
    assert not leftovers.is_dead("podlab-1-1", me)
    owner.write_text("1")
    assert leftovers.is_dead("podlab-1-1", me)
    assert leftovers.is_dead("podlab-1-2", 2**22 + 1)


def test_folder_with_a_mount_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount inside the folder leads to other files, which must not be deleted."""
    monkeypatch.setattr(lab, "mount_points", lambda: [f"{tmp_path}/pods/0/tmp/repo"])
    with pytest.raises(LabError, match="not removed"):
        lab.remove_folder(tmp_path)
    assert tmp_path.exists()
    monkeypatch.setattr(lab, "mount_points", lambda: ["/", "/proc"])
    lab.remove_folder(tmp_path)
    assert not tmp_path.exists()
