"""Engines and a front for tests: SGLang's verbs, with faults, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import msgspec
from aiohttp import web

from agent.base.text import in_url
from agent.front import front_members, front_server, front_traffic
from agent.front.front_memory import FrontMemory
from agent.front.front_server import FrontServer
from agent.job.front_protocol import FrontOrder, FrontStatus, Slot, SlotStatus
from agent.job.weight_dialects import DIALECTS
from agent.serving.program import listening_on
from support.free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest

KEY = "key"
HOST = "127.0.0.1"
UPDATE = "/update_weights_from_disk"
PAUSE = "/pause_generation"
RESUME = "/continue_generation"
_SHORT_TIMES = (
    (front_server, "LOOK", 0.02),
    (front_server, "FIRST_VERB", 0.3),
    (front_server, "FIRST_UPDATE", 0.4),
    (front_server, "UPDATE_LEAST", 0.4),
    (front_server, "DISCOVERY", 0.3),
    (front_server, "TRY_AGAIN", 0.05),
    (front_traffic, "WEDGED_LEAST", 0.4),
    (front_members, "TRAINER_SENDS", 0.3),
    (front_members, "REFIT_PAUSE", 0.1),
)


def shorten_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what takes a minute in a run take tenths of a second."""
    for module, name, seconds in _SHORT_TIMES:
        monkeypatch.setattr(module, name, seconds)


