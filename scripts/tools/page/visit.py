"""Visits of the page in a browser: made runs in each situation, size and window."""

from __future__ import annotations

import json
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import to_builtins

from agent.port.glance import SIGNS, judged
from agent.port.node_network import bind
from agent.port.page_status import page_status
from agent.port.server import AgentServer, Control
from agent.port.status_model import FindingsStatus, LogPart
from agent.run.run_report import report_page
from tools.page.rules import AXE, OWN_RULES
from tools.page.situations import made_run, worker_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tools.page.chromium import Tab
    from tools.page.situations import MadeRun

MOST_ELEMENTS = 400
NOTHING_FOUND = FindingsStatus((), (), (), ())
HEIGHTS = {390: 844, 1280: 800, 1400: 900, 1920: 1080}
"""The height of the window by its width."""
_DRAWN = "document.getElementById('sentence').textContent === {}"
_BLANK = """[...document.querySelectorAll('canvas')].filter((canvas) => canvas.offsetParent)
  .filter((canvas) => {
    const copy = document.createElement('canvas');
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const area = copy.getContext('2d', {willReadFrequently: true});
    area.drawImage(canvas, 0, 0);
    return !area.getImageData(0, 0, copy.width, copy.height).data.some((value) => value);
  }).map((canvas) => canvas.getAttribute('aria-label') || canvas.id)"""
_LOST_ATTEMPTS = """[...document.querySelectorAll('#sentences span')]
  .map((item) => /^✕ attempt (\\d+)/.exec(item.textContent)).filter(Boolean)
  .map((match) => match[1])"""
_SHOWN_IN = """(() => {
  const text = (id) => document.getElementById(id)?.innerText ?? '';
  const value = (id) => document.getElementById(id).value;
  const hasColor = (canvas, name) => {
    const wanted = colorOf(name).match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4) {
      if (wanted.every((part, index) => data[at + index] === part)) return true;
    }
    return false;
  };
  return {
    log: `${value('log-node')}/${value('log-name')}`, lines: text('lines'),
    strip: text('details'), nodes: text('differ'), groups: text('groups'), what: text('runs'),
    sentences: text('sentences'), curves: text('plots'), vitals: text('vitals'),
    grid: document.getElementById('grid').getAttribute('aria-label'),
    marks: hasColor(document.getElementById('grid'), '--bad') ? 'there are some' : 'none',
    gpus: document.getElementById('gpu-history')?.getAttribute('aria-label') ?? '',
  };
})()"""
_MODEL = {"what": "Qwen/Qwen2.5-7B-Instruct", "gpus": "% so far; lowest node"}
SHOWN = {
    "ok": {**_MODEL, "log": "pod0/job", "marks": "none"},
    "hang": {
        "log": "pod1/agent",
        "lines": "the job here: rank 3 on pod1",
        "strip": "Newest checkpoint: step 200. Each further hour costs $",
        "nodes": "! suspect",
        "grid": "pod1 may hold up the others",
        "marks": "there are some",
        "vitals": "14 min 20 s",
        "gpus": "median 100 %",
    },
    "failed": {**_MODEL, "log": "pod0/job"},
    "ended": _MODEL,
    "early": {
        "log": "pod0/agent",
        "lines": "joined Ray",
        "sentences": "the run began; 2 of 3 nodes joined",
    },
    "stepless": {"what": "python3 train.py --epochs 3", "vitals": "running"},
    "groups": {
        "groups": "0 of 4 serve",
        "nodes": "engine.0 on pod1, engine.1 on pod1, engine.0 on pod2 and 1 more",
        "sentences": "too few members of engine (rollout) served since then",
    },
    "single": {"what": "python3 train.py --epochs 3", "curves": "loss"},
}
"""Texts of the page by their places, in the situations that have them."""
_OVER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Look(NamedTuple):
    """A window."""

    width: int
    dark: bool

    @property
    def name(self) -> str:
        """Return it as part of a file's name."""
        return f"{'dark' if self.dark else 'light'}-{self.width}"


