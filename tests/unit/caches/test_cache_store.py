"""Nodes and their volume: seeded, written back, by real programs that are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.base import times
from agent.base.errors import PreflightError
from agent.base.text import own_command
from agent.caches import cache_store
from agent.caches.cache_folder import NOTHING_NEW, OTHER_WRITES, CachePlace, read_seeded, scan
from agent.caches.cache_store import save, seed
from agent.job.compile_caches import SEAL as SEAL_VARIABLE
from support.cache_places import (
    SEAL,
    SEALED,
    UNSEALED,
    compile_here,
    contents,
    make_older,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.caches.cache_archive import Trust

OLD = "x86_64-fedcba9876543210-u0.caches"


def started(
    action: str, place: CachePlace, *more: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start the program as the agent does."""
    where = ("--volume", place.volume, "--folder", place.folder, "--archive", place.archive)
    argv = own_command(
        sys.executable, "compile-caches", action, *where, "--kind", place.kind, *more
    )
    return subprocess.Popen(
        argv, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True
    )


def last_line(program: subprocess.Popen[str]) -> str:
    """Return the last line of a program that has ended well."""
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    return output.splitlines()[-1]


def await_true(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop(program: subprocess.Popen[str], signum: int) -> None:
    """Kill a program with its child, or send it another signal."""
    pids = [program.pid]
    if signum == signal.SIGKILL:
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text()
        pids += map(int, children.split())
    for pid in pids:
        os.kill(pid, signum)
    program.communicate(timeout=60)


@pytest.mark.parametrize("trust", [UNSEALED, SEALED], ids=["by owner", "by token"])
def test_a_fresh_node_is_seeded(tmp_path: Path, trust: Trust) -> None:
    """The first node starts cold and writes back; the next has its files, and writes nothing."""
    first = place_of(tmp_path, "first")
    cold = seed(first, trust)
    assert cold.state == "cold"
    assert "no archive of this kind of node" in cold.sentence
    compile_here(first, "triton/ab/kernel.ptx", "inductor/x/y.py", "torch_extensions/e/lock")
    assert "2 file(s)" in save(first, trust, "run-1", "first")

    second = place_of(tmp_path, "second")
    seeded = seed(second, trust)
    assert (seeded.state, seeded.files, seeded.size) == ("seeded", 2, 8)
    assert contents(second) == {"triton/ab/kernel.ptx": "code", "inductor/x/y.py": "code"}
    assert read_seeded(second.root) == seeded
    assert save(second, trust, "run-2", "second") == NOTHING_NEW


def test_the_same_node_again(tmp_path: Path) -> None:
    """What is on its own disk is not read again; without a volume it still counts."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/ab/x")
    save(place, UNSEALED, "run-1", "node")
    assert "has read or written" in seed(place, UNSEALED).sentence
    shutil.rmtree(place.volume)
    again = seed(place, UNSEALED)
    assert again.state == "seeded"
    assert "from this node's own disk; no archive" in again.sentence
    assert save(place, UNSEALED, "run-2", "node").startswith("1 file(s)")


def test_a_library_that_is_cut_is_removed(tmp_path: Path) -> None:
    """As a killed run left it on this node; one that a job may still be writing stays."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "inductor/ab/cut.so", "inductor/ab/new.so", "inductor/ab/x.cpp")
    for path in ("inductor/ab/cut.so", "inductor/ab/x.cpp"):
        make_older(place, path, times.CACHES_SETTLED + 5)
    seed(place, UNSEALED)
    assert set(contents(place)) == {"inductor/ab/new.so", "inductor/ab/x.cpp"}


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """A running job may use it."""
    first = place_of(tmp_path, "first")
    seed(first, UNSEALED)
    compile_here(first, "triton/a/x", "triton/b/y")
    save(first, UNSEALED, "run-1", "first")
    second = place_of(tmp_path, "second")
    seed(second, UNSEALED)
    (second.root / ".pod-agent/known.json").unlink()
    compile_here(second, "triton/a/x", text="mine")
    seed(second, UNSEALED)
    assert contents(second) == {"triton/a/x": "mine", "triton/b/y": "code"}


def test_one_node_of_a_run_writes(tmp_path: Path) -> None:
    """The first with something new claims it; in another run another node may."""
    nodes = [place_of(tmp_path, name) for name in ("a", "b")]
    for node in nodes:
        seed(node, UNSEALED)
        compile_here(node, f"triton/{node.root.parent.name}/x")
    assert save(nodes[0], UNSEALED, "run-1", "a").startswith("1 file(s)")
    assert save(nodes[1], UNSEALED, "run-1", "b") == f"{NOTHING_NEW}: a writes this kind's archive"
    compile_here(nodes[0], "triton/a/more")
    assert save(nodes[0], UNSEALED, "run-1", "a").startswith("2 file(s)")

    # A later run's has the files of both.
    assert save(nodes[1], UNSEALED, "run-2", "b").startswith("3 file(s)")


def test_the_node_that_writes_is_lost(tmp_path: Path) -> None:
    """Another one writes once no write has come for long."""
    nodes = [place_of(tmp_path, name) for name in ("a", "b")]
    for number, node in enumerate(nodes):
        seed(node, UNSEALED)
        compile_here(node, f"triton/{number}/x")
    save(nodes[0], UNSEALED, "run-1", "a")
    assert save(nodes[1], UNSEALED, "run-1", "b").startswith(OTHER_WRITES)
    claim = next(Path(nodes[0].volume).glob(".*.claim"))
    long_ago = time.time() - times.CACHES_CLAIM - 1
    os.utime(claim, (long_ago, long_ago))
    assert save(nodes[1], UNSEALED, "run-1", "b").startswith("2 file(s)")
    assert claim.read_text() == "b"


def test_nodes_that_claim_at_once(tmp_path: Path) -> None:
    """One of them writes, in each of many runs."""
    place = place_of(tmp_path, "node")
    Path(place.volume).mkdir()
    with ThreadPoolExecutor(8) as nodes:
        for run in range(200):
            ready = threading.Barrier(8)

            def claim(node: int, run: int = run, ready: threading.Barrier = ready) -> bool:
                ready.wait()
                return cache_store._claim(place, f"run-{run}", f"node-{node}") == f"node-{node}"  # noqa: SLF001 - the race is in it

            assert sum(nodes.map(claim, range(8))) == 1


@pytest.mark.parametrize("claimed", [b"", b"\xff\xfe", b"\x1b[2J", b"a" * 5000])
def test_an_odd_claim(tmp_path: Path, claimed: bytes) -> None:
    """It names no node, and no terminal gets its bytes."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    Path(place.volume).mkdir()
    Path(place.volume, f".{place.archive}.run-1.claim").write_bytes(claimed)
    said = save(place, UNSEALED, "run-1", "node")
    assert said.startswith(OTHER_WRITES)
    assert said.isprintable()
    assert len(said) < 400


def test_a_claim_that_is_a_link(tmp_path: Path) -> None:
    """What it leads to is neither said nor changed."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    secret = tmp_path / "secret"
    secret.write_text("root:hash")
    Path(place.volume).mkdir()
    Path(place.volume, f".{place.archive}.run-1.claim").symlink_to(secret)
    assert "written to" in save(place, UNSEALED, "run-1", "node")
    assert secret.read_text() == "root:hash"


def test_a_job_that_removes_its_caches(tmp_path: Path) -> None:
    """They are seeded again, and a write does not lose them for all other nodes."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x", "triton/b/y")
    save(place, UNSEALED, "run-1", "node")

    shutil.rmtree(place.root / "triton")
    assert seed(place, UNSEALED).sentence == f"from {place.path}"
    assert contents(place) == {"triton/a/x": "code", "triton/b/y": "code"}

    shutil.rmtree(place.root / "triton")
    compile_here(place, "triton/c/z")
    assert save(place, UNSEALED, "run-2", "node").startswith("3 file(s)")
    assert seed(place_of(tmp_path, "fresh"), UNSEALED).files == 3


def test_a_folder_that_others_could_write_to(tmp_path: Path) -> None:
    """What is in it is not used: the job would run it."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    place.root.chmod(0o770)
    assert seed(place, UNSEALED).state == "cold"
    assert contents(place) == {}
    assert place.root.stat().st_mode & 0o777 == 0o700


def test_a_deep_folder(tmp_path: Path) -> None:
    """A program may nest its cache as deep as it likes."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    here = os.open(place.root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert "written to" in save(place, UNSEALED, "run-1", "node")
    finally:  # Python's rmtree cannot remove it
        subprocess.run(["rm", "-rf", str(place.root)], check=True)


def test_two_runs_at_once(tmp_path: Path) -> None:
    """Ten programs of as many runs write at the same time: a whole archive stays."""
    places = [place_of(tmp_path, f"node{number}") for number in range(10)]
    for number, place in enumerate(places):
        seed(place, UNSEALED)
        compile_here(place, f"triton/{number}/x", text="x" * 200_000)
    programs = [
        started("save", place, "--run", f"run-{number}", "--node", "n")
        for number, place in enumerate(places)
    ]
    assert all("written to" in last_line(program) for program in programs)

    fresh = place_of(tmp_path, "fresh")
    assert seed(fresh, UNSEALED).state == "seeded"
    assert len(contents(fresh)) >= 1
    leftovers = [file.name for file in Path(fresh.volume).iterdir() if file.suffix == ".part"]
    assert leftovers == []


def test_after_a_failure_only_what_is_settled(tmp_path: Path) -> None:
    """The newest files stay out, but not those of another run's archive, which are whole."""
    other = place_of(tmp_path, "other")
    first = place_of(tmp_path, "first")
    for place in (first, other):
        seed(place, UNSEALED)
    compile_here(other, "triton/o/of-others")
    assert "written to" in save(other, UNSEALED, "run-2", "node")

    compile_here(first, "triton/a/earlier", "triton/a/just-now")
    make_older(first, "triton/a/earlier", 60.0)
    line = last_line(started("save", first, "--run", "run-1", "--settled", "30"))
    assert line.startswith("2 file(s)")
    fresh = place_of(tmp_path, "fresh")
    seed(fresh, UNSEALED)
    assert set(contents(fresh)) == {"triton/a/earlier", "triton/o/of-others"}


def test_a_library_that_is_cut_is_left_out(tmp_path: Path) -> None:
    """A linker that was killed leaves one, and torch loads it for as long as it is there."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "inductor/ab/cut.so", text="\x7fELF\x02\x01\x01")
    compile_here(place, "inductor/ab/source.cpp")
    assert save(place, UNSEALED, "run-1", "node").startswith("1 file(s)")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_killed_amid_writing(tmp_path: Path, signum: int) -> None:
    """The old archive stays whole, and a later write succeeds."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/old/x")
    save(place, UNSEALED, "run-1", "node")
    before = place.path.read_bytes()

    # Many megabytes that cannot be compressed: it is killed while its part grows.
    large = place.root / "triton/large"
    large.mkdir()
    for number in range(100):
        (large / f"{number}").write_bytes(os.urandom(1 << 20))
    program = started("save", place, "--run", "run-1", "--node", "node")
    volume = Path(place.volume)
    await_true(lambda: any(part.stat().st_size > 1 << 20 for part in volume.glob(".*.part")))
    assert program.poll() is None
    stop(program, signum)
    assert place.path.read_bytes() == before
    assert seed(place_of(tmp_path, "fresh"), UNSEALED).state == "seeded"

    # What it left goes once it is old.
    parts = [*volume.glob(".*.part")]
    assert len(parts) == 1
    shutil.rmtree(large)
    compile_here(place, "triton/new/y")
    old = time.time() - times.CACHES_ABANDONED - 10
    os.utime(parts[0], (old, old))
    assert save(place, UNSEALED, "run-1", "node").startswith("2 file(s)")
    assert [*volume.glob(".*.part")] == []


