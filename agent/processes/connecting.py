"""Connect to a TCP port, with a deadline for all of its addresses."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol

import anyio

from agent.base.text import in_url
from agent.processes.resolving import resolve


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
    why = f"no answer from {where} within {limit:g} s"
    with anyio.CancelScope(deadline=deadline):
        for address in addresses:
            try:
                stream = await anyio.connect_tcp(address, port)
            except OSError as error:
                why = f"{reason(error.__cause__ or error)} by {where}"
                continue
            with suppress(OSError, anyio.BrokenResourceError):
                await stream.aclose()
            return ""
    return why


def reason(error: BaseException) -> str:
    """Return an OS error in lower case, such as 'connection refused'."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
