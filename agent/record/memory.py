"""Records held in memory while the log disk takes no writes.

The parent makes a file in memory and keeps it open: it outlives an agent that is killed. While the
disk takes no write of `node.json` or `run.json`, the newest content is written here instead, and
the next agent reads it as if it were on the disk.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from contextlib import suppress
from pathlib import Path

_HEADER = struct.Struct(">QII")  # the number of the write, the length and the checksum of the text
_SLOT = 16 * 1024 * 1024  # A file in memory is sparse: an unused slot costs nothing


class RecordMemory:
    """The newest content of each record that is not on the disk, by the name of its file."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._unsaved: dict[str, tuple[str, str]] = {}  # name to path and text
        self._former: set[str] = set()  # the names that a killed agent left, and this one reads
        self._number = 0
        self._changed = threading.Lock()  # each record is written by a thread

    def attach(self, descriptor: int | None) -> None:
        """Use the parent's file; read what a killed agent left in it."""
        self._descriptor = descriptor
        if descriptor is None:
            return
        for slot in (0, 1):
            number, unsaved = _read_slot(descriptor, slot)
            if number > self._number:
                self._number = number
                self._unsaved = unsaved
        self._former = set(self._unsaved)

    def keep(self, path: Path, text: str | None) -> None:
        """Keep a record's content until the disk takes one; None: it did."""
        with self._changed:
            self._former.discard(path.name)
            if text is None and path.name not in self._unsaved:
                return
            if text is None:
                del self._unsaved[path.name]
            else:
                self._unsaved[path.name] = (str(path), text)
            if self._descriptor is not None:
                self._number += 1
                _write_slot(self._descriptor, self._number, self._unsaved)

    def path_of(self, name: str) -> Path | None:
        """Return where a killed agent's record of this name belongs; None if there is none."""
        return Path(self._unsaved[name][0]) if name in self._former else None

    def text_of(self, path: Path) -> str | None:
        """Return what a killed agent could not write to this path."""
        if self.path_of(path.name) != path:
            return None
        return self._unsaved[path.name][1]


def _read_slot(descriptor: int, slot: int) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the number and content of a slot; 0 if it is empty, or its write was cut off."""
    with suppress(OSError, ValueError, struct.error):
        number, length, checksum = _HEADER.unpack(
            os.pread(descriptor, _HEADER.size, slot * _SLOT),
        )
        data = os.pread(descriptor, length, slot * _SLOT + _HEADER.size)
        if zlib.crc32(data) == checksum:
            return number, {name: (path, text) for name, (path, text) in json.loads(data).items()}
    return 0, {}


def _write_slot(descriptor: int, number: int, unsaved: dict[str, tuple[str, str]]) -> None:
    """Write to the slot of the write before the last: an agent may be killed amid a write."""
    data = json.dumps(unsaved).encode()
    if len(data) > _SLOT - _HEADER.size:
        return
    with suppress(OSError):  # no room in memory either: the disk's warning is logged already
        header = _HEADER.pack(number, len(data), zlib.crc32(data))
        os.pwrite(descriptor, header + data, number % 2 * _SLOT)


record_memory = RecordMemory()
"""The memory of this process; nothing is attached in verbs other than `run`."""
