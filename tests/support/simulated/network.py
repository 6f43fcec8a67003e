"""The network between machines: partitions, slow and lost packets, duplicate requests.

A worker's real link posts its reports here instead of through aiohttp; the data is the text of the
real protocol.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

from support.simulated.virtual import HERE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Self

    from support.simulated.machines import Machine
    from support.simulated.world import World

_LIMIT, _CONNECT = 15.0, 3.0


class Call:
    """One request: the caller waits for the reply, and the server may delay it."""

    def __init__(self, src: Machine, dst: Machine) -> None:
        self.src, self.dst = src, dst
        self.reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.server: asyncio.Task[None] | None = None
        self.arrived = self.broken = False

    def fail(self) -> None:
        """Report to the caller that the connection broke."""
        if not self.reply.done():
            self.reply.set_exception(ConnectionResetError(104, "connection reset by peer"))
            self.reply.exception()  # the caller may be gone

    def break_off(self) -> None:
        """Report to the server that the caller is gone; data sent before still arrives."""
        self.broken = True
        if self.arrived and self.server is not None:
            self.server.cancel()


class Network:
    """All links, and all requests in progress."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cut_off: set[str] = set()
        """Machines that reach no other machine."""
        self.is_bad = False
        self.doubles = False
        self._calls: dict[Call, None] = {}
        """An ordered list, since a set's order would make a seed ambiguous."""

    def reaches(self, one: Machine, other: Machine) -> bool:
        """Return whether packets get from one machine to another and back."""
        if one is other:
            return one.is_on
        is_cut = {one.label, other.label} & self.cut_off
        return one.is_on and other.is_on and not is_cut

    def delay(self) -> float:
        """Return the current one-way delay: a lost packet is sent again later."""
        draw = self._world.random
        late = self.is_bad and draw.random() < 0.3
        return draw.uniform(0.2, 4.0) if late else draw.uniform(0.001, 0.02)

    async def post(self, ip: str, body: object) -> str:
        """Send a report from this machine; return the text of the reply."""
        src, dst = HERE.get(), self._world.at(ip)
        await asyncio.sleep(self.delay())
        if dst is None or not self.reaches(src, dst):
            await asyncio.sleep(_CONNECT)
            raise TimeoutError
        if dst.serves is None:
            raise ConnectionRefusedError(111, "connection refused")
        text, call = json.dumps(body), Call(src, dst)
        self._calls[call] = None
        call.server = dst.run(self._arrives(call, text))
        if self.doubles and self._world.random.random() < 0.1:
            again = Call(src, dst)
            again.broken = True
            pause = self._world.random.uniform(0.1, 6.0)
            again.server = dst.run(self._arrives(again, text, pause))
        try:
            return await asyncio.wait_for(call.reply, _LIMIT)
        except (asyncio.CancelledError, asyncio.TimeoutError):
            self._world.later(self.delay(), call.break_off)
            raise
        finally:
            del self._calls[call]

    async def _arrives(self, call: Call, text: str, pause: float = 0.0) -> None:
        await asyncio.sleep(pause + self.delay())
        if not self.reaches(call.src, call.dst):
            return
        if call.dst.serves is None:
            call.fail()
            return
        call.arrived = True
        if call.broken:
            asyncio.get_running_loop().call_later(0.001, call.break_off)
        reply = await call.dst.serves(text)
        await asyncio.sleep(self.delay())
        if self.reaches(call.src, call.dst) and not call.reply.done():
            call.reply.set_result(reply)

    def notice_cuts(self) -> None:
        """Report cut connections to both ends, each after its own timeout."""
        for call in [*self._calls]:
            if not self.reaches(call.src, call.dst):
                for end in (call.fail, call.break_off):
                    self._world.later(self._world.random.uniform(1, 5), self._ends, call, end)

    def _ends(self, call: Call, end: Any) -> None:  # noqa: ANN401 - one of two methods
        if not self.reaches(call.src, call.dst):
            end()

    def agent_is_gone(self, machine: Machine) -> None:
        """Close all connections of an ended agent, as the kernel does."""
        for call in [*self._calls]:
            if call.dst is machine and call.server is not None:
                call.server.cancel()
                if self.reaches(call.src, call.dst):
                    self._world.later(self.delay(), call.fail)

    async def probe(self, ip: str, what: str, limit: float) -> str:
        """Probe a port of a machine; return '' or the error."""
        src, dst = HERE.get(), self._world.at(ip)
        await asyncio.sleep(self.delay())
        if dst is None or not self.reaches(src, dst):
            await asyncio.sleep(limit)
            return f"no answer from {ip} within {limit:g} s"
        return "" if dst.listens(what) else f"connection refused by {ip} ({what})"


# --- replacements for aiohttp and for probes in product code ------------------------------------


class Session:
    """Replaces aiohttp's client session."""

    def __init__(self, **_options: object) -> None:
        """Accept the arguments of the real one."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    def post(self, url: str, data: bytes, **_headers: object) -> _Posted:
        """Send a request."""
        return _Posted(url, json.loads(data))


class _Posted:
    """A request, and its reply when it has arrived."""

    status = 200
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, url: str, body: object) -> None:
        self._url, self._body = url, body
        self._text = ""

    async def __aenter__(self) -> Self:
        self._text = await HERE.get().world.network.post(ip_in(self._url), self._body)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    @property
    def content(self) -> Self:
        """Return the object with the text."""
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the text."""
        yield self._text.encode()


def ip_in(url: str) -> str:
    """Return the address in a URL."""
    found = re.search(r"//([0-9.]+):", url)
    assert found is not None
    return found[1]


async def resolve(_host: str) -> tuple[str, ...]:
    """Return the head's address from DNS."""
    await asyncio.sleep(0)
    return (HERE.get().world.head_ip,)


async def port_answers(ip: str, port: int, limit: float = 2.0) -> str:
    """Probe a port of Ray."""
    world = HERE.get().world
    return await world.network.probe(ip, "gcs" if port == world.gcs_port else "raylet", limit)


async def reply_evidence(
    url: str, _body: object, _expect: str, limit: float, **_options: object
) -> str:
    """Probe an agent's port."""
    return await HERE.get().world.network.probe(ip_in(url), "agent", limit)


def source_towards(_ip: str) -> str:
    """Return this machine's address."""
    return HERE.get().ip
