"""`pod-agent warm`: models are fetched and read into memory before a run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.base.errors import PreflightError
from agent.base.text import own_command
from agent.cli import warm_verb
from agent.cli.parser import parse
from agent.cli.warm_verb import seed_caches
from agent.processes.cache_program import CachePlace, save, seed
from agent.run.plan_input import plan_from_environment
from support import hub
from support.cache_places import compile_here, contents
from support.worlds import MACHINE, with_ray

STAND_IN = """
import sys, pathlib, os
folder = pathlib.Path(os.environ["HF_HOME"], "hub/models--acme--m")
(folder / "snapshots/c0ffee").mkdir(parents=True)
(folder / "refs").mkdir()
for name in ("main", "v1"):
    (folder / "refs" / name).write_text("c0ffee")
(folder / "snapshots/c0ffee/model.safetensors").write_bytes(b"w" * 1000)
"""


def warm(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the verb with a cache of its own."""
    env = {**hub.environment(home, "http://127.0.0.1:9"), **more}
    argv = own_command(sys.executable, "warm", *words)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_folder_is_read(tmp_path: Path) -> None:
    """Several models, one line each; 0."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"w" * 1000)
    done = warm(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert all("in 1 file(s) are in the page cache (" in line for line in lines)


def test_the_model_of_the_run_is_the_default(tmp_path: Path) -> None:
    """AGENT_MODEL, as `run` reads it."""
    (tmp_path / "model.safetensors").write_bytes(b"w" * 1000)
    done = warm(tmp_path, AGENT_MODEL=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}: 0.0 GB in 1 file(s)")


def test_nothing_to_warm_is_a_problem_of_the_settings(tmp_path: Path) -> None:
    """78, with what may be named."""
    done = warm(tmp_path)
    assert done.returncode == 78
    assert (
        "MODEL: got none; expected a folder or an id, or AGENT_MODEL set; "
        "or AGENT_CACHE_DIR set, to seed compile caches alone"
    ) in done.stderr


def test_caches_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are seeded alone, for the job whose command follows."""
    around = str(tmp_path / "own")
    monkeypatch.setattr("agent.run.read_caches.private_folder", lambda _facts: around)
    options = parse(["warm"], [sys.executable, "train.py"])
    warm_verb.run({"AGENT_CACHE_DIR": "/none/volume"}, options)
    cold = "compile caches: cold: no archive of this kind of node in /none/volume yet\n"
    assert capsys.readouterr().out == cold


def test_caches_are_seeded_as_by_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the archive of the command's Python, into the folder that the run will use."""
    around = str(tmp_path / "own")
    monkeypatch.setattr("agent.run.read_caches.private_folder", lambda _facts: around)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text("#!/bin/sh\nexit 1\n")  # it does not start: it has no versions
    python.chmod(0o755)
    command = [str(python), "train.py"]
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    caches = plan_from_environment(environ, command).caches
    without = plan_from_environment(environ, None).caches
    assert caches is not None
    assert without is not None
    assert caches.folder != without.folder

    place = CachePlace(caches.volume, caches.folder, caches.archives, caches.kind.digest)
    seed(place)
    compile_here(place, "triton/a/x")
    save(place)
    shutil.rmtree(caches.folder)
    assert seed_caches(environ, command).startswith(f"seeded from {place.own_archive} (1 file(s)")
    assert contents(place) == {"triton/a/x": "code"}
    token = {**environ, "RAY_AUTH_TOKEN": "token-0123456789abcdef", "AGENT_ALLOW_INSECURE": "1"}
    shutil.rmtree(caches.folder)
    assert seed_caches(token, command).startswith("cold: no archive")


def test_a_cache_folder_that_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in its place is refused; what keeps all caches where they are is the sentence."""
    around = tmp_path / "own"
    monkeypatch.setattr("agent.run.read_caches.private_folder", lambda _facts: str(around))
    environ = {"AGENT_CACHE_DIR": str(tmp_path / "volume")}
    caches = plan_from_environment(environ, None).caches
    assert caches is not None
    around.mkdir(mode=0o700)
    Path(caches.folder).symlink_to(tmp_path)
    with pytest.raises(PreflightError, match="is not this user's own"):
        seed_caches(environ, None)
    shutil.rmtree(around)
    around.write_text("")
    assert seed_caches(environ, None) == f"left out: {around} is not this user's own"
    assert seed_caches({"AGENT_CACHE_DIR": "off"}, None) == ""


def test_caches_of_a_run_that_would_be_refused(tmp_path: Path) -> None:
    """78, as for the run; with a model the rest is done all the same."""
    wrong = {"AGENT_CACHE_DIR": "/none/volume", "RAY_WORKER": "1"}
    refused = warm(tmp_path, **wrong)
    assert refused.returncode == 78
    assert "HEAD_POD_ID" in refused.stderr

    (tmp_path / "model.safetensors").write_bytes(b"w")
    done = warm(tmp_path, str(tmp_path), **wrong)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.startswith("compile caches: left out: ")
    assert second.startswith(f"{tmp_path}: 0.0 GB in 1 file(s)")


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    """69 in the end; the other models are warmed all the same."""
    (tmp_path / "model.safetensors").write_bytes(b"w")
    done = warm(tmp_path, "/none/such", "acme/m", str(tmp_path))
    assert done.returncode == 69
    assert "/none/such (no such folder)" in done.stderr
    assert "has no huggingface_hub, which fetches it" in done.stderr
    assert f"{tmp_path}: 0.0 GB in 1 file(s)" in done.stdout


@pytest.mark.parametrize("revision", [None, "v1"])
def test_a_model_of_the_hub_is_fetched_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    """By the program with which a run fetches it, with its revision."""
    asked: list[tuple[str, ...]] = []

    def command(_python: str, *words: str) -> list[str]:
        asked.append(words)
        return [sys.executable, "-c", STAND_IN]

    monkeypatch.setattr(warm_verb, "find_ray", lambda _path: with_ray(MACHINE, hub="1.2.3").ray)
    monkeypatch.setattr(warm_verb, "own_command", command)
    words = [] if revision is None else ["--revision", revision]
    warm_verb.run({"HF_HOME": str(tmp_path)}, parse(["warm", "acme/m", *words], None))
    assert asked == [("fetch-model", "acme/m", *words)]
