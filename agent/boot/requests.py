"""What signals ask of a head: noted from the first moment on, and heard once its story listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.base.outcome import Outcome, stopped

if TYPE_CHECKING:
    from collections.abc import Callable


class Requests:
    """Requests to stop, and notices for the job, for the time before a story listens for them."""

    def __init__(self) -> None:
        self._stops: list[int] = []
        self._notices: list[int] = []
        self._on_stop: Callable[[int], None] = self._stops.append
        self._on_notice: Callable[[int], None] = self._notices.append
        self._scope: anyio.CancelScope | None = None

    def stop(self, signum: int) -> None:
        """Take in a request to stop, and end what is guarded."""
        self._on_stop(signum)
        if self._scope is not None:
            self._scope.cancel()

    def notice(self, signum: int) -> None:
        """Take in a notice for the job."""
        self._on_notice(signum)

    def guard(self) -> anyio.CancelScope:
        """Return a scope that a request to stop cancels."""
        self._scope = anyio.CancelScope()
        if self._stops:
            self._scope.cancel()
        return self._scope

    def hand_to(self, on_stop: Callable[[int], None], on_notice: Callable[[int], None]) -> None:
        """Hand everything to a story from now on, what was noted before included."""
        self._on_stop, self._on_notice = on_stop, on_notice
        for signum in self._stops:
            on_stop(signum)
        for signum in self._notices:
            on_notice(signum)

    def outcome(self, *, expected: bool) -> Outcome:
        """Return the end that was asked for."""
        return stopped(self._stops[0], expected=expected)
