"""The example retriever, a stand-in for Search-R1's retrieval server."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from agent.bundled.retriever import Index, built_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RETRIEVER = (sys.executable, "-m", "agent", "retriever")


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """Run the program on a free port; yield its URL."""
    command = [*RETRIEVER, "--port", "0", *flags]
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
        ):
            status, reply = post(url, body)
            assert (status, reply["error"].partition(":")[0]) == (400, field)
        assert post(f"{url}/x", b"{}")[0] == 404


@pytest.mark.parametrize("text", ["", "{", "[]", '{"contents": 1}'])
def test_a_bad_corpus_is_refused(text: str, tmp_path: Path) -> None:
    """The program exits and names the file."""
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    command = [*RETRIEVER, "--corpus", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 1
    assert str(file) in ended.stderr
