"""An agent's port for reports, served in a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.port.node_network import bind
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports, agent_limit
from agent.port.server import AgentServer
from support.served import Answer, ask, served
from support.statuses import A_WORKER
from support.worlds import SECRET

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from agent.port.reports import ReportEvent

FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
JSON = {"Content-Type": "application/json"}
BEARER = {"Authorization": f"Bearer {SECRET}"}
NAMES = ("Head-0.lws.Default", "pod7.runpod.internal.", None, "", "10.0.0.9")
STATUS = replace(A_WORKER, head_phase="joining \ud800 Ray")
HELLO = Hello("pod1", 1)
REPORT = Report("agent1", "127.0.0.1", "joining Ray", hello=HELLO).to_dict()


class Port:
    """A served site, and the reports that it received."""

    def __init__(self, token: str | None) -> None:
        self.received: list[ReportEvent] = []
        self.token = token
        self.socket = bind("127.0.0.1", 0)
        self.number = int(self.socket.getsockname()[1])
        self.up, self.over = threading.Event(), threading.Event()

    @property
    def here(self) -> str:
        """Its address in the form of a Host header."""
        return f"127.0.0.1:{self.number}"

    def live(self) -> None:
        """Serve until the end of the test."""
        anyio.run(self._live)

    async def _live(self) -> None:
        expected = Expected(None, "", "", "")
        reports = Reports(
            *(FIRST, expected, self.received.append, lambda: 0.0),
            most=agent_limit(1000),
            has_token=self.token is not None,
        )
        site = AgentServer(
            token=self.token,
            ready=lambda: True,
            status=lambda _reader: STATUS,
            reports=reports,
            names=NAMES,
        )
        runner = await site.open([self.socket])
        self.up.set()
        await anyio.to_thread.run_sync(self.over.wait)
        await runner.cleanup()

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: object = None
    ) -> Answer:
        """Send a request."""
        return ask(self.number, method, path, headers, body)

    def report(self, headers: dict[str, str], body: object = REPORT) -> Answer:
        """Post a report."""
        return self.ask("POST", "/report", headers, body)


def served_port(token: str | None) -> AbstractContextManager[Port]:
    """Serve a site in a thread."""
    return served(Port(token))
