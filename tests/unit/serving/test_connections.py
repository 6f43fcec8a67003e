"""Connections to the agent's port: limits for unknown clients, room for known ones."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.open_files import raise_open_files
from agent.port.protocol import Hello, Report
from agent.serving import connections
from support.agent_ports import BEARER, served_port
from support.event_stream import BY_TOKEN, next_status, reading, streamed_head
from support.served import SECONDS, ask
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
HALF = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
ROOM = 400
FLOOD = ROOM + 300


@pytest.fixture(autouse=True)
def _enough_files() -> None:
    """Have descriptors for both ends of all connections."""
    raise_open_files()


@contextlib.contextmanager
def connected(
    port: int, count: int = 1, source: str = "127.0.0.1", said: bytes = b""
) -> Iterator[list[socket.socket]]:
    """Open connections from one address, and send something on each."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), SECONDS, (source, 0))
            opened.append(stack.enter_context(one))
            with contextlib.suppress(ConnectionError):  # it may be closed already
                one.sendall(said)
        yield opened


def is_closed(one: socket.socket) -> bool:
    """Say whether the server closed a connection without an answer; wait until it does."""
    try:
        return one.recv(1000) == b""
    except ConnectionError:
        return True


def closed(opened: Sequence[socket.socket], least: int) -> int:
    """Wait until so many connections were closed; return how many are."""
    poll, left = select.poll(), {one.fileno() for one in opened}
    for one in opened:
        poll.register(one, select.POLLIN)
    while len(opened) - len(left) < least and (ready := poll.poll(SECONDS * 1000)):
        for number, _ in ready:
            poll.unregister(number)
            left.discard(number)
    return len(opened) - len(left)


def report_of(number: int, port: int, token: str | None = None, hold: float = 0.0) -> bytes:
    """Return a worker's report, as it is sent."""
    hello = Hello(f"pod{number}", number)
    ip = f"10.0.{number >> 8}.{number & 255}"
    report = Report(f"agent{number}", ip, "joining Ray", news=0, hold=hold, hello=hello)
    body = json.dumps(report.to_dict()).encode()
    bearer = f"Authorization: {BEARER['Authorization']}\r\n" if token else ""
    head = f"POST /report HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{bearer}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def status_on(one: socket.socket, request: bytes = b"") -> int:
    """Send a request, or the rest of one; return the status of the answer."""
    one.sendall(request)
    with http.client.HTTPResponse(one) as answer:
        answer.begin()
        answer.read()
        return answer.status


