"""Name resolution by a resolver that may be slow, with one lookup at a time per name."""

from __future__ import annotations

import socket
import threading

import anyio
import pytest

from agent.processes import resolving

pytestmark = pytest.mark.anyio


class SlowDns:
    """A resolver that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()

    def lookup(self, host: str) -> tuple[str, ...]:
        """Answer late."""
        self.asked.append(host)
        assert self.go.wait(20)
        if host == "nobody":
            raise OSError(-2, "Name or service not known")
        return ("10.0.0.1",)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowDns:
    """Replace the machine's resolver by a slow one."""
    resolver = SlowDns()
    monkeypatch.setattr(resolving, "lookup", resolver.lookup)
    return resolver


@pytest.mark.parametrize(
    ("host", "answer"),
    [("pod0", ("10.0.0.1",)), ("nobody", "nobody does not resolve (Name or service not known)")],
)
async def test_a_late_answer_is_there_for_the_next_who_asks(
    slow: SlowDns, host: str, answer: tuple[str, ...] | str
) -> None:
    """The lookup runs once, the wait is logged, and its late answer is used."""
    for _ in range(2):
        said = await resolving.resolve(host, 0.01)
        assert said == f"no answer from DNS about {host} so far"
    slow.go.set()
    assert await resolving.resolve(host, 20) == answer
    assert slow.asked == [host]
    assert await resolving.resolve(host, 20) == answer
    assert slow.asked == [host, host]


async def test_two_who_ask_at_once_share_an_answer(slow: SlowDns) -> None:
    """One lookup serves both."""
    resolved: list[object] = []

    async def ask() -> None:
        resolved.append(await resolving.resolve("pod0", 20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        slow.go.set()
    assert resolved == [("10.0.0.1",)] * 2
    assert slow.asked == ["pod0"]


async def test_an_address_needs_no_dns(slow: SlowDns) -> None:
    """An address is returned unchanged."""
    assert await resolving.resolve("10.0.0.7") == ("10.0.0.7",)
    assert slow.asked == []


async def test_a_name_that_no_resolver_takes_is_reported() -> None:
    """A label beyond DNS's length gives an error, not an endless wait; briefly it is unknown."""
    name = f"ü{'a' * 70}"
    assert "does not resolve" in await resolving.resolve(name, 20)
    assert resolving.lookup_briefly(name, 20.0) == ()


async def test_a_canceled_lookup_is_removed(slow: SlowDns) -> None:
    """Lookups of a hung resolver do not accumulate."""
    for _ in range(5):
        await resolving.resolve("pod0", 0.001)
    lookup = resolving._lookups["pod0"]  # noqa: SLF001 - what must not grow
    assert not lookup._callbacks  # noqa: SLF001 - same
    slow.go.set()
    await resolving.resolve("pod0", 20)


def test_a_lookup_of_an_ended_loop_is_not_awaited(slow: SlowDns) -> None:
    """A verb has several loops, one after the other: none of them waits for another's future."""
    said = anyio.run(resolving.resolve, "pod0", 0.001)
    assert isinstance(said, resolving.NoDnsAnswer)
    slow.go.set()
    assert anyio.run(resolving.resolve, "pod0", 20) == ("10.0.0.1",)


async def test_no_thread_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, that is the evidence, and the next try may succeed."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        said = await resolving.resolve("localhost")
    assert said == "localhost cannot be looked up (can't start new thread)"
    assert "127.0.0.1" in await resolving.resolve("localhost", 20)


@pytest.mark.parametrize(("code", "mute"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
async def test_no_answer_is_not_an_unknown_name(
    monkeypatch: pytest.MonkeyPatch, code: int, *, mute: bool
) -> None:
    """Only a server that did not answer may still know the name."""

    def fail(_host: str) -> tuple[str, ...]:
        raise socket.gaierror(code, "some words")

    monkeypatch.setattr(resolving, "lookup", fail)
    found = await resolving.resolve(f"head{code}.test")
    assert found == f"head{code}.test does not resolve (some words)"
    assert isinstance(found, resolving.NoDnsAnswer) == mute
