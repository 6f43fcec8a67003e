"""Ray's temp dir has a guessable name: it lies in a folder that only we may enter."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.checks import TEMP_DIR, run_checks
from agent.checks.finding import Level
from agent.node.read import read_folder
from agent.processes.ray_temp import secure_folder
from support.worlds import MACHINE, settings_of, topology_of

if TYPE_CHECKING:
    from pathlib import Path

US = replace(MACHINE, uid=os.getuid())
NOBODY = 65_534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file away")


def make_ours(place: Path) -> str:
    """Secure the folder around this temp dir; return the finding's text."""
    found = secure_folder(f"{place}/ray", US.uid)
    facts = replace(US, ray_temp=found)
    (finding,) = run_checks(facts, settings_of({}), topology_of({}), only=TEMP_DIR)
    return finding.what if finding.level is Level.FAIL else ""


def mode_of(place: Path) -> int:
    """Return a folder's mode."""
    return stat.S_IMODE(place.lstat().st_mode)


def test_it_is_made_for_us_alone(tmp_path: Path) -> None:
    """A new folder has mode 0700, whatever the umask; a second start finds it so."""
    before = os.umask(0)
    try:
        assert make_ours(tmp_path / "new") == ""
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "new") == 0o700
    (tmp_path / "new/ray").mkdir()
    (tmp_path / "new/ray").chmod(0o777)  # as Ray leaves it
    assert make_ours(tmp_path / "new") == ""


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o770])
def test_our_own_is_tightened(tmp_path: Path, mode: int) -> None:
    """One that an older version left open to others, with nothing of theirs in it, is closed."""
    place = tmp_path / "old"
    (place / "session_1").mkdir(parents=True)
    place.chmod(mode)
    assert make_ours(place) == ""
    assert mode_of(place) & 0o777 == 0o700


def test_a_link_is_refused_and_not_followed(tmp_path: Path) -> None:
    """Who made the link would have Ray write where it points, and our chmod too."""
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(target)
    assert "is a link or a file" in make_ours(tmp_path / "link")
    assert mode_of(target) == 0o755
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert "is a link or a file" in make_ours(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").touch()
    assert "is a link or a file" in make_ours(tmp_path / "file")


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """A folder of another user is left unchanged and named."""
    place = tmp_path / "theirs"
    place.mkdir(mode=0o777)
    os.chown(place, NOBODY, NOBODY)
    assert "belongs to another user (uid 65534)" in make_ours(place)


@as_root
def test_what_others_left_in_ours_is_refused(tmp_path: Path) -> None:
    """Where it was open, a stranger may have laid a link in wait for Ray."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    (place / "ray").symlink_to("/etc")
    os.chown(place / "ray", NOBODY, NOBODY, follow_symlinks=False)
    assert "was open to others, who put ray into it" in make_ours(place)


def test_nothing_there_is_no_fact(tmp_path: Path) -> None:
    """A folder that does not exist yet is no finding."""
    assert read_folder(str(tmp_path / "none")) is None
