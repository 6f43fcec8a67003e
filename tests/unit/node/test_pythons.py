"""What the job finds: its framework, and the Python that has Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import asdict

from agent.base.text import own_command
from agent.frameworks import framework_named
from agent.node import read
from agent.node.facts import Framework, RayPython
from agent.node.python_facts import of_command

if TYPE_CHECKING:
    from pathlib import Path


def package(folder: Path, name: str, metadata: str = "") -> Path:
    """Make a package that must not be imported, and the metadata of its installation."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')")
    if metadata:
        (folder / metadata).mkdir()
        (folder / metadata / "METADATA").write_text("Name: x\n")
    return place


def version_file(folder: Path, path: str, text: str) -> None:
    """Leave a checkout's own version."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def find(framework: str, python: str, folder: str) -> Framework:
    """Find a framework by what its module knows about its package."""
    package = framework_named(framework).package
    assert package is not None
    return read.find_framework(package, python, folder)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder on this Python's path, as site-packages is."""
    found = tmp_path / "site"
    found.mkdir()
    monkeypatch.syspath_prepend(str(found))
    return found


@pytest.mark.parametrize(
    ("name", "folder", "version"),
    [
        ("verl", "verl-0.9.1.dist-info", "0.9.1"),
        ("openrlhf", "OpenRLHF-0.11.2.dist-info", "0.11.2"),
        ("trl", "trl-1.16.0.dist-info", "1.16.0"),
        ("verl", "verl-0.6.1-py3.11.egg-info", "0.6.1"),
        ("verl", "verl_tools-2.0.dist-info", ""),
    ],
)
def test_an_installed_one(site: Path, tmp_path: Path, name: str, folder: str, version: str) -> None:
    """The version stands in the name of its metadata's folder; nothing is imported."""
    package(site, name, folder)
    assert find(name, sys.executable, str(tmp_path)) == Framework(name, str(site), version)


@pytest.mark.parametrize(
    ("name", "file"),
    [("verl", "verl/version/version"), ("openrlhf", "version.txt"), ("trl", "VERSION")],
)
def test_a_checkout_in_which_the_job_starts(
    site: Path, tmp_path: Path, name: str, file: str
) -> None:
    """The current folder comes first, as for `python -m`; its version file counts."""
    package(site, name, f"{name}-9.9.9.dist-info")
    checkout = tmp_path / "checkout"
    package(checkout, name)
    version_file(checkout, file, "0.8.0.dev0\n")
    assert find(name, sys.executable, str(checkout)) == Framework(name, str(checkout), "0.8.0.dev0")


def test_an_editable_install(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout's version file counts, since its metadata may be outdated."""
    checkout = tmp_path / "checkout"
    package(checkout, "verl")
    package(site, "other", "verl-0.7.0.dist-info")
    monkeypatch.setattr(sys, "path", [*sys.path, str(checkout)])  # as its .pth file has Python do
    assert find("verl", sys.executable, "/nowhere").version == "0.7.0"
    version_file(checkout, "verl/version/version", "0.7.1")
    assert find("verl", sys.executable, "/nowhere") == Framework("verl", str(checkout), "0.7.1")


def test_forks_are_distinguished_from_their_origins(site: Path) -> None:
    """OpenRLHF-M and Search-R1 share their packages' names with OpenRLHF and verl."""
    place = package(site, "openrlhf")
    package(site, "verl")
    for fork in ("openrlhf-m", "search-r1"):
        assert find(fork, sys.executable, "/nowhere") == Framework(fork)
    (place / "models" / "remote_rm").mkdir(parents=True)
    (site / "search_r1").mkdir()
    for fork in ("openrlhf-m", "search-r1"):
        assert find(fork, sys.executable, "/nowhere") == Framework(fork, str(site))


def test_a_framework_in_another_python(tmp_path: Path) -> None:
    """A Python without the agent's libraries reports its framework; one that is none has none."""
    place = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = str(place / "bin" / "python")
    for other in (python, sys.executable, "/nowhere/python"):
        assert find("verl", other, str(tmp_path)) == Framework("verl")
    packages = place / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    package(packages, "verl", "verl-0.9.1.dist-info")
    assert find("verl", python, os.curdir) == Framework("verl", str(packages), "0.9.1")


# --- the Python that has Ray ------------------------------------------------------------------

WITHOUT = {"PATH": "/nowhere"}


def put_ray(folder: Path, *lines: str) -> str:
    """Make a `ray` command with these first lines; return a PATH that has it."""
    folder.mkdir(exist_ok=True)
    script = folder / "ray"
    script.write_text("\n".join([*lines, "import ray"]))
    script.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("lines", "python"),
    [
        (("#!/opt/conda/bin/python3.11",), "/opt/conda/bin/python3.11"),
        (("#! /usr/bin/python3 -s",), "/usr/bin/python3"),
        (
            ("#!/bin/sh", "'''exec' '/with a blank/bin/python' \"$0\" \"$@\""),
            "/with a blank/bin/python",
        ),
        (("#!/bin/sh", "'''exec' /very/long/bin/python3 \"$0\" \"$@\""), "/very/long/bin/python3"),
        (("#!/usr/bin/env bash", "exec something"), None),
        (("no script",), None),
    ],
)
def test_the_python_of_a_ray_command(
    tmp_path: Path, lines: tuple[str, ...], python: str | None
) -> None:
    """Every form in which pip writes a script's first lines is read; a shell's wrapper is none."""
    assert of_command("ray", put_ray(tmp_path, *lines)) == python


