"""What others make below AGENT_LOG_DIR is neither written nor followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent.base import ends
from agent.base.errors import PreflightError
from agent.record import run_folder, run_record
from agent.record.bundle import BundlePart, make
from agent.record.checkpoint_folder import read_checkpoints
from agent.record.files import FileLock, appending, read_small, write_atomically
from agent.record.log_dir import LogDir, RefusedPathError, log_dir, why_refused
from agent.record.node_record import folder_of
from agent.record.run_folder import RunFolder
from agent.record.run_keys import new_key, newest_key, write_key
from agent.record.run_search import ChosenFolder, choose_newest_run, newest_run
from agent.run.restarts import PastEnd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER = 12_345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Return the file of a user, which must stay as it is."""
    path = tmp_path / "home" / ".bashrc"
    path.parent.mkdir()
    path.write_text("mine")
    path.chmod(0o644)
    before = path.stat()
    yield path
    assert path.read_text() == "mine"
    assert (path.stat().st_mode, path.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return an AGENT_LOG_DIR in which everybody may write."""
    path = tmp_path / "scratch"
    path.mkdir()
    path.chmod(0o777)
    return path


def refusal(root: Path, run_id: str = "4242", node: str = "pod0") -> str:
    """Return why a node's folder is refused."""
    with pytest.raises(PreflightError) as caught:
        RunFolder(root, run_id, node)
    assert caught.value.culprit == "AGENT_LOG_DIR"
    return caught.value.sentence()


@needs_root
@pytest.mark.parametrize("place", ["4242", "4242/pod0"])
def test_a_folder_that_another_user_made_is_refused(root: Path, victim: Path, place: str) -> None:
    """The folders of a run and of a node: with a link in them, another user's file is written.

    A plan sees the same before, on a disk where the owner of a new file is known.
    """
    folder = root / place
    node = root / "4242" / "pod0"
    node.mkdir(parents=True)
    for name in ("agent.log", "node.json", ".agent.lock"):
        (node / name).symlink_to(victim)
    assert why_refused(root, node, "ext4") == ""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    planned = why_refused(root, node, "ext4")
    assert why_refused(root, node, "nfs4") == ""
    sentence = refusal(root)
    assert "new files here to user 0" in planned
    assert f"{folder.name} in {folder} belongs to user {OTHER}" in sentence
    assert "new files here to user 0" in sentence
    assert "Remove what others made there" in sentence


def test_a_link_in_the_place_of_a_run_is_refused(root: Path, tmp_path: Path) -> None:
    """It may lead anywhere, for example to a folder of this user."""
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    (root / "4242").symlink_to(elsewhere)
    assert "is a symbolic link" in why_refused(root, root / "4242" / "pod0", "nfs4")
    assert "is a symbolic link" in refusal(root)
    assert list(elsewhere.iterdir()) == []


def test_links_in_a_nodes_folder_are_not_followed(root: Path, victim: Path) -> None:
    """Neither to write, nor to read, nor by a lock; a record replaces the link itself."""
    folder = RunFolder(root, "4242", "pod0")
    for name in ("job.log", "report.html", "held", "failure-1.tar.gz"):
        folder.file(name).symlink_to(victim)
    with pytest.raises(RefusedPathError, match=r"job\.log is a symbolic link"):
        appending(folder.file("job.log"))()
    with pytest.raises(RefusedPathError):
        read_small(folder.file("job.log"))
    with pytest.raises(RefusedPathError):
        FileLock(folder.file("held")).take()
    assert write_atomically(folder.file("report.html"), "new") is None
    assert folder.file("report.html").read_text() == "new"
    part = BundlePart("agent.log", "text")
    assert make(folder.file("failure-1.tar.gz"), [part], str, until=float("inf")) == ""
    assert not folder.file("failure-1.tar.gz").is_symlink()


def test_a_folder_that_is_exchanged_during_the_run(root: Path, victim: Path) -> None:
    """Each file is opened from AGENT_LOG_DIR on: a link in the place of the folder is noticed."""
    folder = RunFolder(root, "4242", "pod0")
    write = appending(folder.file("agent.log"))
    os.close(write())
    (root / "4242").rename(root / "former")
    (root / "4242").symlink_to(victim.parent)
    (victim.parent / "pod0").symlink_to(victim.parent)
    with pytest.raises(RefusedPathError):
        write()
    error = write_atomically(folder.file("outcome.json"), "{}")
    assert isinstance(error, RefusedPathError)
    assert not write_key(folder.path, new_key())
    assert sorted(path.name for path in victim.parent.iterdir()) == [".bashrc", "pod0"]


def test_links_at_and_above_the_log_folder_are_followed(tmp_path: Path) -> None:
    """They are the user's: a home or a volume is often reached by a link."""
    (tmp_path / "volume" / "logs").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "volume")
    (tmp_path / "logs").symlink_to(tmp_path / "home" / "logs")
    folder = RunFolder(tmp_path / "logs", "4242", "pod0")
    os.close(appending(folder.file("agent.log"))())
    assert (tmp_path / "volume" / "logs" / "4242" / "pod0" / "agent.log").is_file()


