"""An agent's port, served in a thread, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import TYPE_CHECKING, NamedTuple

import anyio
from msgspec.structs import replace

from agent.port.node_network import bind
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports, agent_limit
from agent.port.server import AgentServer
from support.statuses import A_WORKER
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.port.reports import ReportEvent

SECONDS = 20.0
FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
JSON = {"Content-Type": "application/json"}
BEARER = {"Authorization": f"Bearer {SECRET}"}
NAMES = ("Head-0.lws.Default", "pod7.runpod.internal.", None, "", "10.0.0.9")
STATUS = replace(A_WORKER, head_phase="joining \ud800 Ray")
HELLO = Hello("pod1", 1)
REPORT = Report("agent1", "127.0.0.1", "joining Ray", hello=HELLO).to_dict()


class Answer(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def error(self) -> str:
        """The error text of a refusal."""
        return str(json.loads(self.body)["error"])


class Port:
    """A served site, and the reports that it received."""

    def __init__(self, token: str | None) -> None:
        self.received: list[ReportEvent] = []
        self.token = token
        self.socket = bind("127.0.0.1", 0)
        self.number = int(self.socket.getsockname()[1])

    @property
    def here(self) -> str:
        """Its address in the form of a Host header."""
        return f"127.0.0.1:{self.number}"

    async def serve(self, up: threading.Event, done: threading.Event) -> None:
        """Serve until the end of the test."""
        expected = Expected(None, "", "", "")
        reports = Reports(
            *(FIRST, expected, self.received.append, lambda: 0.0),
            most=agent_limit(1000),
            has_token=self.token is not None,
        )
        site = AgentServer(
            token=self.token,
            ready=lambda: True,
            status=lambda: STATUS,
            reports=reports,
            names=NAMES,
        )
        runner = await site.open([self.socket])
        up.set()
        await anyio.to_thread.run_sync(done.wait)
        await runner.cleanup()

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: object = None,
    ) -> Answer:
        """Send a request; a body that is not text is sent as JSON."""
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.number, timeout=SECONDS)
        ) as connection:
            connection.request(method, path, sent, headers or {})
            reply = connection.getresponse()
            return Answer(reply.status, reply.headers, reply.read())

    def report(self, headers: dict[str, str], body: object = REPORT) -> Answer:
        """Post a report."""
        return self.ask("POST", "/report", headers, body)


@contextlib.contextmanager
def served_port(token: str | None) -> Iterator[Port]:
    """Serve a site in a thread."""
    port, up, done = Port(token), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: anyio.run(port.serve, up, done))
    thread.start()
    try:
        assert up.wait(SECONDS)
        yield port
    finally:
        done.set()
        thread.join(SECONDS)
