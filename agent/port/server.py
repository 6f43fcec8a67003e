"""The HTTP server of the agent's port: probes, status, page, metrics, workers' reports.

Imported late: aiohttp costs 0.2 s that Ray's start must not wait for.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qs

import anyio
import msgspec
from aiohttp import web
from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.fields import news_of
from agent.decisions.worker.worker_state import WorkerPhase
from agent.port.access import PortAccess, host_names, is_signed_body, refusal_of
from agent.port.glance import judged
from agent.port.metrics import metrics
from agent.port.page_files import ASSETS, asset
from agent.port.page_status import page_status
from agent.port.proof import SESSION_HEADER
from agent.port.protocol import (
    MAX_REPORT_BYTES,
    MAX_REPORT_VALUES,
    MAX_SAMPLE_BYTES,
    REPORT_PATH,
    SAMPLE_PATH,
    SAMPLE_RUN,
    Report,
    protocol_mismatch,
)
from agent.port.reports import TooManyAgentsError
from agent.port.status_model import HeadStatus, JudgedStatus, Reader, StopAnswer, WorkerStatus
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.log import say
from agent.serving.bodies import RETRY_AFTER, Bodies, has_more_values
from agent.serving.connections import PortRunner, PortSite, is_local, suspend_deadline, trust
from agent.serving.replies import error_reply, log_only_bugs, reply_to_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from agent.job.series import SeriesPart
    from agent.port.reports import Reports
    from agent.port.status_model import FindingsStatus, LogPart, PageStatus

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Admit = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
    ControlHandler = Callable[[web.Request, "Control"], Awaitable[web.StreamResponse]]

T = TypeVar("T")
MAX_READERS = 16  # Readers at a time; each costs memory and CPU time
_LOOP_SHARE = 50.0  # Making a status takes at most one fiftieth of the loop's time
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
    "; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    "; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy: own files, requests to this server, and its form only."""
SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SAMPLE_CHUNK = 1 << 16
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_MOST_FIELDS = 8  # Of the page's form
_LONGEST_FORM = 1 << 14  # Bytes: less than a connection buffers, so that it waits for no other
_MOST_BODIES = 64 << 20  # Bytes of all bodies that are read at a time
_BODY: Any = getattr(web, "RequestKey", lambda name, _: name)("body", bytearray)
"""The key of a request's body; aiohttp below 3.14 has texts as keys."""


class Kept(Generic[T]):
    """A value that is made once for all who ask, and again once the loop had time for the rest."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._next_made = 0.0

    def get(self) -> T:
        """Return it, made again unless that was too recently."""
        began = time.monotonic()
        if self._value is None or began >= self._next_made:
            self._value = self._make()
            took = time.monotonic() - began
            self._next_made = began + took + _LOOP_SHARE * took
        return self._value


class StatusText(NamedTuple):
    """A status, and its JSON."""

    status: JudgedStatus | PageStatus | WorkerStatus
    json: bytes


class StatusStream:
    """Sends the status to its readers; each is sent the newest, never a queue."""

    def __init__(self, kept: Kept[StatusText]) -> None:
        self._kept = kept
        self._newest: StatusText | None = None
        self._readers = 0
        self._news: object = None
        self._number = 0  # Number of changes so far

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send statuses to one reader until it leaves, is too slow, or the port closes."""
        if self._readers >= MAX_READERS:
            why = f"{MAX_READERS} others read already: ask /status now and then"
            return error_reply(503, why, {"Retry-After": "30"})
        self._readers += 1
        sent = 0
        step = times.STATUS_READ

        async def is_new() -> bool | NotYet:
            self._refresh()
            return NotYet() if sent == self._number else True

        try:
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            with suppress(TimeoutError, ConnectionError):
                while True:
                    with suppress(TimedOutError):
                        await until(is_new, times.STATUS_REPEATED, step=step, longest=step)
                    text = self._refresh().json
                    sent = self._number
                    with anyio.fail_after(times.READER_STALLED):
                        await answer.write(b"data: " + text + b"\n\n")
            if request.transport is not None:  # unsent data would delay the server's stop
                request.transport.abort()
            return answer
        finally:
            self._readers -= 1

    def _refresh(self) -> StatusText:
        """Return the newest status; count it if it differs from the one before."""
        newest = self._kept.get()
        if newest is not self._newest:
            self._newest = newest
            news = news_of(newest.status)
            self._number += news != self._news
            self._news = news
        return newest


