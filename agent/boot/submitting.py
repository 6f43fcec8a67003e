"""A submission in the making, beside the head's decisions: what it reads may lie on a slow disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Submitting:
    """Runs a submission as a task; until it is handed over it can be given up."""

    def __init__(self) -> None:
        self._last: tuple[anyio.CancelScope, anyio.Event] | None = None
        """Cancels the making of the last submission; set once that was handed over or given up."""

    def begin(
        self, tasks: anyio.abc.TaskGroup, submit: Callable[..., Awaitable[None]], *arguments: object
    ) -> None:
        """Start a task that makes a submission, by `made`, and hands it over."""
        self._last = anyio.CancelScope(), anyio.Event()
        tasks.start_soon(self._run, self._last[1], submit, *arguments)

    async def _run(
        self, over: anyio.Event, submit: Callable[..., Awaitable[None]], *arguments: object
    ) -> None:
        try:
            await submit(*arguments)
        finally:
            over.set()

    async def made(self, make: Callable[..., Awaitable[T]], *arguments: object) -> T | None:
        """Return what is to be handed over; None where the submission was given up."""
        assert self._last is not None  # noqa: S101 - called by what `begin` has started
        with self._last[0]:
            return await make(*arguments)
        return None

    async def give_up(self) -> bool:
        """Cancel it, or wait until it is handed over; return whether it was cancelled."""
        if self._last is None:
            return False
        making, over = self._last
        making.cancel()
        await over.wait()
        return making.cancelled_caught
