"""The start: what the job's runtime_env is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.base.errors import SettingsError
from agent.boot import planning as start
from agent.boot.planning import read_runtime_env
from unit import captured
from unit.worlds import settings_of

if TYPE_CHECKING:
    from pathlib import Path


def read(**environ: str) -> dict[str, object]:
    """Return the runtime_env of an environment."""
    return read_runtime_env(settings_of(environ))


def test_none_is_empty() -> None:
    """Without a wish Ray is told nothing."""
    assert read() == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("env.json", '{"env_vars": {"A": "1"}}'),
        ("env.yaml", "env_vars:\n  A: '1'\n"),
        ("env.yml", "env_vars: {A: '1'}"),
    ],
)
def test_a_file_is_json_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    """The file's content counts, whatever its name."""
    file = tmp_path / name
    file.write_text(text)
    assert read(AGENT_RUNTIME_ENV=str(file)) == {"env_vars": {"A": "1"}}


def test_json_stands_for_itself() -> None:
    """JSON in the variable is no path."""
    assert read(AGENT_RUNTIME_ENV=' {"pip": ["x"]}') == {"pip": ["x"]}


def test_the_working_dir_is_part_of_it(tmp_path: Path) -> None:
    """AGENT_WORKING_DIR joins what AGENT_RUNTIME_ENV says."""
    found = read(AGENT_WORKING_DIR=str(tmp_path), AGENT_RUNTIME_ENV='{"pip": ["x"]}')
    assert found == {"pip": ["x"], "working_dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "no mapping"),
        ("just text", "no mapping"),
        ("", "no mapping"),
        ("a: [", "neither JSON nor YAML"),
    ],
)
def test_a_bad_file(tmp_path: Path, text: str, words: str) -> None:
    """A file of another form is refused by the variable's name."""
    file = tmp_path / "env.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words) as caught:
        read(AGENT_RUNTIME_ENV=str(file))
    assert caught.value.culprit == "AGENT_RUNTIME_ENV"


def test_what_is_not_there(tmp_path: Path) -> None:
    """A missing file and a missing folder are refused with their paths."""
    with pytest.raises(SettingsError, match=r"none\.yaml' \(No such file") as caught:
        read(AGENT_RUNTIME_ENV=str(tmp_path / "none.yaml"))
    assert caught.value.culprit == "AGENT_RUNTIME_ENV"
    with pytest.raises(SettingsError, match="no folder here") as caught:
        read(AGENT_WORKING_DIR=str(tmp_path / "none"))
    assert caught.value.culprit == "AGENT_WORKING_DIR"
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not text"):
        read(AGENT_RUNTIME_ENV=str(tmp_path / "binary"))


@pytest.mark.parametrize(
    ("name", "hostname", "known"),
    [
        ("slurm-head", "gpu-0", {"gpu-0": ("10.9.9.9",)}),
        ("slurm-head", "gpu-0.cluster.local", {"gpu-0": ("10.9.9.9",)}),
        ("slurm-head", "another", {}),
        ("slurm-worker", "gpu-0", {}),
        ("slurm-one-node-head", "gpu-0", {}),
        ("runpod-head", "gpu-0", {}),
    ],
)
def test_a_heads_own_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, name: str, hostname: str, known: dict[str, tuple[str, ...]]
) -> None:
    """Only where the others know the head by its host name, and it has several addresses."""
    environ, facts = captured.read(name)
    facts = replace(facts, hostname=hostname)
    monkeypatch.setattr(start, "gather", lambda *_, **__: facts)
    monkeypatch.setattr(start, "lookup_briefly", lambda *_: ("10.9.9.9",))
    assert start.plan_of(environ, ["true"]).facts.known_names == known


def test_two_working_dirs(tmp_path: Path) -> None:
    """A working_dir in both places is a contradiction that names both variables."""
    with pytest.raises(SettingsError, match="a working_dir in each") as caught:
        read(AGENT_WORKING_DIR=str(tmp_path), AGENT_RUNTIME_ENV='{"working_dir": "/x"}')
    assert caught.value.culprit == "AGENT_WORKING_DIR + AGENT_RUNTIME_ENV"
