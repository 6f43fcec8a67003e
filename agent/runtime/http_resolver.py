"""Resolve host names for aiohttp; apart from `dns`, since aiohttp takes 0.2 s to import."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver

from agent.runtime.dns import resolve

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult


class ThreadResolver(AbstractResolver):
    """aiohttp resolver that uses `resolve`, with its timeout."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return a host's addresses in aiohttp's form."""
        del family  # both families are tried, in order
        found = await resolve(host, self._limit)
        if isinstance(found, str):
            raise OSError(found)
        return [_resolve_result(host, address, port) for address in found]

    async def close(self) -> None:
        """Do nothing."""


def _resolve_result(host: str, address: str, port: int) -> ResolveResult:
    return {
        "hostname": host,
        "host": address,
        "port": port,
        "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
        "proto": 0,
        "flags": socket.AI_NUMERICHOST,
    }
