"""The example retriever, a stand-in for Search-R1's retrieval server."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from agent.bundled.retriever import MAX_QUERIES, Index, Retriever, built_in, main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """Run the program on a free port; yield its URL."""
    command = [sys.executable, "-m", "agent", "retriever", "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line.startswith("retriever listening on http://127.0.0.1:"), line
            yield line.split()[-1]
        finally:
            process.terminate()
        assert process.wait(20) == 0


def post(url: str, body: bytes) -> tuple[int, Any]:
    """Send a body; return status and reply."""
    try:
        with urllib.request.urlopen(url, body, timeout=20) as reply:  # noqa: S310 - our own server
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("who wrote Hamlet?", "Hamlet"),
        ("the capital of Germany", "Berlin"),
        ("who was first to walk on the moon", "The Moon"),
    ],
)
def test_the_best_passage_is_first(query: str, title: str) -> None:
    """A passage that shares rare words with the query has the highest score."""
    found = Index(built_in()).find(query, 3)
    assert found[0][0]["contents"].splitlines()[0] == title
    assert found[0][1] > found[1][1]


def test_requests_and_replies(tmp_path: Path) -> None:
    """Replies have Search-R1's two forms; a malformed request is answered with the field's name."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "7", "contents": "\\"Owls\\"\\nOwls hunt by night."}\n')
    asked = {"queries": ["owls", "x"], "topk": 1}
    with running("--corpus", str(corpus)) as url:
        status, reply = post(url, json.dumps({**asked, "return_scores": True}).encode())
        assert status == 200
        assert reply["result"][0][0]["document"]["id"] == "7"
        assert reply["result"][0][0]["score"] > 0
        assert post(url, json.dumps(asked).encode())[1]["result"][1][0]["id"] == "7"
        for body, field in (
            (b"x", "Expecting value"),
            (b"[]", "body"),
            (b'{"queries": [1]}', "queries"),
            (b'{"queries": [], "topk": -1}', "topk"),
            (json.dumps({"queries": ["x"] * (MAX_QUERIES + 1)}).encode(), "queries"),
            (b'{"more": [' + b"{}," * 1_000_000 + b"1]}", "queries"),
        ):
            status, reply = post(url, body)
            assert (status, reply["error"].partition(":")[0]) == (400, field)
        assert post(f"{url}/x", b"{}")[0] == 404


def test_a_request_has_a_deadline(tmp_path: Path) -> None:
    """One that takes longer is a 504 that says so, and others are answered meanwhile."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"contents": "owl"}\n' * 20_000)
    asked = {"queries": ["owl"] * 5_000, "topk": 1}
    with running("--corpus", str(corpus), "--limit", "0.5") as url:
        status, reply = post(url, json.dumps(asked).encode())
        assert status == 504
        assert "5000 queries take longer than 0.5 s" in reply["error"]
        assert post(url, b'{"queries": ["owl"], "topk": 1}')[0] == 200


@pytest.mark.anyio
async def test_a_client_that_leaves_ends_its_request() -> None:
    """Its queries are not answered any more."""
    found: list[str] = []
    begun = threading.Event()

    class Slow(Index):
        def find(self, query: str, topk: int) -> list[tuple[dict[str, Any], float]]:
            found.append(query)
            begun.set()
            return super().find(query, topk) if query == "good" else []

    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    good = partial(post, f"http://127.0.0.1:{port}/retrieve", b'{"queries": ["good"], "topk": 1}')
    async with Retriever(Slow(built_in()), 60.0).program.served([taken]):
        body = json.dumps({"queries": ["x"] * 10_000}).encode()
        head = f"POST /retrieve HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        await asyncio.to_thread(begun.wait, 20)
        writer.close()
        status, _ = await asyncio.to_thread(good)
        assert status == 200
        before = len(found)
        await asyncio.to_thread(good)
        assert len(found) == before + 1 < 10_000


@pytest.mark.parametrize("text", ["", "{", "[]", '{"contents": 1}'])
def test_a_bad_corpus_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program exits and names the file."""
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    assert main(["--corpus", str(file)]) == 1
    assert str(file) in capsys.readouterr().err
