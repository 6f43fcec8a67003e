"""Run in a daemon thread what a stalled disk or a silent server may block."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

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
