"""Keeps a router's list of engines to those that answer.

A router asks an engine's port, which one whose scheduler hangs still answers. The agent asks for a
generation: an engine that fails it is taken out of the list, and added once it is ready again.

Routers have one of two APIs. `/workers` lists, adds and removes (SGLang's from 0.2.2 on);
`/list_workers`, `/add_worker` and `/remove_worker` are older. A router that has neither is left
alone: a warning says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from msgspec import DecodeError, json

from agent.base.typed import decode
from agent.base.value import Value
from agent.processes.probing import ServerReply, send_request

if TYPE_CHECKING:
    from agent.job.services import HttpProbe, Placeholders

_ROUTER_ANSWERS = 3.0  # For each request to a router about one of its engines.


class _Worker(Value):
    """An engine in the list of `/workers`; routers before 0.3 have no id, and take its URL."""

    url: str
    id: str | int | None = None


class _Workers(Value):
    workers: tuple[_Worker, ...]


class _FormerWorkers(Value):
    urls: tuple[str, ...]


class EngineRouter:
    """A router, and one engine that it lists or not."""

    def __init__(self, router: str, ready: HttpProbe, place: Placeholders) -> None:
        self.url = place.fill(router)
        of_engine = urlsplit(place.fill(ready.url))
        self._engine = f"{of_engine.scheme}://{of_engine.netloc}"

    async def add(self) -> bool | str:
        """Have the router list the engine; return whether it did not before, or why it does not."""
        listed = await self._list()
        if isinstance(listed, str):
            return listed
        if _name_of(self._engine, listed) is not None:
            return False
        if isinstance(listed, _Workers):
            body = json.encode({"url": self._engine}).decode()
            return await self._change("POST", "/workers", body) or True
        why = await self._change("POST", f"/add_worker?{urlencode({'url': self._engine})}")
        return why or True

    async def remove(self) -> str:
        """Have the router list the engine no more; return '' or why it still does."""
        listed = await self._list()
        if isinstance(listed, str):
            return listed
        name = _name_of(self._engine, listed)
        if name is None:
            return ""
        if isinstance(listed, _Workers):
            return await self._change("DELETE", f"/workers/{quote(name, safe='')}")
        return await self._change("POST", f"/remove_worker?{urlencode({'url': name})}")

    async def _list(self) -> _Workers | _FormerWorkers | str:
        """Return the engines that the router lists, or why they are not known."""
        refusals = []
        for path, kind in (("/workers", _Workers), ("/list_workers", _FormerWorkers)):
            reply = await send_request("GET", f"{self.url}{path}", _ROUTER_ANSWERS)
            if isinstance(reply, str):
                return reply
            if reply.is_success:
                listed = _read(reply, kind)
                if listed is not None:
                    return listed
            refusals.append(f"{path}: {reply.refusal}")
        return "; ".join(refusals)

    async def _change(self, method: str, path: str, body: str | None = None) -> str:
        reply = await send_request(method, f"{self.url}{path}", _ROUTER_ANSWERS, body=body)
        if isinstance(reply, str):
            return reply
        return "" if reply.is_success else reply.refusal


def _read(
    reply: ServerReply, kind: type[_Workers | _FormerWorkers]
) -> _Workers | _FormerWorkers | None:
    """Return the list in a reply; None if it has another form."""
    try:
        return decode(reply.body, kind)
    except (DecodeError, RecursionError):
        return None


def _name_of(engine: str, listed: _Workers | _FormerWorkers) -> str | None:
    """Return by which name a router lists an engine; None if it does not."""
    match listed:
        case _Workers(workers=workers):
            names = {worker.url: str(worker.id or worker.url) for worker in workers}
        case _FormerWorkers(urls=urls):
            names = {url: url for url in urls}
    return next((name for url, name in names.items() if url.rstrip("/") == engine), None)
