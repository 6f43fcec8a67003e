"""The one file: its lock, and its start with a small agent and library."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.build import licenses, lock, make
from tools.build.lock import Target, Wheel, digest

pytestmark = pytest.mark.processes

LAUNCHER = make.HERE / "launcher.py"
HERE = Target(sys.version_info[1], os.uname().machine)
AGENT = """
import json, os, sys
import library
print(json.dumps({
    "argv": sys.argv[1:], "python": sys.executable, "library": library.__file__,
    "version": library.VERSION, "program": __file__, "isolated": sys.flags.isolated,
}))
sys.exit(7)
"""
ANOTHER_UID = 12_345


def write_wheel(folder: Path, name: str, files: dict[str, str]) -> Wheel:
    """Write a wheel with some files, and metadata unless they have it."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    fields = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
    files = {f"{name}-1.0.dist-info/METADATA": fields, **files}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for member, text in files.items():
            file.writestr(zipfile.ZipInfo(member, make.ZIP_EPOCH), text)
    return Wheel(digest(path), path.name, (HERE.name,))


@dataclass(frozen=True)
class Small:
    """A small one file, which unpacks below a test folder."""

    file: Path
    parents: tuple[Path, ...]

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            [str(self.file), *words],
            env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **environ: str) -> tuple[int, dict[str, object], str]:
        """Run it; return its code, the small agent's output, and stderr."""
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=60)
        return process.returncode, ast.literal_eval(out or "{}"), err

    def homes(self) -> list[Path]:
        """Return the folders that it unpacked to."""
        return [home for parent in self.parents for home in parent.glob("pod-agent-*/*")]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    """Write a small one file."""
    parents = (tmp_path / "first", tmp_path / "second")
    for parent in parents:
        parent.mkdir(mode=0o700)
    text = LAUNCHER.read_text(encoding="utf-8")
    assert 'PARENTS = ("/tmp", "/var/tmp", "/dev/shm")\n' in text
    for name in ("header.sh", "launcher.py"):
        (tmp_path / name).write_bytes((make.HERE / name).read_bytes())
    written = tuple(map(str, parents))
    patched = re.sub(r"^PARENTS = .*$", f"PARENTS = {written!r}", text, flags=re.MULTILINE)
    (tmp_path / "launcher.py").write_text(patched, encoding="utf-8")
    monkeypatch.setattr(make, "HERE", tmp_path)
    own = write_wheel(tmp_path, "pod_agent", {"agent/__main__.py": AGENT})
    library = write_wheel(
        tmp_path,
        "library",
        {
            "library-1.0.data/purelib/library.py": "VERSION = 'ours'",
            "library-1.0.data/scripts/a-script": "",
            "other/__init__.py": "",
        },
    )
    file = tmp_path / "pod-agent"
    make.write_onefile(
        file, tmp_path / own.file, [library], {library.file: tmp_path / library.file}
    )
    return Small(file, parents)


# --- the start ---------------------------------------------------------------------------------


def test_a_start(small: Small, tmp_path: Path) -> None:
    """Arguments and code pass through, and nothing of the image shadows the file's libraries.

    Its folder is private; each Python has its libraries there, the agent one path for all.
    """
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "library.py").write_text("VERSION = 'theirs'", encoding="utf-8")
    words = ("run", "--", "a b", "{nodes}")
    code, found, err = small.run(*words, PYTHONPATH=str(theirs), PYTHONHOME="")
    assert (code, err) == (7, "")
    assert found["argv"] == [*words]
    assert found["version"] == "ours"
    assert found["isolated"]
    (home,) = small.homes()
    assert str(found["library"]).startswith(str(home))
    assert str(found["program"]) == str(home / "agent/__main__.py")
    assert home.parent.name == f"pod-agent-{os.geteuid()}"
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    (environment,) = home.glob("cp*")
    assert environment.name.startswith(f"{HERE.name}-")
    started_by = (environment / "started-by").read_text(encoding="utf-8")
    assert Path(started_by).samefile(sys.executable)
    assert (environment / "bin/python").resolve() == Path(sys.executable).resolve()
    assert not list(environment.rglob("a-script"))


def test_eight_at_once(small: Small) -> None:
    """They wait for the one that unpacks, and all run from the same folder."""
    started = [small.start(str(number)) for number in range(8)]
    found = [process.communicate(timeout=60) for process in started]
    assert [
        (process.returncode, err) for process, (_, err) in zip(started, found, strict=True)
    ] == [(7, "")] * 8
    assert len({ast.literal_eval(out)["library"] for out, _ in found}) == 1
    assert not list(small.homes()[0].rglob("*.new"))


