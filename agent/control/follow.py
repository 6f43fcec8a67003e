"""A head's status as it changes: over `/events` where that is open to us, else asked again.

Read by the standard library: no proxy, no redirect, and each line as soon as it is there.
"""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import all_escaped
from agent.control.ask import status_at
from agent.control.http import LARGEST
from agent.control.keyed import keys_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.control.view import Status
    from agent.settings import Settings

EVERY = 1.0
"""Seconds between two questions where no stream is open to us."""
_PATIENCE = 12.0
"""Longest between two words of a stream, which has one every 5 s at least."""
_PREFIX = b"data: "


@dataclass(frozen=True)
class Silence:
    """Nobody answers just now, and why."""

    why: str


class _NoStreamError(Exception):
    """The head answers, and has no stream for us."""


def follow(
    where: str, first: Status, settings: Settings, log_root: Path
) -> Iterator[Status | Silence]:
    """Yield a status as often as one comes, and a silence for each try that is in vain."""
    yield first
    streams = True
    while True:
        try:
            if streams:
                yield from _stream(where, settings, log_root)
        except _NoStreamError:
            streams = False
        except (OSError, http.client.HTTPException, ValueError) as error:
            yield Silence(str(error) or type(error).__name__)
        status, why = status_at(where, settings)
        if status is None:
            streams = True  # the head may come back with another key
            yield Silence(why)
        else:
            yield status
        time.sleep(EVERY)  # a person watches; nothing waits on this


def _stream(where: str, settings: Settings, log_root: Path) -> Iterator[Status]:
    """Yield what a stream tells, until it ends."""
    for key in keys_here(settings, log_root):
        with closing(http.client.HTTPConnection(where, timeout=_PATIENCE)) as line:
            headers = {"Host": "localhost", "Authorization": f"Bearer {key}"}
            line.request("GET", "/events", headers=headers)
            answer = line.getresponse()
            if answer.status == 200:
                yield from _statuses(answer)
                return
    raise _NoStreamError


def _statuses(answer: http.client.HTTPResponse) -> Iterator[Status]:
    while text := answer.readline(LARGEST):
        if text.startswith(_PREFIX):
            status = all_escaped(json.loads(text[len(_PREFIX) :]))
            if not isinstance(status, dict):
                raise ValueError("a status is a JSON object")
            yield status
