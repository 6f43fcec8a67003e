"""Names: asked of a resolver that may be slow, and never asked twice at once."""

from __future__ import annotations

import threading

import anyio
import pytest

from agent.runtime import names


class SlowDns:
    """A resolver that answers when it is told to."""

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
def dns(monkeypatch: pytest.MonkeyPatch) -> SlowDns:
    """Put a slow resolver in the place of the machine's."""
    slow = SlowDns()
    monkeypatch.setattr(names, "lookup", slow.lookup)
    return slow


@pytest.mark.parametrize(
    ("host", "answer"),
    [("pod0", ("10.0.0.1",)), ("nobody", "nobody does not resolve (Name or service not known)")],
)
def test_a_late_answer_is_there_for_the_next_who_asks(
    dns: SlowDns, host: str, answer: tuple[str, ...] | str
) -> None:
    """A resolver slower than our patience is asked once, says so, and is heard in the end."""

    async def story() -> None:
        for _ in range(2):
            said = await names.resolve(host, 0.01)
            assert said == f"no answer from DNS about {host} so far"
        dns.go.set()
        assert await names.resolve(host, 20) == answer
        assert dns.asked == [host]
        assert await names.resolve(host, 20) == answer
        assert dns.asked == [host, host]

    anyio.run(story)


def test_two_who_ask_at_once_share_an_answer(dns: SlowDns) -> None:
    """One lookup serves both."""
    heard: list[object] = []

    async def ask() -> None:
        heard.append(await names.resolve("pod0", 20))

    async def story() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            dns.go.set()

    anyio.run(story)
    assert heard == [("10.0.0.1",)] * 2
    assert dns.asked == ["pod0"]


def test_an_address_needs_no_dns(dns: SlowDns) -> None:
    """An address is its own answer."""
    assert anyio.run(names.resolve, "10.0.0.7") == ("10.0.0.7",)
    assert dns.asked == []


def test_a_name_that_no_resolver_takes_is_told() -> None:
    """A label beyond DNS's length is an answer, not an endless question."""
    said = anyio.run(names.resolve, f"ü{'a' * 70}", 20)
    assert "does not resolve" in said
