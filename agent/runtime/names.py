"""Host names: resolved with a deadline, off the event loop, never by gRPC."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread

from agent.machine import is_ip

if TYPE_CHECKING:
    from collections.abc import Callable

_FAMILY_ORDER = {socket.AF_INET: 0, socket.AF_INET6: 1}


def lookup(host: str) -> tuple[str, ...]:
    """Return a host's addresses, IPv4 first; raises OSError with the resolver's words."""
    if is_ip(host):
        return (host,)
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ordered = sorted(found, key=lambda entry: _FAMILY_ORDER.get(entry[0], 2))
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in ordered))


async def resolve(host: str, limit: float = 6.0) -> tuple[str, ...] | str:
    """Return a host's addresses, or a sentence why there are none.

    The resolver blocks for as long as it likes; its thread is a daemon, so it cannot hold us up.
    """
    if is_ip(host):
        return (host,)
    answer: list[tuple[str, ...] | str] = []
    done = anyio.Event()
    loop_token = _current_loop_call()

    def work() -> None:
        try:
            answer.append(lookup(host))
        except OSError as error:
            answer.append(f"{host} does not resolve ({error.strerror or error})")
        loop_token(done.set)

    threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
    with anyio.move_on_after(limit):
        await done.wait()
    return answer[0] if answer else f"no answer from DNS about {host} for {limit:g} s"


def lookup_briefly(host: str, limit: float) -> tuple[str, ...]:
    """Look a name up before any event loop runs; nothing where DNS is slow or says no."""
    answer: list[tuple[str, ...]] = []

    def work() -> None:
        try:
            answer.append(lookup(host))
        except OSError:
            answer.append(())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit)
    return answer[0] if answer else ()


def _current_loop_call() -> Callable[[Callable[[], None]], None]:
    import asyncio  # noqa: PLC0415 - anyio runs on asyncio here; imported where it is meant

    loop = asyncio.get_running_loop()

    def call(function: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(function)

    return call
