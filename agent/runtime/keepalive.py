"""Connections on which nothing is said: the kernel asks, so that a peer that is gone is noticed."""

from __future__ import annotations

import socket
from typing import Protocol


class HasOptions(Protocol):
    """A socket, or what a library shows of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set one of its options."""


def notice_a_dead_peer(connection: HasOptions, within: float) -> None:
    """Break a connection off within so many seconds after its peer, or the way to it, was lost.

    Connections that a listener takes inherit it. What is sent meanwhile counts as well: without
    this the kernel tries for a quarter of an hour.
    """
    ask = max(1, round(within / 3))
    options = {
        socket.TCP_KEEPIDLE: ask,
        socket.TCP_KEEPINTVL: ask,
        socket.TCP_KEEPCNT: 2,
        socket.TCP_USER_TIMEOUT: round(within * 1000),
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
