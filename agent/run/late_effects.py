"""The effects of a run that are imported after `ray start` was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from agent.port import client, server
from agent.processes import probing
from agent.processes.output import OutputCopies

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from aiohttp import web

    from agent.port.client import OpenSession
    from agent.port.server import AgentServer
    from agent.processes.output import PreambleFilter, RecentOutput

    Sockets = list[socket.socket]


class ReplyEvidence(Protocol):
    """The form of `reply_evidence`."""

    async def __call__(
        self, url: str, body: str | None, expect: str, limit: float, *, follows_redirects: bool
    ) -> str:
        """Return '' for the expected reply, else what is wrong."""


class DownloadSample(Protocol):
    """The form of `download_sample`."""

    async def __call__(
        self, ip: str, port: int, token: str | None, run_id: str, limit: float
    ) -> tuple[int, float] | str:
        """Return bytes and seconds, or why it failed."""


class LateEffects(NamedTuple):
    """Requests to other nodes, the agent's own port, and the job's output."""

    open_session: OpenSession = client.open_session
    reply_evidence: ReplyEvidence = probing.reply_evidence
    download_sample: DownloadSample = client.download_sample
    open_port: Callable[[AgentServer, Sockets], Coroutine[Any, Any, web.BaseRunner]] = (
        server.AgentServer.open
    )
    copy_output: Callable[[Path | RecentOutput, PreambleFilter], OutputCopies] = OutputCopies
    listen: Callable[[web.BaseRunner, Sockets], Coroutine[Any, Any, None]] = server.listen


REAL_LATE = LateEffects()
"""These effects on this machine."""
