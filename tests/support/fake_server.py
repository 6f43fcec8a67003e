"""An HTTP server whose replies a test makes, one function for all of its routes."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Asked(NamedTuple):
    """One request to the server."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes
    at: float
    """By time.monotonic."""

    @property
    def body(self) -> dict[str, Any]:
        """The content as a JSON object."""
        data: dict[str, Any] = json.loads(self.content)
        return data


class Answer(NamedTuple):
    """One reply of the server; a body that is not bytes is sent as JSON, a status of 0 is none."""

    body: object = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    after: float = 0.0
    """Seconds until it is sent."""


class FakeServer:
    """The server, its requests so far, and how many of them there were at once."""

    def __init__(
        self, answer: Callable[[Asked], Answer], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """Passes requests on to the test's function."""

            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = dict(self.headers)
                answer = outer._reply(
                    Asked(self.command, self.path, headers, content, time.monotonic())
                )
                if not answer.status:  # the connection ends without a reply
                    self.close_connection = True
                    return
                raw = answer.body
                body = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
                self.send_response(answer.status)
                for name, text in {"Content-Length": str(len(body)), **answer.headers}.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(body)
                # A length of a test's own: the rest of the body never comes.
                self.close_connection = "Content-Length" in answer.headers

            do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - the names of http.server

            def log_message(self, *_: object) -> None:
                """Write nothing: requests are recorded."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://{host}:{self.port}"

    def _reply(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            answer = self.answer(asked)
            time.sleep(answer.after)
            return answer
        finally:
            with self._lock:
                self._now -= 1

    def serve_forever(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(0.02)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve in a thread, until the block ends."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            self.close()


@contextmanager
def fake_server(answer: Callable[[Asked], Answer]) -> Iterator[FakeServer]:
    """Run a server on a free port of loopback."""
    server = FakeServer(answer)
    with server.running():
        yield server


def by_turns(*answers: Answer) -> Callable[[Asked], Answer]:
    """Return what answers one request after the other, the last one again and again."""
    turns = [*answers]
    return lambda _asked: turns.pop(0) if len(turns) > 1 else turns[0]
