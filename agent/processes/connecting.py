"""Connect to a TCP port, with a deadline for all of its addresses."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Protocol

import anyio

from agent.base.text import in_url
from agent.processes.resolving import resolve


class ConnectionRefused(str):
    """Why a connection failed: nothing listens there."""

    __slots__ = ()


class PerhapsBusy(str):
    """Why there is no valid reply: none came in time, or the server had no room for the request."""

    __slots__ = ()


class PortAnswers(Protocol):
    """The form of `port_answers`."""

    async def __call__(self, host: str, port: int, limit: float = ...) -> str:
        """Return '' if a connection succeeds, else why not."""


async def port_answers(host: str, port: int, limit: float = 2.0) -> str:
    """Try a TCP connection; return '' if it succeeds, else why not."""
    where = f"{in_url(host)}:{port}"
    deadline = anyio.current_time() + limit
    addresses = await resolve(host, limit)
    if isinstance(addresses, str):
        return addresses

    # Each address is tried within one deadline for all.
    why: str = PerhapsBusy(f"no answer from {where} within {limit:g} s")
    with anyio.CancelScope(deadline=deadline):
        for address in addresses:
            try:
                await _connect(address, port)
            except OSError as error:
                cause = reason(error)
                why = f"{cause} by {where}"
                if isinstance(cause, ConnectionRefused):
                    why = ConnectionRefused(why)
                continue
            return ""
    return why


async def _connect(address: str, port: int) -> None:
    """Connect, and close the connection: a stream would cost twice the CPU time."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(0.0)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))


def reason(error: BaseException) -> str:
    """Return an OS error in lower case, such as 'connection refused'."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        text = os.strerror(error.errno).lower()
        return ConnectionRefused(text) if isinstance(error, ConnectionRefusedError) else text
    return str(error) or type(error).__name__
