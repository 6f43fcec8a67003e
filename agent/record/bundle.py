"""`failure-….tar.gz`: all that there is to look at after a failure, in one file to hand on.

Only the ends of logs are in it, masked and without control characters, and it stays below a bound.
It is made by a thread, since a disk may stall; what is given up leaves nothing behind.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base import words
from agent.base.value import dataclass
from agent.record.files import PART, end_of, numbered, safe, why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX, ENDING = "failure-", ".tar.gz"
KEPT = 3
"""So many bundles of a run folder are kept, the newest."""
MOST = 20 << 20
"""Bytes of all members together, before they are compressed."""
MOST_OF_ONE = 256 << 10
CONTENTS = "contents.txt"
_LEAST = 512
"""Where less than this is left of all, nothing more goes in."""
_SLACK = 4096
"""So much is left out of a line that is longer than all that is read of a log."""


@dataclass(frozen=True)
class Part:
    """Something to put into a bundle: a file, of which the end is taken, or a text."""

    name: str
    """Its path in the bundle."""
    source: Path | str | Callable[[], str]
    most: int = MOST_OF_ONE
    """Bytes that are kept of it, the last ones."""


def last_lines(path: Path, most: int, clean: Callable[[str], str]) -> str | None:
    """Return the end of a log, masked and plain, in whole lines; None where there is none."""
    data = end_of(path, most)
    if data is None:
        return None
    if len(data) >= most:  # it may begin amid a secret, which nothing would find
        cut = data.find(b"\n") + 1
        data = data[cut or _SLACK :]
    return shown(data.decode(errors="replace"), most, clean)


def shown(text: str, most: int, clean: Callable[[str], str]) -> str:
    """Return a text's end, masked and plain, from the beginning of a line on.

    A secret may stand there with control characters in it, or only be found without them.
    """
    text = clean(words.plain(clean(text)))
    data = text.encode(errors="replace")
    if len(data) <= most:
        return text
    end = data[-most:].decode(errors="ignore")
    _, newline, rest = end.partition("\n")
    return rest if newline and rest else end


class Bundle:
    """One bundle: made by one thread, which another may give up."""

    def __init__(self, folder: Path, at: float) -> None:
        self._name = f"{PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}"
        names = (folder / f"{name}{ENDING}" for name in numbered(self._name))
        self.path = next(path for path in names if not os.path.lexists(path))
        self._at = at
        self._lock = threading.Lock()
        self._given_up = False
        self.is_there = False
        """True once it is in its place, whole."""
        self.fault = ""
        """Why there is none, where that is known."""

    def make(self, parts: Iterable[Part], clean: Callable[[str], str], until: float) -> None:
        """Write it, with what can be had by `until` on the monotonic clock."""
        part = self.path.with_name(f".{self.path.name}{PART}")
        try:
            self._write(part, parts, clean, until)
            with self._lock:
                if not self._given_up:
                    part.replace(self.path)
                    self.is_there = True
        except OSError as error:
            self.fault = why(error)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        if self.is_there:
            prune(self.path.parent)

    def give_up(self) -> bool:
        """Wait for it no longer; say whether it was there before."""
        with self._lock:
            self._given_up = True
            return self.is_there

    def _write(
        self, part: Path, parts: Iterable[Part], clean: Callable[[str], str], until: float
    ) -> None:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        told, left = [], MOST
        with (
            open(handle, "wb") as file,  # noqa: PTH123 - a descriptor has no path
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive,
        ):
            for one in parts:
                if self._given_up:
                    return
                if time.monotonic() >= until or left < _LEAST:
                    of = "room" if left < _LEAST else "time"
                    told.append(f"{one.name}: left out for want of {of}")
                    continue
                text = _text_of(one, min(one.most, left), clean)
                if not text:
                    continue
                size = self._add(archive, one.name, text)
                left -= min(left, size)
                told.append(f"{one.name}: {size} bytes{_from(one)}")
            self._add(archive, CONTENTS, "\n".join([*_ABOUT, "", *told, ""]))

    def _add(self, archive: tarfile.TarFile, name: str, text: str) -> int:
        data = text.encode(errors="replace")
        about = tarfile.TarInfo("/".join((self._name, *map(safe, name.split("/")))))
        about.size, about.mode, about.mtime = len(data), 0o600, int(self._at)
        archive.addfile(about, io.BytesIO(data))
        return len(data)


_ABOUT = (
    "What was to be had of a run that failed, of each log only its end.",
    "The secrets that the agent knows of are masked; look through it before you hand it on.",
)


def prune(folder: Path, kept: int = KEPT) -> None:
    """Remove all bundles of a run folder but the newest."""
    with suppress(OSError):
        found = sorted(folder.glob(f"{PREFIX}*{ENDING}"), key=lambda path: path.lstat().st_mtime)
        for path in found[: max(0, len(found) - kept)]:
            path.unlink(missing_ok=True)


def _text_of(part: Part, most: int, clean: Callable[[str], str]) -> str:
    if isinstance(part.source, Path):
        return last_lines(part.source, most, clean) or ""
    text = part.source if isinstance(part.source, str) else part.source()
    return shown(text, most, clean)


def _from(part: Part) -> str:
    return f", the end of {part.source}" if isinstance(part.source, Path) else ""
