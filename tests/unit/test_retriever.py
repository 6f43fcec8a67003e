"""The bundled retriever: what it finds, and what it says of requests that are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.own_command import own_command
from agent.bundled.retriever import CorpusError, Index, answer, built_in, main, read_corpus
from agent.bundled.retriever import SearchRequest as Wish
from agent.bundled.web_program import hosts_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INDEX = Index(built_in())
TITLES = [passage["contents"].splitlines()[0] for passage in built_in()]


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("who wrote Hamlet?", "Hamlet"),
        ("the capital of Germany", "Berlin"),
        ("highest mountain", "Mount Everest"),
        ("who was first to walk on the moon", "The Moon"),
    ],
)
def test_the_best_comes_first(query: str, title: str) -> None:
    """A passage that shares rare words with the query is found, with a score above the others."""
    found = INDEX.find(query, 3)
    assert found[0][0]["contents"].splitlines()[0] == title
    assert found[0][1] > found[1][1]


@given(st.text(), st.integers(1, 20))
def test_always_as_many_as_asked(query: str, most: int) -> None:
    """Whatever is asked, there are as many passages as there can be, each once, the best first."""
    found = INDEX.find(query, most)
    assert len(found) == min(most, len(TITLES))
    assert len({passage["id"] for passage, _ in found}) == len(found)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)


def test_both_forms_of_a_reply() -> None:
    """With scores each document stands beside its own; without, documents alone."""
    with_scores = answer(INDEX, Wish(["paris", "x"], 2, return_scores=True))["result"]
    assert [len(one) for one in with_scores] == [2, 2]
    assert with_scores[0][0].keys() == {"document", "score"}
    without = answer(INDEX, Wish(["paris"], 1, return_scores=False))["result"]
    assert without == [[with_scores[0][0]["document"]]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no passage in it"),
        ("{", "line 1: not JSON"),
        ('{"contents": "a"}\n\n[]', "line 3: expected an object"),
        ('{"contents": 1}', "line 1: expected an object"),
    ],
)
def test_a_bad_corpus(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names file and line, and ends with 78."""
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    assert main(["--corpus", str(file)]) == 78
    assert words in capsys.readouterr().err
    with pytest.raises(CorpusError, match="No such file"):
        read_corpus(str(tmp_path / "none"))


@pytest.mark.parametrize("flags", [["--topk", "0"], ["--port", "-1"], ["--path", "x"], ["--what"]])
def test_wrong_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag is a usage error."""
    assert main(flags) == 2
    assert "usage: pod-agent retriever" in capsys.readouterr().err


def test_where_to_listen() -> None:
    """Hosts may be repeated and listed; everywhere holds all of them."""
    assert hosts_of(None) == ["127.0.0.1"]
    assert hosts_of(["10.0.0.4,127.0.0.1", "10.0.0.4"]) == ["10.0.0.4", "127.0.0.1"]
    assert hosts_of(["0.0.0.0,10.0.0.4"]) == ["0.0.0.0"]


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """Run the program on a free port; give its URL."""
    command = own_command(sys.executable, "retriever", "--port", "0", *flags)
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
    """Post a body; return status and reply."""
    try:
        with urllib.request.urlopen(url, body, timeout=20) as reply:  # noqa: S310 - our own server
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def test_over_http(tmp_path: Path) -> None:
    """The real program finds what a file holds, and names the field of a malformed request."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "7", "contents": "\\"Owls\\"\\nOwls hunt by night."}\n')
    with running("--corpus", str(corpus), "--max-body", "1000") as url:
        asked = {"queries": ["owls"], "topk": 1, "return_scores": True}
        status, reply = post(url, json.dumps(asked).encode())
        assert status == 200
        assert reply["result"][0][0]["document"]["id"] == "7"
        assert reply["result"][0][0]["score"] > 0
        for body, field in (
            (b"x", "body"),
            (b"[]", "body"),
            (b"{}", "queries"),
            (b'{"queries": [1]}', "queries[0]"),
            (b'{"queries": [], "topk": 0}', "topk"),
            (b'{"queries": [], "topk": true}', "topk"),
            (b'{"queries": [], "return_scores": 1}', "return_scores"),
        ):
            status, reply = post(url, body)
            assert (status, reply["error"].partition(":")[0]) == (400, field)
        assert post(url, b" " * 2000)[0] == 413
        assert post(f"{url}/x", b"{}")[0] == 404
