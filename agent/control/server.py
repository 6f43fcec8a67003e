"""The HTTP server of the agent's port: probes, status, page, metrics, and the workers' reports.

Imported late: aiohttp costs 0.2 s that Ray's start must not wait for.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING

from aiohttp import web

from agent.control import page
from agent.control.protocol import LARGEST_REPORT, REPORT_PATH, Report, skew

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from agent.control.reports import Reports

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

COOKIE = "pod_agent"


class Site:
    """One node's port: what is open to all, and what the token guards."""

    def __init__(
        self,
        *,
        token: str | None,
        ready: Callable[[], bool],
        status: Callable[[], dict[str, object]],
        reports: Reports | None = None,
    ) -> None:
        self._token = token
        self._ready = ready
        self._status = status
        self._reports = reports

    async def open(self, sockets: list[socket.socket]) -> web.AppRunner:
        """Serve on sockets that are bound already; the caller cleans the runner up."""
        app = web.Application(client_max_size=LARGEST_REPORT)
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/status", self._guarded(self._get_status)),
                web.get("/metrics", self._guarded(self._metrics)),
                web.get("/", self._page),
                web.post("/login", self._login),
                web.post(REPORT_PATH, self._guarded(self._report)),
            ]
        )
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True
        )
        await runner.setup()
        await listen(runner, sockets)
        return runner

    def _guarded(self, handler: Handler) -> Handler:
        async def guard(request: web.Request) -> web.StreamResponse:
            if self._may_enter(request):
                return await handler(request)
            return web.json_response({"error": "token needed"}, status=401)

        return guard

    def _may_enter(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        return _same(request.cookies.get(COOKIE, ""), _ticket(self._token))

    async def _livez(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True})

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        ok = self._ready()
        return web.json_response({"ok": ok}, status=200 if ok else 503)

    async def _get_status(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self._status())

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        text = page.metrics(self._status())
        return web.Response(text=text, content_type="text/plain")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if not self._may_enter(request):
            return self._html(page.login(), 401)
        return self._html(page.overview(self._status()))

    async def _login(self, request: web.Request) -> web.StreamResponse:
        given = (await request.post()).get("token", "")
        if self._token is None or not isinstance(given, str):
            return self._html(page.login(wrong=True), 401)
        if not _same(given.strip(), self._token):
            return self._html(page.login(wrong=True), 401)
        answer = web.Response(status=303, headers={"Location": "/"})
        ticket = _ticket(self._token)
        answer.set_cookie(COOKIE, ticket, httponly=True, samesite="Strict", path="/")
        return answer

    def _html(self, text: str, status: int = 200) -> web.StreamResponse:
        return web.Response(text=text, content_type="text/html", status=status)

    async def _report(self, request: web.Request) -> web.StreamResponse:
        if self._reports is None:
            return web.json_response({"error": "this node is a worker"}, status=409)
        try:
            data = json.loads(await request.read())
            refusal = skew(data, "this worker")
            if refusal:
                return web.json_response(self._reports.refuse(refusal).to_dict())
            report = Report.from_dict(data)
        except (ValueError, RecursionError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response((await self._reports.take(report)).to_dict())


async def listen(runner: web.AppRunner, sockets: list[socket.socket]) -> list[web.BaseSite]:
    """Serve on these sockets too; return what serves them, each to be stopped by itself."""
    sites: list[web.BaseSite] = [web.SockSite(runner, listener) for listener in sockets]
    for site in sites:
        await site.start()
    return sites


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _ticket(token: str) -> str:
    """Return what the cookie holds: proof of the token, never the token."""
    return hmac.new(token.encode(), b"pod-agent page", "sha256").hexdigest()