def test_a_second_start_writes_only_what_is_missing(small: Small) -> None:
    """A complete folder is not checked again, until a day later, or if it lacks its stamp."""
    _, found, _ = small.run()
    (home,) = small.homes()
    before = sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*.py"))
    assert small.run()[0] == 7
    assert sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*.py")) == before

    # a cleaner removed a file
    library = Path(str(found["library"]))
    library.unlink()
    yesterday = time.time() - 90_000
    for stamp in (home / ".complete", *home.glob("cp*/.complete")):
        os.utime(stamp, (yesterday, yesterday))
    assert small.run()[0] == 7
    assert library.exists()

    # the former start was interrupted
    (environment,) = home.glob("cp*")
    (environment / ".complete").unlink()
    (home / "agent/__main__.py").write_text("broken", encoding="utf-8")
    assert small.run()[0] == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which needs root")
@pytest.mark.parametrize("how", ["owned", "linked", "open"])
def test_a_folder_of_somebody_else_is_not_used(small: Small, how: str) -> None:
    """It may contain anything: the next place is used."""
    first = small.parents[0]
    folder = first / f"pod-agent-{os.geteuid()}"
    if how == "owned":
        folder.mkdir()
        os.chown(folder, ANOTHER_UID, -1)
    elif how == "linked":
        (first / "elsewhere").mkdir()
        folder.symlink_to(first / "elsewhere")
    else:
        first.chmod(0o777)  # and not sticky
    assert small.run()[0] == 7
    (home,) = small.homes()
    assert home.is_relative_to(small.parents[1])


@pytest.mark.parametrize("which", ["folder", "home"])
def test_a_folder_in_which_others_could_write_is_not_used(small: Small, which: str) -> None:
    """A program in it may be theirs, whatever mode it has by now: the next place is used."""
    small.run()
    (home,) = small.homes()
    (home / "agent" / "__main__.py").write_text("raise SystemExit(3)", encoding="utf-8")
    writable = home.parent if which == "folder" else home
    writable.chmod(0o777)
    code, found, _ = small.run()
    assert code == 7
    assert Path(str(found["program"])).is_relative_to(small.parents[1])
    assert stat.S_IMODE(writable.stat().st_mode) == 0o777


def test_no_place_at_all_is_78(small: Small) -> None:
    """The message names each place and the reason."""
    for parent in small.parents:
        (parent / f"pod-agent-{os.geteuid()}").write_text("a file", encoding="utf-8")
    code, _, err = small.run()
    assert code == 78
    assert all(str(parent) in err for parent in small.parents)
    assert "150 MB" in err


def test_versions_that_nobody_uses_are_removed(small: Small) -> None:
    """After two weeks, unless an agent of that version runs."""
    folder = small.parents[0] / f"pod-agent-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    long_ago = time.time() - 20 * 86_400
    for name, at in (("unused", long_ago), ("in-use", long_ago), ("recent", time.time())):
        (folder / name).mkdir()
        (folder / name / ".complete").touch()
        os.utime(folder / name / ".complete", (at, at))
    in_use = os.open(folder / "in-use", os.O_RDONLY)
    fcntl.flock(in_use, fcntl.LOCK_SH)
    try:
        assert small.run()[0] == 7
    finally:
        os.close(in_use)
    assert {path.name for path in folder.iterdir()} >= {"in-use", "recent"}
    assert not (folder / "unused").exists()


def test_a_python_that_does_not_suit_starts_one_that_does(small: Small, tmp_path: Path) -> None:
    """`python3` is too old: a newer one on PATH is used, if it really is newer."""
    newer, newest = sys.version_info[1] + 1, sys.version_info[1] + 2
    targets = tuple(Target(minor, HERE.machine) for minor in (newer, newest))
    make.write_onefile(small.file, tmp_path / "pod_agent-1.0-py3-none-any.whl", [], {}, targets)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    switched_off = programs / f"python3.{newest}"
    switched_off.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    switched_off.chmod(0o755)
    code, _, err = small.run(PATH=str(programs))
    assert code == 78
    assert f"is cpython {sys.version_info[0]}.{sys.version_info[1]}" in err
    assert f"no python3.{newer} or python3.{newest} on PATH" in err
    assert "/path/to/python3" in err
    pretends = programs / f"python3.{newer}"
    answer = f'case "$*" in *version_info*) echo cpython 3 {newer} ;; *) echo "$3 $4" ;; esac'
    pretends.write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
    pretends.chmod(0o755)
    process = small.start("run", PATH=str(programs))
    assert process.communicate(timeout=60)[0] == f"{small.file} run\n"


