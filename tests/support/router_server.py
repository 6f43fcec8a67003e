"""A router of engines for tests, with the lists of SGLang's router and of slime's.

Made from their published descriptions: `/workers` with ids (from 0.3 on) or without (0.2.2),
`/list_workers`, `/add_worker` and `/remove_worker` (before, and slime's). It passes nothing on.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from support.fake_server import Answer, Asked, FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

Api = Literal["ids", "urls", "former"]


class RouterServer:
    """The router: its engines, and the changes of its list so far."""

    def __init__(self, api: Api, host: str, port: int, engines: list[str]) -> None:
        self.api = api
        self.engines = engines
        self.changes: list[str] = []
        self.server = FakeServer(self.reply, host, port)
        self.url = self.server.url

    def reply(self, asked: Asked) -> Answer:
        """Answer as a router does."""
        if asked.method == "POST":
            return Answer({}, self.posted(asked.path, asked.content))
        if asked.method == "DELETE":
            return Answer({}, self.deleted(asked.path))
        status, content = self.listed(asked.path)
        return Answer(content, status)

    def listed(self, path: str) -> tuple[int, object]:
        """Return the reply to a request for the list."""
        if path == "/health":
            return 200, {}
        if path == "/workers" and self.api == "ids":
            return 200, {"workers": [{"id": self.id_of(url), "url": url} for url in self.engines]}
        if path == "/workers" and self.api == "urls":
            return 200, {"workers": [{"url": url} for url in self.engines], "total": 1}
        if path == "/list_workers" and self.api == "former":
            return 200, {"urls": self.engines}
        return 404, {}

    @staticmethod
    def id_of(url: str) -> str:
        """Return the id that the router has given an engine."""
        return f"id-{sum(url.encode())}"

    def posted(self, path: str, body: bytes) -> int:
        """Change the list by a POST; return the status."""
        parts = urlsplit(path)
        if parts.path == "/workers" and self.api != "former":
            self._add(json.loads(body)["url"])
            return 202
        if self.api != "former" or parts.path not in {"/add_worker", "/remove_worker"}:
            return 404
        (url,) = parse_qs(parts.query)["url"]
        if parts.path == "/add_worker":
            self._add(url)
        else:
            self._remove(url)
        return 200

    def deleted(self, path: str) -> int:
        """Remove an engine by its name in the path; return the status."""
        name = unquote(path.removeprefix("/workers/"))
        names = {url if self.api == "urls" else self.id_of(url): url for url in self.engines}
        if self.api == "former" or name not in names:
            return 404
        self._remove(names[name])
        return 202

    def _add(self, url: str) -> None:
        self.engines.append(url)
        self._note(f"+ {url}")

    def _remove(self, url: str) -> None:
        self.engines.remove(url)
        self._note(f"- {url}")

    def _note(self, change: str) -> None:
        self.changes.append(change)
        print(change, flush=True)


@contextmanager
def router_server(api: Api, *engines: str) -> Iterator[RouterServer]:
    """Run a router on a free port of loopback."""
    router = RouterServer(api, "127.0.0.1", 0, [*engines])
    with router.server.running():
        yield router


if __name__ == "__main__":
    HOST, PORT, *ENGINES = sys.argv[1:]
    RouterServer("ids", HOST, int(PORT), ENGINES).server.serve_forever()
