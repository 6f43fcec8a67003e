"""The network between machines: partitions, slow and lost packets, duplicate requests.

A worker's link posts its reports here instead of through aiohttp's client, and the route of the
head's server answers them, with its checks of the token and of the sender.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from agent.port.proof import PROOF_HEADER, Claim
from agent.port.protocol import REPORT_PATH
from agent.processes.connecting import ConnectionRefused
from agent.processes.resolving import NoDnsAnswer
from support.simulated.programs import FIRST_GIVEN_PORT, SERVICE_PORT
from support.simulated.virtual import here, is_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aiohttp import web
    from typing_extensions import Self

    from agent.port.server import AgentServer
    from support.simulated.machines import Machine
    from support.simulated.virtual import Life
    from support.simulated.world import World

_LIMIT, _CONNECT = 15.0, 3.0


class Call:
    """One request: the caller waits for the reply, and the server may delay it."""

    def __init__(self, src: Machine, dst: Machine) -> None:
        self.src, self.dst = src, dst
        self.reply: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
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


def _pair(src: Machine, dst: Machine) -> tuple[Life | None, Life | None]:
    """Return the ends of a connection: two agents, each of which has its own."""
    ends = (None if one.agent is None else one.agent.life for one in (src, dst))
    return next(ends), next(ends)


class Network:
    """All links, and all requests in progress."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cut_off: set[str] = set()
        """Machines that reach no other machine."""
        self.mute: set[str] = set()
        """Machines whose packets reach no other machine, though others' reach them."""
        self.deaf: set[str] = set()
        """Machines that no packets of others reach, though theirs reach others."""
        self.dns_error = ""
        """Why DNS has no answer now; '' if it answers."""
        self.is_bad = False
        self.doubles = False
        self.reorders = False
        self._open: dict[tuple[Life | None, Life | None], None] = {}
        """Connections between agents that have carried an answer."""
        self._calls: dict[Call, None] = {}
        """An ordered list, since a set's order would make a seed ambiguous."""

    def reaches(self, one: Machine, other: Machine) -> bool:
        """Return whether packets get from one machine to another and back."""
        return self.passes(one, other) and self.passes(other, one)

    def passes(self, src: Machine, dst: Machine) -> bool:
        """Return whether packets get from one machine to another."""
        if src is dst:
            return src.is_on
        is_lost = src.label in self.mute or dst.label in self.deaf
        is_cut = is_lost or {src.label, dst.label} & self.cut_off
        return src.is_on and dst.is_on and not is_cut

    def reaches_others(self, machine: Machine) -> bool:
        """Return whether a machine's link works in both directions."""
        return machine.label not in self.cut_off | self.mute | self.deaf

    def restore(self, *machines: Machine) -> None:
        """Let the links of these machines work again."""
        for lost in (self.cut_off, self.mute, self.deaf):
            lost.difference_update(machine.label for machine in machines)

    def delay(self) -> float:
        """Return the current one-way delay: a lost packet is sent again later."""
        draw = self._world.random
        late = self.is_bad and draw.random() < 0.3
        return draw.uniform(0.2, 4.0) if late else draw.uniform(0.001, 0.02)

    async def post(self, ip: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send a report from this machine; return the reply."""
        src = here()
        dst = self._world.at(ip)
        await asyncio.sleep(self.delay())

        # An open connection carries a request though its answer is lost; a new one needs both ways.
        has_way = dst is not None and self.reaches(src, dst)
        if dst is not None and _pair(src, dst) in self._open:
            has_way = self.passes(src, dst)
        if dst is None or not has_way:
            await asyncio.sleep(_CONNECT)
            raise TimeoutError
        if dst.serves is None:
            raise ConnectionRefusedError(111, "connection refused")

        call = Call(src, dst)
        self._calls[call] = None
        request = Request(src.ip, headers, body)
        late = 0.0
        if self.reorders and self._world.random.random() < 0.3:
            late = self._world.random.uniform(0.1, 0.7)  # a report that is cut short is overtaken
        call.server = self._serve(dst, self._arrives(call, request, late))
        if (self.doubles or self.reorders) and self._world.random.random() < 0.1:
            again = Call(src, dst)
            again.broken = True
            pause = self._world.random.uniform(0.1, 6.0)
            if self.reorders:
                pause *= 10.0
            again.server = self._serve(dst, self._arrives(again, request.sent_again(), pause))
        try:
            return await asyncio.wait_for(call.reply, _LIMIT)
        except (asyncio.CancelledError, asyncio.TimeoutError):
            self._world.later(self.delay(), call.break_off)
            raise
        finally:
            self._calls.pop(call, None)

    def _serve(self, dst: Machine, work: Any) -> asyncio.Task[None]:  # noqa: ANN401 - a coroutine
        """Run the server's part of a request in the agent that has the port."""
        assert dst.agent is not None
        create = asyncio.get_running_loop().create_task
        return dst.agent.life.context.copy().run(create, work)

    async def _arrives(self, call: Call, request: Request, pause: float = 0.0) -> None:
        await asyncio.sleep(pause + self.delay())
        if not self.passes(call.src, call.dst):
            return
        if call.dst.serves is None:
            call.fail()
            return
        call.arrived = True
        if call.broken:
            asyncio.get_running_loop().call_later(0.001, call.break_off)
        reply = await call.dst.serves(request)
        await asyncio.sleep(self.delay())
        if self.passes(call.dst, call.src) and not call.reply.done():
            self._open[_pair(call.src, call.dst)] = None
            call.reply.set_result(reply)

    def notice_cuts(self) -> None:
        """Report cut connections to both ends, each after its own timeout."""
        for call in [*self._calls]:
            if not self.reaches(call.src, call.dst):
                for end in (call.fail, call.break_off):
                    self._world.later(self._world.random.uniform(1, 5), self._ends, call, end)

        for src in self._world.machines:
            for dst in self._world.heads:
                if _pair(src, dst) in self._open and not self.reaches(src, dst):
                    self._world.later(self._world.random.uniform(1, 5), self._close, src, dst)

    def _ends(self, call: Call, end: Any) -> None:  # noqa: ANN401 - one of two methods
        if not self.reaches(call.src, call.dst):
            end()

    def _close(self, src: Machine, dst: Machine) -> None:
        if not self.reaches(src, dst):
            self._open.pop(_pair(src, dst), None)

    def agent_is_gone(self, machine: Machine) -> None:
        """Close all connections of an ended agent, as the kernel does."""
        for call in [*self._calls]:
            if call.dst is machine and call.server is not None:
                call.server.cancel()
                if self.reaches(call.src, call.dst):
                    self._world.later(self.delay(), call.fail)
            elif call.src is machine and self.reaches(call.src, call.dst):
                self._world.later(self.delay(), call.break_off)

    async def probe(self, ip: str, what: str, limit: float) -> str:
        """Probe a port of a machine; return '' or the error."""
        src = here()
        dst = self._world.at(ip)
        await asyncio.sleep(self.delay())
        if dst is None or not self.reaches(src, dst):
            await asyncio.sleep(limit)
            return f"no answer from {ip} within {limit:g} s"
        return (
            "" if dst.listens(what) else ConnectionRefused(f"connection refused by {ip} ({what})")
        )


# --- the agent's port -----------------------------------------------------------------------------


class Response(NamedTuple):
    """An answer of an agent's port."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Request(dict[Any, Any]):
    """A report as it arrives: what the server's route reads of aiohttp's request."""

    method = "POST"
    path = raw_path = REPORT_PATH
    content_type = "application/json"
    body_exists = True
    transport = None

    def __init__(self, remote: str, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__()
        self.remote = remote
        self.headers = headers
        self._body = body
        self._unread = body
        self.content_length = len(body)

    def sent_again(self) -> Request:
        """Return the same request, sent again."""
        return Request(self.remote, self.headers, self._body)

    @property
    def content(self) -> Self:
        """Return the reader of its body."""
        return self

    async def readany(self) -> bytes:
        """Return the body, then b''."""
        part = self._unread
        self._unread = b""
        return part


class Port:
    """An open port: `cleanup` closes it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def cleanup(self) -> None:
        """Close it."""
        if not is_over():
            self._machine.serves = None


async def open_port(server: AgentServer, _sockets: object) -> Port:
    """Open an agent's port: its route for reports answers what arrives."""
    machine = here()
    handlers = [route.handler for route in server.routes() if route.path == REPORT_PATH]
    handle: Callable[[Request], Awaitable[web.Response]] = cast("Any", handlers[0])
    secret = (machine.world.setup.token or "").encode()

    async def serve(request: Request) -> Response:
        answer = await handle(request)
        assert isinstance(answer.body, bytes)
        headers = dict(answer.headers)
        claim = next((value for value in request.values() if isinstance(value, Claim)), None)
        if claim is not None:
            proof = claim.reply_signature(secret, answer.status, answer.body)
            headers[PROOF_HEADER] = proof
        return Response(answer.status, headers, answer.body)

    if machine.world.is_head(machine):
        machine.serves = serve
    return Port(machine)


async def listen(_port: Port, _sockets: object) -> None:
    """Open the port on another address: it is open on all."""


class Socket:
    """A bound socket."""


def bind(_ip: str, _port: int) -> Socket:
    """Take the agent's port on an address."""
    return Socket()


# --- requests -------------------------------------------------------------------------------------


class Session:
    """Replaces aiohttp's client session."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    def post(self, url: str, data: bytes, headers: Mapping[str, str], **_options: object) -> Posted:
        """Send a request."""
        return Posted(url, headers, data)


class Posted:
    """A request, and its reply when it has arrived."""

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        self._url = url
        self._request = headers, body
        self._response = Response(0, {}, b"")

    async def __aenter__(self) -> Self:
        machine = here()
        machine.world.rules.report_sent(machine, self._request[1])
        self._response = await machine.world.network.post(ip_in(self._url), *self._request)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    @property
    def status(self) -> int:
        """Return the status of the reply."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers of the reply."""
        return self._response.headers

    @property
    def content(self) -> Self:
        """Return the reader of its body."""
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self._response.body


def ip_in(url: str) -> str:
    """Return the address in a URL."""
    found = re.search(r"//([0-9.]+):", url)
    assert found is not None
    return found[1]


async def resolve(host: str, limit: float = 2.0) -> tuple[str, ...] | str:
    """Return the addresses of a name, which is the head's, from DNS; or why there are none."""
    if re.fullmatch(r"[0-9.]+", host):
        return (host,)
    world = here().world
    error = world.network.dns_error
    if error == "no answer":
        await asyncio.sleep(limit)
        return NoDnsAnswer(f"no answer from DNS about {host} so far")
    await asyncio.sleep(0)
    return f"{host} does not resolve ({error})" if error else (world.head_ip,)


async def port_answers(host: str, port: int, limit: float = 2.0) -> str:
    """Probe a port."""
    world = here().world
    what = {world.gcs_port: "gcs"}.get(port, "raylet")
    if port == SERVICE_PORT or port >= FIRST_GIVEN_PORT:
        what = f"service {port}"
    return await world.network.probe(host, what, limit)


async def reply_evidence(
    url: str, body: object, expect: str, limit: float, *, follows_redirects: bool
) -> str:
    """Probe an agent's port."""
    del body, expect, follows_redirects
    return await here().world.network.probe(ip_in(url), "agent", limit)


async def download_sample(
    ip: str, port: int, token: str | None, run_id: str, limit: float
) -> tuple[int, float] | str:
    """Measure the link to another agent: it is fast, if there is one."""
    del port, token, run_id
    evidence = await here().world.network.probe(ip, "agent", min(limit, 3.0))
    return evidence or (1 << 30, 0.001)


def source_towards(_ip: str) -> str:
    """Return this machine's address."""
    return here().ip
