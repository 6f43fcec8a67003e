"""The HTTP server of the agent's port: probes, status, page, metrics, and the workers' reports.

Imported late: aiohttp costs 0.2 s that Ray's start must not wait for.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
from typing import TYPE_CHECKING, NamedTuple

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from agent.control import callers, page
from agent.control.connections import CONNECTIONS, Connections, Listener, timed, trust
from agent.control.metrics import metrics
from agent.control.protocol import LARGEST_REPORT, REPORT_PATH, Report, skew
from agent.control.room import TooManyAgentsError
from agent.control.sample import PATH as SAMPLE_PATH
from agent.control.sample import Samples
from agent.control.stream import MOST, Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from agent.control.reports import Reports

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "pod_agent"
BODY_SECONDS = 10.0
"""What a caller has to send a body in: one that stalls must not hold a handler for ever."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": page.POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class LogPart(NamedTuple):
    """A part of a log, without a secret."""

    text: str
    next: int | None
    """Where the next part begins; None where a log comes as its last lines only."""
    is_over: bool = False
    """True where the run has its verdict: an agent that falls silent now has left."""


class Control(NamedTuple):
    """What a head's port lets others do with the run."""

    stop: Callable[[], None]
    within: float
    """Seconds that a stop may take."""
    key: str | None
    """Opens it to callers on this node where there is no token."""
    findings: Callable[[], dict[str, object]]
    """What the checks of all nodes found: it names paths and addresses of machines."""
    log: Callable[[str, str, int | None], Awaitable[LogPart | str]]
    """A part of a node's log, from a place on; or why there is none."""
    more: Callable[[], dict[str, object]] = dict
    """What the status tells beyond that to those who proved that they may: warnings, log text."""


