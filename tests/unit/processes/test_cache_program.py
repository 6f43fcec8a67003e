"""Archives of compile caches: nodes are seeded and write back, with whatever volume."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from psutil import _psutil_linux

from agent.base import times
from agent.base.errors import PreflightError
from agent.base.text import own_command
from agent.job.compile_caches import PROGRAM
from agent.job.compile_caches import SEAL as SEAL_VARIABLE
from agent.processes import cache_folder, cache_program
from agent.processes.cache_folder import UNCHANGED, list_files, read_seeded
from agent.processes.cache_program import Saved, save, seed
from support.cache_places import HEAD, SEAL, WORKER, compile_here, contents, make_older, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.processes.cache_program import CachePlace

LIBRARY = Path(_psutil_linux.__file__).read_bytes()


def writing_node(folder: Path, name: str, *paths: str, **of_place: object) -> CachePlace:
    """Return a node that has compiled these files."""
    place = place_of(folder, name, **of_place)  # type: ignore[arg-type]  # as place_of takes them
    seed(place)
    compile_here(place, *paths)
    return place


def started(action: str, place: CachePlace, *more: str) -> subprocess.Popen[str]:
    """Start the program as the agent does."""
    where = ["--volume", place.volume, "--folder", place.folder, "--kind", place.kind]
    names = [word for name in place.archives for word in ("--archive", name)]
    argv = own_command(sys.executable, PROGRAM, action, *where, *names, "--limit", "60", *more)
    env = {**os.environ, SEAL_VARIABLE: place.seal}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)


def last_line(program: subprocess.Popen[str], *codes: int) -> str:
    """Return the last line of a program that has ended with 0, or one of these codes."""
    output, _ = program.communicate(timeout=90)
    assert program.returncode in {0, *codes}
    return output.splitlines()[-1]


# --- from node to node ---------------------------------------------------------------------------


@pytest.mark.parametrize("seal", ["", SEAL], ids=["by owner", "by token"])
def test_a_fresh_node_is_seeded(tmp_path: Path, seal: str) -> None:
    """It has the files of the first one, with their times and rights, and no locks."""
    paths = ("triton/ab/kernel.ptx", "inductor/x/main", "torch_extensions/e/lock")
    first = place_of(tmp_path, "first", seal=seal)
    cold = seed(first)
    assert cold.in_words() == f"cold: no archive of this kind of node in {first.volume} yet"
    compile_here(first, *paths)
    (first.root / paths[1]).chmod(0o755)
    make_older(first, paths[0], 1000.5)
    assert save(first).sentence.startswith("2 file(s) (")

    second = place_of(tmp_path, "second", seal=seal)
    seeded = seed(second)
    assert (seeded.state, seeded.files, seeded.size) == ("seeded", 2, 8)
    assert seeded.sentence.startswith(f"from {first.own_archive} (2 file(s), ")
    assert contents(second) == dict.fromkeys(paths[:2], "code")
    assert read_seeded(second.root) == seeded
    now, then = ((place.root / paths[0]).stat().st_mtime for place in (second, first))
    assert abs(now - then) < 1e-5
    rights = [(second.root / path).stat().st_mode & 0o777 for path in paths[:2]]
    assert rights == [0o600, 0o700]


def test_each_role_has_an_archive(tmp_path: Path) -> None:
    """Neither loses what the other one compiled; a node without its own starts from the other."""
    head = writing_node(tmp_path, "head", "triton/head/x")
    save(head)
    worker = writing_node(tmp_path, "worker", "triton/worker/x", is_head=False)
    seeded = seed(worker)  # says how long it took
    assert read_seeded(worker.root) == seeded
    assert set(contents(worker)) == {"triton/head/x", "triton/worker/x"}
    assert "written to" in save(worker).sentence
    assert {path.name for path in Path(head.volume).iterdir()} == {HEAD, WORKER}
    assert seed(place_of(tmp_path, "second head")).files == 1
    assert seed(place_of(tmp_path, "second worker", is_head=False)).files == 2


def test_one_node_of_a_role_writes(tmp_path: Path) -> None:
    """The others of a run find its new archive; one that has read it adds to it."""
    nodes = [writing_node(tmp_path, name, f"triton/{name}/x") for name in ("a", "b")]
    assert save(nodes[0]).sentence.startswith("1 file(s)")
    others = f"nothing new to write back: another node has just written {nodes[0].own_archive}"
    assert save(nodes[1]) == Saved(others, is_unchanged=True)
    compile_here(nodes[0], "triton/a/more")
    assert save(nodes[0]).sentence.startswith("2 file(s)")

    # In a later run; and where no node has written for long.
    third = writing_node(tmp_path, "c", "triton/c/x")
    assert save(third).sentence.startswith("3 file(s)")
    long_ago = time.time() - times.CACHES_SAVED_AGAIN - 1
    os.utime(third.own_archive, (long_ago, long_ago))
    assert save(nodes[1]).sentence.startswith("1 file(s)")


def test_what_is_there_stays(tmp_path: Path) -> None:
    """A running job may use it."""
    save(writing_node(tmp_path, "first", "triton/a/x", "triton/b/y"))
    second = place_of(tmp_path, "second")
    second.root.mkdir(parents=True, mode=0o700)
    seed(replace(second, volume=str(tmp_path / "none")))
    compile_here(second, "triton/a/x", text="mine")
    seed(second)
    assert contents(second) == {"triton/a/x": "mine", "triton/b/y": "code"}


def test_a_node_whose_volume_is_lost(tmp_path: Path) -> None:
    """What is on its own disk still counts."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    again = seed(place)
    assert (again.state, again.files) == ("seeded", 0)
    assert again.sentence.startswith("from this node's own disk; no archive of this kind")


