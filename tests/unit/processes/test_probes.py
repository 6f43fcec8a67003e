"""Probes: the results for a reward server's replies and for failed connections."""

from __future__ import annotations

import socket
import subprocess
import sys

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.processes import resolving
from agent.processes.connecting import port_answers, reason
from agent.processes.probing import (
    REWARD_REQUEST,
    ServerReply,
    check_reward_reply,
    first_answer,
    reward_answers,
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"rewards": [1.0]}', ""),
        (b'{"rewards": [0]}', ""),
        (b'{"rewards": [-2.5], "scores": [1], "extra_logs": {}}', ""),
        # OpenRLHF's serve_rm (0.8 and 0.11), and OpenRLHF-M's math_verifier as it really answered
        (b'{"rewards":[-0.73]}', ""),
        (b'{"rewards":[0.3],"scores":[0.3],"extra_logs":{"dummy_scores":[0.3]}}', ""),
        (b'{"acc_rewards":[0.0],"format_rewards":[0.0],"rewards":[0.0]}\n', ""),
        (b"", "not JSON"),
        (b"<html>hello</html>", ": <html>hello</html>"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1.0]", 'not JSON with "rewards", a list of one number'),
        (b"1.0", 'not JSON with "rewards"'),
        (b"{}", 'not JSON with "rewards"'),
        (b'{"reward": [1.0]}', 'not JSON with "rewards"'),
        (b'{"rewards": 1.0}', 'not JSON with "rewards"'),
        (b'{"rewards": []}', 'not JSON with "rewards", a list of one number'),
        (b'{"rewards": [1.0, 2.0]}', 'not JSON with "rewards", a list of one number'),
        (b'{"rewards": ["1.0"]}', "Expected `float`"),
        (b'{"rewards": [true]}', "Expected `float`"),
        (b'{"rewards": [null]}', "Expected `float`"),
        (b'{"rewards": [NaN]}', "not a finite number"),
        (b'{"rewards": [Infinity]}', "not a finite number"),
        (b'{"rewards": [[1.0]]}', "Expected `float`"),
    ],
)
def test_a_reply_is_checked(body: bytes, words: str) -> None:
    """Only one finite number is a score; anything else is reported as what it is."""
    problem = check_reward_reply(body)
    assert words in problem
    assert bool(problem) == bool(words)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b" no such page\n", "it answered 404: no such page"), (b"", "it answered 404")],
)
def test_a_refusal_is_named_by_its_status_and_text(body: bytes, words: str) -> None:
    """Without a text nothing follows the status."""
    assert ServerReply(404, body, {}).refusal == words


@given(st.binary(max_size=300))
def test_no_bytes_break_the_judge(body: bytes) -> None:
    """Any bytes of a server are evidence, shown in part, and raise no error."""
    problem = check_reward_reply(body)
    assert problem
    assert len(problem) < 400


def test_the_sample_is_a_request_of_the_protocol() -> None:
    """Query, prompts and labels, lists of one length."""
    assert set(REWARD_REQUEST) == {"query", "prompts", "labels"}
    assert {len(texts) for texts in REWARD_REQUEST.values()} == {1}


def test_an_open_and_a_closed_port() -> None:
    """An open port is no evidence; a closed one is reported with its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        closed = anyio.run(port_answers, "127.0.0.1", port)
        listener.listen()
        assert anyio.run(port_answers, "127.0.0.1", port) == ""
    assert closed == f"connection refused by 127.0.0.1:{port}"


def test_an_ipv6_address_is_printed_in_brackets() -> None:
    """Host and port can be distinguished."""
    with socket.socket(socket.AF_INET6) as listener:
        try:
            listener.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        port = listener.getsockname()[1]
        assert anyio.run(port_answers, "::1", port) == f"connection refused by [::1]:{port}"


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name whose first address is closed works by its second."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(resolving, "lookup", lambda _: ("127.0.0.1", "127.0.0.2"))
        assert anyio.run(port_answers, "head", port) == ""
        monkeypatch.setattr(resolving, "lookup", lambda _: ("127.0.0.1",))
        assert anyio.run(port_answers, "head", port) == f"connection refused by head:{port}"


DEAD_DNS = """
import socket, sys, time
import anyio
from agent.processes import probing
def hang(*_, **__):
    time.sleep(30)
socket.getaddrinfo = hang
asked = getattr(probing, sys.argv[1])
print(anyio.run(asked, *eval(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("probe", "arguments"),
    [("port_answers", ("head", 6379, 0.2)), ("reward_answers", ("http://head:5000/x", 0.2))],
)
def test_a_dead_dns_holds_up_nobody(probe: str, arguments: tuple[object, ...]) -> None:
    """The probe ends in time, and so does the process, although its resolver still hangs."""
    words = [sys.executable, "-c", DEAD_DNS, probe, repr(arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.startswith("no answer")


def test_a_reward_server_of_no_known_name() -> None:
    """The resolver's error is the evidence."""
    said = anyio.run(reward_answers, f"http://{'a' * 70}.example:5000/get_reward", 20.0)
    assert "does not resolve" in said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 1)"), "connection refused"),
        (OSError(113, "No route to host"), "no route to host"),
        (ValueError("odd"), "odd"),
        (OSError(), "OSError"),
    ],
)
def test_errors_read_as_sentences(error: Exception, words: str) -> None:
    """A cause is a few words, never an empty string."""
    assert reason(error) == words


def test_a_question_that_is_lost_is_asked_again_beside_it() -> None:
    """The first connection gets no answer, as after a lost packet; a later one does."""
    asked: list[int] = []

    async def ask() -> str:
        asked.append(len(asked))
        if len(asked) == 1:
            await anyio.sleep_forever()
        return ""

    assert anyio.run(first_answer, ask, 30.0) == ""
    assert asked == [0, 1]


@pytest.mark.parametrize("says", ["", "connection refused"])
def test_an_answer_is_not_waited_for_again(says: str) -> None:
    """Yes or no, the first answer is final."""
    asked: list[int] = []

    async def ask() -> str:
        asked.append(len(asked))
        return says

    assert anyio.run(first_answer, ask, 30.0) == says
    assert asked == [0]


def test_silence_is_listened_to_until_the_limit() -> None:
    """Then the timeout is reported."""

    async def ask() -> str:
        await anyio.sleep_forever()
        return ""

    assert anyio.run(first_answer, ask, 0.6) == "no answer within 0.6 s"