class Site:
    """One node's port: what is open to all, and what the token guards.

    `names` are the names by which others may call this node, besides its IP addresses and the name
    that the machine gives itself.
    """

    def __init__(  # noqa: PLR0913 - all by name, most with a default
        self,
        *,
        token: str | None,
        ready: Callable[[], bool],
        status: Callable[[], dict[str, object]],
        reports: Reports | None = None,
        names: Iterable[str | None] = (),
        run_id: Callable[[], str] = str,
        control: Control | None = None,
    ) -> None:
        self._token = token
        self._ready = ready
        self._status = status
        self._reports = reports
        self._control = control
        self._stream = Stream(self._all_of_it)
        self._samples = Samples(run_id)
        self._names = callers.known_names([socket.gethostname(), *names])

    async def open(self, sockets: list[socket.socket]) -> web.AppRunner:
        """Serve on sockets that are bound already; the caller cleans the runner up."""
        logging.getLogger("aiohttp.server").addFilter(_is_our_fault)
        app = web.Application(client_max_size=LARGEST_REPORT, middlewares=[timed, self._admit])
        app[CONNECTIONS] = Connections()
        app.on_response_prepare.append(_harden)
        app.add_routes(self.routes())
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=0.2,
            handler_cancellation=True,
            auto_decompress=False,  # aiohttp would inflate a body before the token is checked
        )
        await runner.setup()
        await listen(runner, sockets)
        return runner

    def routes(self) -> list[web.RouteDef]:
        """Return all that can be asked for."""
        return [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/status", self._guarded(self._get_status)),
            web.get("/metrics", self._guarded(self._metrics)),
            web.get("/", self._page),
            *(web.get(path, self._file) for path in page.FILES),
            web.post("/login", self._login),
            web.post(REPORT_PATH, self._guarded(self._report)),
            web.post("/stop", self._guarded(self._stop)),
            web.get("/events", self._guarded(self._events)),
            web.get(SAMPLE_PATH, self._guarded(self._samples.serve)),
            web.get("/findings", self._guarded(self._get_findings)),
            web.get("/logs/{node}/{name}", self._guarded(self._get_log)),
        ]

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn away what a foreign page asks for; whatever goes wrong is told in JSON."""
        refused = callers.refusal(
            request.method,
            request.path,
            request.headers,
            self._names,
            guarded=self._token is not None,
        )
        if refused is not None:
            return _error(refused.status, refused.why)
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"a body has at most {LARGEST_REPORT} bytes here")
        except web.HTTPMethodNotAllowed as refusal:
            allowed = ", ".join(sorted(refusal.allowed_methods))
            return _error(405, f"allowed here: {allowed}", {"Allow": allowed})
        except web.HTTPNotFound:
            return _error(404, "no such path")

    def _guarded(self, handler: Handler) -> Handler:
        async def guard(request: web.Request) -> web.StreamResponse:
            if not self._may_enter(request):
                return _error(401, "token needed")
            if request.method == "POST" and request.content_type != _JSON:
                # a page may send other types anywhere without asking first
                return _error(415, f"Content-Type: expected {_JSON}")
            return await handler(request)

        return guard

    def _may_enter(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        ticket = request.cookies.get(COOKIE, "")
        if not _same(_bearer(request), self._token) and not _same(ticket, _ticket(self._token)):
            return False
        trust(request)
        return True

    async def _livez(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True})

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        ok = self._ready()
        return web.json_response({"ok": ok}, status=200 if ok else 503)

    async def _get_status(self, _request: web.Request) -> web.StreamResponse:
        if self._token is None:  # anybody asks
            return web.json_response(self._status())
        return web.json_response(self._all_of_it())

    def _all_of_it(self) -> dict[str, object]:
        more = {} if self._control is None else self._control.more()
        return {**self._status(), **more}

    async def _events(self, request: web.Request) -> web.StreamResponse:
        control = self._control_for(request)
        if not isinstance(control, Control):
            return control
        if self._stream.is_full:
            why = f"{MOST} others read already: ask /status now and then"
            return _error(503, why, {"Retry-After": "30"})
        return await self._stream.serve(request)

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        body = metrics(self._status()).encode()
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=body, headers=kind)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if not self._may_enter(request):
            return self._html(page.login(), 401)
        streams = self._token is not None and self._control is not None
        return self._html(page.overview(streams=streams))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        kind = page.FILES[request.path]
        return web.Response(body=page.file(request.path), content_type=kind, charset="utf-8")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != _FORM:
            return _error(415, f"Content-Type: expected {_FORM}")
        if await _body(request) is None:
            return _error(408, f"no body within {BODY_SECONDS:g} s")
        given = (await request.post()).get("token", "")
        if self._token is None or not isinstance(given, str):
            return self._html(page.login(wrong=True), 401)
        if not _same(given.strip(), self._token):
            return self._html(page.login(wrong=True), 401)
        answer = web.Response(status=303, headers={"Location": "/"})
        ticket = _ticket(self._token)
        answer.set_cookie(COOKIE, ticket, httponly=True, samesite="Strict", path="/")
        return answer

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        control = self._control_for(request)
        if not isinstance(control, Control):
            return control
        control.stop()
        return web.json_response({"ok": True, "within": control.within})

    async def _get_findings(self, request: web.Request) -> web.StreamResponse:
        control = self._control_for(request)
        if not isinstance(control, Control):
            return control
        return web.json_response(control.findings())

    async def _get_log(self, request: web.Request) -> web.StreamResponse:
        control = self._control_for(request)
        if not isinstance(control, Control):
            return control
        after = request.query.get("after")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 16):
            return _error(400, "after: expected a whole number")
        node, name = request.match_info["node"], request.match_info["name"]
        found = await control.log(node, name, None if after is None else int(after))
        if isinstance(found, str):
            return _error(404, found)
        told = {"text": found.text, "next": found.next, "over": found.is_over}
        return web.json_response(told)

    def _control_for(self, request: web.Request) -> Control | web.StreamResponse:
        """Return what a caller may do beyond looking at the status, or the refusal."""
        control = self._control
        if control is None:
            return _error(409, "this node is no head: ask the head's")
        if self._token is None and not _has_key(request, control.key):
            return _error(401, "token needed, or on this node itself the key in its run folder")
        trust(request)
        return control

    def _html(self, body: bytes, status: int = 200) -> web.StreamResponse:
        return web.Response(body=body, content_type="text/html", charset="utf-8", status=status)

    async def _report(self, request: web.Request) -> web.StreamResponse:
        if self._reports is None:
            return _error(409, "this node is a worker")
        body = await _body(request)
        if body is None:
            return _error(408, f"no body within {BODY_SECONDS:g} s")
        try:
            data = json.loads(body)
            refusal = skew(data, "this worker")
            if refusal:
                return web.json_response(self._reports.refuse(refusal).to_dict())
            report = Report.from_dict(data)
        except (ValueError, RecursionError) as error:
            return _error(400, str(error))
        if self._reports.accepts(report.id):  # before it is held
            trust(request)
        try:
            reply = await self._reports.take(report)
        except TooManyAgentsError:
            return _error(503, "this head keeps as many agents as it can", {"Retry-After": "5"})
        if self._reports.accepts(report.id):
            trust(request)
        return web.json_response(reply.to_dict())


async def listen(runner: web.AppRunner, sockets: list[socket.socket]) -> list[web.BaseSite]:
    """Serve on these sockets too; return what serves them, each to be stopped by itself."""
    sites: list[web.BaseSite] = [Listener(runner, listening) for listening in sockets]
    for site in sites:
        await site.start()
    return sites


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    """Let no browser keep, frame or reinterpret an answer."""
    response.headers.update(HEADERS)


async def _body(request: web.Request) -> bytes | None:
    """Read a body; None where it does not come in time."""
    try:
        with anyio.fail_after(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        return None


def _error(status: int, why: str, headers: dict[str, str] | None = None) -> web.StreamResponse:
    return web.json_response({"error": why}, status=status, headers=headers)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Tell a bug, which deserves its traceback, from a peer that talks no HTTP or is gone."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, (HttpProcessingError, ConnectionError))


def _bearer(request: web.Request) -> str:
    """Return the secret that a caller shows."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def _has_key(request: web.Request, key: str | None) -> bool:
    """Say whether a caller on this very node shows what only its users can read."""
    transport = request.transport
    ends = () if transport is None else [*map(transport.get_extra_info, ("peername", "sockname"))]
    is_here = len({end[0] for end in ends if end}) == 1 and all(ends)
    return is_here and key is not None and _same(_bearer(request), key)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _ticket(token: str) -> str:
    """Return what the cookie holds: proof of the token, never the token."""
    return hmac.new(token.encode(), b"pod-agent page", "sha256").hexdigest()
