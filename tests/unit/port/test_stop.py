"""`stop`: the clients that may end a run through the head's port, and the replies."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from agent.base.errors import SettingsError, UnavailableError
from agent.cli import stop_verb
from agent.cli.http_request import ask
from agent.record import run_keys
from support.free_ports import free_port
from support.served import KEY, a_head, environ_of, leave_key
from support.worlds import SECRET

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "given",
    [
        {"AGENT_REWARD": "off"},
        {"AGENT_JOB": "no-recipe"},
        {"AGENT_MODEL_REVISION": "main"},
        {"AGENT_REWARD_TOKEN": "with spaces in it"},
        {"AGENT_ON_DONE": "stop-pod"},
        {"AGENT_PARTIAL": "proceed"},
        {"AGENT_LAUNCHER": "torchrun", "AGENT_RESOURCES": "x"},
        {"AGENT_SERVICES": "/nowhere"},
        {"AGENT_RAY_ARGS": "--head"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_the_key_in_the_run_folder_is_enough(given: dict[str, str], tmp_path: Path) -> None:
    """On the head's node no token is needed; the verb returns once the head has exited.

    A shell may lack the command that goes with settings of the job. Another run may have written
    to the same folder since, so that `latest` is not the run of the head that answers.
    """
    leave_key(tmp_path, KEY)
    leave_key(tmp_path, "0" * 32, "run-2")
    with a_head() as head:
        stop_verb.stop({**environ_of(head.port, tmp_path), **given})
        assert head.stopped.is_set()


def test_a_misspelled_variable_is_refused(tmp_path: Path) -> None:
    """Only one that shows where the head is."""
    environ = {**environ_of(8266, tmp_path), "AGENT_REWRAD": "off", "AGENT_HAED": "pod0"}
    with pytest.raises(SettingsError, match="AGENT_HAED") as refused:
        stop_verb.stop(environ)
    assert len(refused.value.problems) == 1


def test_with_a_token_the_key_is_refused(tmp_path: Path) -> None:
    """Where a token is set, only it is accepted."""
    leave_key(tmp_path, KEY)
    with a_head(SECRET) as head:
        assert ask(f"http://127.0.0.1:{head.port}/stop", KEY, post=True).status == 401
        stop_verb.stop({**environ_of(head.port, tmp_path), "RAY_AUTH_TOKEN": SECRET})
        assert head.stopped.is_set()


@pytest.mark.parametrize("found", ["", "another"], ids=["no key", "a key of another run"])
def test_without_token_and_key_nothing_is_stopped(found: str, tmp_path: Path) -> None:
    """Whoever reaches the port may not end the run; the one who may learns how."""
    if found:
        leave_key(tmp_path, found)
    with a_head() as head:
        with pytest.raises(UnavailableError, match=r"RAY_AUTH_TOKEN.*AGENT_LOG_DIR"):
            stop_verb.stop(environ_of(head.port, tmp_path))
        assert not head.stopped.is_set()


def test_no_head_answers(tmp_path: Path) -> None:
    """An error with the evidence."""
    with pytest.raises(UnavailableError, match="connection refused"):
        stop_verb.stop(environ_of(free_port(), tmp_path))


def test_only_the_user_can_read_the_key(tmp_path: Path) -> None:
    """The key of a previous agent is replaced, whatever its mode."""
    folder = tmp_path / "run-1" / "pod0"
    folder.mkdir(parents=True)
    (tmp_path / "latest").symlink_to("run-1")
    (folder / run_keys.KEY_FILE).write_text("old")
    key = run_keys.new_key()
    assert run_keys.write_key(folder, key)
    assert run_keys.newest_key(tmp_path) == key
    assert stat.S_IMODE((folder / run_keys.KEY_FILE).stat().st_mode) == 0o600
    # Only verbs without a token are refused where it cannot be written.
    assert not run_keys.write_key(tmp_path / "nowhere", key)
