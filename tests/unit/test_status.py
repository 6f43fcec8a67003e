"""`status` with any program listening on the agent's port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.control import verbs
from unit.test_http import answering, reply

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
        (json.dumps(WORKER).encode(), "no agent"),
        (json.dumps({**WORKER, "head": {"host": "nobody.invalid", "port": 9}}).encode(), "nobody"),
        (json.dumps({**WORKER, "role": "head"}).encode(), "another version"),
    ],
)
def test_whatever_answers(
    body: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger on the port, or an agent of another version: 69 and a sentence."""
    with answering(reply(body)) as peer:
        assert verbs.show_status({"AGENT_PORT": str(peer.port)}, tmp_path, as_json=False) == 69
    assert words in capsys.readouterr().err


def test_the_head_of_a_worker_must_be_a_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that names itself as the head causes no loop of requests."""
    environ: dict[str, str] = {}

    def answer(connection: object, peer: object) -> None:
        head = {"host": "127.0.0.1", "port": peer.port}  # type: ignore[attr-defined] # a Peer
        body = json.dumps({**WORKER, "head": head}).encode()
        reply(body)(connection, peer)  # type: ignore[arg-type] # same

    with answering(answer) as peer:
        environ["AGENT_PORT"] = str(peer.port)
        assert verbs.show_status(environ, tmp_path, as_json=False) == 69
    assert "is a worker's, not the head's" in capsys.readouterr().err


@pytest.mark.parametrize(("head", "code"), [("200 OK", 0), ("503 Not yet", 69), ("302 Found", 69)])
def test_live(head: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The health check is 0 for a living agent alone."""
    with answering(reply(b"", head)) as peer:
        assert verbs.check_live({"AGENT_PORT": str(peer.port)}) == code
    assert (capsys.readouterr().err == "") == (code == 0)
