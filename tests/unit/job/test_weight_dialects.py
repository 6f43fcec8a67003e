"""The table of dialects, and what is read from the body of an update."""

from __future__ import annotations

import json

import pytest

from agent.job.weight_dialects import DIALECTS, EngineVerb, update_of, with_folder

SGLANG = "/update_weights_from_disk"


def verb(dialect: str, path: str) -> EngineVerb:
    """Return a verb of the table."""
    return next(verb for verb in DIALECTS[dialect].verbs if verb.path == path)


@pytest.mark.parametrize(
    ("dialect", "path", "body", "folder", "version"),
    [
        # slime names the version
        ("sglang", SGLANG, {"model_path": "/w/weight_v000007", "weight_version": "7"}, "", "7"),
        ("sglang", SGLANG, {"model_path": "/w/weight_v000007", "weight_version": 7}, "", "7"),
        # AReaL has it in the folder's name
        ("sglang", SGLANG, {"model_path": "/w/weight_update_v12"}, "", "12"),
        ("sglang", SGLANG, {"model_path": "/w/final/"}, "", "final"),
        ("prime-rl", "/update_weights", {"weight_dir": "/run/broadcasts/step_7"}, "", "7"),
        ("prime-rl", "/update_weights", {"weight_dir": "/run/broadcasts/step_7/"}, "", "7"),
        ("prime-rl", "/load_lora_adapter", {"lora_name": "a", "lora_path": "/b/step_3"}, "", "3"),
        # bodies of another kind
        ("prime-rl", "/update_weights", {"update_info": {}}, None, ""),
        ("prime-rl", "/update_weights", {"weight_dir": None}, None, ""),
        ("sglang", SGLANG, [1], None, ""),
    ],
)
def test_folder_and_version_of_an_update(
    dialect: str, path: str, body: dict[str, str] | list[int], folder: str | None, version: str
) -> None:
    """The version stands in the body, or at the end of the folder's name."""
    row = verb(dialect, path)
    wanted = "" if folder is None or isinstance(body, list) else body[row.folder]
    assert update_of(row, json.dumps(body).encode()) == (wanted, version)


def test_an_update_with_another_folder() -> None:
    """All else is as the trainer has sent it."""
    body = b'{"model_path":"/w/v7","weight_version":"7","options":{"a":[1]}}'
    assert with_folder(verb("sglang", SGLANG), body, "/k/v7") == body.replace(b"/w/", b"/k/")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 5000])
def test_a_body_that_is_no_json_names_no_folder(body: bytes) -> None:
    """Such a request is sent on, and nothing is remembered of it."""
    assert update_of(verb("sglang", SGLANG), body) == ("", "")


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_can_be_refitted(name: str) -> None:
    """It has pause, resume and update, each path once, and JSON replies."""
    dialect = DIALECTS[name]
    assert dialect.name == name
    kinds = {verb.kind for verb in dialect.verbs}
    assert kinds == {"pause", "resume", "update", "other", "discovery"}
    paths = [verb.path for verb in dialect.verbs]
    assert sorted({*paths}) == sorted(paths)
    assert next(verb.kind for verb in dialect.verbs if verb.path == dialect.resume[0]) == "resume"
    for row in dialect.verbs:
        assert (row.kind == "update") == bool(row.folder)
        assert not row.reply or json.loads(row.reply) is not None