def test_a_file_for_another_machine_is_78(small: Small, tmp_path: Path) -> None:
    """The message names the machines that it is for, and how to get another one."""
    other = "aarch64" if HERE.machine == "x86_64" else "x86_64"
    targets = (Target(sys.version_info[1], other),)
    make.write_onefile(small.file, tmp_path / "pod_agent-1.0-py3-none-any.whl", [], {}, targets)
    code, _, err = small.run()
    assert code == 78
    assert f"this is linux on {HERE.machine}, and the file is for Linux with" in err
    assert targets[0].name in err
    assert "./scripts/build --for" in err


def test_a_file_for_one_python_is_named_after_it() -> None:
    """One with all libraries keeps the plain name."""
    assert make.onefile_name(lock.TARGETS) == "pod-agent"
    assert make.onefile_name((Target(12, "x86_64"),)) == "pod-agent-cp312-x86_64"


def test_an_old_python_can_read_the_launcher() -> None:
    """RHEL 8 has 3.6: the launcher uses only its syntax."""
    ast.parse(LAUNCHER.read_text(encoding="utf-8"), feature_version=(3, 6))


# --- the licenses ------------------------------------------------------------------------------


def test_the_license_text_comes_from_a_pinned_library(tmp_path: Path) -> None:
    """It is taken only where it is the published text, whatever the file is called."""
    other = write_wheel(tmp_path, "yarl", {"yarl-1.0.dist-info/licenses/LICENSE": "another text"})
    with pytest.raises(lock.BuildError, match="yarl"):
        licenses.apache_license([tmp_path / other.file])


def test_the_notices_have_each_bundled_project_once(small: Small) -> None:
    """With its license's name and texts."""
    folder = small.file.parent
    fields = "Metadata-Version: 2.4\nName: kind\nVersion: 1.0\nLicense-Expression: MIT\n"
    for number in (1, 2):
        (folder / str(number)).mkdir()
        write_wheel(
            folder / str(number),
            "kind",
            {
                "kind-1.0.dist-info/METADATA": fields,
                "kind-1.0.dist-info/licenses/NOTICE": "made by somebody",
            },
        )
    wheels = [folder / str(number) / "kind-1.0-py3-none-any.whl" for number in (1, 2)]
    text = licenses.notices(wheels)
    assert text.count("kind 1.0: MIT") == 1
    assert text.count("made by somebody") == 1


# --- the lock ----------------------------------------------------------------------------------


def test_every_target_has_every_library() -> None:
    """Each requirement in pyproject.toml has a pinned wheel for each Python and machine."""
    wheels = lock.read_lock()
    for target in lock.TARGETS:
        pinned = lock.pins(target)
        found = {wheel.name: wheel.version for wheel in wheels if target.name in wheel.targets}
        assert "ray" not in found
        assert {name: pinned[name] for name in found} == found
        wanted = {
            one.name
            for one in lock.direct_requirements()
            if one.marker is None or one.marker.evaluate(target.environment())
        }
        assert wanted <= set(found)


def test_the_lock_names_files_and_no_index() -> None:
    """A line is digest, file, targets; no address is in it."""
    text = lock.LOCK.read_text(encoding="utf-8")
    assert "://" not in text
    names = {target.name for target in lock.TARGETS} | {lock.ALL}
    for line in text.splitlines()[1:]:
        sha256, file, *targets = line.split()
        assert re.fullmatch("[0-9a-f]{64}", sha256)
        assert file.endswith(".whl")
        assert set(targets) <= names


def test_the_needed_glibc_is_the_highest_of_the_lowest() -> None:
    """A wheel with several tags works with the oldest of them."""
    old = Wheel("", "a-1.0-cp311-cp311-manylinux_2_5_x86_64.manylinux_2_28_x86_64.whl", ())
    new = Wheel("", "b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", ())
    both = Wheel("", "c-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", ())
    pure = Wheel("", "d-1.0-py3-none-any.whl", ())
    assert make.needed_glibc([old, both, pure]) == "2.17"
    assert make.needed_glibc([old, new]) == "2.28"
