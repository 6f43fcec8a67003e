"""The lab's only polling loop: a condition, a deadline, short steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
STEP = 0.02


def until(condition: Callable[[], T | None], timeout: float, what: str) -> T:
    """Return the condition's first true value, or raise TimeoutError with its description."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(STEP)
