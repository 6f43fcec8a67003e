"""A router's list of engines, by each API that routers have."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.job.services import HttpProbe, Placeholders
from agent.processes.engine_router import EngineRouter
from agent.run import local_services
from support.router_server import Api, router_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = [pytest.mark.processes, pytest.mark.anyio]

ENGINE = "http://10.0.0.2:8003"
OTHER = "http://10.0.0.3:8003"
PLACE = Placeholders("10.0.0.2", "10.0.0.1", "1", "/logs", {"router": "127.0.0.1"})


def of(url: str) -> EngineRouter:
    """Return the engine's router at a URL."""
    return EngineRouter(url, HttpProbe("http://{node_ip}:8003/generate", "{}", "text"), PLACE)


@pytest.mark.parametrize("api", ["ids", "urls", "former"])
async def test_an_engine_leaves_the_list_and_comes_back(api: Api) -> None:
    """It alone, and only where that changes the list."""
    with router_server(api, OTHER, f"{ENGINE}/") as server:
        port = server.url.rpartition(":")[2]
        router = of(f"http://{{address:router}}:{port}")
        assert router.url == server.url
        assert await router.add() is False
        assert server.changes == []
        assert await router.remove() == ""
        assert await router.remove() == ""
        assert server.engines == [OTHER]
        assert await router.add() is True
        assert await router.add() is False
        assert server.engines == [OTHER, ENGINE]
        assert server.changes == [f"- {ENGINE}/", f"+ {ENGINE}"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_services, "_ROUTER_ASKED_AGAIN", 0.02)


async def current() -> None:
    """Wait for nothing: the engine has the wanted weights."""


@asynccontextmanager
async def staying_listed(
    router: EngineRouter, until_current: Callable[[], Awaitable[None]] = current
) -> AsyncIterator[None]:
    """Keep the engine in a router's list meanwhile."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(local_services.stay_listed, router, "engine", until_current)
        with anyio.fail_after(10):
            yield
        tasks.cancel_scope.cancel()


async def test_a_router_that_is_started_again_lists_the_engine_again() -> None:
    """While the engine is ready, it is looked whether it is in the list."""
    with router_server("ids", OTHER) as server:
        async with staying_listed(of(server.url)):
            for _ in range(2):
                while ENGINE not in server.engines:  # noqa: ASYNC110 - of another thread
                    await anyio.sleep(0.02)
                server.engines.clear()
        assert server.changes[:2] == [f"+ {ENGINE}"] * 2


class ScriptedRouter(EngineRouter):
    """A router that answers as it is written, each time that it is asked to list the engine."""

    def __init__(self, answers: list[bool | str]) -> None:
        super().__init__("http://10.0.0.9:1", HttpProbe("http://{node_ip}:2/", "", ""), PLACE)
        self.answers = answers
        self.asked = 0
        self.is_over = anyio.Event()

    async def add(self) -> bool | str:
        """Return the next answer; the last one again and again."""
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if self.asked >= len(self.answers):
            self.is_over.set()
        return answer


async def test_an_engine_with_older_weights_is_not_listed_again() -> None:
    """Whether its weights are the wanted ones is asked each time, and not at its start alone."""
    router = ScriptedRouter([False, False, False])
    passes = 0
    stale = anyio.Event()
    current_again = anyio.Event()

    async def until_current() -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            stale.set()
            await current_again.wait()

    async with staying_listed(router, until_current):
        await stale.wait()
        assert router.asked == 2
        current_again.set()
        await router.is_over.wait()


async def test_a_change_of_the_list_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that drops the engine again and again has one line, and not one each time."""
    lines = list[str]()
    monkeypatch.setattr(local_services, "say", lambda text, _level="info": lines.append(text))
    answers: list[bool | str] = [False, False, True, True, True, "refused", "refused", False, False]
    router = ScriptedRouter(answers)
    async with staying_listed(router):
        await router.is_over.wait()
    listed = [" not in the list " not in line for line in lines]
    assert listed == [True, True, False, True]


async def test_a_router_that_is_not_there() -> None:
    """Why the list is as it was is said, and nothing waits long."""
    with router_server("ids") as server:
        url = server.url
    assert await of(url).remove() == "connection refused"


@pytest.mark.parametrize("content", [{}, [], {"workers": [{"url": 7}]}])
async def test_a_server_that_is_no_router(content: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in no known form changes nothing, and is quoted."""
    with router_server("ids") as server:
        monkeypatch.setattr(server, "listed", lambda _path: (200, content))
        why = str(await of(server.url).add())
        assert all(word in why for word in ("it answered 200", "/workers", "/list_workers"))
        assert server.changes == []


async def test_a_refused_change_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a router that wants a key."""
    with router_server("ids") as server:
        monkeypatch.setattr(server, "posted", lambda _path, _body: 401)
        assert await of(server.url).add() == "it answered 401: {}"
