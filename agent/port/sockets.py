"""Take the agent's port before anything else starts; callers wait in the backlog."""

from __future__ import annotations

import errno
import socket

from agent.base import times
from agent.base.errors import PreflightError
from agent.base.ports import BACKLOG
from agent.node.read import holder_of
from agent.processes.resolving import set_keepalive


def bind(address: str, port: int) -> socket.socket:
    """Take the agent's port on an address; the socket listens, and nothing is accepted yet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    set_keepalive(listener, times.PEER_DEAD)
    listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    try:
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = f"{why}, by {holder_of(port)}"
        raise PreflightError(
            f"the agent's port {address}:{port} cannot be taken",
            why=why,
            remedy="End the process that holds it (another agent?), or move AGENT_PORT",
            culprit="AGENT_PORT",
        ) from None
    return listener
