"""The very end of the process."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.record.writer import FLUSH_LIMIT, finish_all
from agent.runtime import parent

if TYPE_CHECKING:
    from collections.abc import Callable


_first: list[Callable[[], object]] = []


def before_exit(act: Callable[[], object]) -> None:
    """Have something done before the last words, however the process comes to its end."""
    _first.append(act)


def exit_now(code: int) -> None:
    """End the process within about a second, with the last words where somebody takes them.

    Neither a thread that is stuck in a resolver nor a pipe that nobody reads holds it up.
    """
    for act in _first:
        act()
    flushing = _begin(_flush_streams)
    finish_all(FLUSH_LIMIT)
    if flushing is not None:
        flushing.join(0.1)
    parent.settle(code)
    os._exit(code)


def in_time(limit: float, act: Callable[[], object]) -> bool:
    """Do what a stalled disk may block for ever; return whether it was done within the limit.

    `act` handles its own errors. Where no thread can be had it is done here.
    """
    thread = _begin(act)
    if thread is None:
        act()
        return True
    thread.join(limit)
    return not thread.is_alive()


def _begin(act: Callable[[], object]) -> threading.Thread | None:
    thread = threading.Thread(target=act, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # pids.max
        return None
    return thread


def _flush_streams() -> None:
    """Write what was printed; whoever holds a stream's lock may hold it for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
