"""A server with fixed answers, for tests of HTTP clients."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Peer:
    """A server with fixed behavior, and the requests it received."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[bytes] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"http://127.0.0.1:{self.port}/status"


@contextmanager
def answering(answer: Callable[[socket.socket, Peer], None]) -> Iterator[Peer]:
    """Answer every connection in this way, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Peer(listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    peer.asked.append(connection.recv(65_536))
                    if peer.asked[-1]:
                        answer(connection, peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield peer
        finally:
            peer.over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def reply(body: bytes, head: str = "200 OK") -> Callable[[socket.socket, Peer], None]:
    """Make a response with this body."""
    first = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def answer(connection: socket.socket, _peer: Peer) -> None:
        connection.sendall(first + body)

    return answer