def test_env_is_looked_up_on_the_same_path(tmp_path: Path) -> None:
    """`/usr/bin/env python3` means the python3 that PATH has."""
    path = put_ray(tmp_path, "#!/usr/bin/env python3")
    assert of_command("ray", path) is None
    (tmp_path / "python3").symlink_to(sys.executable)
    assert of_command("ray", path) == str(tmp_path / "python3")


def test_no_ray_command(tmp_path: Path) -> None:
    """Without one on PATH there is nothing to read."""
    assert of_command("ray", str(tmp_path)) is None


def test_our_own_ray_wins(tmp_path: Path) -> None:
    """In one environment the agent's own Python runs Ray, wherever PATH points."""
    path = put_ray(tmp_path, "#!/opt/other/bin/python3")
    assert read.find_ray(path).executable == sys.executable


def bare_python(tmp_path: Path) -> Path:
    """Make an environment that has none of our libraries, nor Ray."""
    place = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place / "bin" / "python"


def test_another_python_is_asked(tmp_path: Path) -> None:
    """A Python without the agent's libraries reports its Ray."""
    bare = bare_python(tmp_path)
    found = read.ask_python(str(bare))
    assert (found.executable, found.version) == (str(bare), None)
    assert "aiohttp" in found.missing
    assert found.python == sys.version.split()[0]
    assert found.command == (str(bare), "-m", "ray.scripts.scripts")
    put_ray(bare.parent, f"#!{bare}")
    assert read.ask_python(str(bare)).command == (str(bare.parent / "ray"),)
    assert read.ask_python(str(tmp_path / "none")).python == "does not run"


def test_without_ray_here_the_recorded_one_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python recorded by the image's build precedes PATH; else it is this one."""
    nothing = RayPython(sys.executable, "3.11.7", None)
    other = str(bare_python(tmp_path))
    path = put_ray(tmp_path / "bin", f"#!{other}")
    monkeypatch.setattr(read, "ray_facts", lambda _frameworks: asdict(nothing))
    monkeypatch.setattr(read, "ask_python", lambda python: RayPython(python, "", "2"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert read.find_ray("/nowhere") == nothing
    assert read.find_ray(path).executable == other
    (tmp_path / read.RECORD).write_text("/opt/python\n")
    assert read.find_ray(path).executable == "/opt/python"


@pytest.mark.parametrize("program", ["rehearsal", "ray-bridge"])
def test_our_programs_need_none_of_our_libraries(tmp_path: Path, program: str) -> None:
    """In Ray's Python they import Ray's libraries and the standard one; our own stay unseen."""
    bare = bare_python(tmp_path)
    arguments = ["--help"] if program != "ray-bridge" else []
    done = subprocess.run(
        own_command(str(bare), program, *arguments),
        env=WITHOUT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if program == "ray-bridge":  # it came as far as its own arguments
        assert "Bridge.__init__() missing 2 required positional arguments" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
