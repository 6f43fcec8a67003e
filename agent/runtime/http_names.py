"""Host names for aiohttp, whose own look-ups hold up our exit for as long as DNS is dead."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver

from agent.runtime.names import resolve

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult


class OwnResolver(AbstractResolver):
    """Looks names up as the rest of us does: in threads that nobody waits for."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return a host's addresses in aiohttp's form."""
        del family  # those of both are tried, in order
        found = await resolve(host, self._limit)
        if isinstance(found, str):
            raise OSError(found)
        return [_as_aiohttp_has_it(host, address, port) for address in found]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _as_aiohttp_has_it(host: str, address: str, port: int) -> ResolveResult:
    return {
        "hostname": host,
        "host": address,
        "port": port,
        "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
        "proto": 0,
        "flags": socket.AI_NUMERICHOST,
    }