@needs_root
def test_a_disk_that_maps_users(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS gives root's files to nobody: its folders are used again, those of root are not."""
    monkeypatch.setattr("agent.record.log_dir._owner_of_new_file", lambda _root: OTHER)
    for path in (root / "4242", root / "4242" / "pod0"):
        path.mkdir()
        os.chown(path, OTHER, OTHER)
    assert RunFolder(root, "4242", "pod0").path == root / "4242" / "pod0"
    (root / "4243").mkdir()
    assert "4243 belongs to user 0" in refusal(root, "4243")


def test_the_owner_of_a_new_file_is_asked_of_the_disk(root: Path) -> None:
    """A file is made there and removed."""
    own = LogDir()
    own.guard(root)
    assert own.rules == (str(root), os.geteuid(), "private")
    assert list(root.iterdir()) == []


@needs_root
def test_a_worker_stays_out_of_another_users_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder stays where it is, with a warning, and the job goes on."""
    lines: list[str] = []
    monkeypatch.setattr(run_folder, "say", lambda line, _level: lines.append(line))
    worker = RunFolder(root, "", "pod1")
    before = worker.path
    (root / "4242").mkdir()
    os.chown(root / "4242", OTHER, OTHER)
    worker.move_to_run("4242")
    assert worker.path == before
    assert list((root / "4242").iterdir()) == []
    (line,) = lines
    assert line.startswith(f"the log stays in {before}: 4242 in")


@needs_root
@pytest.mark.parametrize(("platform", "run_id"), [("", "ours"), ("4242", "4242")])
def test_the_run_of_another_user_is_not_resumed(root: Path, platform: str, run_id: str) -> None:
    """A head without a run id of its platform begins a new one; with it, its folder is refused."""
    (root / "4242").mkdir()
    os.chown(root / "4242", OTHER, OTHER)
    (root / "latest").symlink_to("4242")
    log_dir.guard(root)
    chosen = run_record.choose_run(root, platform or None, "", lambda: "ours")
    assert (chosen.run_id, chosen.before, chosen.skipped) == (run_id, None, "")
    assert folder_of(root, "pod0", [os.getpid()]) is None
    assert list((root / "4242").iterdir()) == []
    assert "belongs to user" in refusal(root)


@needs_root
def test_checkpoints_that_another_user_made(root: Path) -> None:
    """In AGENT_LOG_DIR the folder of checkpoints is this user's: loading them runs code."""
    folder = root / "checkpoints" / "verl-grpo-0"
    (folder / "global_step_7").mkdir(parents=True)
    log_dir.guard(root)
    assert read_checkpoints(str(folder)).newest == "global_step_7"
    os.chown(root / "checkpoints", OTHER, OTHER)
    assert f"belongs to user {OTHER}" in read_checkpoints(str(folder)).fault


@needs_root
def test_the_end_of_an_agent_is_not_written_elsewhere(root: Path, victim: Path) -> None:
    """A refused pod records its end before it has a run folder: the same rules hold."""
    (root / ".ends").symlink_to(victim.parent)
    end = PastEnd("", "", "", "", ends.JOB_SUCCEEDED.outcome(before=""))
    assert isinstance(end.save(root, ".bashrc"), RefusedPathError)
    assert [path.name for path in victim.parent.iterdir()] == [".bashrc"]


def test_the_key_of_a_link_is_not_sent(root: Path, victim: Path) -> None:
    """`stop` and `status` send the newest key to whoever answers: no private file is one."""
    folder = RunFolder(root, "4242", "pod0")
    key = new_key()
    assert write_key(folder.path, key)
    assert newest_key(root) == key
    planted = root / "4242" / "pod1"
    planted.mkdir()
    secret = victim.with_name("secret")
    secret.write_text("0" * 32)
    (planted / "control.key").symlink_to(secret)
    assert newest_key(root) == key
    other = root / "4242" / "pod2"
    other.mkdir()
    (other / "control.key").write_text("what another program keeps secret")
    assert newest_key(root) == key


@needs_root
def test_a_strangers_run_is_not_chosen(root: Path) -> None:
    """In a shared folder anyone may write a newer run, and point `latest` to it."""
    own = RunFolder(root, "own", "pod0", link=False)
    key = new_key()
    assert write_key(own.path, key)
    theirs = root / "theirs" / "pod0"
    theirs.mkdir(parents=True)
    (theirs / "node.json").write_text("{}")
    (theirs / "control.key").write_text("0" * 32)
    (root / "latest").symlink_to("theirs")
    for path in (root / "theirs", theirs, *theirs.iterdir(), root / "latest"):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    assert newest_key(root) == key
    assert choose_newest_run(root) == ChosenFolder(own.path.parent, (own.path,), ("theirs",))

    # A folder that is named is read, whoever made it.
    assert newest_run(root) == newest_run(root / "theirs") == theirs.parent

    # Below a run of this user, too.
    planted = root / "own" / "pod1"
    planted.mkdir()
    (planted / "control.key").write_text("1" * 32)
    os.chown(planted, OTHER, OTHER)
    (root / "latest").unlink()
    (root / "latest").symlink_to("own")
    assert newest_key(root) == key

    # A folder into which only its owner writes holds what that one put there.
    root.chmod(0o755)
    assert choose_newest_run(root).run == theirs.parent
    root.chmod(0o777)
    os.chown(root, OTHER, OTHER)
    assert choose_newest_run(root).run == theirs.parent
    assert newest_key(root) == key


def test_no_name_leads_out_of_the_log_folder(root: Path) -> None:
    """A path with `..` is refused even where it is made by mistake."""
    log_dir.guard(root)
    with pytest.raises(RefusedPathError, match="leads out"):
        log_dir.open_as_is(root / ".." / "x", os.O_RDONLY)


def test_a_lock_in_a_refused_folder_is_no_others(root: Path, tmp_path: Path) -> None:
    """It is an error, and not taken for another head's lock."""
    log_dir.guard(root)
    (root / "4242").symlink_to(tmp_path)
    with pytest.raises(RefusedPathError):
        FileLock(root / "4242" / ".head.lock").take()
