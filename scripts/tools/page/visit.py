"""One visit: sign in, check all parts, follow changes, and see the head exit."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from agent.port.server import AgentServer, Control
from agent.port.sockets import bind
from tools.page.chromium import Tab, a_tab
from tools.page.runs import EVIL, status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MORE = ("warnings", "job_tail")
_LOOKS = {
    "light": {"width": 1100, "height": 900, "dark": False, "phone": False},
    "dark": {"width": 1100, "height": 900, "dark": True, "phone": False},
    "phone": {"width": 390, "height": 844, "dark": False, "phone": True},
}
_SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3)}`))"""


class Shown:
    """A head's port that serves a run which the test can change."""

    def __init__(self, nodes: int, token: str | None) -> None:
        self.nodes = nodes
        self.token = token
        self.run = status(nodes)
        self._socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _public(self) -> dict[str, object]:
        return {name: value for name, value in self.run.items() if name not in _MORE}

    def _more(self) -> dict[str, object]:
        return {name: self.run[name] for name in _MORE}

    async def open(self) -> Any:  # noqa: ANN401 - aiohttp's runner
        """Serve the page."""
        control = Control(lambda: None, 5.0, None, dict, _no_log, self._more)
        site = AgentServer(
            token=self.token, ready=lambda: True, status=self._public, control=control
        )
        return await site.open([self._socket])


async def _no_log(_node: str, _name: str, _at: int | None) -> str:
    return "a made run has no logs"


async def visit(nodes: int, folder: Path, axe: str | None) -> list[str]:
    """Return the errors on the page of a run with this many workers."""
    return [
        *await _with_token(nodes, folder, axe),
        *await _without_token(nodes),
    ]


async def picture(url: str, path: Path) -> None:
    """Take a screenshot of the page of a run that reports rewards."""
    async with a_tab() as tab:
        await tab.call("Page.navigate", url=url)
        await tab.wait_for("document.querySelector('svg path, svg polyline') !== null")
        await tab.looks_like(width=760, height=1000, dark=False, phone=False)
        await tab.picture(path)


async def _with_token(nodes: int, folder: Path, axe: str | None) -> list[str]:
    shown = Shown(nodes, secrets.token_hex(16))
    runner = await shown.open()
    wrong: list[str] = []
    try:
        async with a_tab() as tab:
            await tab.call("Page.navigate", url=shown.url)
            await tab.wait_for("document.forms.length === 1")
            await tab.picture(folder / "login.png")
            await tab.tell(f"document.forms[0].token.value = {shown.token!r}")
            tab.complaints.clear()  # the browser logs the form's 401
            await tab.tell("document.forms[0].querySelector('button').click()")
            await tab.wait_for(_rows(nodes))
            await tab.looks_like(width=760, height=1000, dark=False, phone=False)
            await tab.picture(folder / f"{nodes}-small.png")
            wrong += await _is_complete(tab, shown.run)
            for name, look in _LOOKS.items():
                await tab.looks_like(**look)  # type: ignore[arg-type]  # each by its name
                wrong += await _fits(tab, name)
                if axe is not None:
                    await tab.tell(f"{axe}; 0")
                    wrong += [f"{name}: {found}" for found in await tab.tell(_SERIOUS)]
                await tab.picture(folder / f"{nodes}-{name}.png")
            await tab.looks_like(**_LOOKS["light"])  # type: ignore[arg-type]  # same
            wrong += await _stays_in_its_place(tab, shown)
            wrong += tab.complaints
            await runner.cleanup()
            await tab.wait_for("document.getElementById('gone').innerText.includes('is gone')")
            await tab.picture(folder / f"{nodes}-gone.png", whole=False)
    finally:
        await runner.cleanup()
    return wrong


async def _without_token(nodes: int) -> list[str]:
    """Without a token the page shows the status, and no log text."""
    shown = Shown(nodes, None)
    runner = await shown.open()
    try:
        async with a_tab() as tab:
            await tab.call("Page.navigate", url=shown.url)
            await tab.wait_for(_rows(nodes))
            text = await tab.tell("document.body.textContent")
            shown.run = status(nodes, step=30)
            await tab.wait_for(_says("step 30 of 40"))
            told = [word for word in ("NCCL_SOCKET_IFNAME", "step 25/40") if word in text]
            return [*tab.complaints, *(f"shown without a token: {word}" for word in told)]
    finally:
        await runner.cleanup()


def _rows(count: int) -> str:
    return f"document.querySelectorAll('#nodes tbody tr').length === {count}"


def _says(words: str) -> str:
    return f"document.body.innerText.includes({words!r})"


async def _is_complete(tab: Tab, run: Mapping[str, Any]) -> list[str]:
    """List what the page does not show of a run, and markup that was not escaped."""
    slow = max((n for n in run["nodes"] if n["joined"]), key=lambda node: node["phases"][2][1])
    title = await tab.tell("document.title")
    expected = (
        *(
            run["run_name"],
            run["run_id"],
            "running",
            "reward server",
            "1, 8 s in all",
            EVIL,
            "rehearsal: running",
        ),
        *("attempt 2", "lost a needed node (pod3)", "step 25 of 40", "NCCL_SOCKET_IFNAME"),
        *("Set the same on all nodes", f"Slow to join: {slow['name']} after 68 s"),
    )
    wrong = [f"not shown: {words}" for words in expected if not await tab.tell(_says(words))]
    if run["run_name"] not in title:
        wrong.append(f"the title is {title!r}, without the run's name")
    await tab.tell("document.getElementById('tail').open = true")
    if not await tab.tell(_says("step 25/40")):
        wrong.append("not shown: the job's last lines")
    if await tab.tell("document.images.length + document.querySelectorAll('main td b').length"):
        wrong.append("text became markup")
    marked = await tab.tell("document.querySelectorAll('#timeline .row.slow').length")
    if marked != 1:
        wrong.append(f"{marked} slow nodes stand out, not 1")
    return wrong


async def _fits(tab: Tab, look: str) -> list[str]:
    """Check whether the page is wider than its window: only tables may scroll."""
    over = await tab.tell(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return [f"{look}: the page is {over} px wider than the window"] if over > 0 else []


async def _stays_in_its_place(tab: Tab, shown: Shown) -> list[str]:
    """Check whether updates move the visible part of the page."""
    await tab.tell("window.scrollTo(0, 300); document.querySelector('.tall').scrollTop = 40")
    places = "[window.scrollY, document.querySelector('.tall').scrollTop, performance.timeOrigin]"
    before = await tab.tell(places)
    shown.run = status(shown.nodes, step=26)
    await tab.wait_for(_says("step 26 of 40"))
    after = await tab.tell(places)
    return [] if before == after else [f"it moved from {before} to {after}"]
