"""Bodies of requests: what has arrived counts, the oldest goes on, and the limits."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from agent.serving.bodies import BUFFERED, Bodies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PART = BUFFERED
LONGEST = 5 * PART
MOST = 8 * PART
OWN = "10.0.0.1"
STRANGER = "10.9.0.1"


class Sender:
    """A client of this address, whose body arrives in the parts that a test sends."""

    def __init__(self, bodies: Bodies, ip: str = OWN, announced: int | None = None) -> None:
        self.content_length, self.remote = announced, ip
        self.content = self
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        self.arrived, self.released = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._read(bodies, self))

    def send(self, parts: int, *, last: bool = False) -> Sender:
        """Send so many parts, and the end of the body."""
        for _ in range(parts):
            self._parts.put_nowait(b"x" * PART)
        if last:
            self._parts.put_nowait(b"")
        return self

    async def readany(self) -> bytes:
        """Return the next part, as aiohttp's StreamReader does."""
        return await self._parts.get()

    async def _read(self, bodies: Bodies, asked: Any) -> None:  # noqa: ANN401 - stands for aiohttp's
        async with bodies.read(asked) as body:
            self.body = body
            self.arrived.set()
            await self.released.wait()

    async def end(self) -> None:
        """Release the body."""
        self.released.set()
        await self.task


async def turns() -> None:
    """Let all tasks go as far as they can."""
    for _ in range(30):
        await asyncio.sleep(0)


def run(scenario: Callable[[Bodies], Awaitable[None]]) -> None:
    """Run a scenario, after which no memory may count."""

    async def with_bodies() -> None:
        bodies = Bodies(LONGEST, MOST, lambda ip: ip.startswith("10.0."))
        await scenario(bodies)
        await turns()
        assert bodies.used == 0

    asyncio.run(with_bodies())


def test_what_is_announced_reserves_nothing() -> None:
    """However many bodies are announced and stall, a good one is read at once."""

    async def scenario(bodies: Bodies) -> None:
        stalled = [Sender(bodies, announced=LONGEST).send(1) for _ in range(200)]
        await turns()
        good = Sender(bodies, announced=LONGEST).send(5, last=True)
        await turns()
        assert good.arrived.is_set()
        await good.end()
        for sender in stalled:
            sender.task.cancel()

    run(scenario)


def test_the_oldest_goes_on_where_the_memory_is_full() -> None:
    """Unfinished bodies do not block each other: one after the other arrives."""

    async def scenario(bodies: Bodies) -> None:
        senders = [Sender(bodies).send(4) for _ in range(3)]  # 3 parts count of each
        await turns()
        assert bodies.used == MOST
        for sender in senders:
            sender.send(1, last=True)
        await turns()
        assert [sender.arrived.is_set() for sender in senders] == [True, False, False]
        for sender in senders:
            await sender.end()

    run(scenario)


def test_what_a_request_takes_besides_its_body_counts() -> None:
    """What it gives back serves the next one."""

    async def scenario(bodies: Bodies) -> None:
        first, second = (Sender(bodies).send(1, last=True) for _ in range(2))
        await turns()
        await first.body.take(MOST)
        taking = asyncio.create_task(second.body.take(PART))
        await turns()
        assert not taking.done()
        first.body.keep(PART)
        await taking
        assert bodies.used == 2 * PART
        await first.end()
        await second.end()

    run(scenario)


def test_strangers_take_no_memory_of_own_nodes() -> None:
    """They share memory among themselves, however much they send."""

    async def scenario(bodies: Bodies) -> None:
        strangers = [Sender(bodies, f"10.9.0.{n}").send(4) for n in range(20)]
        await turns()
        own = Sender(bodies, OWN).send(5, last=True)
        await turns()
        assert own.arrived.is_set()
        await own.end()
        for sender in strangers:
            sender.task.cancel()

    run(scenario)


@pytest.mark.parametrize(
    ("announced", "sent", "kind"),
    [
        (LONGEST + 1, 0, web.HTTPRequestEntityTooLarge),
        (None, 6, web.HTTPRequestEntityTooLarge),
        (9, 0, web.HTTPRequestTimeout),
        (None, 3, web.HTTPRequestTimeout),
    ],
)
def test_what_is_too_long_or_late_is_refused(
    announced: int | None,
    sent: int,
    kind: type[web.HTTPException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by its status; what arrived gains no time for a pause."""
    monkeypatch.setattr("agent.serving.bodies.BODY", 0.05)

    async def scenario(bodies: Bodies) -> None:
        sender = Sender(bodies, announced=announced).send(sent)
        with pytest.raises(kind):
            await asyncio.wait_for(sender.task, 5)

    run(scenario)


def test_a_slow_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part comes in time for itself, and all of them too slowly."""
    monkeypatch.setattr("agent.serving.bodies.BODY", 0.2)

    async def scenario(bodies: Bodies) -> None:
        sender = Sender(bodies)
        for _ in range(100):
            if sender.task.done():
                break
            sender._parts.put_nowait(b"x")  # noqa: SLF001 - a part of one byte
            await asyncio.sleep(0.02)
        with pytest.raises(web.HTTPRequestTimeout):
            await sender.task

    run(scenario)


def test_a_wait_for_memory_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with a 503 to retry; one that is canceled leaves nothing behind."""
    monkeypatch.setattr("agent.serving.bodies.BODY_QUEUE", 0.1)

    async def scenario(bodies: Bodies) -> None:
        first, late, gone = (Sender(bodies).send(1, last=True) for _ in range(3))
        await turns()
        await first.body.take(MOST)
        taking = asyncio.create_task(gone.body.take(PART))
        await turns()
        taking.cancel()
        with pytest.raises(web.HTTPServiceUnavailable) as refused:
            await late.body.take(PART)
        assert refused.value.headers["Retry-After"] == "2"
        for sender in (first, late, gone):
            await sender.end()

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_requests_that_end_at_any_time_leave_nothing_behind(seed: int) -> None:
    """Canceled, released or refused in any order, all memory is given back, and a new one goes."""
    chance = random.Random(seed)  # noqa: S311 - for a test

    async def scenario(bodies: Bodies) -> None:
        senders: list[Sender] = []
        for _ in range(60):
            if not senders or chance.random() < 0.5:
                senders.append(Sender(bodies, chance.choice((OWN, STRANGER))))
            sender = chance.choice(senders)
            step = chance.randrange(4)
            if step == 0:
                sender.task.cancel()
            elif step == 1:
                sender.released.set()
            else:
                sender.send(chance.randrange(4), last=chance.random() < 0.5)
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        for sender in senders:
            sender.task.cancel()
        await asyncio.gather(*(sender.task for sender in senders), return_exceptions=True)
        new = Sender(bodies).send(5, last=True)
        await turns()
        assert new.arrived.is_set()
        await new.end()

    run(scenario)