@pytest.mark.parametrize("said", [b"", b"GET", HALF])
def test_a_header_has_a_deadline(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a complete first header is closed."""
    monkeypatch.setattr("agent.serving.connections.HEADER", 0.5)
    with served_port(None) as port, connected(port.number, said=said) as (one,):
        assert is_closed(one)


def test_a_slow_header_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline counts from the start of the connection, not from the last byte."""
    monkeypatch.setattr("agent.serving.connections.HEADER", 1.0)
    with served_port(None) as port, connected(port.number, said=HALF) as (one,):
        sent = 0
        while sent < 200 and not select.select([one], [], [], 0.1)[0]:
            one.sendall(b"x")
            sent += 1
        assert sent < 200
        assert is_closed(one)


@pytest.mark.parametrize("said", [b"", HALF])
def test_an_idle_connection_has_a_deadline(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer the next complete header has its deadline; until then it may be reused."""
    monkeypatch.setattr("agent.serving.connections.CONNECTION_IDLE", 0.5)
    with served_port(None) as port, connected(port.number) as (one,):
        for _ in range(3):
            assert status_on(one, LIVEZ) == 200
        one.sendall(said)
        assert is_closed(one)


def test_a_stream_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/events` stays open beyond these deadlines."""
    monkeypatch.setattr("agent.serving.connections.HEADER", 0.5)
    monkeypatch.setattr("agent.serving.connections.CONNECTION_IDLE", 0.5)
    with streamed_head(SECRET) as head, reading(head, BY_TOKEN) as answer:
        for number in range(5):  # the head reads its status every half second
            head.status = replace(head.status, run_name=f"run {number}")
            while next_status(answer)["run_name"] != f"run {number}":
                pass


@pytest.mark.parametrize("token", [None, SECRET])
def test_a_flood(token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest connections without a request are closed; whoever sends one is served."""
    monkeypatch.setattr(connections, "MAX_OPEN", ROOM)
    with served_port(token) as port, connected(port.number) as (worker,):
        for _ in range(2):
            assert status_on(worker, report_of(1, port.number, token)) == 200
            with connected(port.number, FLOOD, "127.0.0.2", HALF) as flood:
                most = FLOOD - ROOM + (token is not None)  # with a token the worker's counts, too
                assert closed(flood, most) >= FLOOD - ROOM
                assert port.ask("GET", "/livez").status == 200
                assert status_on(flood[-1], b"\r\n\r\n") == 200
            if token is None:
                break  # its connection is one of the oldest


FEW_FILES = 300
PROCESS = """
import resource, sys
import anyio
from agent.port.server import AgentServer
from agent.port.node_network import bind
from agent.serving import connections

connections.HEADER = 600.0

def status(_reader):
    raise NotImplementedError

async def serve():
    listening = bind("127.0.0.1", 0)
    runner = await AgentServer(token=None, ready=lambda: True, status=status).open([listening])
    print(listening.getsockname()[1], flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)
    await runner.cleanup()

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
anyio.run(serve)
"""


@contextlib.contextmanager
def served_with(files: int) -> Iterator[tuple[int, Path]]:
    """Serve in a process that may open so many files; give its port, and the folder of these."""
    command = [sys.executable, "-c", PROCESS, str(files)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), Path(f"/proc/{process.pid}/fd")
        finally:
            process.communicate(timeout=SECONDS)


def test_a_flood_leaves_descriptors() -> None:
    """Connections from many addresses get half the descriptors; the agent keeps the rest."""
    with served_with(FEW_FILES) as (port, opened), contextlib.ExitStack() as stack:
        flood = [
            one
            for last in range(2, 12)
            for one in stack.enter_context(connected(port, 40, f"127.0.0.{last}", HALF))
        ]
        assert closed(flood, len(flood) - FEW_FILES // 2) >= len(flood) - FEW_FILES // 2
        assert ask(port, "GET", "/livez").status == 200
        assert len([*opened.iterdir()]) < FEW_FILES * 2 // 3


@pytest.mark.parametrize("token", [pytest.param(None, marks=pytest.mark.slow), SECRET])
def test_a_thousand_workers_behind_one_address(token: str | None) -> None:
    """They connect at the same time, and each keeps its connection, whatever else is connected."""
    with served_port(token) as port, connected(port.number, 1000, "127.0.0.2") as workers:
        for _ in range(2):
            for number, one in enumerate(workers):
                one.sendall(report_of(number, port.number, token))
            assert {status_on(one) for one in workers} == {200}
            with connected(port.number, 100, "127.0.0.2", HALF) as others:
                assert status_on(others[-1], b"\r\n\r\n") == 200


class Wire(asyncio.Transport):
    """A connection from an address."""

    def __init__(self, ip: str) -> None:
        super().__init__({"peername": (ip, 1)})
        self.is_aborted = False

    def abort(self) -> None:
        """Close it at once."""
        self.is_aborted = True


def test_which_connection_is_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one without a request for longest; none that showed the token, else the new one."""
    monkeypatch.setattr(connections, "MAX_OPEN", 3)
    warnings: list[str] = []

    async def scenario() -> list[list[bool]]:
        counted = connections.Connections(warnings.append)
        wires = [Wire(f"10.0.0.{n}") for n in range(6)]
        ends = [connections.Connection(counted, asyncio.Protocol()) for _ in wires]
        found = []
        for number, (wire, end) in enumerate(zip(wires, ends, strict=True)):
            end.connection_made(wire)
            if number == 0:
                counted.trust(end)
            if number == 2:
                counted.note_request(ends[1])
            if number == 4:
                for other in ends[3:5]:
                    counted.trust(other)
            found.append([wire.is_aborted for wire in wires])
        return found

    *_, before, last, full = asyncio.run(scenario())
    assert before == [False, False, True, False, False, False]
    assert last == [False, True, True, False, False, False]
    assert full == [False, True, True, False, False, True]
    (warning,) = warnings
    assert "the first from 10.0.0.2: 3 connections are open" in warning