def without_log_text(status: HeadStatus | WorkerStatus) -> HeadStatus | WorkerStatus:
    """Return a status for anyone: without words of logs in what ended, or ends."""
    if status.verdict is not None:
        verdict = replace(status.verdict, reason=status.verdict.plain, remedy="", before="")
        status = replace(status, verdict=verdict)
    if isinstance(status, WorkerStatus):
        return status
    attempts = tuple(replace(row, reason=row.plain) for row in status.attempts)
    # a worker that leaves reports its verdict's reason
    nodes = tuple(
        replace(node, detail="") if node.phase == WorkerPhase.LEAVING.value else node
        for node in status.nodes
    )
    return replace(status, attempts=attempts, nodes=nodes)


def _text_of(status: JudgedStatus | PageStatus | WorkerStatus) -> StatusText:
    return StatusText(status, json.dumps(to_builtins(status)).encode())


def login_page(note: str = "") -> bytes:
    """Return the form that asks for the token."""
    shown = f'<p class="alarm" role="alert">{note}</p>' if note else ""
    return asset("/login.html").replace(b"<!--note-->", shown.encode())


class Control(NamedTuple):
    """Operations of a head's port."""

    stop: Callable[[], None]
    stop_limit: float  # Seconds that a stop may take
    key: str | None  # Control key: the credential of callers on this node where there is no token
    findings: Callable[[], FindingsStatus]  # Of all nodes; they contain paths and addresses
    log: Callable[[str, str, int | None, int | None], Awaitable[LogPart | str]]
    """Read a node's log after one offset or before another; a string is why there is none."""
    with_private: Callable[[HeadStatus], HeadStatus]
    """Add the fields for authenticated callers only: warnings, log text."""
    series: Callable[[int | None], SeriesPart]
    """The job's metrics by step, after a step."""


