"""TCP keepalive, and a loop for blocking threads."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator


class HasOptions(Protocol):
    """A socket, or a library's wrapper of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set a socket option."""


def set_keepalive(connection: HasOptions, within: float) -> None:
    """Close a connection within `within` seconds after its peer or the network was lost.

    A listener's connections inherit this. It applies to unacknowledged data, too, which the kernel
    would otherwise resend for a quarter of an hour.
    """
    interval = max(1, round(within / 3))
    options = {
        socket.TCP_KEEPIDLE: interval,
        socket.TCP_KEEPINTVL: interval,
        socket.TCP_KEEPCNT: 2,
        socket.TCP_USER_TIMEOUT: round(within * 1000),
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def repeat(stop: threading.Event, step: float) -> Iterator[None]:
    """Yield every `step` seconds until `stop` is set."""
    while not stop.is_set():
        yield
        stop.wait(step)
