"""One HTTP request: no proxy, no redirect, limits of time and size."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from agent.cli.http_request import ask
from support.http_peer import Peer, answering, reply
from support.worlds import SECRET

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path


S1 = "5" * 32
NAMES_ITS_SESSION = f"401 Unauthorized\r\nPod-Agent-Session: {S1}"


def test_status_and_body_are_returned() -> None:
    """Also those of a refusal."""
    with answering(reply(b'{"a": 1}')) as peer:
        answer = ask(peer.url)
        assert (answer.status, json.loads(answer.body)) == (200, {"a": 1})
    with answering(reply(b"no", "401 Unauthorized")) as peer:
        assert ask(peer.url).status == 401


def test_neither_netrc_nor_proxy_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has our header and goes to the server itself."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    with answering(reply(b"{}", NAMES_ITS_SESSION)) as peer:
        assert ask(peer.url, SECRET).status == 401
        assert ask(peer.url).status == 401
    unsigned, signed, without = (asked.lower() for asked in peer.asked)
    assert f"authorization: pod-agent {S1}.".encode() in signed
    assert b"authorization" not in unsigned + without
    assert not any(SECRET.encode() in asked for asked in peer.asked)


def test_a_redirect_is_not_followed() -> None:
    """Nothing is sent to another server."""
    with answering(reply(b"{}")) as other:
        elsewhere = reply(b"", f"302 Found\r\nLocation: {other.url}")
        with answering(elsewhere) as peer:
            assert ask(peer.url).status == 302
            assert "does not prove" in ask(peer.url, SECRET).failure
    assert [asked for asked in other.asked if asked] == []


def test_a_slow_answer_ends_at_the_limit() -> None:
    """A slow drip of bytes, which resets a socket's timeout, ends with the limit."""

    def drip(connection: socket.socket, peer: Peer) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not peer.over.wait(0.1):
            connection.sendall(b" ")

    with answering(drip) as peer:
        assert ask(peer.url, limit=1.0).failure == "no answer within 1 s"


def test_a_large_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless answer, or a compressed one, takes little memory."""
    monkeypatch.setattr("agent.cli.http_request.MAX_BODY", 1 << 20)

    def flood(connection: socket.socket, peer: Peer) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not peer.over.is_set():
            connection.sendall(b"x" * 65_536)

    with answering(flood) as peer:
        assert ask(peer.url).failure == "an answer of more than 1048576 bytes"
    packed = gzip.compress(b"x" * (1 << 22))
    with answering(reply(packed, "200 OK\r\nContent-Encoding: gzip")) as peer:
        assert ask(peer.url).body == packed
    with answering(reply(b"x" * (1 << 20))) as peer:
        assert len(ask(peer.url).body) == 1 << 20


def nothing(_connection: socket.socket, _peer: Peer) -> None:
    """Close the connection."""


def nonsense(connection: socket.socket, _peer: Peer) -> None:
    """Send text that is not HTTP."""
    connection.sendall(b"\x00\xffSSH-2.0-nobody\r\n\r\n")


def half(connection: socket.socket, _peer: Peer) -> None:
    """Close the connection in the middle of a response."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")


@pytest.mark.parametrize("answer", [nothing, nonsense, half])
def test_an_invalid_answer_has_a_reason(answer: Callable[[socket.socket, Peer], None]) -> None:
    """Any program on that port gives a message without a traceback."""
    with answering(answer) as peer:
        found = ask(peer.url)
    assert found.status == 0
    assert found.failure
    assert "\n" not in found.failure


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/status", "connection refused"),
        ("http://nobody.invalid:1/status", "name"),
        ("http://[::1]:9/status", ""),
        (f"http://{'a' * 70}.lan/status", ""),
        ("http://:99999/", ""),
    ],
)
def test_without_a_listener(url: str, words: str) -> None:
    """No listener, no such name and no such host have different reasons."""
    found = ask(url)
    assert found.status == 0
    assert words in found.failure
    assert found.failure
