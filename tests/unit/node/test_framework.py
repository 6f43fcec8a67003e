"""The framework that a job finds: installed, in a checkout, in another Python, or a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.frameworks import framework_named
from agent.node import read
from agent.node.facts import Framework

if TYPE_CHECKING:
    from pathlib import Path


def package(folder: Path, name: str) -> Path:
    """Make a package that must not be imported."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')")
    return place


def metadata(folder: Path, name: str) -> None:
    """Create the metadata of an installation."""
    (folder / name).mkdir(parents=True)
    (folder / name / "METADATA").write_text("Name: x\n")


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
    package(site, name)
    metadata(site, folder)
    assert find(name, sys.executable, str(tmp_path)) == Framework(name, str(site), version)


@pytest.mark.parametrize(
    ("name", "module", "file"),
    [
        ("verl", "verl", "verl/version/version"),
        ("openrlhf", "openrlhf", "version.txt"),
        ("trl", "trl", "VERSION"),
    ],
)
def test_a_checkout_in_which_the_job_starts(
    site: Path, tmp_path: Path, name: str, module: str, file: str
) -> None:
    """The current folder comes first, as for `python -m`; its version file counts."""
    package(site, module)
    metadata(site, f"{name}-9.9.9.dist-info")
    checkout = tmp_path / "checkout"
    package(checkout, module)
    version_file(checkout, file, "0.8.0.dev0\n")
    assert find(name, sys.executable, str(checkout)) == Framework(name, str(checkout), "0.8.0.dev0")


def test_an_editable_install(site: Path, tmp_path: Path) -> None:
    """The checkout's version file counts, since its metadata may be outdated."""
    checkout = tmp_path / "checkout"
    package(checkout, "verl")
    metadata(site, "verl-0.7.0.dist-info")
    sys.path.append(str(checkout))  # as its .pth file has Python do
    try:
        assert find("verl", sys.executable, "/nowhere").version == "0.7.0"
        version_file(checkout, "verl/version/version", "0.7.1")
        found = find("verl", sys.executable, "/nowhere")
    finally:
        sys.path.remove(str(checkout))
    assert found == Framework("verl", str(checkout), "0.7.1")


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


def test_none_at_all(tmp_path: Path) -> None:
    """A missing framework has no folder."""
    assert find("verl", sys.executable, str(tmp_path)) == Framework("verl")
    assert find("verl", "/nowhere/python", str(tmp_path)) == Framework("verl")


def test_another_python_is_asked(tmp_path: Path) -> None:
    """A Python without the agent's libraries reports its framework."""
    place = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    assert find("verl", str(python), str(tmp_path)) == Framework("verl")
    minor = f"python3.{sys.version_info.minor}"
    packages = place / "lib" / minor / "site-packages"
    package(packages, "verl")
    metadata(packages, "verl-0.9.1.dist-info")
    found = find("verl", str(python), os.curdir)
    assert found == Framework("verl", str(packages), "0.9.1")
