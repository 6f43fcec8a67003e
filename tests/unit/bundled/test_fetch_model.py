"""The fetch of a model, once a node: what is an id, what `plan` shows, how a failure ends.

What the hub's real client does is shown by tests/lab/test_fetch_model.py, which installs it.
"""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from agent.base.text import own_command
from agent.bundled import fetch_model
from agent.job.services import model_fetch
from agent.settings.rules import is_hub_id
from support import hub
from support.worlds import MACHINE, plan_of, settings_of, with_ray

if TYPE_CHECKING:
    from pathlib import Path

WITH_HUB = with_ray(MACHINE, hub="1.2.3")


def test_an_unreachable_hub_ends_the_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After some tries the step fails with the address."""
    constants = ModuleType("huggingface_hub.constants")
    vars(constants).update(ENDPOINT="https://hub", HF_HUB_CACHE="/cache", HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    monkeypatch.setattr(fetch_model, "_PAUSES", (0.01,))

    def fails(_model: str, _revision: str | None) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(fetch_model, "fetch", fails)
    assert fetch_model.main([hub.MODEL]) == 1
    said = capsys.readouterr().err
    assert said.count("trying again") == 1
    assert said.strip().endswith("no route to host")


def test_without_the_client_it_ends_with_a_message(tmp_path: Path) -> None:
    """If Python has no huggingface_hub the step fails with the reason."""
    env = hub.environment(tmp_path, "http://127.0.0.1:9")
    argv = own_command(sys.executable, "fetch-model", hub.MODEL)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == f"{hub.MODEL}: No module named 'huggingface_hub'"


@pytest.mark.parametrize(
    ("model", "is_id"),
    [
        ("Qwen/Qwen2.5-7B", True),
        ("gpt2", True),
        ("/models/qwen", False),
        ("./qwen", False),
        ("~/qwen", False),
        ("a/b/c", False),
        ("s3://bucket/qwen", False),
        ("a b", False),
        ("", False),
    ],
)
def test_ids_and_paths(model: str, *, is_id: bool) -> None:
    """An id is one or two names; a path is not an id."""
    assert is_hub_id(model) is is_id


def test_the_step() -> None:
    """It runs on every node within AGENT_WAIT_PREPARE, where Ray's Python has the hub's client."""
    given = {"AGENT_MODEL": hub.MODEL, "AGENT_WAIT_PREPARE": "3h", "AGENT_PREPARE": "true"}
    settings = settings_of(given)
    for environ in (given, {**given, "AGENT_HEAD": "10.0.0.1", "RAY_WORKER": "1"}):
        step = plan_of(environ, WITH_HUB).steps[-1]
        assert (step.name, step.within, step.log) == ("AGENT_MODEL", 3 * 3600.0, "model.log")
        assert step.command.endswith(f"fetch-model {hub.MODEL}")
        pinned = plan_of({**environ, "AGENT_MODEL_REVISION": "v1"}, WITH_HUB).steps[-1]
        assert pinned.command == f"{step.command} --revision v1"
    assert model_fetch(settings, WITH_HUB.ray, is_here=True) == ()
    assert model_fetch(settings, MACHINE.ray, is_here=False) == ()
    assert model_fetch(settings_of({}), WITH_HUB.ray, is_here=False) == ()
