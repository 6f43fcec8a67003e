"""Bodies of requests: the room for them, its order, and its limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from agent.base import times
from agent.serving.bodies import Bodies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LONGEST, MOST = 100, 400


class Asked:
    """A request with a body, in the parts that `Bodies` reads."""

    def __init__(self, size: int | None, ip: str = "10.0.0.1", sent: bytes | None = b"") -> None:
        self.content_length, self.body_exists, self.remote = size, True, ip
        self._sent = sent
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield what is sent; None never arrives."""
        if self._sent is None:
            await asyncio.Event().wait()
        yield self._sent or b""


class Reading:
    """A request that keeps its body until it is released."""

    def __init__(self, bodies: Bodies, asked: Any) -> None:  # noqa: ANN401 - stands for aiohttp's
        self.has_body, self.released = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._read(bodies, asked))

    async def _read(self, bodies: Bodies, asked: Any) -> None:  # noqa: ANN401 - the same
        async with bodies.read(asked) as body:
            self.body = body
            self.has_body.set()
            await self.released.wait()

    async def end(self) -> None:
        """Release the body."""
        self.released.set()
        await self.task


async def turns() -> None:
    """Let all tasks go as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[Bodies], Awaitable[None]]) -> None:
    """Run a scenario."""

    async def with_bodies() -> None:
        bodies = Bodies(LONGEST, MOST)
        await scenario(bodies)
        await turns()
        assert bodies.used() == {}
        ones = [Reading(bodies, Asked(100, f"10.1.0.{n}")) for n in range(4)]
        await turns()  # all of the room is there again
        assert all(one.has_body.is_set() for one in ones)
        for one in ones:
            await one.end()

    asyncio.run(with_bodies())


def test_bodies_wait_for_room_in_order() -> None:
    """The first to wait is the first to read, and a later small one does not pass it."""

    async def scenario(bodies: Bodies) -> None:
        ones = [Reading(bodies, Asked(100, f"10.0.0.{n}")) for n in range(6)]
        small = Reading(bodies, Asked(1, "10.0.0.9"))
        await turns()
        assert [one.has_body.is_set() for one in (*ones, small)] == [True] * 4 + [False] * 3
        await ones[0].end()
        await turns()
        assert [one.has_body.is_set() for one in (*ones, small)] == [True] * 5 + [False] * 2
        ones[1].body.keep(10)  # the rest of its room is free
        await turns()
        assert not ones[5].has_body.is_set()
        for one in (*ones[1:], small):
            await one.end()

    run(scenario)


@pytest.mark.parametrize("form", ["10.0.0.1", "2001:db8::{}"])
def test_one_address_has_half_of_the_room(form: str) -> None:
    """Others are served while it waits for itself; an IPv6 network counts as one."""

    async def scenario(bodies: Bodies) -> None:
        crowd = [Reading(bodies, Asked(100, form.format(n))) for n in range(5)]
        other = Reading(bodies, Asked(100, "10.0.0.2"))
        await turns()
        assert [one.has_body.is_set() for one in crowd] == [True] * 2 + [False] * 3
        assert other.has_body.is_set()
        for one in (*crowd, other):
            await one.end()

    run(scenario)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (Asked(101), web.HTTPRequestEntityTooLarge),
        (Asked(None, sent=b"x" * 101), web.HTTPRequestEntityTooLarge),
        (Asked(9, sent=None), web.HTTPRequestTimeout),
    ],
)
def test_what_is_too_long_or_late_is_refused(
    asked: Any,  # noqa: ANN401 - stands for aiohttp's
    kind: type[web.HTTPException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by its status."""
    monkeypatch.setattr(times, "BODY", 0.05)

    async def scenario(bodies: Bodies) -> None:
        with pytest.raises(kind):
            async with bodies.read(asked):
                pass

    run(scenario)


def test_a_wait_for_room_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with a 503 to retry; one that is canceled leaves nothing behind."""
    monkeypatch.setattr(times, "BODY_QUEUE", 0.1)

    async def scenario(bodies: Bodies) -> None:
        ones = [Reading(bodies, Asked(100)) for _ in range(2)]
        late, gone = Reading(bodies, Asked(100)), Reading(bodies, Asked(100))
        await turns()
        gone.task.cancel()
        with pytest.raises(web.HTTPServiceUnavailable) as refused:
            await late.task
        assert refused.value.headers["Retry-After"] == "2"
        for one in ones:
            await one.end()

    run(scenario)
