"""The verbs that ask a running agent: `status`, `logs`, `stop` and `doctor --all`."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

import anyio

from agent.base import times
from agent.base.text import all_escaped
from agent.checks.finding import Finding, Level, node_list
from agent.control.ask import (
    OTHER_VERSION,
    UNKNOWN_FORMAT_ERRORS,
    NoStatus,
    ask,
    ask_with_key,
    failure_reason,
    find_head,
    follow_status,
    own_port,
)
from agent.control.status import (
    duration_text,
    lines_by_content,
    one_line,
    status_lines,
    without_clocks,
)
from agent.plan.show import finding_line
from agent.runtime.waiting import NotYet, TimedOutError, until
from agent.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.control.ask import FoundHead, HttpAnswer
    from agent.control.status import Status

HEAD = "head"
OUTAGE_LIMIT = times.AGENT_RESTARTS
_JOB, _AGENT = "job", "agent"


def show_findings(environ: Mapping[str, str], log_root: Path, *, as_json: bool) -> int:
    """Print all nodes' findings; return 0, 78 where a check fails, 69 if no head answers."""
    head = find_head(environ)
    answer = head and _ask_head(head, log_root, "/findings", "findings are shown")
    if answer is None:
        return 69
    try:
        data = all_escaped(json.loads(answer.body))
        lines = list(_finding_lines(data))
        failed = any(row["level"] == Level.FAIL.value for row in _rows(data))
    except (KeyError, TypeError, ValueError):
        print(OTHER_VERSION, file=sys.stderr)
        return 69
    print(json.dumps({"ok": not failed, **data}, indent=2) if as_json else "\n".join(lines))
    return 78 if failed else 0


def _rows(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*data["between"], *data["findings"]]


def _finding_lines(data: Mapping[str, Any]) -> Iterator[str]:
    count = len(data["nodes"])
    for row in _rows(data):
        finding = Finding(row["check"], Level(row["level"]), row["what"], row["remedy"])
        of = node_list(row["nodes"], count) if "nodes" in row else "between nodes"
        yield f"{finding_line(finding)} [{of}]"
    for name in data["unknown"]:
        yield f"   nothing is known about {name}: no agent runs there"


def _ask_head(
    head: FoundHead, log_root: Path, path: str, what: str, *, post: bool = False
) -> HttpAnswer | None:
    """Send a request that needs a key; print why it was refused and return None."""
    answer = ask_with_key(f"http://{head.where}{path}", head.settings, log_root, post=post)
    if answer.status == 200:
        return answer
    print(f"pod-agent: {head.where}: {failure_reason(answer, what)}", file=sys.stderr)
    return None


class _LogPosition(NamedTuple):
    """Where the next part of a log starts, and whether the run has its verdict."""

    next: int | None
    over: bool


def show_logs(environ: Mapping[str, str], log_root: Path, words: list[str], *, follow: bool) -> int:
    """Print a log; return 0, or 69 where no head answers or it has no such log."""
    head = find_head(environ)
    if head is None:
        return 69
    node, name = _node_and_log(words, head.status)
    path = f"/logs/{quote(node, safe='')}/{quote(name, safe='')}"
    answer = _ask_head(head, log_root, path, "logs are shown")
    if answer is None:
        return 69
    part = _print_part(answer)
    if not follow:
        return 0
    if part.next is None:
        what = f"the log of {node} comes as its last lines only, which cannot be followed"
        print(f"pod-agent: {what}", file=sys.stderr)
        return 0
    return _follow_log(part, head, path, log_root)


def _follow_log(part: _LogPosition, head: FoundHead, path: str, log_root: Path) -> int:
    """Print new parts until the run is over; a head that is restarted is back within seconds."""
    silent_since: float | None = None
    while True:
        url = f"http://{head.where}{path}?after={part.next}"
        answer = ask_with_key(url, head.settings, log_root)
        if answer.status == 200:
            part, silent_since = _print_part(answer), None
            continue
        if part.over and not answer.status:  # the head is gone and the log complete
            return 0
        now = time.monotonic()
        silent_since = now if silent_since is None else silent_since
        if now >= silent_since + OUTAGE_LIMIT:
            why = failure_reason(answer, "logs are shown")
            what = f"the head's agent sent no log and no verdict for {OUTAGE_LIMIT:g} s"
            print(f"pod-agent: {head.where}: {what}: giving up ({why})", file=sys.stderr)
            return 69
        time.sleep(times.VERB_RETRY_PAUSE)  # for a person only; nothing waits on it


def _print_part(answer: HttpAnswer) -> _LogPosition:
    """Print a part of a log."""
    data = json.loads(answer.body)
    print(data["text"], end="", flush=True)
    return _LogPosition(data["next"], data.get("over", False))


def _node_and_log(words: list[str], status: Mapping[str, Any]) -> tuple[str, str]:
    """Return node and log from the arguments: one that is no node's name is a log's."""
    if len(words) == 2:
        return words[0], words[1]
    nodes = {str(node.get("name")) for node in status.get("nodes", [])}
    if not words:
        return HEAD, _JOB
    if words[0] in nodes:
        return words[0], _AGENT
    return (HEAD, _JOB) if words[0] == HEAD else (HEAD, words[0])


