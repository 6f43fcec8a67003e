"""Archives: whole, signed, and hostile."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import json
import os
from typing import TYPE_CHECKING

import pytest

from agent.caches import cache_archive
from agent.caches.cache_archive import (
    Trust,
    UnusableArchiveError,
    copy_checked,
    signature_at,
    unpack,
    write_archive,
)
from agent.caches.cache_files import MOST_BYTES, CacheFile, Target
from support.cache_places import KIND, SEAL, SEALED, UNSEALED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILES = {"triton/ab/kernel.ptx": b"\0\1\2" * 500, "inductor/x/y.py": b"print(1)\n"}


def archive(folder: Path, seal: str = "", kind: str = KIND) -> Path:
    """Write an archive of FILES."""
    root = folder / "caches"
    entries = []
    for path, data in FILES.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
        entries.append(CacheFile(path, len(data), 1_700_000_000_123_456_789))
    target = folder / "x.caches"
    write_archive(target, lambda entry: str(root / entry.path), entries, kind, seal)
    return target


def forge(folder: Path, entries: list[tuple[object, bytes]], seal: str = "", **more: int) -> Path:
    """Write an archive with any entries, signed as an ordinary one."""
    packed = b"".join(json.dumps(entry).encode() + b"\n" + data for entry, data in entries)
    numbers = {"kind": KIND, "files": len(entries), "size": 1 << 20, **more}
    body = json.dumps(numbers).encode() + b"\n" + gzip.compress(packed)
    digest = hashlib.sha256(body)
    if seal:
        digest = hmac.new(bytes.fromhex(seal), body, hashlib.sha256)  # type: ignore[assignment]
    marker = "signed" if seal else "digest"
    path = folder / "forged.caches"
    head = f"{cache_archive._MAGIC.decode()}{marker} {digest.hexdigest()}\n"  # noqa: SLF001 - its format
    path.write_bytes(head.encode() + body)
    path.chmod(0o600)
    return path


def read(path: Path, out: Path, trust: Trust = UNSEALED) -> dict[str, bytes]:
    """Unpack an archive into a folder; return its files."""
    with io.BytesIO() as copy:
        _, contents = copy_checked(path, copy, KIND, trust)

        def target(entry: CacheFile) -> Target:
            file = out / entry.path
            file.parent.mkdir(parents=True, exist_ok=True)
            return Target(str(file))

        unpack(copy, contents, target)
    return {str(f.relative_to(out)): f.read_bytes() for f in out.rglob("*") if f.is_file()}


@pytest.mark.parametrize("trust", [UNSEALED, SEALED], ids=["by owner", "by token"])
def test_an_archive_is_read_as_it_was_written(tmp_path: Path, trust: Trust) -> None:
    """Bytes and times stay, to the nanosecond; its mode lets nobody else read it."""
    path = archive(tmp_path, trust.seal)
    out = tmp_path / "out"
    assert read(path, out, trust) == FILES
    assert (out / "inductor/x/y.py").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(signature_at(path)) == 64


def test_a_file_that_is_gone_is_left_out(tmp_path: Path) -> None:
    """So is one that became a link, or that grew since it was listed."""
    root = tmp_path / "caches"
    (root / "triton").mkdir(parents=True)
    (root / "triton/whole").write_text("whole")
    (root / "triton/grown").write_text("grown since")
    (root / "triton/link").symlink_to("/etc/passwd")
    names = {"whole": 5, "grown": 5, "link": 5, "gone": 5}
    entries = [CacheFile(f"triton/{name}", size, 1) for name, size in names.items()]
    target = tmp_path / "x.caches"
    _, written = write_archive(target, lambda e: str(root / e.path), entries, KIND, "")
    assert [entry.path for entry in written] == ["triton/whole"]
    assert read(tmp_path / "x.caches", tmp_path / "out") == {"triton/whole": b"whole"}


@pytest.mark.parametrize("at", [5, 40, 120, 200, -1])
@pytest.mark.parametrize("trust", [UNSEALED, SEALED], ids=["by owner", "by token"])
def test_a_damaged_archive_is_refused(tmp_path: Path, at: int, trust: Trust) -> None:
    """Whatever byte of it is wrong, no file of it is written."""
    path = archive(tmp_path, trust.seal)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnusableArchiveError):
        read(path, tmp_path / "out", trust)
    assert not (tmp_path / "out").exists()


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    """As a copy that was interrupted leaves one."""
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnusableArchiveError, match="damaged"):
        read(path, tmp_path / "out")


def test_another_token(tmp_path: Path) -> None:
    """An archive of another token is not used, nor one without a signature beside a token."""
    path = archive(tmp_path, "cd" * 32)
    with pytest.raises(UnusableArchiveError, match="of another token"):
        read(path, tmp_path / "out", SEALED)
    with pytest.raises(UnusableArchiveError, match="not signed"):
        read(archive(tmp_path), tmp_path / "out", SEALED)


def test_a_signed_archive_without_a_token(tmp_path: Path) -> None:
    """Nothing could check its signature."""
    with pytest.raises(UnusableArchiveError, match="signed, and this run has no token"):
        read(archive(tmp_path, SEAL), tmp_path / "out", UNSEALED)


def test_another_kind(tmp_path: Path) -> None:
    """An archive that was renamed to another kind's name is refused: the kind is signed, too."""
    path = archive(tmp_path, SEAL, kind="f" * 16)
    with pytest.raises(UnusableArchiveError, match="another kind"):
        read(path, tmp_path / "out", SEALED)


