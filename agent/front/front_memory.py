"""The file from which the next process of a front reads which weights each member has."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from agent.base.typed import decode
from agent.front.front_members import Front, restored

if TYPE_CHECKING:
    from collections.abc import Callable


_WRITTEN = 2.0  # Seconds that an update waits for the disk: a stalled one must not stop a training.


class FrontMemory:
    """The file of a front; '' for none."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._newest = Front()
        self._saves = 0
        self._written = 0
        self._is_new = anyio.Event()
        self._is_written = anyio.Event()
        self._has_failed = False

    def read(self, now: float) -> Front:
        """Return the front as it was saved, or a new one."""
        new = Front(began=time.time())
        if not self._path:
            return new
        try:
            saved = decode(Path(self._path).read_bytes(), Front)
        except FileNotFoundError:
            return new
        except (OSError, msgspec.MsgspecError) as problem:
            self._say(f"cannot read {self._path}: {problem}")
            return new
        self._say(f"goes on from {self._path}, in attempt {saved.attempt}")
        return restored(saved, now)

    def save(self, front: Front) -> None:
        """Save a front soon."""
        self._newest = front
        self._saves += 1
        self._is_new.set()

    async def written(self) -> None:
        """Wait until all that was saved so far is on the disk."""
        saves = self._saves
        with anyio.move_on_after(_WRITTEN):
            while self._path and self._written < saves:
                await self._is_written.wait()

    async def write_all(self) -> None:
        """Write the newest front after each change, in a thread: a stalled disk delays nothing."""
        while self._path:
            await self._is_new.wait()
            self._is_new = anyio.Event()
            saves = self._saves
            content = msgspec.json.encode(self._newest)
            try:
                await asyncio.to_thread(self._write, content)
            except OSError as problem:
                if not self._has_failed:
                    self._say(f"cannot write {self._path}: {problem}")
                self._has_failed = True
            self._written = saves
            self._is_written.set()
            self._is_written = anyio.Event()

    def _write(self, content: bytes) -> None:
        # The trainer's requests may have credentials.
        temporary = f"{self._path}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(self._path)