class AgentServer:
    """The HTTP server of one node's agent; `names` are its host names besides its own hostname."""

    def __init__(  # noqa: PLR0913 - all by name, most with a default
        self,
        *,
        token: str | None,
        ready: Callable[[], bool],
        status: Callable[[Reader], HeadStatus | WorkerStatus],
        reports: Reports | None = None,
        names: Iterable[str | None] = (),
        run_id: Callable[[], str] = str,
        control: Control | None = None,
    ) -> None:
        self._has_secret = token is not None
        self._access = PortAccess(token, None if control is None else control.key, run_id)
        self._ready = ready
        self._status = status
        self._run_id = run_id
        self._reports = reports
        self._control = control
        self._whole = {reader: Kept(partial(self._whole_for, reader)) for reader in Reader}
        self._brief = {reader: Kept(partial(self._brief_for, reader)) for reader in Reader}
        self._metrics = {reader: Kept(partial(self._metrics_for, reader)) for reader in Reader}
        self._stream = StatusStream(self._whole[Reader.ALL])
        self._sampling = asyncio.Lock()
        self._bodies = Bodies(MAX_REPORT_BYTES, _MOST_BODIES)
        self._forms = Bodies(_LONGEST_FORM, _LONGEST_FORM)
        self._names = host_names([socket.gethostname(), *names])

    async def open(self, sockets: list[socket.socket]) -> web.BaseRunner:
        """Serve on bound sockets; the caller cleans up the runner."""
        log_only_bugs()
        app = web.Application(middlewares=[suspend_deadline, self._filter_request])
        app.on_response_prepare.append(self._set_headers)
        app.add_routes(self.routes())
        runner = PortRunner(
            app,
            lambda sentence: say(f"the agent's port {sentence}", "warning"),
            shutdown_timeout=0.2,
            handler_cancellation=True,
        )
        await runner.setup()
        await listen(runner, sockets)
        return runner

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        return [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/status", self._guarded(self._get_status)),
            web.get("/metrics", self._guarded(self._get_metrics)),
            web.get("/", self._page),
            *(web.get(path, self._file) for path in ASSETS),
            web.post("/login", self._login),
            web.post(REPORT_PATH, self._guarded(self._report)),
            web.post("/stop", self._controlled(self._stop)),
            web.get("/events", self._controlled(lambda request, _: self._stream.serve(request))),
            web.get(SAMPLE_PATH, self._guarded(self._serve_sample)),
            web.get("/series", self._controlled(self._get_series)),
            web.get("/findings", self._controlled(self._get_findings)),
            web.get("/logs/{node}/{name}", self._controlled(self._get_log)),
        ]

    @web.middleware
    async def _filter_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse cross-site requests; answer errors as JSON."""
        refused = refusal_of(
            request.method, request.path, request.headers, self._names, guarded=self._has_secret
        )
        if refused is not None:
            return error_reply(*refused)
        try:
            return await handler(request)
        except web.HTTPException as refusal:
            return reply_to_error(refusal)

    def _guarded(self, handler: Handler, admit: Admit | None = None) -> Handler:
        """Return a handler for those with the token.

        `admit` may refuse a request by its head: nothing of its body is read or awaited before.
        """

        async def guard(request: web.Request) -> web.StreamResponse:
            if self._access.has_guessed_enough(request):
                later = {"Retry-After": f"{times.LOGIN_WINDOW:.0f}"}
                return error_reply(429, "too many wrong tokens: try again in a minute", later)
            if not self._access.has_token(request):
                return self._unauthorized("token needed")
            if self._has_secret:
                trust(request)
            if request.method == "POST" and request.content_type != _JSON:
                # a cross-site page can send other types without a preflight request
                return error_reply(415, f"Content-Type: expected {_JSON}")
            refusal = None if admit is None else await admit(request)
            if refusal is not None:
                return refusal
            if request.method == "POST":
                async with self._bodies.read(request) as body:
                    request[_BODY] = body.data
                if not is_signed_body(request, request[_BODY]):
                    return self._unauthorized("the body is not the one that was signed")
            return await handler(request)

        return guard

    def _unauthorized(self, why: str) -> web.StreamResponse:
        return error_reply(401, why, {SESSION_HEADER: self._access.verifier.session})

    async def _set_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Set headers against caching, framing and content sniffing, and the proof of a reply."""
        response.headers.update(SECURITY_HEADERS)
        body = None
        if isinstance(response, web.Response):
            assert response.body is None or isinstance(response.body, bytes)  # noqa: S101 - all handlers' are
            body = response.body or b""
        response.headers.update(self._access.reply_headers(request, response.status, body))

    async def _livez(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True})

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        ok = self._ready()
        return web.json_response({"ok": ok}, status=200 if ok else 503)

    async def _get_status(self, request: web.Request) -> web.StreamResponse:
        texts = self._brief if "brief" in request.query else self._whole
        body = texts[self._reader(request)].get().json
        return web.Response(body=body, content_type=_JSON, charset="utf-8")

    def _reader(self, request: web.Request) -> Reader:
        """Return what the sender of a request may read."""
        if self._has_secret:
            return Reader.ALL
        return Reader.LOCAL if is_local(request) else Reader.ANYONE

    def _whole_for(self, reader: Reader) -> StatusText:
        """Return the status that a reader may read, and the judgment that follows from it."""
        status = self._status(reader)
        if reader is Reader.ANYONE:
            status = without_log_text(status)
        if isinstance(status, WorkerStatus):
            return _text_of(status)
        if reader is Reader.ALL and self._control is not None:
            status = self._control.with_private(status)
        return _text_of(judged(status))

    def _brief_for(self, reader: Reader) -> StatusText:
        """Return the page's status: that of a worker is its own."""
        whole = self._whole[reader].get()
        if not isinstance(whole.status, JudgedStatus):
            return whole
        page = page_status(whole.status)
        if self._has_secret:  # its reader may read /series
            page = replace(page, curves=UNSET)
        return _text_of(page)

    def _metrics_for(self, reader: Reader) -> bytes:
        return metrics(self._whole[reader].get().status).encode()

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        # the names of the job's metrics are text of its output
        reader = Reader.LOCAL if self._reader(request) is Reader.ANYONE else Reader.ALL
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics[reader].get(), headers=kind)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if not self._access.has_token(request):
            return _document(login_page(), 401)
        return _document(asset("/page.html"))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return _document(asset(request.path), kind=ASSETS[request.path])

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != _FORM:
            return error_reply(415, f"Content-Type: expected {_FORM}")
        token = ""
        if self._access.may_guess(request):
            async with self._forms.read(request) as body:
                token = _form_field(body.data, "token")
        # asked again: many may have been sent while this body arrived
        if not self._access.may_guess(request):
            answer = _document(login_page("Too many wrong tokens: try again in a minute."), 429)
            answer.headers["Retry-After"] = f"{times.LOGIN_WINDOW:.0f}"
            return answer
        if not self._access.login(request, token):
            return _document(login_page("That is not the token of this cluster."), 401)
        answer = web.Response(status=303, headers={"Location": "/"})
        self._access.set_cookie(request, answer)
        return answer

    async def _stop(self, _request: web.Request, control: Control) -> web.StreamResponse:
        control.stop()
        return web.json_response(to_builtins(StopAnswer(control.stop_limit)))

    async def _serve_sample(self, request: web.Request) -> web.StreamResponse:
        """Send the bytes of one measurement of the link, one at a time, to a node of this run."""
        own = self._run_id()
        if not own or request.query.get(SAMPLE_RUN) != own:
            return error_reply(409, "this node belongs to another run")
        try:
            with anyio.fail_after(times.SAMPLE_QUEUE):
                await self._sampling.acquire()
        except TimeoutError:
            return error_reply(503, "others measure already")
        try:
            answer = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            answer.force_close()
            data = os.urandom(_SAMPLE_CHUNK)  # random: a network may compress
            with suppress(ConnectionError), anyio.move_on_after(times.SAMPLE_LENGTH * 2) as limit:
                await answer.prepare(request)
                for _ in range(MAX_SAMPLE_BYTES // _SAMPLE_CHUNK):
                    await answer.write(data)
            if limit.cancelled_caught and request.transport is not None:
                request.transport.abort()  # it has measured enough, or does not read
        finally:
            self._sampling.release()
        return answer

    async def _get_findings(self, _request: web.Request, control: Control) -> web.StreamResponse:
        return web.json_response(to_builtins(control.findings()))

    async def _get_series(self, request: web.Request, control: Control) -> web.StreamResponse:
        since = request.query.get("since")
        if since is not None and not (since.isascii() and since.isdigit() and len(since) < 16):
            return error_reply(400, "since: expected a whole number")
        after = None if since is None else int(since)

        # Megabytes in a long run: a thread, so that nothing waits for it.
        body = await anyio.to_thread.run_sync(lambda: msgspec.json.encode(control.series(after)))
        return web.Response(body=body, content_type=_JSON)

    async def _get_log(self, request: web.Request, control: Control) -> web.StreamResponse:
        places: list[int | None] = []
        for name in ("after", "before"):
            text = request.query.get(name)
            if text is not None and not (text.isascii() and text.isdigit() and len(text) < 16):
                return error_reply(400, f"{name}: expected a whole number")
            places.append(None if text is None else int(text))
        node = request.match_info["node"]
        log = request.match_info["name"]
        part = await control.log(node, log, *places)
        if isinstance(part, str):
            return error_reply(404, part)
        return web.json_response(to_builtins(part))

    def _controlled(self, handler: ControlHandler) -> Handler:
        """Return a handler of a head's operation, for authorized callers only."""

        async def admit(request: web.Request) -> web.StreamResponse | None:
            if self._control is None:
                return error_reply(409, "this node is no head: ask the head's")
            if not self._has_secret and not self._access.has_key(request):
                return self._unauthorized(
                    "without RAY_AUTH_TOKEN only the agent's user can do this, on the head's node "
                    "and with the same AGENT_LOG_DIR, which has the key",
                )
            return None

        async def control(request: web.Request) -> web.StreamResponse:
            assert self._control is not None  # noqa: S101 - admitted
            return await handler(request, self._control)

        return self._guarded(control, admit)

    async def _report(self, request: web.Request) -> web.StreamResponse:
        if self._reports is None:
            return error_reply(409, "this node is a worker")
        if has_more_values(request[_BODY], MAX_REPORT_VALUES):
            return error_reply(400, f"message: expected at most {MAX_REPORT_VALUES} values")

        # Can it be read? The body is freed, since the reply may be held.
        try:
            data = json.loads(request[_BODY])
            request[_BODY] = bytearray()
            refusal = protocol_mismatch(data, "this worker")
            if refusal:
                return web.json_response(self._reports.refuse(refusal).to_dict())
            report = Report.from_dict(data)
            del data  # it may be much larger than the report
        except (ValueError, RecursionError) as error:
            return error_reply(400, str(error))

        # Without a secret anyone may be the sender: its address is all that is certain.
        if not self._has_secret:
            peer = request.remote or ""
            if report.ip not in {"", peer}:
                reply = self._reports.refuse(_refusal_of(report.ip, peer))
                return web.json_response(reply.to_dict())
            report = replace(report, ip=peer)

        try:
            reply = await self._reports.handle(report)
        except TooManyAgentsError:
            why = "this head keeps as many agents as it can"
            return error_reply(503, why, {"Retry-After": str(RETRY_AFTER)})
        return web.json_response(reply.to_dict())


def _refusal_of(ip: str, peer: str) -> str:
    """Return the refusal of a report that arrives from another address than it names."""
    return (
        f"this node's address is {ip}, and its report came from {peer}: without a token only the "
        "sender's address counts; set RAY_AUTH_TOKEN on all nodes, or AGENT_NODE_IP to an address "
        "that the head sees"
    )


async def listen(runner: web.BaseRunner, sockets: list[socket.socket]) -> None:
    """Serve on more sockets."""
    for listening in sockets:
        await PortSite(runner, listening).start()


def _form_field(form: bytearray, name: str) -> str:
    """Return a field of a form; '' where it has none, or too many."""
    with suppress(ValueError):
        fields = parse_qs(form.decode(errors="replace"), max_num_fields=_MOST_FIELDS)
        return fields.get(name, [""])[0]
    return ""


def _document(body: bytes, status: int = 200, kind: str = "text/html") -> web.Response:
    return web.Response(body=body, status=status, content_type=kind, charset="utf-8")
