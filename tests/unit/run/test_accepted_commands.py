"""Accepted commands: which marks count, and which files are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.base import times
from agent.job.compile_caches import CompileCaches
from agent.job.framework_question import FrameworkQuestion
from agent.node.node_kind import NodeKind
from agent.run.accepted_commands import FOLDER, AcceptedCommands

KIND = NodeKind("", "", "x86_64", "ab", "", "3.11.7", {"torch": "2.8.0"})
QUESTION = FrameworkQuestion("verl", "python3", "verl.trainer.main_ppo", (), (), is_recipe=False)
OTHER = 12_345  # a user

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file away")


def accepted_on(volume: Path, installed: str = "ab") -> AcceptedCommands:
    """Return the accepted commands on a volume, of a Python that has these packages."""
    caches = CompileCaches(str(volume), "/tmp/pod-agent", KIND, "u0", installed)
    return AcceptedCommands(caches, Path(__file__), [8], "")


def make_old(path: Path) -> Path:
    """Make a file that is older than a mark may be."""
    path.touch()
    former = time.time() - 2 * times.COMMAND_ACCEPTED
    os.utime(path, (former, former))
    return path


def test_another_version_of_any_package(tmp_path: Path) -> None:
    """The framework is asked again: hydra or transformers may have dropped a field."""
    accepted_on(tmp_path).add(QUESTION)
    assert accepted_on(tmp_path).has(QUESTION)
    assert not accepted_on(tmp_path, "cd").has(QUESTION)


def test_only_old_marks_are_removed(tmp_path: Path) -> None:
    """Whatever else is in the folder stays; so does a mark that is not old."""
    accepted = accepted_on(tmp_path)
    accepted.add(QUESTION)
    folder = tmp_path / FOLDER
    (mark,) = folder.iterdir()
    kept = make_old(folder / "notes.txt")
    linked = make_old(tmp_path / "linked")
    link = folder / ("a" * 32)
    link.symlink_to(linked)
    inner = folder / ("b" * 32)
    inner.mkdir()
    old = make_old(folder / ("c" * 32))
    accepted.add(QUESTION)
    assert {*folder.iterdir()} == {mark, kept, link, inner}
    assert linked.exists()
    assert not old.exists()
    accepted.drop(QUESTION)
    assert not mark.exists()


def test_a_link_in_place_of_the_folder(tmp_path: Path) -> None:
    """Nothing is removed or written where it leads."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    old = make_old(elsewhere / ("c" * 32))
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / FOLDER).symlink_to(elsewhere)
    accepted = accepted_on(volume)
    accepted.add(QUESTION)
    assert [*elsewhere.iterdir()] == [old]
    assert not accepted.has(QUESTION)


def test_who_may_read_it(tmp_path: Path) -> None:
    """Only this user: the volume is made as the archives' program makes it."""
    volume = tmp_path / "volume"
    former = os.umask(0)
    try:
        accepted_on(volume).add(QUESTION)
    finally:
        os.umask(former)
    modes = [path.stat().st_mode & 0o777 for path in (volume, volume / FOLDER)]
    assert modes == [0o700, 0o700]
    assert accepted_on(volume).has(QUESTION)


@as_root
def test_a_volume_without_owners_and_modes(tmp_path: Path) -> None:
    """As many clouds' network disks: a mark there decides nothing that the job does not check."""
    accepted = accepted_on(tmp_path)
    accepted.add(QUESTION)
    folder = tmp_path / FOLDER
    (mark,) = folder.iterdir()
    for path in (folder, mark):
        os.chown(path, OTHER, OTHER)
        path.chmod(0o777)
    assert accepted.has(QUESTION)


def test_a_file_with_content(tmp_path: Path) -> None:
    """It is no mark, and stays."""
    accepted = accepted_on(tmp_path)
    accepted.add(QUESTION)
    (mark,) = (tmp_path / FOLDER).iterdir()
    mark.write_text("mine")
    assert not accepted.has(QUESTION)
    accepted.drop(QUESTION)
    assert mark.read_text() == "mine"


def test_a_volume_that_fails(tmp_path: Path) -> None:
    """A file in its place, or one in the folder's: as if nothing were remembered."""
    (tmp_path / FOLDER).touch()
    for volume in (tmp_path, tmp_path / FOLDER):
        accepted = accepted_on(volume)
        accepted.add(QUESTION)
        accepted.drop(QUESTION)
        assert not accepted.has(QUESTION)
