"""Records held in memory while the log disk takes no writes.

The parent makes a file in memory and keeps it open: it outlives an agent that is killed. Before
each write of `node.json` or `run.json` the new content is written here, and removed once the disk
has it. The next agent reads what is left as if it were on the disk.
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
_LONGEST_TEXT = 8 * 1024 * 1024  # of a record; two of them, in JSON, fit into a slot
_SLOT = 64 * 1024 * 1024  # A file in memory is sparse: an unused slot costs nothing


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

    def keep(self, path: Path, text: str) -> bool:
        """Keep a record's content until the disk has it; return whether the next agent gets it."""
        with self._changed:
            self._former.discard(path.name)
            unsaved = {name: kept for name, kept in self._unsaved.items() if name != path.name}
            is_small = len(text) < _LONGEST_TEXT
            if is_small:
                unsaved[path.name] = (str(path.absolute()), text)
            return self._save(unsaved) and is_small

    def forget(self, path: Path, text: str) -> None:
        """Forget a record that the disk has now; a later one stays."""
        with self._changed:
            if path.name in self._unsaved and self._unsaved[path.name][1] == text:
                unsaved = {name: kept for name, kept in self._unsaved.items() if name != path.name}
                self._save(unsaved)

    def _save(self, unsaved: dict[str, tuple[str, str]]) -> bool:
        """Write what is not on the disk to the parent's file; return whether it is written."""
        self._unsaved = unsaved
        if self._descriptor is None:
            return False
        is_written = _write_slot(self._descriptor, self._number + 1, unsaved)
        self._number += is_written
        return is_written

    def path_of(self, name: str) -> Path | None:
        """Return where a killed agent's record of this name belongs; None if there is none."""
        with self._changed:
            return Path(self._unsaved[name][0]) if name in self._former else None

    def text_of(self, path: Path) -> str | None:
        """Return what a killed agent could not write to this path."""
        with self._changed:
            if path.name not in self._former:
                return None
            kept_for, text = self._unsaved[path.name]
        return text if kept_for == str(path.absolute()) else None


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


def _write_slot(descriptor: int, number: int, unsaved: dict[str, tuple[str, str]]) -> bool:
    """Write to the slot of the write before the last; return whether it is written whole.

    An agent may be killed amid a write: the other slot then has the content before it.
    """
    data = json.dumps(unsaved).encode()
    data = _HEADER.pack(number, len(data), zlib.crc32(data)) + data
    try:
        return os.pwrite(descriptor, data, number % 2 * _SLOT) == len(data)
    except OSError:  # no room in memory either: the disk's warning is logged already
        return False


record_memory = RecordMemory()
"""The memory of this process; nothing is attached in verbs other than `run`."""
