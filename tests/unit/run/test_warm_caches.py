"""Compile caches seeded before a run, by the function that `pod-agent warm` calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.base.errors import PreflightError, SettingsError
from agent.caches.cache_folder import CachePlace
from agent.caches.cache_store import save, seed
from agent.run.plan_input import plan_from_environment
from agent.run.warm_caches import seed_caches
from support.cache_places import UNSEALED, compile_here
from support.disks import needs_mount, read_only


@pytest.fixture
def own_temp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the node's folder in the test's: the plan has it below /tmp."""
    around = str(tmp_path / "own")
    monkeypatch.setattr("agent.run.read_caches.private_folder", lambda _facts: around)


@pytest.mark.usefixtures("own_temp")
def test_a_node_is_seeded_as_by_a_run(tmp_path: Path) -> None:
    """Cold without an archive; with one the folder that the run will use has its files."""
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    assert seed_caches(environ).startswith("cold: no archive of this kind of node")
    caches = plan_from_environment(environ, None).caches
    assert caches is not None
    place = CachePlace(caches.volume, caches.folder, caches.archive, caches.kind.digest)
    compile_here(place, "triton/a/x")
    save(place, UNSEALED, "run-1", "node")
    shutil.rmtree(caches.folder)
    assert seed_caches(environ).startswith(f"seeded from {place.path} (1 file(s)")
    assert Path(caches.folder, "triton/a/x").read_text() == "code"

    # Another token's nodes have another archive.
    token = {**environ, "RAY_AUTH_TOKEN": "token-0123456789abcdef", "AGENT_ALLOW_INSECURE": "1"}
    shutil.rmtree(caches.folder)
    assert seed_caches(token).startswith("cold: no archive")
    assert seed(place, UNSEALED).state == "seeded"


@pytest.mark.usefixtures("own_temp")
def test_packages_without_pyc_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that follows keeps what Python compiles, though it finds some then."""
    monkeypatch.setattr("agent.run.read_caches.lacks_compiled", bool)
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    seed_caches(environ)
    monkeypatch.setattr("agent.run.read_caches.lacks_compiled", lambda _folders: False)
    caches = plan_from_environment(environ, None).caches
    assert caches is not None
    assert caches.packages


@pytest.mark.usefixtures("own_temp")
def test_the_kind_is_that_of_the_command(tmp_path: Path) -> None:
    """Its Python names the archive, as in the run: one that does not start has no versions."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    command = [str(python), "train.py"]
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    seed_caches(environ, command)
    of_run = plan_from_environment(environ, command).caches
    without = plan_from_environment(environ, None).caches
    assert of_run is not None
    assert without is not None
    assert of_run.folder != without.folder
    assert Path(of_run.folder).is_dir()
    assert not Path(without.folder).exists()


@pytest.mark.usefixtures("own_temp")
def test_a_folder_that_is_a_link(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is refused with the reason, and no thread prints a traceback."""
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    caches = plan_from_environment(environ, None).caches
    assert caches is not None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "own").mkdir(mode=0o700)
    Path(caches.folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PreflightError, match="is not this user's own"):
        seed_caches(environ)
    assert "Traceback" not in capfd.readouterr().err


@needs_mount
@pytest.mark.usefixtures("own_temp")
def test_a_disk_that_takes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The node's disk, whose error is the reason: nothing took long."""
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    caches = plan_from_environment(environ, None).caches
    assert caches is not None
    Path(caches.folder).mkdir(parents=True, mode=0o700)
    with read_only(Path(caches.folder)):
        why = f"cold: {caches.folder} cannot be used: Read-only file system"
        assert seed_caches(environ) == why
    assert "Traceback" not in capfd.readouterr().err


def test_without_caches_nothing_is_said() -> None:
    """A wrong setting of the run is an error."""
    assert seed_caches({"AGENT_CACHE_DIR": "off"}) == ""
    with pytest.raises(SettingsError):
        seed_caches({"AGENT_CACHE_DIR": "/vol", "RAY_WORKER": "1"})


def test_a_node_that_keeps_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The plan's reason is the sentence."""
    (tmp_path / "own").write_text("")
    around = str(tmp_path / "own")
    monkeypatch.setattr("agent.run.read_caches.private_folder", lambda _facts: around)
    sentence = seed_caches({"AGENT_CACHE_DIR": str(tmp_path / "volume")})
    assert sentence == f"left out: {around} is not this user's own"
