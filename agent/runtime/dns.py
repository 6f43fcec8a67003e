"""Resolve host names with a deadline, off the event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.text import is_ip

if TYPE_CHECKING:
    from collections.abc import Callable


_REUSE_SECONDS = times.ADDRESS_REUSED
_FAMILY_ORDER = {socket.AF_INET: 0, socket.AF_INET6: 1}


class NoDnsAnswer(str):
    """Why a lookup failed: DNS did not answer, so the name may exist."""

    __slots__ = ()


def lookup(host: str) -> tuple[str, ...]:
    """Return a host's addresses, IPv4 first; raises the resolver's OSError."""
    if is_ip(host):
        return (host,)
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ordered = sorted(found, key=lambda entry: _FAMILY_ORDER.get(entry[0], 2))
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in ordered))


async def resolve(host: str, limit: float = 2.0) -> tuple[str, ...] | str:
    """Return a host's addresses, or a sentence why there are none so far.

    The resolver has no timeout, and takes 5 s or more where a nameserver is down. The next call
    uses an answer that comes too late for this one.
    """
    if is_ip(host):
        return (host,)
    running = _lookups.get(host)
    if running is None or running.age() > _REUSE_SECONDS:
        try:
            running = _lookups[host] = _Lookup(host)
        except RuntimeError as error:  # a container may limit how many threads there are
            return f"{host} cannot be looked up ({error})"
    answer = await running.answer(limit)
    if answer is None:
        return NoDnsAnswer(f"no answer from DNS about {host} so far")
    if _lookups.get(host) is running:
        del _lookups[host]
    return answer


class _Lookup:
    """One lookup in a daemon thread, which cannot delay the exit."""

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
                found = NoDnsAnswer(found)
        with self._lock:
            self._found, self._found_at = found, time.monotonic()
            waiting = list(self._waiting)
        for wake in waiting:
            wake()

    def age(self) -> float:
        """Return the answer's age in seconds; 0 while there is none."""
        with self._lock:
            return 0.0 if self._found is None else time.monotonic() - self._found_at

    async def answer(self, limit: float) -> tuple[str, ...] | str | None:
        """Return the answer; None after `limit` seconds without one."""
        done, loop = anyio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

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


_lookups: dict[str, _Lookup] = {}


def lookup_briefly(host: str, limit: float) -> tuple[str, ...]:
    """Look up a name without an event loop; returns () if DNS is slow or has no such name."""
    answer: list[tuple[str, ...]] = []

    def work() -> None:
        with suppress(OSError, UnicodeError):
            answer.append(lookup(host))

    thread = threading.Thread(target=work, daemon=True)
    with suppress(RuntimeError):  # a container may limit how many threads there are
        thread.start()
        thread.join(limit)
    return answer[0] if answer else ()
