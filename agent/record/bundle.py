"""`failure-….tar.gz`: the logs and records of a failed run in one file.

It holds the ends of logs, masked and without control characters, within a size limit. A thread
writes it, since a disk may stall; an abandoned bundle leaves no file.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.text import error_text, plain
from agent.base.value import Value
from agent.record.files import PART_SUFFIX, numbered_names, read_end, safe_name

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX, ENDING = "failure-", ".tar.gz"
KEPT = 3  # bundles kept in a run folder, the newest ones
MOST = 20 << 20  # total bytes of all members before compression
MOST_OF_ONE = 256 << 10
CONTENTS = "contents.txt"
_LEAST = 512  # nothing is added once fewer bytes than this are left
_SLACK = 4096  # bytes cut from the front of a line longer than the part that is read


class BundlePart(Value):
    """One member of a bundle: the end of a file, or a text."""

    name: str  # its path in the bundle
    source: Path | str | Callable[[], str]
    most: int = MOST_OF_ONE  # bytes kept, from the end


def last_lines(path: Path, most: int, clean: Callable[[str], str]) -> str | None:
    """Return the last whole lines of a log, masked; None without a file."""
    data = read_end(path, most)
    if data is None:
        return None
    if len(data) >= most:  # a secret that is cut in two would not be masked
        cut = data.find(b"\n") + 1
        data = data[cut or _SLACK :]
    return masked_end(data.decode(errors="replace"), most, clean)


def masked_end(text: str, most: int, clean: Callable[[str], str]) -> str:
    """Return the end of a text from the start of a line, masked and without control characters.

    It is masked twice: control characters may be part of a secret, or hide one.
    """
    text = clean(plain(clean(text)))
    data = text.encode(errors="replace")
    if len(data) <= most:
        return text
    end = data[-most:].decode(errors="ignore")
    _, newline, rest = end.partition("\n")
    return rest if newline and rest else end


class Bundle:
    """One bundle; one thread makes it, another may give it up."""

    def __init__(self, folder: Path, at: float) -> None:
        self._name = f"{PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}"
        names = (folder / f"{name}{ENDING}" for name in numbered_names(self._name))
        self.path = next(path for path in names if not os.path.lexists(path))
        self._at, self._lock, self._given_up = at, threading.Lock(), False
        self.is_complete = False  # True once the file is complete
        self.fault = ""  # why there is no bundle, if known

    def make(self, parts: Iterable[BundlePart], clean: Callable[[str], str], until: float) -> None:
        """Write the bundle with the members available by `until` on the monotonic clock."""
        part = self.path.with_name(f".{self.path.name}{PART_SUFFIX}")
        try:
            self._write(part, parts, clean, until)
            with self._lock:
                if not self._given_up:
                    part.replace(self.path)
                    self.is_complete = True
        except OSError as error:
            self.fault = error_text(error)
        except Exception as error:  # noqa: BLE001 - no error here may keep the run from ending
            self.fault = f"{type(error).__name__}: {error}"
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        if self.is_complete:
            with suppress(OSError):  # keep the newest
                found = self.path.parent.glob(f"{PREFIX}*{ENDING}")
                for path in sorted(found, key=lambda path: path.lstat().st_mtime)[:-KEPT]:
                    path.unlink(missing_ok=True)

    def give_up(self) -> bool:
        """Give up the bundle; return whether it was complete before."""
        with self._lock:
            self._given_up = True
            return self.is_complete

    def _write(
        self, part: Path, parts: Iterable[BundlePart], clean: Callable[[str], str], until: float
    ) -> None:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        summary, left = [], MOST
        with (
            open(handle, "wb") as file,  # noqa: PTH123 - a descriptor has no path
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive,
        ):
            for one in parts:
                if self._given_up:
                    return
                if time.monotonic() >= until or left < _LEAST:
                    of = "room" if left < _LEAST else "time"
                    summary.append(f"{one.name}: left out: no {of} left")
                    continue
                origin, most = "", min(one.most, left)
                if isinstance(one.source, Path):
                    text = last_lines(one.source, most, clean) or ""
                    origin = f", the end of {one.source}"
                else:
                    text = one.source if isinstance(one.source, str) else one.source()
                    text = masked_end(text, most, clean)
                if text:
                    size = self._add(archive, one.name, text)
                    left -= min(left, size)
                    summary.append(f"{one.name}: {size} bytes{origin}")
            self._add(archive, CONTENTS, "\n".join([*_ABOUT, "", *summary, ""]))

    def _add(self, archive: tarfile.TarFile, name: str, text: str) -> int:
        data = text.encode(errors="replace")
        about = tarfile.TarInfo("/".join((self._name, *map(safe_name, name.split("/")))))
        about.size, about.mode, about.mtime = len(data), 0o600, int(self._at)
        archive.addfile(about, io.BytesIO(data))
        return len(data)


_ABOUT = (
    "Records and logs of a run that failed; each log is cut to its end.",
    "Secrets from the settings are masked; check the files before you share them.",
)