class Shown:
    """A head's port that serves a made run; `token` guards it."""

    def __init__(self, run: MadeRun, token: str | None) -> None:
        self.run = run
        self.token = token
        self.stops = 0
        self._socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _stop(self) -> None:
        self.stops += 1

    async def _log(
        self, node: str, name: str, after: int | None, before: int | None = None
    ) -> LogPart | str:
        text = self.run.logs.get(name)
        if node != self.run.status.name:
            return LogPart(worker_log(node), None)
        if text is None:
            return f"no log {name!r}"
        if before is not None:
            return LogPart("earlier lines\n", before, start=0)
        return LogPart("" if after else text, len(text), start=0 if after else 4096)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Serve the page; yield the runner, which a visit may end early."""
        control = Control(
            *(self._stop, 5.0, None, lambda: NOTHING_FOUND, self._log),
            with_private=lambda _status: self.run.private,
            series=lambda _since: self.run.series,
        )
        site = AgentServer(
            token=self.token,
            ready=lambda: True,
            status=lambda _reader: self.run.status,
            control=control,
        )
        runner = await site.open([self._socket])
        try:
            yield runner
        finally:
            await runner.cleanup()


def report_of(run: MadeRun) -> str:
    """Return the report of a made run."""
    status = to_builtins(page_status(judged(run.private)))
    return report_page(status, to_builtins(run.series), run.logs)


async def visit_situation(  # noqa: PLR0913 - what a visit is about
    tab: Tab,
    situation: str,
    nodes: int,
    windows: Sequence[Look],
    folder: Path,
    axe: str | None,
) -> list[str]:
    """Return what is wrong on the page of a run, in each window."""
    run = made_run(situation, nodes)
    shown = Shown(run, secrets.token_hex(16))
    async with shown.open():
        await sign_in(tab, shown)
        tab.complaints.clear()  # the browser logs the form's 401
        await tab.call("Page.navigate", url=shown.url)
        return await _check(tab, run, windows, folder, f"{situation}-{nodes}", axe)


async def visit_report(  # noqa: PLR0913 - same
    tab: Tab, situation: str, nodes: int, windows: Sequence[Look], folder: Path, axe: str | None
) -> list[str]:
    """Return what is wrong in the report of a run, opened from its file."""
    run = made_run(situation, nodes)
    file = folder / f"report-{situation}-{nodes}.html"
    file.write_text(report_of(run), "utf-8")
    tab.complaints.clear()
    await tab.call("Page.navigate", url=file.resolve().as_uri())
    wrong = await _check(tab, run, windows, folder, f"report-{situation}-{nodes}", axe)
    if await tab.tell("!document.getElementById('stop').hidden"):
        wrong.append("a report has a button that stops")
    return wrong


async def sign_in(tab: Tab, shown: Shown) -> None:
    """Send the token by the form."""
    await tab.call("Page.navigate", url=shown.url)
    await tab.wait_for(f"location.href.startsWith('{shown.url}') && document.forms.length === 1")
    await tab.tell(f"document.forms[0].token.value = {shown.token!r}")
    await tab.tell("document.forms[0].querySelector('button').click()")
    await tab.wait_for("document.getElementById('strip') !== null")


async def _check(  # noqa: PLR0913 - what is checked, and where
    tab: Tab, run: MadeRun, windows: Sequence[Look], folder: Path, name: str, axe: str | None
) -> list[str]:
    glance = judged(run.private).glance
    await tab.wait_for(_DRAWN.format(json.dumps(glance.sentence)))
    await tab.wait_for("document.getElementById('log-say').textContent !== ''")
    wrong = []
    state = await tab.tell("document.getElementById('strip').dataset.state")
    if state != glance.state:
        wrong.append(f"the strip is {state}, not {glance.state}")
    title = await tab.tell("document.title")
    if not title.startswith(SIGNS[glance.state]) or str(run.status.run_name) not in title:
        wrong.append(f"the title is {title!r}")
    icon = await tab.tell("document.getElementById('icon').getAttribute('href')")
    if icon != f"/{glance.state}.svg" and not icon.startswith("data:"):
        wrong.append(f"the icon is {icon}")
    count = await tab.tell("document.getElementsByTagName('*').length")
    if count >= MOST_ELEMENTS:
        wrong.append(f"{count} elements")
    lost = {one.number for one in run.status.attempts if one.end and one.exit_code}
    shown = set(map(int, await tab.tell(_LOST_ATTEMPTS)))
    if shown - lost:  # the oldest ones make room for later sentences
        wrong.append(f"shown as lost: attempts {shown}, lost are {lost}")
    if await tab.tell("document.images.length + document.querySelectorAll('td b').length"):
        wrong.append("text became markup")
    wrong += await _missing(tab, name)
    for look in windows:
        wrong += [f"{look.name}: {found}" for found in await _check_look(tab, look, axe)]
        picture = folder / f"{name}-{look.name}.png"
        await tab.picture(picture)
        wide = int.from_bytes(picture.read_bytes()[16:20], "big")
        if wide != look.width:
            wrong.append(f"{look.name}: the picture is {wide} px wide")
    wrong += tab.complaints
    return [f"{name}: {found}" for found in wrong]


async def _missing(tab: Tab, name: str) -> list[str]:
    """Return the texts that the page of a situation lacks."""
    *_, situation, nodes = name.split("-")
    wanted = dict(SHOWN.get(situation, {}))
    if nodes == "1" and situation == "hang":  # a node alone does not stand out
        wanted = {place: wanted[place] for place in ("strip", "vitals", "gpus")}
    await tab.wait_for("document.getElementById('lines').textContent !== ''")
    there = await tab.tell(_SHOWN_IN)
    return [
        f"{place} lacks {text!r}: {there[place][:300]!r}"
        for place, text in wanted.items()
        if text not in there[place]
    ]


async def _check_look(tab: Tab, look: Look, axe: str | None) -> list[str]:
    height = HEIGHTS[look.width]
    await tab.looks_like(look.width, height, dark=look.dark, phone=look.width < 500)
    # after the next frame, in which the page has drawn itself anew
    await tab.tell("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    wrong = [f"a canvas is blank: {label}" for label in await tab.tell(_BLANK)]
    over = await tab.tell(_OVER)
    if over > 0:
        wrong.append(f"the page is {over} px wider than the window")
    wrong += await tab.tell(OWN_RULES)
    if axe is not None:
        await tab.tell(f"{axe}; 0")
        wrong += await tab.tell(AXE)
    return wrong


# --- what is done on the page ---------------------------------------------------------------------


async def visit_without_token(tab: Tab) -> list[str]:
    """Without a token the page has judgment and curves, and no text of a log."""
    run = made_run("hang", 3)
    shown = Shown(run, None)
    async with shown.open():
        await tab.call("Page.navigate", url=shown.url)
        await tab.wait_for("document.querySelectorAll('#plots canvas').length === 6")
        await tab.wait_for("document.getElementById('log-say').textContent.includes('TOKEN')")
        await tab.tell("window.dispatchEvent(new Event('resize'))")
        says_why = await tab.tell(
            "document.getElementById('log-say').textContent.includes('TOKEN')"
        )
        text = await tab.tell("document.body.textContent")
    tab.complaints.clear()  # the browser logs the 401 of metrics and logs
    secret = ("NCCL_SOCKET_IFNAME", "TaskRunner", "reward.py", "critic/", "Qwen", "main_ppo")
    wrong = [f"shown without a token: {word}" for word in secret if word in text]
    if not says_why:
        wrong.append("a resized page no longer says why it shows no log")
    return wrong


async def visit_stop(tab: Tab) -> list[str]:
    """A stop needs the token and the typed word; the cookie does not suffice."""
    wrong = []
    shown = Shown(made_run("hang", 3), secrets.token_hex(16))
    async with shown.open():
        await sign_in(tab, shown)
        await tab.wait_for("!document.getElementById('stop').hidden")
        headers = "{method: 'POST', body: '{}', headers: {'Content-Type': 'application/json'}}"
        if await tab.tell(f"fetch('/stop', {headers}).then((answer) => answer.status)") != 401:
            wrong.append("the cookie alone stops the run")
        for token, word, answer in (
            (shown.token, "halt", "Type the word stop"),
            ("wrong", "stop", "that is not the token"),
            (shown.token, "stop", "is being stopped"),
        ):
            await tab.tell("document.getElementById('stop').click()")
            await tab.tell(f"document.getElementById('stop-token').value = {token!r}")
            await tab.tell(f"document.getElementById('stop-word').value = {word!r}")
            await tab.tell("document.getElementById('stop-send').click()")
            there = f"document.getElementById('stop-answer').textContent.includes({answer!r})"
            await tab.wait_for(there)
            await tab.tell("document.getElementById('stop-dialog').close()")
        if shown.stops != 1:
            wrong.append(f"it was stopped {shown.stops} times")
    tab.complaints.clear()  # the browser logs each 401
    return wrong


async def visit_log(tab: Tab) -> list[str]:
    """The log follows the run until the reader chooses one."""
    wrong = []
    shown = Shown(made_run("boot", 3), secrets.token_hex(16))
    async with shown.open():
        await sign_in(tab, shown)
        log = (
            "document.getElementById('log-node').value + document.getElementById('log-name').value"
        )
        await tab.wait_for(f"{log} === 'pod0agent'")
        for situation, opened in (("ok", "pod0job"), ("hang", "pod1agent"), ("ok", "pod0job")):
            shown.run = made_run(situation, 3)
            await tab.wait_for(f"{log} === {opened!r}")
        name = "document.getElementById('log-name')"
        await tab.tell(f"{name}.value = 'ray'; {name}.dispatchEvent(new Event('change'))")
        shown.run = made_run("hang", 3)
        await tab.wait_for("document.getElementById('strip').dataset.state === 'end'")
        if await tab.tell(log) != "pod0ray":
            wrong.append(f"the reader's log was closed for {await tab.tell(log)}")
    tab.complaints.clear()  # the browser logs that there is no such log
    return wrong


async def visit_gone(tab: Tab) -> list[str]:
    """The page says that the head does not answer, keeps its place, and searches the log."""
    wrong = []
    shown = Shown(made_run("ok", 3), secrets.token_hex(16))
    async with shown.open() as runner:
        await sign_in(tab, shown)
        await tab.wait_for("document.getElementById('lines').textContent.includes('step:212')")
        search = "document.getElementById('log-search')"
        typed = f"{search}.dispatchEvent(new Event('input'))"
        await tab.tell(f"{search}.value = 'step:21[12]'; {typed}")
        lines = await tab.tell("document.getElementById('lines').textContent")
        if [line.split(" - ")[0][-8:] for line in lines.split("\n")] != ["step:211", "step:212"]:
            wrong.append(f"the search shows {lines[:200]}")
        await tab.tell("document.getElementById('log-earlier').click()")
        await tab.tell(f"{search}.value = '('; {typed}")
        say = "document.getElementById('log-say').textContent"
        await tab.wait_for(f"{say}.includes('not a regular expression')")
        await tab.wait_for("document.getElementById('log-earlier').hidden")
        await runner.cleanup()
        await tab.wait_for("!document.getElementById('gone').hidden")
    tab.complaints.clear()  # the browser logs requests that nobody answers
    return wrong
