"""A headless Chromium, controlled by the DevTools protocol over its websocket."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from base64 import b64decode
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agent.processes.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT = 30.0


class BrowserError(Exception):
    """The browser is missing, or an operation in it failed."""


def found() -> str:
    """Return the browser's path."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise BrowserError(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")
    return path


class Tab:
    """One tab: commands to it, and the errors that it reports."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._heard = anyio.Event()
        self.complaints: list[str] = []
        """Console errors and warnings, exceptions, and violations of the content policy."""

    async def listen(self) -> None:
        """Receive messages from the browser, until canceled."""
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                self._answers[data["id"]] = data
                self._heard.set()
                self._heard = anyio.Event()
            else:
                self._note(data["method"], data["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", details).get("description")))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            entry = params["entry"]
            self.complaints.append(f"{entry['text']} ({entry.get('url', '')})")
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.complaints.append(str([one.get("value") for one in params["args"]]))

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a DevTools command; return its result."""
        self._count += 1
        number = self._count
        await self._socket.send_json({"id": number, "method": method, "params": params})
        with anyio.fail_after(LIMIT):
            while number not in self._answers:
                await self._heard.wait()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def tell(self, script: str) -> Any:  # noqa: ANN401 - whatever the script returns
        """Evaluate an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def wait_for(self, script: str) -> None:
        """Wait until an expression is true in the page."""

        async def holds() -> bool | NotYet:
            try:
                return True if await self.tell(script) else NotYet("it is false")
            except BrowserError as error:  # while the page changes
                return NotYet(str(error))

        try:
            await until(holds, LIMIT, step=0.1)
        except TimedOutError as error:
            shown = await self.tell("document.body.innerText.slice(0, 2000)")
            raise BrowserError(f"{script}: {error}; shown is: {shown}") from None

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save a screenshot."""
        answer = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(b64decode(answer["data"]))

    async def looks_like(self, width: int, height: int, *, dark: bool, phone: bool) -> None:
        """Set window size and color scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        # A scrollbar would take its width from the picture.
        await self.call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])


@asynccontextmanager
async def a_tab() -> AsyncIterator[Tab]:
    """Start a browser with a new profile and one tab; remove both at the end."""
    import aiohttp  # noqa: PLC0415 - as in the agent, where it is needed

    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as profile:
        argv = [
            *(found(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
        ]
        log, failure = Path(profile, "chromium.log"), None
        with log.open("wb") as output:
            browser = subprocess.Popen(argv, stdout=output, stderr=output)
        try:
            port = await _port(Path(profile, "DevToolsActivePort"), log)
            async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [one for one in await answer.json() if one["type"] == "page"]
                address = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    tasks.start_soon(tab.listen)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    try:
                        yield tab
                    except BrowserError as error:  # kept, since an exception group would wrap it
                        failure = BrowserError(f"{error}; it complains of {tab.complaints[:3]}")
                    tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure
        finally:
            browser.terminate()
            browser.wait(LIMIT)


async def _port(file: Path, log: Path) -> int:
    async def port_printed() -> int | NotYet:
        if not file.exists() or not file.read_text():
            return NotYet(log.read_text(errors="replace")[-500:])
        return int(file.read_text().splitlines()[0])

    try:
        return await until(port_printed, LIMIT)
    except TimedOutError as error:
        raise BrowserError(f"Chromium did not start: {error}") from None