@pytest.mark.slow
def test_killed_amid_seeding(tmp_path: Path) -> None:
    """What was unpacked is whole; the rest comes with the next seeding."""
    first = place_of(tmp_path, "first")
    seed(first, UNSEALED)
    paths = [f"triton/{number}/x" for number in range(3000)]
    compile_here(first, *paths, text="x" * 2000)
    save(first, UNSEALED, "run-1", "first")
    second = place_of(tmp_path, "second")
    program = started("seed", second)
    await_true((second.root / "triton").exists)
    stop(program, signal.SIGKILL)
    files = {path: text for path, text in contents(second).items() if not path.endswith(".part")}
    assert all(len(text) == 2000 for text in files.values())
    assert seed(second, UNSEALED).files == 3000
    assert set(contents(second)) >= set(paths)


def test_a_poisoned_archive_of_another_user(tmp_path: Path) -> None:
    """Another user's archive in ours place is refused, and the node starts cold."""
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    evil = place_of(tmp_path, "evil")
    seed(evil, UNSEALED)
    compile_here(evil, "triton/a/x", text="evil")
    save(evil, UNSEALED, "run-1", "evil")
    os.chown(evil.path, 65_534, 65_534)

    node = place_of(tmp_path, "node")
    line = last_line(started("seed", node))
    assert line.startswith(f"cold: {node.path} is not used: it belongs to user 65534, not 0")
    assert contents(node) == {}

    # With a token a signature is asked for, whoever owns the file.
    line = last_line(started("seed", node, env={SEAL_VARIABLE: SEAL}))
    assert line.startswith(f"cold: {node.path} is not used: it is not signed")
    assert contents(node) == {}


