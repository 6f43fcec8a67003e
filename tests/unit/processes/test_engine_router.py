"""A router's list of engines, by each API that routers have."""

from __future__ import annotations

import anyio
import pytest

from agent.job.services import HttpProbe, Placeholders
from agent.processes.engine_router import EngineRouter
from agent.run import local_services
from support.router_server import Api, router_server

pytestmark = pytest.mark.processes

ENGINE = "http://10.0.0.2:8003"
OTHER = "http://10.0.0.3:8003"
PLACE = Placeholders("10.0.0.2", "10.0.0.1", "1", "/logs", {"router": "127.0.0.1"})


def of(url: str) -> EngineRouter:
    """Return the engine's router at a URL."""
    return EngineRouter(url, HttpProbe("http://{node_ip}:8003/generate", "{}", "text"), PLACE)


@pytest.mark.parametrize("api", ["ids", "urls", "former"])
def test_an_engine_leaves_the_list_and_comes_back(api: Api) -> None:
    """It alone, and only where that changes the list."""
    with router_server(api, OTHER, f"{ENGINE}/") as server:
        port = server.url.rpartition(":")[2]
        router = of(f"http://{{address:router}}:{port}")
        assert router.url == server.url

        async def scenario() -> None:
            assert await router.add() is False
            assert server.changes == []
            assert await router.remove() == ""
            assert await router.remove() == ""
            assert server.engines == [OTHER]
            assert await router.add() is True
            assert await router.add() is False

        anyio.run(scenario)
        assert server.engines == [OTHER, ENGINE]
        assert server.changes == [f"- {ENGINE}/", f"+ {ENGINE}"]


async def current() -> None:
    """Wait for nothing: the engine has the wanted weights."""


def test_a_router_that_is_started_again_lists_the_engine_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the engine is ready, it is looked whether it is in the list."""
    monkeypatch.setattr(local_services, "_ROUTER_ASKED_AGAIN", 0.05)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(local_services.stay_listed, of(server.url), "engine", current)
            with anyio.fail_after(10):
                for _ in range(2):
                    while ENGINE not in server.engines:  # noqa: ASYNC110 - of another thread
                        await anyio.sleep(0.02)
                    server.engines.clear()
            tasks.cancel_scope.cancel()

    with router_server("ids", OTHER) as server:
        anyio.run(scenario)
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


def test_an_engine_with_older_weights_is_not_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its weights are the wanted ones is asked each time, and not at its start alone."""
    monkeypatch.setattr(local_services, "_ROUTER_ASKED_AGAIN", 0.01)

    async def scenario() -> None:
        router = ScriptedRouter([False, False, False])
        passes = 0

        async def until_current() -> None:
            nonlocal passes
            passes += 1
            if passes == 3:
                stale.set()
                await current_again.wait()

        stale = anyio.Event()
        current_again = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(local_services.stay_listed, router, "engine", until_current)
            with anyio.fail_after(10):
                await stale.wait()
                assert router.asked == 2
                current_again.set()
                await router.is_over.wait()
            tasks.cancel_scope.cancel()

    anyio.run(scenario)


def test_a_change_of_the_list_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that drops the engine again and again has one line, and not one each time."""
    monkeypatch.setattr(local_services, "_ROUTER_ASKED_AGAIN", 0.01)
    lines = list[str]()
    monkeypatch.setattr(local_services, "say", lambda text, _level="info": lines.append(text))

    async def scenario() -> None:
        router = ScriptedRouter(
            [False, False, True, True, True, "refused", "refused", False, False]
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(local_services.stay_listed, router, "engine", current)
            with anyio.fail_after(10):
                await router.is_over.wait()
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    listed = [" not in the list " not in line for line in lines]
    assert listed == [True, True, False, True]


def test_a_router_that_is_not_there() -> None:
    """Why the list is as it was is said, and nothing waits long."""
    with router_server("ids") as server:
        url = server.url
    assert anyio.run(of(url).remove) == "connection refused"


@pytest.mark.parametrize(
    ("content", "words"),
    [({}, "it answered 200"), ([], "it answered 200"), ({"workers": [{"url": 7}]}, "200")],
)
def test_a_server_that_is_no_router(
    content: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list in no known form changes nothing, and is quoted."""
    with router_server("ids") as server:
        monkeypatch.setattr(server, "listed", lambda _path: (200, content))
        why = anyio.run(of(server.url).add)
        assert isinstance(why, str)
        assert words in why
        assert "/workers" in why
        assert "/list_workers" in why
        assert server.changes == []


def test_a_refused_change_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a router that wants a key."""
    with router_server("ids") as server:
        monkeypatch.setattr(server, "posted", lambda _path, _body: 401)
        assert anyio.run(of(server.url).add) == "it answered 401: {}"
