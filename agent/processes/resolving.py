"""Resolve host names with a deadline, and detect dead TCP connections.

The bridge, in Ray's Python, loads this too: it imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from agent.base.text import is_ip
from agent.record.background import in_background, run_within


class NoDnsAnswer(str):
    """Why a lookup failed: DNS did not answer, so the name may exist."""

    __slots__ = ()


def lookup(host: str) -> tuple[str, ...]:
    """Return a host's addresses, IPv4 first; raises the resolver's OSError."""
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ordered = sorted(entries, key=lambda entry: entry[0] is not socket.AF_INET)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in ordered))


async def resolve(host: str, limit: float = 2.0) -> tuple[str, ...] | str:
    """Return a host's addresses, or a sentence why there are none so far.

    The resolver has no timeout, and takes 5 s or more where a nameserver is down. The next call
    uses an answer that comes too late for this one.
    """
    if is_ip(host):
        return (host,)

    # One lookup at a time for each name: a late one is joined, unless its event loop has ended.
    pending = _lookups.get(host)
    if pending is None or pending.get_loop() is not asyncio.get_running_loop():
        pending = in_background(partial(_answer, host))
    if pending is None:
        return f"{host} cannot be looked up (can't start new thread)"
    _lookups[host] = pending
    await asyncio.wait([pending], timeout=limit)

    if not pending.done():
        return NoDnsAnswer(f"no answer from DNS about {host} so far")
    if _lookups.get(host) is pending:
        del _lookups[host]
    return pending.result()


_lookups: dict[str, asyncio.Future[tuple[str, ...] | str]] = {}


def _answer(host: str) -> tuple[str, ...] | str:
    try:
        return lookup(host)
    except (OSError, UnicodeError) as error:
        why = f"{host} does not resolve ({getattr(error, 'strerror', None) or error})"
        is_mute = getattr(error, "errno", None) == socket.EAI_AGAIN
        return NoDnsAnswer(why) if is_mute else why


def lookup_briefly(host: str, limit: float) -> tuple[str, ...]:
    """Look up a name without an event loop; returns () if DNS is slow or has no such name."""
    answer = run_within(limit, partial(_answer, host))
    return answer if isinstance(answer, tuple) else ()


def set_keepalive(connection: socket.socket, within: float) -> None:
    """Close a connection within `within` seconds after its peer or the network was lost.

    A listener's connections inherit this. It applies to unacknowledged data, too, which the kernel
    would otherwise resend for a quarter of an hour.
    """
    interval = max(1, round(within / 3))
    options = {
        socket.TCP_KEEPIDLE: interval,
        socket.TCP_KEEPINTVL: interval,
        socket.TCP_KEEPCNT: 2,
        socket.TCP_USER_TIMEOUT: round(within * 1000),
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
