"""Waiting for conditions, with deadlines; and what processes are."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psutil

from agent.processes.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable


def await_true(check: Callable[[], bool], limit: float = 10.0) -> None:
    """Wait for a condition, with a deadline."""
    late = time.monotonic() + limit
    while not check():
        assert time.monotonic() < late, "it never came"
        threading.Event().wait(0.01)


async def is_so(check: Callable[[], bool], limit: float = 20.0) -> None:
    """Wait for a condition while other tasks go on."""

    async def look() -> bool | NotYet:
        return check() or NotYet()

    await until(look, limit, longest=0.05)


def lives(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