def test_five_runs_at_once(tmp_path: Path) -> None:
    """A whole archive stays, and no part of one."""
    places = [writing_node(tmp_path, f"node{n}", f"triton/{n}/x") for n in range(5)]
    programs = [started("save", place) for place in places]
    lines = [last_line(program, UNCHANGED) for program in programs]
    for program, line in zip(programs, lines, strict=True):
        assert ("written to" in line) == (program.returncode == 0), line
    assert seed(place_of(tmp_path, "fresh")).files == 1
    assert [path.name for path in Path(places[0].volume).iterdir()] == [HEAD]


def test_an_archive_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS the old one is gone then: the new one is read."""
    save(writing_node(tmp_path, "first", "triton/a/x"))
    copy_checked = cache_program._copy_checked  # noqa: SLF001 - where NFS fails
    faults = [OSError(errno.ESTALE, "Stale file handle")]

    def fail_once(*words: object) -> int:
        if faults:
            raise faults.pop()
        return copy_checked(*words)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(cache_program, "_copy_checked", fail_once)
    assert seed(place_of(tmp_path, "second")).files == 1
    assert faults == []


# --- only files that are whole -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("inductor/a/x.so", LIBRARY, False),
        ("inductor/a/x.so", LIBRARY[:-1], True),
        ("inductor/a/x.so", LIBRARY[:1000], True),
        ("inductor/a/x.so", b"\0" * 4096, True),
        ("torch_extensions/e/x.o", b"", True),
        ("inductor/a/x.py", b"", False),
    ],
)
def test_a_library_that_is_cut(tmp_path: Path, path: str, data: bytes, *, expected: bool) -> None:
    """A killed compiler leaves it: it is not archived, and removed before the next run."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    (place.root / path).parent.mkdir(parents=True)
    (place.root / path).write_bytes(data)
    assert save(place).sentence.startswith("1 file(s)" if expected else "2 file(s)")
    seed(place)
    assert (place.root / path).exists()  # a job may still be writing it
    make_older(place, path, times.CACHES_SETTLED + 5)
    seed(place)
    assert (place.root / path).exists() is not expected


