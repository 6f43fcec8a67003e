"""A worker's link to a head's port, both real, with or without the worker's decisions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio

from agent.decisions import worker
from agent.port.client import HeadLink
from agent.port.node_network import bind
from agent.port.protocol import Applied, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from agent.processes.waiting import NotYet, until
from support.heads import ready
from support.statuses import A_WORKER
from support.workers import goal

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from agent.decisions.worker import worker_state as w

SECONDS = 20.0
HELLO = Hello("pod1", 1)
FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)


class Link:
    """A worker's link to a head; what the link receives is only kept."""

    def __init__(
        self,
        port: int,
        token: str | None = None,
        *,
        host: str = "127.0.0.1",
        gcs: int = 1,
        hello: Callable[[], Hello] = lambda: HELLO,
        **more: Any,  # noqa: ANN401 - passed on
    ) -> None:
        self.says = Report("agent1", "127.0.0.1", "following the head")
        self.asked = 0
        self.events: list[w.WorkerEvent] = []
        self.replies: list[Reply] = []
        on_events = (self.events.append, self.replies.append)
        self.link = HeadLink(host, port, gcs, token, hello, self.report, *on_events, **more)

    def report(self, _ip: str) -> Report:
        """Return what the worker reports, and count it."""
        self.asked += 1
        return self.says

    async def last(self, kind: type[w.WorkerEvent], words: str = "") -> None:
        """Wait until the last event is of this kind, and has these words."""

        async def look() -> bool | NotYet:
            last = self.events[-1] if self.events else None
            return True if isinstance(last, kind) and words in str(last) else NotYet(str(last))

        await until(look, SECONDS, longest=0.05)

    async def run_until(self, kind: type[w.WorkerEvent], words: str = "") -> None:
        """Run the link until its last event is of this kind, and has these words."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.link.run)
            await self.last(kind, words)
            tasks.cancel_scope.cancel()


class LinkedWorker:
    """A worker's decisions behind a real link to a head's port; actions are only recorded."""

    def __init__(self, port: int) -> None:
        first = worker.first_state(goal(prepare=True))
        self.state, _ = worker.decide(first, ready("AGENT_PREPARE_EACH", 1), 0.5)
        self.actions: list[w.WorkerAction] = []
        self.changed = anyio.Event()
        self.link = HeadLink(
            *("127.0.0.1", port, port, None),
            lambda: HELLO,
            self._report,
            self._take,
            self._on_reply,
        )

    def _take(self, event: w.WorkerEvent) -> None:
        before = self.state
        self.state, actions = worker.decide(self.state, event, 1.0)
        self.actions += actions
        if self.state.wanted != before.wanted:
            self.link.report_now()
        self.changed.set()
        self.changed = anyio.Event()

    def _report(self, ip: str) -> Report:
        wanted = self.state.wanted
        applied = Applied() if wanted is None else Applied(wanted.by, wanted.revision)
        return Report("agent1", ip, self.state.phase.value, applied=applied)

    def _on_reply(self, reply: Reply) -> None:
        """Take a reply."""

    async def until_told(self, revision: int) -> None:
        """Wait until a message with this number was received."""
        with anyio.fail_after(SECONDS):
            while self.state.wanted is None or self.state.wanted.revision < revision:
                await self.changed.wait()


def reports_of(kind: type[Reports] = Reports) -> Any:  # noqa: ANN401 - an object of that class
    """Return a head's reports, whose events nobody needs."""
    return kind(FIRST, Expected(None, "", "", ""), lambda _event: None, lambda: 0.0)


@contextlib.asynccontextmanager
async def head_at(
    port: int | socket.socket, token: str | None = None, reports: Reports | None = None
) -> AsyncIterator[Reports]:
    """Serve a head's port."""
    reports = reports or reports_of()
    site = AgentServer(
        token=token, ready=lambda: True, status=lambda _reader: A_WORKER, reports=reports
    )
    runner = await site.open([bind("127.0.0.1", port) if isinstance(port, int) else port])
    try:
        yield reports
    finally:
        await runner.cleanup()
