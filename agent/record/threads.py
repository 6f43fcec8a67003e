"""Run in a daemon thread what a stalled disk or a silent server may block."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from agent.base import times

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def start_thread(act: Callable[[], object]) -> threading.Thread | None:
    """Start a thread that cannot delay the exit; None where `pids.max` allows no more."""
    thread = threading.Thread(target=act, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def run_within(limit: float, act: Callable[[], T]) -> T | None:
    """Return a result from a thread; None if it takes longer than `limit` seconds.

    `act` handles its own errors. If no thread can be started, it runs in this one.
    """
    results: list[T] = []
    thread = start_thread(lambda: results.append(act()))
    if thread is None:
        return act()
    thread.join(limit)
    return results[0] if results else None


def in_background(read: Callable[[], T]) -> asyncio.Future[T] | None:
    """Return the future result of a thread; None if no thread can be started."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        result = read()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(future.set_result, result)

    return None if start_thread(work) is None else future


async def in_thread(read: Callable[[], T], limit: float = times.WAIT_READ) -> T | None:
    """Return a result from a thread; None if it takes longer than `limit` seconds."""
    future = in_background(read)
    if future is None:
        return None
    await asyncio.wait([future], timeout=limit)
    return future.result() if future.done() else None