def test_a_folder_of_another_user(tmp_path: Path) -> None:
    """The job would run what is in it: that ends the step, by the name of the folder."""
    place = place_of(tmp_path, "node")
    place.root.parent.mkdir()
    place.root.symlink_to(tmp_path)
    with pytest.raises(PreflightError, match="is not this user's own"):
        seed(place, UNSEALED)
    program = started("seed", place)
    assert "AGENT_CACHE_DIR=off" in program.communicate(timeout=60)[0]
    assert program.returncode == 78


def test_another_kind_of_node(tmp_path: Path) -> None:
    """A folder of another driver or CPU is emptied."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    other = place_of(tmp_path, "node", kind="f" * 16)
    assert seed(other, UNSEALED).state == "cold"
    assert contents(other) == {}


@pytest.mark.parametrize("fault", ["damaged", "no volume", "a file", "no right", "a loop"])
def test_whatever_is_wrong_with_a_volume(tmp_path: Path, fault: str) -> None:
    """It is one line, and the program ends with 0; the next write replaces a damaged archive."""
    place = place_of(tmp_path, "node")
    volume = Path(place.volume)
    if fault == "damaged":
        volume.mkdir()
        place.path.write_bytes(b"\0" * 5000)
        place.path.chmod(0o600)
    elif fault == "a file":
        volume.write_text("no folder")
    elif fault == "no right":
        volume.mkdir(mode=0o500)
    elif fault == "a loop":
        volume.symlink_to(volume)
    line = last_line(started("seed", place))
    assert line.startswith("cold: ")
    assert line.startswith("cold: no archive") == (fault in {"no volume", "no right"})
    compile_here(place, "triton/a/x")
    result = last_line(started("save", place, "--run", "r", "--node", "n"))
    if fault in {"a file", "a loop"}:
        assert result.startswith("not written back: ")
    elif os.getuid() == 0 or fault != "no right":
        assert result.startswith("1 file(s)")
        assert seed(place_of(tmp_path, "fresh"), UNSEALED).state == "seeded"


def test_a_full_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written where little is free, and nothing unpacked."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    save(place, UNSEALED, "run-1", "node")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    compile_here(place, "triton/a/y")
    assert save(place, UNSEALED, "run-1", "node").startswith("not written back: ")
    fresh = place_of(tmp_path, "fresh")
    assert "free, and" in seed(fresh, UNSEALED).sentence
    assert contents(fresh) == {}


def test_a_hung_volume(tmp_path: Path) -> None:
    """The program ends at its limit, whatever its child does."""
    place = place_of(tmp_path, "node")
    first = place_of(tmp_path, "first")
    seed(first, UNSEALED)
    compile_here(first, *[f"triton/{number}/x" for number in range(1000)])
    save(first, UNSEALED, "run-1", "first")
    program = started("seed", place, "--limit", "0")
    assert last_line(program) == f"cold: {place.volume} took longer than 0 s"


def test_old_archives_are_removed(tmp_path: Path) -> None:
    """Those that seeded no node for long; other users' files and other names stay."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    volume = Path(place.volume)
    volume.mkdir()
    long_ago = time.time() - times.CACHES_UNUSED - 10
    others = {"notes.txt", "old.caches", ".ssh.claim", ".movie.part"}
    for name in (*others, OLD, f".{OLD}.run-0.claim", f".{OLD}.0a1b2c3d.part"):
        (volume / name).write_text("x")
        os.utime(volume / name, (long_ago, long_ago))
    save(place, UNSEALED, "run-1", "node")
    names = {file.name for file in volume.iterdir()}
    assert names == {*others, place.archive, f".{place.archive}.run-1.claim"}


