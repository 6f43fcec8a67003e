"""Probes: what a reward server's reply and a failed connection are told as."""

from __future__ import annotations

import socket

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.runtime.probes import SAMPLE, judge_reward_reply, port_answers, reason


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'{"rewards": [1.0]}', ""),
        (200, b'{"rewards": [0]}', ""),
        (200, b'{"rewards": [-2.5], "scores": [1], "extra_logs": {}}', ""),
        (500, b"Internal error", "it answered 500: Internal error"),
        (404, b"", "it answered 404"),
        (201, b'{"rewards": [1.0]}', "it answered 201"),
        (200, b"", "not JSON"),
        (200, b"<html>hello</html>", "not JSON: <html>hello</html>"),
        (200, b"\xff\xfe\x00", "not JSON"),
        (200, b"[1.0]", 'no "rewards" list of one number'),
        (200, b"1.0", 'no "rewards" list'),
        (200, b"{}", 'no "rewards" list'),
        (200, b'{"reward": [1.0]}', 'no "rewards" list'),
        (200, b'{"rewards": 1.0}', 'no "rewards" list'),
        (200, b'{"rewards": []}', 'no "rewards" list of one number'),
        (200, b'{"rewards": [1.0, 2.0]}', 'no "rewards" list of one number'),
        (200, b'{"rewards": ["1.0"]}', "not a finite number"),
        (200, b'{"rewards": [true]}', "not a finite number"),
        (200, b'{"rewards": [null]}', "not a finite number"),
        (200, b'{"rewards": [NaN]}', "not a finite number"),
        (200, b'{"rewards": [Infinity]}', "not a finite number"),
        (200, b'{"rewards": [[1.0]]}', "not a finite number"),
    ],
)
def test_a_reply_is_judged(status: int, body: bytes, words: str) -> None:
    """Only 200 with one finite number is a score; anything else is told as what it is."""
    told = judge_reward_reply(status, body)
    assert words in told
    assert bool(told) == bool(words)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_judge(body: bytes) -> None:
    """Whatever a server sends is evidence, shown in part, never an error of ours."""
    told = judge_reward_reply(200, body)
    assert told
    assert len(told) < 250


def test_the_sample_is_a_request_of_the_protocol() -> None:
    """Query, prompts and labels, lists of one length."""
    assert set(SAMPLE) == {"query", "prompts", "labels"}
    assert {len(texts) for texts in SAMPLE.values()} == {1}


def test_an_open_and_a_closed_port() -> None:
    """An open port is no evidence; a closed one is told with its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        closed = anyio.run(port_answers, "127.0.0.1", port)
        listener.listen()
        assert anyio.run(port_answers, "127.0.0.1", port) == ""
    assert closed == f"connection refused by 127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 1)"), "connection refused"),
        (OSError(113, "No route to host"), "no route to host"),
        (ValueError("odd"), "odd"),
        (OSError(), "OSError"),
    ],
)
def test_errors_read_as_a_person_would_say(error: Exception, words: str) -> None:
    """A cause is a few words, never an empty string."""
    assert reason(error) == words
