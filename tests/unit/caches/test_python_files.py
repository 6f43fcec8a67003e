"""Python's compiled files of packages that came without them: from one node to the next."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.caches.cache_folder import NOTHING_NEW, Seeded, read_seeded
from agent.caches.cache_store import save, seed
from agent.caches.python_files import file_of, lacks_compiled, list_compiled, target_of
from support.cache_places import UNSEALED, compile_here, contents, place_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.caches.cache_folder import CachePlace

TAG = sys.implementation.cache_tag


def installed(folder: Path, **texts: str) -> Path:
    """Install packages as uv does, torch among them, without .pyc files; return their folder."""
    packages = folder / "lib/python3.11/site-packages"
    for name, text in {"torch": "", **texts}.items():
        (packages / name).mkdir(parents=True, exist_ok=True)
        (packages / name / "__init__.py").write_text(text)
    return packages


def compiled(packages: Path, name: str) -> Path:
    """Return where Python puts the compiled file of a package."""
    return packages / name / "__pycache__" / f"__init__.{TAG}.pyc"


def run_job(packages: Path, code: str = "import slow; print(slow.VALUE)") -> str:
    """Import packages as a job does; return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(packages)}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        env.pop(name, None)
    argv = [sys.executable, "-c", f"import torch; {code}"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()


def as_built(packages: Path, seconds: float = 0.0) -> None:
    """Take the packages back to how the image was built, so many seconds later."""
    for file in packages.rglob("*.pyc"):
        file.unlink()
    for source in packages.rglob("*.py"):
        status = source.stat()
        os.utime(source, (status.st_atime, status.st_mtime + seconds))


def node_of(folder: Path, name: str, packages: Path) -> CachePlace:
    """Return the place of a node's caches."""
    return replace(place_of(folder, name), packages=(str(packages),))


@pytest.mark.parametrize("later", [0.0, 86_400.0], ids=["the same image", "one built later"])
def test_a_fresh_node_compiles_nothing(tmp_path: Path, later: float) -> None:
    """It gets the files of the first node beside its sources, with the times that these have."""
    packages = installed(tmp_path, slow="VALUE = 1")
    first = node_of(tmp_path, "first", packages)
    seed(first, UNSEALED)
    compile_here(first, "triton/x")
    assert run_job(packages) == "1"
    assert save(first, UNSEALED, "run-1", "first").startswith("3 file(s)")

    as_built(packages, later)
    second = node_of(tmp_path, "second", packages)
    assert seed(second, UNSEALED).files == 3
    assert contents(second).keys() == {"triton/x"}
    written = compiled(packages, "slow").stat()
    assert written.st_mode & 0o777 == 0o644
    assert run_job(packages) == "1"
    after = compiled(packages, "slow").stat()
    assert (after.st_ino, after.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert save(second, UNSEALED, "run-2", "second") == NOTHING_NEW


def test_another_source_is_compiled_anew(tmp_path: Path) -> None:
    """Also where it has the time and the size of the former one, as in some images all have."""
    packages = installed(tmp_path, slow="VALUE = 1")
    first = node_of(tmp_path, "first", packages)
    seed(first, UNSEALED)
    run_job(packages)
    save(first, UNSEALED, "run-1", "first")

    as_built(packages)
    source = packages / "slow/__init__.py"
    before = source.stat()
    source.write_text("VALUE = 2")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = node_of(tmp_path, "second", packages)
    seed(second, UNSEALED)
    assert compiled(packages, "torch").exists()
    assert not compiled(packages, "slow").exists()
    assert run_job(packages) == "2"
    assert save(second, UNSEALED, "run-2", "second").startswith("2 file(s)")


def test_a_job_need_not_wait_for_them(tmp_path: Path) -> None:
    """They are written last, in the order of the imports, after the word that all else is there."""
    packages = installed(tmp_path, slow="VALUE = 1", late="VALUE = 2")
    first = node_of(tmp_path, "first", packages)
    seed(first, UNSEALED)
    compile_here(first, "triton/x")
    run_job(packages, "import slow; import time; time.sleep(0.05); import late")
    save(first, UNSEALED, "run-1", "first")

    as_built(packages)
    second = node_of(tmp_path, "second", packages)
    there: list[bool] = []

    def enough(seeded: Seeded) -> None:
        assert read_seeded(second.root) == seeded
        assert contents(second).keys() == {"triton/x"}
        there.extend(compiled(packages, name).exists() for name in ("torch", "slow", "late"))

    assert seed(second, UNSEALED, enough).files == 4
    assert there == [False, False, False]
    names = ("torch", "slow", "late")
    written = [compiled(packages, name).stat().st_mtime_ns for name in names]
    assert written == sorted(written)


def test_two_runs_at_once(tmp_path: Path) -> None:
    """What another run has compiled meanwhile stays in the archive."""
    packages = installed(tmp_path, slow="VALUE = 1", other="VALUE = 2")
    first, second = (node_of(tmp_path, name, packages) for name in ("first", "second"))
    seed(first, UNSEALED)
    seed(second, UNSEALED)
    run_job(packages)
    save(first, UNSEALED, "run-1", "first")

    as_built(packages)  # as on the other node's disk
    run_job(packages, "import other")
    assert save(second, UNSEALED, "run-2", "second").startswith("3 file(s)")


def test_the_same_node_with_a_fresh_container(tmp_path: Path) -> None:
    """Its cache folder outlived the container; the packages are again as they were built."""
    packages = installed(tmp_path, slow="VALUE = 1")
    node = node_of(tmp_path, "node", packages)
    seed(node, UNSEALED)
    run_job(packages)
    save(node, UNSEALED, "run-1", "node")
    as_built(packages)
    seed(node, UNSEALED)
    assert compiled(packages, "slow").exists()


def test_packages_that_came_without(tmp_path: Path) -> None:
    """Torch tells it; without torch nothing here takes long to compile."""
    packages = installed(tmp_path)
    assert lacks_compiled([str(tmp_path), str(packages)])
    py_compile.compile(str(packages / "torch/__init__.py"), str(compiled(packages, "torch")))
    assert not lacks_compiled([str(packages)])
    assert not lacks_compiled([str(tmp_path)])


def test_only_whole_files_of_installed_sources_are_archived(tmp_path: Path) -> None:
    """A full disk leaves cut ones, of which each import fails."""
    packages = installed(tmp_path, cut="VALUE = 1", stale="VALUE = 1", gone="VALUE = 1")
    for name in ("cut", "stale", "gone"):
        source = packages / name / "__init__.py"
        py_compile.compile(str(source), str(compiled(packages, name)))
    data = compiled(packages, "cut").read_bytes()
    compiled(packages, "cut").write_bytes(data[:-8])
    (packages / "stale/__init__.py").write_text("VALUE = 22")
    (packages / "gone/__init__.py").unlink()
    assert list_compiled([str(packages)], since=0.0) == []

    (packages / "cut/__init__.py").touch()
    py_compile.compile(str(packages / "cut/__init__.py"), str(compiled(packages, "cut")))
    (file,) = list_compiled([str(packages)], since=0.0)
    assert file_of(file.path) == str(compiled(packages, "cut"))
    assert list_compiled([str(packages)], since=time.time() + 5) == [], "the image's own"


def test_where_an_archives_file_is_written(tmp_path: Path) -> None:
    """Beside an installed source alone, and never over a file that is there."""
    packages = installed(tmp_path, slow="VALUE = 1")
    py_compile.compile(str(packages / "slow/__init__.py"), str(compiled(packages, "slow")))
    (file,) = list_compiled([str(packages)], since=0.0)
    folders = [str(packages)]
    assert target_of(file.path, folders) is None
    compiled(packages, "slow").unlink()
    assert target_of(file.path, []) is None
    assert target_of(file.path.replace("slow", "none"), folders) is None
    assert target_of(file.path.replace(".py", ".txt"), folders) is None
    found = target_of(file.path, folders)
    assert found is not None
    assert found.path == str(compiled(packages, "slow"))


def test_a_folder_of_one_package_that_takes_no_files(tmp_path: Path) -> None:
    """As one that is mounted read-only into the others: these get theirs."""
    packages = installed(tmp_path, aaa="VALUE = 1", slow="VALUE = 1")
    first = node_of(tmp_path, "first", packages)
    seed(first, UNSEALED)
    run_job(packages, "import aaa, slow")
    save(first, UNSEALED, "run-1", "first")

    as_built(packages)
    folder = packages / "aaa/__pycache__"
    folder.rmdir()
    folder.symlink_to("/proc/self/fdinfo")  # where nobody can create a file, not even root
    fresh = node_of(tmp_path, "fresh", packages)
    assert seed(fresh, UNSEALED).state == "seeded"
    assert compiled(packages, "slow").is_file()


def test_a_folder_of_packages_that_takes_no_files(tmp_path: Path) -> None:
    """The node is seeded with the rest, and Python compiles as before."""
    packages = installed(tmp_path, slow="VALUE = 1")
    first = node_of(tmp_path, "first", packages)
    seed(first, UNSEALED)
    compile_here(first, "triton/x")
    run_job(packages)
    save(first, UNSEALED, "run-1", "first")
    as_built(packages)
    second = replace(place_of(tmp_path, "second"), packages=("/proc/sys",))
    seed(second, UNSEALED)
    assert contents(second).keys() == {"triton/x"}
    seeded = read_seeded(second.root)
    assert seeded is not None
    assert seeded.state == "seeded"
