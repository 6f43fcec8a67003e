"""Connections to the agent's port: limits for unknown clients, room for known ones."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.base import times
from agent.port.protocol import Hello, Report
from agent.processes.ray_machine import raise_open_files
from agent.serving import connections
from agent.serving.connections import MAX_UNTRUSTED_PER_ADDRESS
from support.agent_ports import BEARER, SECONDS, served_port
from support.event_stream import BY_TOKEN, next_status, reading, streamed_head
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
HALF = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
FLOOD = MAX_UNTRUSTED_PER_ADDRESS + 300


@pytest.fixture(autouse=True)
def _enough_files() -> None:
    """Have descriptors for both ends of all connections."""
    raise_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


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
    monkeypatch.setattr(times, "HEADER", 0.5)
    with served_port(None) as port, connected(port.number, said=said) as (one,):
        assert is_closed(one)


def test_a_slow_header_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline counts from the start of the connection, not from the last byte."""
    monkeypatch.setattr(times, "HEADER", 1.0)
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
    monkeypatch.setattr(times, "CONNECTION_IDLE", 0.5)
    with served_port(None) as port, connected(port.number) as (one,):
        for _ in range(3):
            assert status_on(one, LIVEZ) == 200
        one.sendall(said)
        assert is_closed(one)


def test_a_stream_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/events` stays open beyond these deadlines."""
    monkeypatch.setattr(times, "HEADER", 0.5)
    monkeypatch.setattr(times, "CONNECTION_IDLE", 0.5)
    with streamed_head(SECRET) as head, reading(head, BY_TOKEN) as answer:
        for number in range(5):  # the head reads its status every half second
            head.status["phase"] = f"phase {number}"
            while next_status(answer)["phase"] != f"phase {number}":
                pass


@pytest.mark.parametrize("token", [None, SECRET])
def test_a_flood_from_one_address(token: str | None) -> None:
    """The oldest connections of a flood are closed; others are served, even from its address."""
    with served_port(token) as port, connected(port.number, FLOOD, "127.0.0.2", HALF) as flood:
        assert closed(flood, FLOOD - MAX_UNTRUSTED_PER_ADDRESS) == FLOOD - MAX_UNTRUSTED_PER_ADDRESS
        assert port.ask("GET", "/livez").status == 200
        assert status_on(flood[-1], b"\r\n\r\n") == 200


FEW_FILES = 300
PROCESS = """
import os, resource, sys
import anyio
from agent.base import times
from agent.port.server import AgentServer
from agent.port.sockets import bind

times.HEADER = 600.0

def status():
    return {"open": len(os.listdir("/proc/self/fd"))}

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
def served_with(files: int) -> Iterator[int]:
    """Serve in a process that may open so many files; give its port."""
    command = [sys.executable, "-c", PROCESS, str(files)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.communicate(timeout=SECONDS)


def test_a_flood_leaves_descriptors() -> None:
    """Connections from many addresses get half the descriptors; the agent keeps the rest."""
    with served_with(FEW_FILES) as port, contextlib.ExitStack() as stack:
        flood = [
            one
            for last in range(2, 12)
            for one in stack.enter_context(connected(port, 40, f"127.0.0.{last}", HALF))
        ]
        assert closed(flood, len(flood) - FEW_FILES // 2) >= len(flood) - FEW_FILES // 2
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/status")
            answer = connection.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["open"] < FEW_FILES * 2 // 3


@pytest.mark.parametrize("token", [pytest.param(None, marks=pytest.mark.slow), SECRET])
def test_a_thousand_workers_behind_one_address(token: str | None) -> None:
    """They connect at the same time, and each keeps its connection, whatever else is connected.

    Without a token an address has a pace: most reports are answered with 503 on their connections.
    """
    statuses = {200, 503} if token is None else {200}
    with (
        served_port(token) as port,
        connected(port.number, 1000, "127.0.0.2") as workers,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):
            for number, one in enumerate(workers):
                one.sendall(report_of(number, port.number, token))
            assert {status_on(one) for one in workers} == statuses
            few = 100 if token else 10
            others = stack.enter_context(connected(port.number, few, "127.0.0.2", HALF))
            assert status_on(others[-1], b"\r\n\r\n") == 200


def test_workers_of_one_address_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all connections are in use, an address with many loses one to an address with few."""
    monkeypatch.setattr(connections, "MAX_OPEN", 40)
    with served_port(None) as port, contextlib.ExitStack() as stack:

        def worker(number: int, source: str) -> socket.socket:
            (one,) = stack.enter_context(connected(port.number, source=source))
            assert status_on(one, report_of(number, port.number)) == 200
            return one

        few = [worker(number, "127.0.0.3") for number in range(10)]
        some = [worker(number, "127.0.0.4") for number in range(10, 20)]
        crowd = [worker(number, "127.0.0.2") for number in range(20, 40)]
        assert port.ask("GET", "/livez").status == 200
        assert is_closed(crowd[0])
        for one in (*few, *some, *crowd[1:]):
            assert status_on(one, LIVEZ) == 200


class Wire(asyncio.Transport):
    """A connection from an address."""

    def __init__(self, ip: str) -> None:
        super().__init__({"peername": (ip, 1, 0, 0)})
        self.is_aborted = False

    def abort(self) -> None:
        """Close it at once."""
        self.is_aborted = True


def test_an_ipv6_network_counts_as_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may use any address of its /64."""
    monkeypatch.setattr(connections, "MAX_UNTRUSTED_PER_ADDRESS", 3)
    warnings: list[str] = []

    async def scenario() -> list[bool]:
        counted = connections.Connections(warnings.append)
        wires = [Wire(f"2001:db8:0:{n // 4}::{n}") for n in range(6)]
        for wire in wires:
            connections.Connection(counted, asyncio.Protocol()).connection_made(wire)
        return [wire.is_aborted for wire in wires]

    assert asyncio.run(scenario()) == [True, False, False, False, False, False]
    assert "from 2001:db8::/64" in warnings[0]


def test_all_workers_of_one_network_keep_their_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More workers than the limit of an address are expected: each may connect twice."""
    monkeypatch.setattr(connections, "MAX_UNTRUSTED_PER_ADDRESS", 3)

    async def scenario() -> list[bool]:
        counted = connections.Connections(lambda _: None, expected_workers=5)
        wires = [Wire(f"2001:db8::{n}") for n in range(11)]
        for wire in wires:
            connections.Connection(counted, asyncio.Protocol()).connection_made(wire)
        return [wire.is_aborted for wire in wires]

    assert asyncio.run(scenario()) == [True] + [False] * 10
