"""The end of a log, read by a thread: the disk on which it lies may stall, and we must not."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT = 1.0


async def in_thread(read: Callable[[], str], limit: float = _LIMIT) -> str:
    """Return what a read gives, or '' where it takes longer than `limit` seconds."""
    loop, done, found = asyncio.get_running_loop(), anyio.Event(), [""]

    def work() -> None:
        found[0] = read()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done.set)

    try:
        threading.Thread(target=work, name="last words", daemon=True).start()
    except RuntimeError:  # no thread can be had (pids.max)
        return ""
    with anyio.move_on_after(limit):
        await done.wait()
    return found[0]