def test_after_a_failure_only_what_has_settled(tmp_path: Path) -> None:
    """The newest files may be incomplete."""
    first = writing_node(tmp_path, "first", "triton/a/earlier", "triton/a/just-now")
    make_older(first, "triton/a/earlier", 60.0)
    assert last_line(started("save", first, "--settled", "30")).startswith("1 file(s)")
    fresh = place_of(tmp_path, "fresh")
    seed(fresh)
    assert set(contents(fresh)) == {"triton/a/earlier"}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_killed_amid_writing(tmp_path: Path, signum: int) -> None:
    """The old archive stays whole; what is left of the new one goes once it is old."""
    place = writing_node(tmp_path, "node", "triton/old/x")
    save(place)
    before = place.own_archive.read_bytes()
    large = place.root / "triton/large"
    large.mkdir()
    for number in range(40):
        (large / f"{number}").write_bytes(os.urandom(1 << 20))

    # Of many megabytes that cannot be compressed some are written.
    program = started("save", place)
    volume = Path(place.volume)
    deadline = time.monotonic() + 120
    while not any(part.stat().st_size > 1 << 20 for part in volume.glob(".*.part")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    for pid in (program.pid, *map(int, children)):
        os.kill(pid, signum)
    program.communicate(timeout=60)
    assert place.own_archive.read_bytes() == before

    shutil.rmtree(large)
    compile_here(place, "triton/new/y")
    for part in volume.glob(".*.part"):
        old = time.time() - cache_program.ABANDONED - 10
        os.utime(part, (old, old))
    assert save(place).sentence.startswith("2 file(s)")
    assert [path.name for path in volume.iterdir()] == [HEAD]


# --- what is trusted -----------------------------------------------------------------------------


@pytest.mark.parametrize("seal", ["", SEAL], ids=["by owner", "by token"])
@pytest.mark.parametrize("at", [0, 20, -40, -1])
def test_a_changed_byte(tmp_path: Path, seal: str, at: int) -> None:
    """Nothing is unpacked, wherever it is; the next write replaces the archive."""
    first = writing_node(tmp_path, "first", "triton/a/x", seal=seal)
    save(first)
    data = bytearray(first.own_archive.read_bytes())
    data[at] ^= 1
    first.own_archive.write_bytes(data)
    fresh = place_of(tmp_path, "fresh", seal=seal)
    seeded = seed(fresh)
    assert seeded.state == "cold"
    assert f"{first.own_archive} is not used: " in seeded.sentence
    assert "damaged" in seeded.sentence
    assert contents(fresh) == {}


def test_an_archive_of_another_token_or_kind(tmp_path: Path) -> None:
    """The signature is that of the name, too: an archive under another's name is not used."""
    first = writing_node(tmp_path, "first", "triton/a/x", seal=SEAL)
    save(first)
    for other in ("cd" * 32, ""):
        assert seed(place_of(tmp_path, f"other{other}", seal=other)).state == "cold"
    own = first.own_archive
    own.rename(own.with_name(WORKER))
    seeded = seed(place_of(tmp_path, "worker", seal=SEAL, is_head=False))
    assert seeded.sentence.endswith("its signature is wrong: damaged, or of another token")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_an_archive_of_another_user(tmp_path: Path) -> None:
    """Without a token it is refused by its owner, and by the rights of others."""
    evil = writing_node(tmp_path, "evil", "triton/a/x")
    save(evil)
    evil.own_archive.chmod(0o620)
    node = place_of(tmp_path, "node")
    assert "others may write to it (mode 0620); set RAY_AUTH_TOKEN" in seed(node).sentence
    evil.own_archive.chmod(0o600)
    os.chown(evil.own_archive, 65_534, 65_534)
    line = last_line(started("seed", node))
    why = "it belongs to user 65534, not 0; set RAY_AUTH_TOKEN on all nodes, which signs archives"
    assert line == f"cold: {node.own_archive} is not used: {why}"
    assert contents(node) == {}


@pytest.mark.parametrize("make", ["symlink", "pipe", "folder", "empty"])
def test_no_file_in_its_place(tmp_path: Path, make: str) -> None:
    """A pipe would block, and a link leads elsewhere."""
    first = writing_node(tmp_path, "first", "triton/a/x")
    save(first)
    path = first.own_archive
    path.rename(tmp_path / "moved")
    if make == "symlink":
        path.symlink_to(tmp_path / "moved")
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    else:
        path.touch()
    assert seed(place_of(tmp_path, "fresh")).state == "cold"


HOSTILE = {
    "a path above": {"name": "triton/../../x"},
    "an absolute path": {"name": "/etc/x"},
    "another folder": {"name": "bin/x"},
    "the program's own folder": {"name": "triton/.pod-agent/kind"},
    "a file in the folder itself": {"name": "triton"},
    "a line break": {"name": "triton/x\n"},
    "a link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "a hard link": {"type": tarfile.LNKTYPE, "linkname": "triton/a/good"},
    "a device": {"type": tarfile.CHRTYPE},
    "a folder": {"type": tarfile.DIRTYPE},
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    """Of a rightly signed archive, too: only regular files of the caches' folders are written."""

    def pack(archive: tarfile.TarFile, *_: object) -> bool:
        member = tarfile.TarInfo("triton/a/x")
        member.size = 0 if "type" in fields else 4
        for name, value in fields.items():
            setattr(member, name, value)
        archive.addfile(member, io.BytesIO(b"evil"))
        return True

    monkeypatch.setattr(cache_program, "_pack", pack)
    save(writing_node(tmp_path, "evil", "triton/a/x", seal=SEAL))
    node = place_of(tmp_path, "node", seal=SEAL)
    assert "it has the entry " in seed(node).sentence
    assert contents(node) == {}


def test_more_bytes_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unpacking ends."""
    save(writing_node(tmp_path, "first", "triton/a/x", "triton/b/x"))
    monkeypatch.setattr(cache_folder, "MOST_BYTES", 7)
    assert "it has the entry " in seed(place_of(tmp_path, "fresh")).sentence


def test_a_folder_of_another_user(tmp_path: Path) -> None:
    """The job would run what is in it: that ends the step, with the folder and the remedy."""
    place = place_of(tmp_path, "node")
    place.root.parent.mkdir()
    place.root.symlink_to(tmp_path)
    with pytest.raises(PreflightError, match="is not this user's own"):
        seed(place)
    program = started("seed", place)
    assert "AGENT_CACHE_DIR=off" in program.communicate(timeout=60)[0]
    assert program.returncode == 78


def test_a_folder_that_others_could_write_to(tmp_path: Path) -> None:
    """What is in it is not used: the job would run it."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    place.root.chmod(0o770)
    assert seed(place).state == "cold"
    assert contents(place) == {}
    assert place.root.stat().st_mode & 0o777 == 0o700


def test_another_kind_of_node(tmp_path: Path) -> None:
    """A folder of another driver or CPU is emptied."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    assert seed(replace(place, kind="f" * 16)).state == "cold"
    assert contents(place) == {}


# --- faults of a volume --------------------------------------------------------------------------


FAULTS: dict[str, Callable[[Path], object]] = {
    "no volume": lambda _volume: None,
    "a file": lambda volume: volume.write_text("no folder"),
    "a loop": lambda volume: volume.symlink_to(volume),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_wrong_with_a_volume(tmp_path: Path, fault: str) -> None:
    """It is one line, and the program ends with 0."""
    place = place_of(tmp_path, "node")
    FAULTS[fault](Path(place.volume))
    line = last_line(started("seed", place))
    assert line.startswith("cold: no archive" if fault == "no volume" else "cold: ")
    compile_here(place, "triton/a/x")
    written = last_line(started("save", place))
    assert written.startswith("1 file(s)" if fault == "no volume" else "not written back: ")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written where little is free, and nothing unpacked."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    save(place)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    assert save(place).sentence.startswith(f"not written back: {place.volume} has 1 KiB free")
    make_older(place, "triton/a/x", 60.0)
    full = save(place, 30.0)
    assert full.sentence.endswith("files may be cut")  # as a compiler leaves them there
    fresh = place_of(tmp_path, "fresh")
    assert "free, and" in seed(fresh).sentence
    assert contents(fresh) == {}


def test_a_hung_volume(tmp_path: Path) -> None:
    """The program ends at its limit, whatever its child does."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    save(place)
    line = last_line(started("seed", place, "--limit", "0.001"))
    assert line == f"cold: {place.volume} took longer than 0.001 s"


def test_old_archives_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that seeded no node for long, and the oldest of too many bytes; no other files."""
    place = writing_node(tmp_path, "node", "triton/a/x")
    save(place)
    volume = Path(place.volume)
    names = [HEAD.replace("0123", digits) for digits in ("aaaa", "bbbb", "cccc")]
    others = {"notes.txt", "old.tar.gz", f".{names[0]}.movie"}
    now = time.time()
    for name in (*names, *others):
        (volume / name).write_text("x" * 1000)
        os.utime(volume / name, (now - cache_program.UNUSED - 10,) * 2)
    os.utime(volume / names[1], (now - 20, now - cache_program.UNUSED - 10))  # read lately
    os.utime(volume / names[2], (now - 10, now - 10))
    save(place)
    assert {path.name for path in volume.iterdir()} == {HEAD, *names[1:], *others}
    monkeypatch.setattr(cache_program, "MOST_OF_VOLUME", place.own_archive.stat().st_size + 1500)
    save(place)
    assert {path.name for path in volume.iterdir()} == {HEAD, names[2], *others}


def test_a_seeding_counts_as_use(tmp_path: Path) -> None:
    """The archive is kept, and the time at which it was written does not change."""
    first = writing_node(tmp_path, "first", "triton/a/x")
    save(first)
    os.utime(first.own_archive, (1000, 1000))
    seed(place_of(tmp_path, "second"))
    status = first.own_archive.stat()
    assert status.st_atime > 1000
    assert status.st_mtime == 1000


# --- which files ---------------------------------------------------------------------------------


PATHS = {
    "triton/ab/kernel.cubin": True,
    "vllm/torch_compile_cache/ab/rank_0_0/x.py": True,
    "flashinfer/.cache/flashinfer/90a/cached_ops/x.cu": True,
    "torch_extensions/py311/ext/lock": False,  # the loader would wait for it forever
    "inductor/locks/abc.lock": False,
    "triton/tmp.pid_12_ab/kernel.ptx": False,
    "deep_gemm/tmp/12/kernel.cubin": False,
    "vllm/gpu_p2p_access_cache_for_0,1.json": False,
    "vllm/assets/image.png": False,
    "hf_modules/transformers_modules/x.py": False,
    "other/x.py": False,
}


def test_which_files_are_archived(tmp_path: Path) -> None:
    """What is wrong or of no use on another node is left out, and links are."""
    place = writing_node(tmp_path, "node", *PATHS)
    (place.root / "triton/link").symlink_to("ab/kernel.cubin")
    (place.root / "triton/out").symlink_to(tmp_path)
    found = {file.path for file in list_files(place.root)}
    assert found == {path for path, is_archived in PATHS.items() if is_archived}


def test_the_newest_files_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all fit; one that is too large is left out."""
    place = writing_node(tmp_path, "node", "triton/a/old", "triton/a/new", "triton/a/large")
    make_older(place, "triton/a/old", 10)
    (place.root / "triton/a/large").write_text("x" * 100)
    monkeypatch.setattr(cache_folder, "LARGEST_FILE", 50)
    assert [file.path for file in list_files(place.root)] == ["triton/a/new", "triton/a/old"]
    monkeypatch.setattr(cache_folder, "MOST_BYTES", 6)
    assert [file.path for file in list_files(place.root)] == ["triton/a/new"]
