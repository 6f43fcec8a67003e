"""Messages to AGENT_NOTIFY: a server of ours is up, down, slow or hostile, and no run waits."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head.head_state import HeadPhase
from agent.run import notify
from agent.run.end import end_role
from agent.run.notify import Notifier
from agent.run.restarts import Container, Restarts, hold_by_setting
from agent.settings.load import settings_for_end
from support.conditions import await_true
from support.free_ports import free_port
from support.http_peer import Peer, answering, reply
from support.node_runs import node_run_with
from support.worlds import SECRET, plan_of
from tools.page.situations import made_run

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

FAILED = ends.JOB_FAILED.outcome(code=1, code_name="1", before="", place="", message="")
OK = reply(b"ok")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten the pauses and limits; no thread outlives its test."""
    monkeypatch.setattr("agent.run.notify.NOTIFY_RETRY_PAUSE", 0.05)
    monkeypatch.setattr("agent.run.notify.NOTIFY_REQUEST", 0.5)
    monkeypatch.setattr("agent.run.notify.NOTIFY_WITHIN", 1.5)
    monkeypatch.setattr("agent.run.notify.NOTIFY_GRACE", 1.0)
    yield
    for thread in threading.enumerate():
        if thread.name == "notify":
            thread.join(10)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that are logged."""
    lines: list[str] = []
    monkeypatch.setattr(notify, "say", lambda line, _level="info": lines.append(line))
    return lines


def notifier_to(*urls: str, **more: str) -> Notifier:
    """Return the notifier of a head, or of what `more` makes the node."""
    plan = plan_of({"AGENT_NOTIFY": " ".join(urls), "EXPECTED_WORKERS": "2", **more})
    return Notifier(plan, lambda text: text.replace(SECRET, "********"), lambda: "run-1")


def bodies(peer: Peer) -> list[dict[str, Any]]:
    """Return the JSON of the requests."""
    return [json.loads(asked.partition(b"\r\n\r\n")[2]) for asked in peer.asked]


def end(notifier: Notifier) -> float:
    """Send the end of a failed run; return how long it took."""
    began = time.monotonic()
    notifier.send_end(FAILED, 3600.0, 12.5)
    anyio.run(notifier.finish)
    return time.monotonic() - began


def test_the_end_is_sent_once(said: list[str]) -> None:
    """With all fields, to every URL; a run that ends at once waits until they are accepted."""
    with answering(OK) as one, answering(OK) as other:
        notifier = notifier_to(one.url, other.url, AGENT_RUN_NAME="first sums")
        assert end(notifier) < 1
        notifier.send_end(FAILED, 3600.0)
        assert [len(peer.asked) for peer in (one, other)] == [1, 1]
    (message,) = bodies(one)
    assert set(message) == {"text", "content", "run", "state", "reason", "url"}
    assert message["text"] == message["content"]
    assert message["text"].startswith("■ first sums: job-failed: the job failed")
    assert message["text"].endswith("after 60 min and $12.50 (exit code 1).")
    assert (message["run"], message["state"]) == ("run-1", "end")
    assert message["url"] == "http://localhost:8266"
    assert b"content-type: application/json" in one.asked[0].lower()
    assert said == []


def test_what_happens_in_a_run_is_sent(said: list[str]) -> None:
    """Each moment once, as the judgment has it."""
    usual = made_run("ok", 3).status
    began = replace(usual, phase=HeadPhase.BOOTING)
    lost = replace(usual, loss_seconds_left=50.0)
    with answering(OK) as peer:
        notifier = notifier_to(peer.url)
        for status in (began, usual, usual, lost, lost):
            notifier.look(status)
            await_true(lambda: not notifier._targets[0]._pending)  # noqa: SLF001 - what is pending
    assert [message["state"] for message in bodies(peer)] == ["start", "loss"]
    assert said == []


@pytest.mark.parametrize("code", ["500 Oops", "503 Busy", "429 Slow down"])
def test_a_server_that_fails_for_a_moment(said: list[str], code: str) -> None:
    """The message is sent again until it is accepted."""

    def answer(connection: socket.socket, peer: Peer) -> None:
        then = OK if len(peer.asked) > 2 else reply(b"", code)
        then(connection, peer)

    with answering(answer) as peer:
        assert end(notifier_to(peer.url)) < 1
        assert len(peer.asked) == 3
    assert said == []


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("404 Not Found", "it answered 404"),
        ("400 Bad Request", "it answered 400"),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", "it answered 302, a redirect"),
    ],
)
def test_a_server_that_refuses(said: list[str], head: str, words: str) -> None:
    """One request, one warning, which does not have the URL; no redirect is followed."""
    with answering(reply(b"", head)) as peer:
        assert end(notifier_to(peer.url)) < 1
        assert len(peer.asked) == 1
    assert [words in line for line in said] == [True]
    assert "/status" not in said[0]


def _never(_connection: socket.socket, peer: Peer) -> None:
    peer.over.wait(20)


def _drips(connection: socket.socket, peer: Peer) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not peer.over.wait(0.05):
        connection.sendall(b"x")


def _no_http(connection: socket.socket, peer: Peer) -> None:
    del peer
    connection.sendall(b"\0\xff" * 50_000)


@pytest.mark.parametrize("answer", [_never, _drips, _no_http, reply(b"", "500 Oops")])
def test_a_server_that_is_slow_or_hostile(
    said: list[str], answer: Callable[[socket.socket, Peer], None]
) -> None:
    """The end waits for the grace, not longer; the warning comes once."""
    with answering(answer) as peer:
        assert 0.9 < end(notifier_to(peer.url)) < 2
        assert any("has not accepted the end of the run within 1 s" in line for line in said)
        await_true(lambda: any("did not accept" in line for line in said), 5)
    assert len(said) == 2


def test_a_huge_reply_is_not_read() -> None:
    """The status is all that counts: a reply without an end is accepted at once."""
    sent = 0

    def answer(connection: socket.socket, peer: Peer) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        while not peer.over.is_set():
            sent += connection.send(b"x" * 65_536)

    with answering(answer) as peer:
        assert end(notifier_to(peer.url)) < 1
    assert sent < 64 << 20


def test_a_server_that_is_down(said: list[str]) -> None:
    """Nothing listens: the other URL gets its message, and the end waits for the grace."""
    down = f"http://127.0.0.1:{free_port()}/k3y-of-mine"
    with answering(OK) as peer:
        assert 0.9 < end(notifier_to(down, peer.url)) < 2
        assert len(peer.asked) == 1
    assert "k3y" not in "".join(said)


def test_a_message_before_the_end_does_not_delay_it(said: list[str]) -> None:
    """What was not accepted yet is given up once the run ends."""
    with answering(_never) as peer:
        notifier = notifier_to(peer.url)
        notifier.look(replace(made_run("ok", 3).status, attempts=(), phase=HeadPhase.BOOTING))
        notifier.look(made_run("lost", 3).status)
        assert 0.9 < end(notifier) < 2
    assert "did not accept" not in "".join(said[:1])


@pytest.mark.parametrize(
    "more", [{"RAY_WORKER": "1", "AGENT_HEAD": "10.0.0.1"}, {"AGENT_NOTIFY": ""}]
)
def test_only_a_head_with_urls_sends(more: dict[str, str]) -> None:
    """All nodes have one environment; without a URL nothing is looked at either."""
    with answering(OK) as peer:
        environ = {"AGENT_NOTIFY": peer.url, **more}
        environ = {name: text for name, text in environ.items() if text}
        notifier = Notifier(plan_of(environ), str, lambda: "run-1")
        assert not notifier.is_due(100.0)
        assert end(notifier) < 0.5
        assert peer.asked == []


def test_without_a_thread_the_run_ends_all_the_same(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pids.max` may allow no more threads."""
    monkeypatch.setattr(notify, "start_thread", lambda *_: None)
    assert end(notifier_to("http://127.0.0.1:1/x")) < 0.5
    assert "no thread can be started" in said[0]


def test_texts_are_masked() -> None:
    """A reason may quote the job's output."""
    with answering(OK) as peer:
        notifier = notifier_to(peer.url)
        notifier.send_end(ends.BUG.outcome(error=f"key {SECRET}"), 1.0)
        anyio.run(notifier.finish)
    assert SECRET.encode() not in peer.asked[0]
    assert b"********" in peer.asked[0]


def test_an_end_without_a_head_is_sent_too(tmp_path: Path) -> None:
    """A role that failed before its first status: the end of the run sends it."""
    with answering(OK) as peer:
        restarts = Restarts(tmp_path, "pod", "digest", is_on=False, holds=False, longest=600.0)
        container = Container(settings_for_end({}), {}, "exit", restarts, hold_by_setting)
        run = node_run_with(tmp_path, (), container, AGENT_NOTIFY=peer.url)
        anyio.run(partial(end_role, run, FAILED))
        run.close()
    assert [message["state"] for message in bodies(peer)] == ["end"]
