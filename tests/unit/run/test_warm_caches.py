"""Compile caches seeded before a run, by the function that `pod-agent warm` calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.caches.cache_folder import CachePlace
from agent.caches.cache_store import save, seed
from agent.run.plan_input import plan_from_environment
from agent.run.warm_caches import seed_caches
from support.cache_places import UNSEALED, compile_here


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


def test_without_caches_nothing_is_said() -> None:
    """A wrong setting of the run is one sentence."""
    assert seed_caches({"AGENT_CACHE_DIR": "off"}) == ""
    assert seed_caches({"AGENT_CACHE_DIR": "/vol", "RAY_WORKER": "1"}).startswith("left out: ")