class StandInEngine:
    """One engine: its weights, what it was asked, and the faults that it has now."""

    def __init__(self, name: str, host: str = HOST) -> None:
        self.name = name
        self.host = host
        self.port = free_port()
        self.generation = 1
        self.answers = True
        self.is_cut_off = False
        self.weights = "start"
        self.is_paused = False
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.raw_paths: list[str] = []
        self.headers: dict[str, str] = {}
        """Those of the last request."""
        self.hangs: set[str] = set()
        """Paths that it never answers; `*` for all."""
        self.breaks: set[str] = set()
        """Paths at which it closes the connection."""
        self.statuses: dict[str, int] = {}
        self.waits: dict[str, asyncio.Event] = {}
        """Paths that it answers only after this."""
        self.replies: dict[str, object] = {}
        """What it replies to paths, in place of what it has."""
        self.reads_folders = False
        """Whether it refuses an update whose folder has no file."""

    async def start(self) -> None:
        """Listen, with the weights of a start."""
        self.weights = "start"
        self.is_paused = False
        self.hangs = set()
        app = web.Application(client_max_size=1 << 27)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.01, auto_decompress=False
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()

    async def kill(self) -> None:
        """End as a killed process does: all connections are reset."""
        server = self._runner.server
        assert server is not None
        for connection in [*server.connections]:
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()

    async def restart(self) -> None:
        """Be the next process."""
        await self.kill()
        self.generation += 1
        await self.start()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        content = await request.read()
        self.asked.append(request.path_qs)
        self.bodies.append(content)
        self.raw_paths.append(request.raw_path)
        self.headers = {name.lower(): text for name, text in request.headers.items()}
        if {path, "*"} & self.hangs:
            await asyncio.Event().wait()
        if path in self.waits:
            await self.waits[path].wait()
        if path in self.breaks:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if path in self.statuses:
            reply = {"success": False, "by": self.name}
            return web.json_response(reply, status=self.statuses[path])
        if path in self.replies:
            return web.json_response(self.replies[path])
        if path == "/stream":
            return await self._stream(request)
        if path in {UPDATE, "/update_weights"}:
            fields = json.loads(content)
            folder = Path(fields.get("model_path") or fields["weight_dir"])
            if self.reads_folders and not _has_files(folder):
                return web.json_response({"success": False, "by": self.name}, status=400)
            self.weights = fields.get("weight_version") or folder.name
        self.is_paused = (self.is_paused or path == PAUSE) and path != RESUME
        return web.json_response({"by": self.name, "version": self.weights, "size": len(content)})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send a part of a reply for each part that the test allows."""
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: 1\n\n")
        await self.waits["parts"].wait()
        await reply.write(b"data: 2\n\n")
        return reply


def _has_files(folder: Path) -> bool:
    return any(folder.glob("*"))


class FrontUnderTest:
    """A front in this event loop, its engines, its log, and requests to it."""

    def __init__(
        self,
        engines: tuple[StandInEngine, ...],
        dialect: str,
        memory: str,
        keep: int = 0,
        host: str = HOST,
    ) -> None:
        self.engines = engines
        self._host = in_url(host)
        self.ports = [free_port() for _ in engines]
        self.log: list[str] = []
        self.attempt = 1
        say = self.log.append
        its_memory = FrontMemory(memory, say)
        hosts = [*dict.fromkeys([host, HOST])]
        self.server = FrontServer(DIALECTS[dialect], hosts, KEY, its_memory, say, keep)
        self.http = aiohttp.ClientSession()

    def url(self, slot: int, path: str) -> str:
        """Return an URL of a slot."""
        return f"http://{self._host}:{self.ports[slot]}{path}"

    async def order(self) -> FrontStatus:
        """Send an order with the engines as they are; return the reply."""
        status, content = await self.put(msgspec.json.encode(self.next_order()))
        assert status == 200, content
        return msgspec.json.decode(content, type=FrontStatus)

    async def order_with(self, engine: StandInEngine, **changes: bool) -> FrontStatus:
        """Send an order after an engine's probe fails or succeeds, or its node is cut off."""
        for name, value in changes.items():
            setattr(engine, name, value)
        return await self.order()

    def next_order(self) -> FrontOrder:
        """Return the order that describes the engines as they are."""
        slots = (
            Slot(
                *(port, one.name, f"{self._host}:{one.port}"),
                *(one.generation, one.answers, one.is_cut_off),
            )
            for port, one in zip(self.ports, self.engines, strict=True)
        )
        return FrontOrder(self.attempt, tuple(slots))

    async def put(self, content: bytes, key: str = KEY, path: str = "/front") -> tuple[int, bytes]:
        """Send a body to the control port."""
        url = f"http://127.0.0.1:{self.server.control_port}{path}"
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.put(url, data=content, headers=headers) as reply:
            return reply.status, await reply.read()

    async def post(self, slot: int, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request to a slot; return status and JSON of the reply."""
        async with self.http.post(self.url(slot, path), json=body or {}) as reply:
            content = await reply.read()
            return reply.status, json.loads(content) if content else None

    async def generate(self, slot: int) -> str:
        """Return which engine answers data, and with which weights."""
        status, reply = await self.post(slot, "/generate", {"text": "a"})
        assert status == 200, reply
        return f"{reply['by']}: {reply['version']}"

    def begin(self, slot: int) -> asyncio.Task[str]:
        """Begin to ask for data."""
        return asyncio.create_task(self.generate(slot))

    async def update(self, version: str, *slots: int) -> list[int]:
        """Send an update as slime does, to all or some slots; return the statuses."""
        body = {"model_path": f"/w/weight_v{int(version):06}", "weight_version": version}
        asked = (self.post(slot, UPDATE, body) for slot in slots or range(len(self.ports)))
        return [status for status, _ in await asyncio.gather(*asked)]

    def of(self, slot: int) -> SlotStatus:
        """Return the state of a slot now."""
        return self.server.status().members[slot]

    def states(self) -> list[str]:
        """Return the states of all slots."""
        return [one.state for one in self.server.status().members]

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait for a condition."""
        with anyio.fail_after(5):
            while not check():  # noqa: ASYNC110 - of a server's state, which sets no event
                await anyio.sleep(0.005)

    async def until_held(self, number: int = 1) -> None:
        """Wait until so many requests are held."""
        await self.until(lambda: self.server.status().held == number)


@asynccontextmanager
async def running_front(  # noqa: PLR0913 - what differs between tests
    count: int = 2,
    dialect: str = "sglang",
    memory: str = "",
    *,
    keep: int = 0,
    host: str = HOST,
    limit: float = 20.0,
) -> AsyncIterator[FrontUnderTest]:
    """Run engines and a front that has had its first order."""
    engines = tuple(StandInEngine(f"e{number}", host) for number in range(count))
    for engine in engines:
        await engine.start()
    front = FrontUnderTest(engines, dialect, memory, keep, host)
    stop, ready = anyio.Event(), anyio.Event()
    control = [*listening_on(["127.0.0.1"], 0).values()]
    serving = asyncio.create_task(front.server.serve(control, stop, ready.set))
    try:
        with anyio.fail_after(limit):
            await ready.wait()
            await front.order()
            yield front
    finally:
        await front.http.close()
        stop.set()
        await serving
        for engine in engines:
            with contextlib.suppress(Exception):
                await engine.kill()


def play(  # noqa: PLR0913 - what differs between tests
    scenario: Callable[[FrontUnderTest], Awaitable[None]],
    count: int = 2,
    dialect: str = "sglang",
    *,
    keep: int = 0,
    host: str = HOST,
    limit: float = 20.0,
) -> None:
    """Run a scenario with so many engines."""

    async def with_front() -> None:
        async with running_front(count, dialect, keep=keep, host=host, limit=limit) as front:
            await scenario(front)

    asyncio.run(with_front())
