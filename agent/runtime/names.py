"""Host names: resolved with a deadline, off the event loop, never by gRPC."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from agent.base.addresses import is_ip

if TYPE_CHECKING:
    from collections.abc import Callable

_FRESH = 10.0
"""How long a late answer is there for who asks next: a pod that is made anew has a new address."""
_FAMILY_ORDER = {socket.AF_INET: 0, socket.AF_INET6: 1}


class Unanswered(str):
    """Why a name has no addresses so far: DNS did not answer, and may know it all the same."""

    __slots__ = ()


def lookup(host: str) -> tuple[str, ...]:
    """Return a host's addresses, IPv4 first; raises OSError with the resolver's words."""
    if is_ip(host):
        return (host,)
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ordered = sorted(found, key=lambda entry: _FAMILY_ORDER.get(entry[0], 2))
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in ordered))


async def resolve(host: str, limit: float = 2.0) -> tuple[str, ...] | str:
    """Return a host's addresses, or a sentence why there are none so far.

    The resolver blocks for as long as it likes, where a nameserver is down for 5 s and more. An
    answer that is late is there for whoever asks next.
    """
    if is_ip(host):
        return (host,)
    question = _under_way.get(host)
    if question is None or question.age() > _FRESH:
        try:
            question = _under_way[host] = _Question(host)
        except RuntimeError as error:  # a container may limit how many threads there are
            return f"{host} cannot be looked up ({error})"
    answer = await question.answer(limit)
    if answer is None:
        return Unanswered(f"no answer from DNS about {host} so far")
    if _under_way.get(host) is question:
        del _under_way[host]
    return answer


class _Question:
    """One lookup, in a thread of its own: a daemon, so that it cannot hold us up."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._found: tuple[str, ...] | str | None = None
        self._found_at = 0.0
        self._waiting: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._ask, name=f"resolve {host}", daemon=True).start()

    def _ask(self) -> None:
        try:
            found: tuple[str, ...] | str = lookup(self._host)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            found = f"{self._host} does not resolve ({why})"
            if getattr(error, "errno", None) == socket.EAI_AGAIN:
                found = Unanswered(found)
        with self._lock:
            self._found, self._found_at = found, time.monotonic()
            waiting = list(self._waiting)
        for wake in waiting:
            wake()

    def age(self) -> float:
        """Return how many seconds ago the answer came; 0 while there is none."""
        with self._lock:
            return 0.0 if self._found is None else time.monotonic() - self._found_at

    async def answer(self, limit: float) -> tuple[str, ...] | str | None:
        """Return the answer if it comes in time."""
        done, call = anyio.Event(), _current_loop_call()

        def wake() -> None:
            call(done.set)

        with self._lock:
            if self._found is not None:
                return self._found
            self._waiting.append(wake)
        try:
            with anyio.move_on_after(limit):
                await done.wait()
        finally:
            with self._lock:
                self._waiting.remove(wake)
        return self._found


_under_way: dict[str, _Question] = {}


def lookup_briefly(host: str, limit: float) -> tuple[str, ...]:
    """Look a name up before any event loop runs; nothing where DNS is slow or says no."""
    answer: list[tuple[str, ...]] = []

    def work() -> None:
        try:
            answer.append(lookup(host))
        except (OSError, UnicodeError):
            answer.append(())

    thread = threading.Thread(target=work, daemon=True)
    with suppress(RuntimeError):  # a container may limit how many threads there are
        thread.start()
        thread.join(limit)
    return answer[0] if answer else ()


def _current_loop_call() -> Callable[[Callable[[], None]], None]:
    import asyncio  # noqa: PLC0415 - anyio runs on asyncio here; imported where it is meant

    loop = asyncio.get_running_loop()

    def call(function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(function)

    return call
