"""Taking the agent's port, before anything else starts: callers wait in the backlog."""

from __future__ import annotations

import socket

from agent.base.errors import PreflightError

_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 1,
    socket.TCP_KEEPINTVL: 1,
    socket.TCP_KEEPCNT: 2,
    socket.TCP_USER_TIMEOUT: 3000,
}
"""Seconds, but the last, in milliseconds: a peer that is gone is noticed within 3 s."""


def bind(addresses: list[str], port: int) -> list[socket.socket]:
    """Take the agent's port, before anything else starts; callers wait in the backlog."""
    sockets: list[socket.socket] = []
    for address in dict.fromkeys(addresses):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        notice_dead_peers(listener)
        listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        try:
            listener.bind((address, port))
            listener.listen(1024)
        except OSError as error:
            for taken in sockets:
                taken.close()
            raise PreflightError(
                f"the agent's port {address}:{port} cannot be taken",
                why=error.strerror or str(error),
                remedy="End the process that holds it (another agent?), or move AGENT_PORT",
                culprit="AGENT_PORT",
            ) from None
    return sockets


def notice_dead_peers(one: socket.socket) -> None:
    """Have the kernel ask on connections where nothing is said; what a listener takes inherits it.

    A held report says nothing for seconds, and a pod that is lost does not say goodbye.
    """
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        one.setsockopt(socket.IPPROTO_TCP, option, value)