def stop(environ: Mapping[str, str], log_root: Path) -> int:
    """End the run as SIGTERM on the head would; return 0 after its end, 69 if no head answers."""
    head = find_head(environ)
    answer = head and _ask_head(head, log_root, "/stop", "a run is stopped", post=True)
    if head is None or answer is None:
        return 69
    within = float(json.loads(answer.body)["within"]) + times.STOP_VERB_MARGIN
    print(f"pod-agent: run {head.status.get('run_id')} is being stopped", file=sys.stderr)
    return anyio.run(_wait_for_end, head.where, within)


async def _wait_for_end(where: str, limit: float) -> int:
    async def gone() -> bool | NotYet:
        answer = await anyio.to_thread.run_sync(lambda: ask(f"http://{where}/livez", limit=2.0))
        return NotYet("it still answers") if answer.status else True

    try:
        await until(gone, limit)
    except TimedOutError:
        print(f"pod-agent: {where} still answers after {limit:g} s", file=sys.stderr)
        return 69
    return 0


# --- status --------------------------------------------------------------------------------------


def print_status(environ: Mapping[str, str], *, as_json: bool) -> int:
    """Print the head's status; 69 if no head answers."""
    found = find_head(environ)
    if found is None:
        return 69
    try:
        text = json.dumps(found.status) if as_json else "\n".join(status_lines(found.status))
    except UNKNOWN_FORMAT_ERRORS:
        print(OTHER_VERSION, file=sys.stderr)
        return 69
    print(text, flush=True)
    return 0


def check_live(environ: Mapping[str, str]) -> int:
    """Health check of this node's agent: 0 if it answers, else 69."""
    where = f"127.0.0.1:{own_port(environ, load(environ).settings)}"
    answer = ask(f"http://{where}/livez")
    if answer.status == 200:
        return 0
    why = answer.evidence or f"it answered {answer.status}"
    print(f"pod-agent: no agent runs here: {where}: {why}", file=sys.stderr)
    return 69


class Screen(Protocol):
    """Where the status of a run is shown."""

    def show(self, status: Status) -> None:
        """Show a status."""

    def show_outage(self, why: str) -> None:
        """Show why the head does not answer."""


def watch_status(environ: Mapping[str, str], log_root: Path, *, as_json: bool) -> int:
    """Show the run until its end (0) or until its head is gone (69)."""
    found = find_head(environ)
    if found is None:
        return 69
    with _open_screen(as_json=as_json) as screen:
        code, message = _show_until_end(screen, found.where, follow_status(found, log_root))
    if message:
        print(message, file=sys.stderr)
    return code


def _show_until_end(
    screen: Screen,
    where: str,
    statuses: Iterable[Status | NoStatus],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, str]:
    """Show each status; return the exit code and a message."""
    received, phase = clock(), ""
    for status in statuses:
        if isinstance(status, NoStatus):
            silence = clock() - received
            why = f"{where} does not answer: {status.reason}"
            if silence > times.HEAD_GONE:
                gone = f"pod-agent: the head is gone: {why}"
                return 69, f"{gone}; {duration_text(silence)} ago it was {one_line(phase)}"
            screen.show_outage(why)
            continue
        received = clock()
        try:
            screen.show(status)
            phase = str(status["phase"])
            is_over = phase == "leaving" and bool(status.get("verdict"))
        except UNKNOWN_FORMAT_ERRORS:
            return 69, OTHER_VERSION
        if is_over:
            return 0, ""
    return 69, ""


@contextmanager
def _open_screen(*, as_json: bool) -> Iterator[Screen]:
    """Open the screen to use: JSON, live on a terminal with rich, or lines."""
    if as_json:
        yield JsonScreen()
        return
    if sys.stdout.isatty():
        try:
            from agent.control.rich_view import LiveScreen  # noqa: PLC0415 - rich, where it is installed
        except ImportError:
            pass
        else:
            live = LiveScreen()
            if live.can_show:
                with live:
                    yield live
                live.show_last()
                return
    yield LineScreen(lines_by_content)


class LineScreen:
    """Prints the lines of a status whose content is new, by a function that returns both."""

    def __init__(self, lines: Callable[[Status], dict[str, str]]) -> None:
        self._lines = lines
        self._before: dict[str, str] = {}
        self._outage = ""

    def show(self, status: Status) -> None:
        """Print what changed."""
        lines = self._lines(status)
        if self._outage:
            print("the head answers again", flush=True)
        new = [line for content, line in lines.items() if content not in self._before]
        self._before, self._outage = lines, ""
        for line in new:
            print(line, flush=True)

    def show_outage(self, why: str) -> None:
        """Print the reason once per outage."""
        if not self._outage:
            print(one_line(why), flush=True)
        self._outage = why


class JsonScreen(LineScreen):
    """Prints each changed status as a line of JSON, and no outage: the last line is the newest."""

    def __init__(self) -> None:
        super().__init__(lambda status: {json.dumps(without_clocks(status)): json.dumps(status)})

    def show_outage(self, why: str) -> None:
        """Print nothing."""
