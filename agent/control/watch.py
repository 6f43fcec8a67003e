"""`status --watch`: a run as it goes on, to its end, from any node."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from agent.control.ask import OF_ANOTHER_VERSION, STRANGE, as_text, find_head
from agent.control.follow import Silence, follow
from agent.control.lasting import lasting
from agent.control.view import changes, long, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.control.view import Status

GONE_AFTER = 15.0
"""Seconds without a word, after which the head is taken for gone: it tells its status every 5 s."""


class Screen(Protocol):
    """Where what is told of a run goes."""

    def show(self, status: Status) -> None:
        """Take the newest status."""

    def silent(self, why: str) -> None:
        """Take in that nobody answers just now."""


def watch(environ: Mapping[str, str], log_root: Path, *, as_json: bool) -> int:
    """Show the run until its end: 0; or until its head is gone: 69."""
    found = find_head(environ)
    if found is None:
        return 69
    status, where, settings = found
    with _screen(as_json=as_json) as screen:
        code, last_words = _to_its_end(screen, where, follow(where, status, settings, log_root))
    if last_words:
        print(last_words, file=sys.stderr)
    return code


def _to_its_end(
    screen: Screen,
    where: str,
    told: Iterable[Status | Silence],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[int, str]:
    """Hand on what is told; return the exit code, and what is left to say."""
    heard, last = clock(), ""
    for word in told:
        if isinstance(word, Silence):
            silence = clock() - heard
            why = f"{where} does not answer: {word.why}"
            if silence > GONE_AFTER:
                gone = f"pod-agent: the head is gone: {why}"
                return 69, f"{gone}; {long(silence)} ago it was {plain(last)}"
            screen.silent(why)
            continue
        heard = clock()
        try:
            screen.show(word)
            last = str(word["phase"])
            is_over = last == "leaving" and bool(word.get("verdict"))
        except STRANGE:
            return 69, OF_ANOTHER_VERSION
        if is_over:
            return 0, ""
    return 69, ""


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Screen]:
    """Choose how it is shown: as JSON, alive on a terminal, or as lines."""
    if as_json:
        yield JsonLines()
        return
    if sys.stdout.isatty():
        try:
            from agent.control.live import Live  # noqa: PLC0415 - rich, where it is installed
        except ImportError:
            pass
        else:
            live = Live()
            if live.can_show:
                with live:
                    yield live
                live.show_last()
                return
    yield Lines()


class JsonLines:
    """Prints each status that is news, one a line."""

    def __init__(self) -> None:
        self._before: object = None

    def show(self, status: Status) -> None:
        """Print it where it differs in more than its clocks."""
        lasts = lasting(status)
        if lasts != self._before:
            self._before = lasts
            print(json.dumps(status), flush=True)

    def silent(self, why: str) -> None:
        """Say nothing: the last line stays the newest."""


class Lines:
    """Prints the status once, and then a line for each change."""

    def __init__(self) -> None:
        self._before: Status | None = None
        self._is_silent = False

    def show(self, status: Status) -> None:
        """Print what is news."""
        news = [as_text(status)] if self._before is None else changes(self._before, status)
        if self._is_silent:
            news.insert(0, "the head answers again")
        self._before, self._is_silent = status, False
        for line in news:
            print(line, flush=True)

    def silent(self, why: str) -> None:
        """Say it once."""
        if not self._is_silent:
            self._is_silent = True
            print(plain(why), flush=True)