def test_a_file_that_another_node_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a run look for old files at once: one that is gone meanwhile stops no writing."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    volume = Path(place.volume)
    volume.mkdir()
    (volume / OLD).write_text("x")

    def scan_before_its_removal(folder: Path) -> list[os.DirEntry[str]]:
        entries = scan(folder)
        (volume / OLD).unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(cache_store, "scan", scan_before_its_removal)
    assert "written to" in save(place, UNSEALED, "run-1", "node")


WITHOUT_PRIORITIES = """
import sys, psutil
from agent.caches.cache_program import main

def forbidden(*_):
    raise psutil.AccessDenied

psutil.Process.ionice = forbidden
sys.exit(main(sys.argv[1:]))
"""
LONG_SENTENCE = """
from agent.caches.cache_program import in_child
in_child(lambda send: "a" + "\u00e9" * 3000, 60.0, "late")
"""


def printed_by(program: str, *argv: str) -> str:
    """Run a program of Python; return what it prints."""
    environ = {**os.environ, "PYTHONUTF8": "1"}
    words = [sys.executable, "-c", program, *argv]
    return subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=True).stdout.decode()


def test_a_node_without_priorities(tmp_path: Path) -> None:
    """Where a container forbids I/O priorities, what is new is written back all the same."""
    place = place_of(tmp_path, "node")
    seed(place, UNSEALED)
    compile_here(place, "triton/a/x")
    where = ("--volume", place.volume, "--folder", place.folder, "--archive", place.archive)
    argv = ("save", *where, "--kind", place.kind, "--node", "node")
    assert "written to" in printed_by(WITHOUT_PRIORITIES, *argv)


def test_a_long_sentence() -> None:
    """It is cut, amid a character, too."""
    assert printed_by(LONG_SENTENCE).startswith("aéé")


def test_a_seeding_keeps_an_archive(tmp_path: Path) -> None:
    """It counts as used."""
    first = place_of(tmp_path, "first")
    seed(first, UNSEALED)
    compile_here(first, "triton/a/x")
    save(first, UNSEALED, "run-1", "first")
    os.utime(first.path, (1000, 1000))
    seed(place_of(tmp_path, "second"), UNSEALED)
    assert first.path.stat().st_mtime > 1000
