"""A port whose event stream is read, for tests of /events and its guards."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
from msgspec.structs import replace

from agent.decisions.head.head_state import HeadPhase
from agent.job.series import Series
from agent.port.node_network import bind
from agent.port.server import AgentServer, Control
from agent.port.status_model import WarningStatus
from support.served import KEY, SECONDS, a_log, served
from support.statuses import A_HEAD, NOTHING_FOUND
from support.worlds import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from agent.port.status_model import HeadStatus, Reader, WorkerStatus

WARNINGS = (WarningStatus("disk", "it is nearly full", "make room"),)
"""As `/status` has them for callers with the token."""
BY_KEY = {"Authorization": f"Bearer {KEY}"}
BY_TOKEN = {"Authorization": f"Bearer {SECRET}"}


class StreamedHead:
    """A head's port with a status that the test changes."""

    def __init__(self, token: str | None, *, is_head: bool = True) -> None:
        self.socket = bind("127.0.0.1", 0)
        self.port = int(self.socket.getsockname()[1])
        self.status: HeadStatus = replace(A_HEAD, phase=HeadPhase.BOOTING)
        self.status_for: Callable[[Reader], HeadStatus | WorkerStatus] = lambda _: self.status
        self.reads = 0
        self.up, self.over = threading.Event(), threading.Event()
        control = Control(
            *(lambda: None, 5.0, KEY, lambda: NOTHING_FOUND, a_log),
            with_private=lambda status: replace(status, warnings=WARNINGS),
            series=Series().part,
        )
        self.site = AgentServer(
            token=token,
            ready=lambda: True,
            status=self._look,
            control=control if is_head else None,
        )

    def _look(self, reader: Reader) -> HeadStatus | WorkerStatus:
        self.reads += 1
        return replace(self.status_for(reader), seconds=time.monotonic())

    def live(self) -> None:
        """Serve until the test is over."""
        anyio.run(self._live)

    async def _live(self) -> None:
        runner = await self.site.open([self.socket])
        self.up.set()
        await anyio.to_thread.run_sync(self.over.wait)
        await runner.cleanup()


def streamed_head(
    token: str | None = None, *, is_head: bool = True
) -> AbstractContextManager[StreamedHead]:
    """Have it served in a thread."""
    return served(StreamedHead(token, is_head=is_head))


@contextlib.contextmanager
def reading(head: StreamedHead, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """Open the stream."""
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", head.port, timeout=SECONDS)
    ) as connection:
        connection.request("GET", "/events", headers=headers)
        yield connection.getresponse()


def next_status(answer: http.client.HTTPResponse) -> dict[str, Any]:
    """Return the next status of a stream."""
    line, blank = answer.readline(), answer.readline()
    assert line.startswith(b"data: ")
    assert blank == b"\n"
    data: dict[str, Any] = json.loads(line[6:])
    return data
