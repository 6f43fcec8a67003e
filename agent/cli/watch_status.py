"""`status --watch`: follow the status of a run, and draw it until the run ends.

The head streams statuses at `/events`; where that is refused, or the stream ends, its status is
asked for every few seconds. A terminal with rich is drawn in place; else changed lines are printed.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from agent.base import times
from agent.base.errors import UnavailableError
from agent.base.fields import news_of
from agent.base.text import duration_text, escaped, map_texts
from agent.cli.http_request import FAILURES, error_text, sent
from agent.cli.printing import warn
from agent.cli.running_head import Received, read_answer, status_at
from agent.decisions.head.head_state import HeadPhase
from agent.port.brief_status import lines_by_content
from agent.port.proof import TRIES, Prover, ReplyProof
from agent.port.status import one_line
from agent.port.status_model import JudgedStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from agent.cli.running_head import RunningHead

    Show = Callable[[Received, str], None]
    """Shows a status, and why there is no newer one."""


_STATUS_POLL = 0.5  # Between two requests where `/events` cannot be used.


def follow_status(head: RunningHead) -> Iterator[dict[str, Any] | str]:
    """Yield each status received, and for each failed request why there is none."""
    yield head.data
    while True:
        try:
            yield from _stream(head)
        except FAILURES as error:
            yield error_text(error)
        answer = status_at(head.where, head.settings)  # also where `/events` is not open to us
        yield answer if isinstance(answer, str) else answer.data
        time.sleep(_STATUS_POLL)  # for a person only; nothing waits on it


def _stream(head: RunningHead) -> Iterator[dict[str, Any]]:
    """Yield the statuses of a stream until it ends; none where it is refused."""
    prover = Prover(head.secret())
    for _ in range(TRIES):
        url = f"http://{head.where}/events"
        with sent("GET", url, prover, times.STREAM_SILENT) as (reply, signed):
            proof = prover.check(signed, reply.status_code, reply.headers, None)
            if proof is ReplyProof.PROVEN and reply.status_code == 200:
                for line in reply.iter_lines(None):  # as it arrives
                    if line.startswith(b"data: "):
                        yield map_texts(json.loads(line.removeprefix(b"data: ")), escaped)


def show_until_end(
    show: Show,
    where: str,
    statuses: Iterable[dict[str, Any] | str],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show each status until the run's end; raises where the end is not known."""
    received = clock()
    last: Received | None = None
    for data in statuses:
        # Is there no status? A head may be restarting; after a while it is gone.
        if isinstance(data, str):
            silence = clock() - received
            why = f"{where} does not answer: {data}"
            if silence > times.HEAD_GONE:
                was = "" if last is None else f"; {duration_text(silence)} ago it was "
                phase = "" if last is None else last.status.phase.value
                raise UnavailableError(f"the head is gone: {why}{was}{phase}")
            if last is not None:
                show(last, one_line(why))
            continue

        received = clock()
        last = Received(read_answer(data, JudgedStatus), data)
        show(last, "")
        if last.status.phase is HeadPhase.LEAVING and last.status.verdict is not None:
            break


def screen(*, as_json: bool) -> AbstractContextManager[Show]:
    """Return the screen to use: JSON, live on a terminal with rich, or changed lines."""
    if as_json:
        return nullcontext(ChangedLines(lambda known: {repr(news_of(known.status)): _json(known)}))
    if sys.stdout.isatty():
        with suppress(ImportError):
            from agent.cli.rich_view import LiveScreen  # noqa: PLC0415 - rich, where it is installed

            live = LiveScreen()
            if live.can_show:
                return live
    return nullcontext(ChangedLines(lambda known: lines_by_content(known.status)))


def _json(received: Received) -> str:
    return json.dumps(received.data)


class ChangedLines:
    """Prints the lines of a status whose content is new, by a function that returns both."""

    def __init__(self, lines: Callable[[Received], dict[str, str]]) -> None:
        self._lines = lines
        self._before: dict[str, str] = {}
        self._outage = ""

    def __call__(self, received: Received, outage: str) -> None:
        """Print what changed; an outage once, and its end."""
        if bool(outage) != bool(self._outage):
            warn(outage or "the head answers again")
        self._outage = outage
        before = self._before
        self._before = self._lines(received)
        for content, line in self._before.items():
            if content not in before:
                print(line, flush=True)
