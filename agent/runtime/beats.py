"""The heartbeat of blocking threads; unlike `waiting` it loads no library, as the bridge wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator


def beats(stop: threading.Event, step: float) -> Iterator[None]:
    """Yield every `step` seconds until told to stop: the heartbeat of a blocking thread."""
    while not stop.is_set():
        yield
        stop.wait(step)
