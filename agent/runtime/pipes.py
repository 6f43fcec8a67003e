"""A child's pipes as byte streams."""

from __future__ import annotations

import asyncio
from typing import IO, TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Pipes:
    """The pipes through which a child is talked to; a child without has none."""

    stdin: PipeWriter | None = None
    stdout: PipeReader | None = None

    def close(self) -> None:
        """Close both ends of ours."""
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()


class PipeReader(ByteReceiveStream):
    """Our end of a child's stdout."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._reader = reader
        self._transport = transport

    @classmethod
    async def connect(cls, pipe: IO[bytes]) -> PipeReader:
        """Read a pipe through the event loop, which closes it at its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_CHUNK)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, pipe)
        return cls(reader, transport)

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        """Return what has come, at least one byte of it."""
        data = await self._reader.read(max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    def close(self) -> None:
        """Read no more."""
        self._transport.close()

    async def aclose(self) -> None:
        """Read no more."""
        self.close()

    @property
    def extra_attributes(self) -> Mapping[Any, Any]:
        """Say that there is nothing to tell beside the bytes."""
        return {}


class PipeWriter(ByteSendStream):
    """Our end of a child's stdin."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @classmethod
    async def connect(cls, pipe: IO[bytes]) -> PipeWriter:
        """Write to a pipe through the event loop."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()  # never fed; the writer hears of a closed pipe from it
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_write_pipe(lambda: protocol, pipe)
        return cls(asyncio.StreamWriter(transport, protocol, reader, loop))

    async def send(self, item: bytes) -> None:
        """Write it all; wait while the child does not read."""
        if self._writer.is_closing():
            raise anyio.ClosedResourceError
        self._writer.write(item)
        try:
            await self._writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise anyio.BrokenResourceError from None

    def close(self) -> None:
        """Write no more."""
        self._writer.close()

    async def aclose(self) -> None:
        """Write no more."""
        self.close()

    @property
    def extra_attributes(self) -> Mapping[Any, Any]:
        """Say that there is nothing to tell beside the bytes."""
        return {}
