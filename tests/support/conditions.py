"""Waiting for conditions, with deadlines."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def await_true(check: Callable[[], bool], limit: float = 10.0) -> None:
    """Wait for a condition, with a deadline."""
    until = time.monotonic() + limit
    while not check():
        assert time.monotonic() < until, "it never came"
        threading.Event().wait(0.01)