def test_another_user(tmp_path: Path) -> None:
    """Without a token the owner and the mode decide; with one only the signature."""
    path = archive(tmp_path)
    with pytest.raises(UnusableArchiveError, match="set RAY_AUTH_TOKEN"):
        read(path, tmp_path / "out", Trust("", os.getuid() + 1))
    path.chmod(0o620)
    with pytest.raises(UnusableArchiveError, match="mode 0620"):
        read(path, tmp_path / "out")
    signed = archive(tmp_path, SEAL)
    signed.chmod(0o666)
    assert read(signed, tmp_path / "out", Trust(SEAL, os.getuid() + 1)) == FILES


def entry(path: str = "triton/a/x", size: int = 4, **more: object) -> dict[str, object]:
    """Return an entry of a forged archive."""
    return {"path": path, "size": size, "mtime_ns": 1, **more}


HOSTILE: Mapping[str, list[tuple[object, bytes]]] = {
    "parent": [(entry("triton/../../../x"), b"code")],
    "absolute": [(entry("/etc/cron.d/x"), b"code")],
    "outside": [(entry("bin/x"), b"code")],
    "own state": [(entry("triton/.pod-agent/kind"), b"code")],
    "negative": [(entry(size=-1), b"code")],
    "huge": [(entry(size=MOST_BYTES), b"code")],
    "short": [(entry(size=400), b"code")],
    "a list": [([1, 2], b"code")],
    "no entry": [("x", b"code")],
    "a long line": [(entry("triton/" + "x" * 20_000), b"code")],
    "deep": [(json.loads("[" * 500 + "]" * 500), b"code")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_entries(tmp_path: Path, name: str) -> None:
    """An entry that leaves the caches, or lies about its size, ends the unpacking."""
    path = forge(tmp_path, HOSTILE[name], SEAL)
    with pytest.raises(UnusableArchiveError):
        read(path, tmp_path / "out", SEALED)
    found = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert found == [path]


def test_more_than_it_says(tmp_path: Path) -> None:
    """Files beyond the bytes in its first line are refused."""
    entries: list[tuple[object, bytes]] = [
        (entry(f"triton/{n}/x", 1000), b"x" * 1000) for n in range(3)
    ]
    path = forge(tmp_path, entries, size=2500)
    with pytest.raises(UnusableArchiveError, match="has the entry"):
        read(path, tmp_path / "out")


@pytest.mark.parametrize("more", [{"files": 10**9}, {"size": 10**12}, {"files": -1}])
def test_numbers_beyond_the_limits(tmp_path: Path, more: dict[str, int]) -> None:
    """An archive that announces too much is not unpacked at all."""
    with pytest.raises(UnusableArchiveError):
        read(forge(tmp_path, [(entry(), b"code")], "", **more), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_mode_is_private(tmp_path: Path) -> None:
    """A file can be a program, and nothing more: no set-uid, no right for others."""
    path = forge(tmp_path, [(entry(is_program=True, mode=0o4777), b"code")], SEAL)
    read(path, tmp_path / "out", SEALED)
    assert (tmp_path / "out/triton/a/x").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("make", ["link", "pipe", "folder"])
def test_no_file_in_its_place(tmp_path: Path, make: str) -> None:
    """A link is not followed, and a pipe does not block."""
    path = tmp_path / "bad.caches"
    if make == "link":
        path.symlink_to(archive(tmp_path))
    elif make == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises((UnusableArchiveError, OSError)):
        read(path, tmp_path / "out")
    assert signature_at(path) == ""


def test_a_full_disk_leaves_the_old_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is written aside: on an error nothing of it stays."""
    path = archive(tmp_path)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        archive(tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["x.caches"]
