"""`status` with any program listening on the agent's port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec import to_builtins

from agent.base.errors import UnavailableError
from agent.cli import status_verb
from agent.cli.command_line import main
from agent.port.glance import judged
from support.http_peer import answering, reply
from tools.page.runs import status as run_of

if TYPE_CHECKING:
    from pathlib import Path

WORKER = {"role": "worker", "phase": "waiting", "waits": []}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "no agent"),
        (b"[]", "no agent"),
        (b"[" * 100_000, "no agent"),
        (b"\xff", "no agent"),
        (json.dumps(WORKER).encode(), "names no head"),
        (json.dumps({**WORKER, "head": {"host": "nobody.invalid", "port": 9}}).encode(), "nobody"),
        (json.dumps({**WORKER, "role": "head"}).encode(), "another version"),
    ],
)
def test_whatever_answers(body: bytes, words: str, tmp_path: Path) -> None:
    """A stranger on the port, or an agent of another version: 69 and a sentence."""
    with answering(reply(body)) as peer:
        environ = {"AGENT_PORT": str(peer.port), "AGENT_LOG_DIR": str(tmp_path)}
        with pytest.raises(UnavailableError, match=words):
            status_verb.show_status(environ, as_json=False)


def test_the_head_of_a_worker_must_be_a_head(tmp_path: Path) -> None:
    """A worker that names itself as the head causes no loop of requests."""
    environ = {"AGENT_LOG_DIR": str(tmp_path)}

    def answer(connection: object, peer: object) -> None:
        head = {"host": "127.0.0.1", "port": peer.port}  # type: ignore[attr-defined] # a Peer
        body = json.dumps({**WORKER, "head": head}).encode()
        reply(body)(connection, peer)  # type: ignore[arg-type] # same

    with answering(answer) as peer:
        environ["AGENT_PORT"] = str(peer.port)
        with pytest.raises(UnavailableError, match="is a worker's, not the head's"):
            status_verb.show_status(environ, as_json=False)


def test_the_end_of_a_tunnel_is_a_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through `ssh -L` the head is at this machine: AGENT_HEAD may say so, for a verb that asks."""
    with answering(reply(json.dumps(to_builtins(judged(run_of(2)))).encode())) as peer:
        environ = {"AGENT_PORT": str(peer.port), "AGENT_LOG_DIR": str(tmp_path)}
        environ["AGENT_HEAD"] = "127.0.0.1"
        status_verb.show_status(environ, as_json=False)
        brief = capsys.readouterr().out
        status_verb.show_status(environ, as_json=False, has_all=True)
        everything = capsys.readouterr().out
    assert brief.startswith("first sums · rehearsal · attempt 2 of 3 · ")
    assert "nodes     3 fine" in brief
    assert everything.startswith(brief)
    assert "\nnode 1  pod1  10.0.0.2  joined" in everything

    monkeypatch.setattr("os.environ", {**environ, "PATH": "/usr/bin:/bin"})
    assert main(["plan"]) == 78, "a run has no use for it"


@pytest.mark.parametrize(("head", "code"), [("200 OK", 0), ("503 Not yet", 69), ("302 Found", 69)])
def test_live(
    head: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The health check is 0 for a running agent alone."""
    with answering(reply(b"", head)) as peer:
        monkeypatch.setenv("AGENT_PORT", str(peer.port))
        assert main(["status", "--live"]) == code
    assert (capsys.readouterr().err == "") == (code == 0)
