"""`failure-….tar.gz`: the logs and records of a failed run in one file.

It holds the ends of logs, masked and without control characters, the most important first, within
a size limit. A thread writes it, since a disk may stall; an abandoned bundle leaves no file.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import error_text, plain
from agent.base.value import Value
from agent.record.files import PART_SUFFIX, numbered_names, read_end, safe_name
from agent.record.log_dir import log_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX = "failure-"
ENDING = ".tar.gz"
_KEPT = 3  # bundles of a run folder, the newest
MOST = 20 << 20  # total bytes of all members before compression
MOST_OF_ONE = 256 << 10
_LEAST = 512  # nothing is added once fewer bytes than this are left


class BundlePart(Value):
    """One member of a bundle: the end of a file, or a text."""

    name: str  # its path in the bundle
    source: Path | str
    most: int = MOST_OF_ONE  # bytes kept, from the end


def last_lines(path: Path, most: int, clean: Callable[[str], str]) -> str:
    """Return the last whole lines of a log, masked; '' without a file."""
    data = read_end(path, most) or b""
    if len(data) >= most:  # a secret that is cut in two would not be masked
        data = data.partition(b"\n")[2]
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


def new_bundle(folder: Path, at: float) -> Path:
    """Return a free path for a bundle that is made at a time."""
    name = f"{PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}"
    paths = (folder / f"{numbered}{ENDING}" for numbered in numbered_names(name))
    return next(path for path in paths if not log_dir.exists(path))


def make(path: Path, parts: Iterable[BundlePart], clean: Callable[[str], str], until: float) -> str:
    """Write the members available by `until` on the monotonic clock; return an error, or ''."""
    part = path.with_name(f".{path.name}{PART_SUFFIX}")
    try:
        _write(part, path.name.removesuffix(ENDING), parts, clean, until)
        if time.monotonic() < until + times.BUNDLE_EXTRA:  # else the caller has given it up
            log_dir.rename(part, path)
            _remove_old(path)
    except OSError as error:
        return error_text(error)
    except Exception as error:  # noqa: BLE001 - no error here may keep the run from ending
        return f"{type(error).__name__}: {error}"
    finally:
        with suppress(OSError):
            log_dir.remove(part)
    return ""


def _remove_old(newest: Path) -> None:
    """Remove all bundles of a folder but the newest ones."""
    names = log_dir.names(newest.parent)
    bundles = [name for name in names if name.startswith(PREFIX) and name.endswith(ENDING)]
    bundles.remove(newest.name)
    for name in bundles[: 1 - _KEPT]:
        with suppress(OSError):
            log_dir.remove(newest.with_name(name))


def _write(
    part: Path, top: str, parts: Iterable[BundlePart], clean: Callable[[str], str], until: float
) -> None:
    log_dir.remove(part)
    handle = log_dir.open_as_is(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    room = MOST
    with (
        open(handle, "wb") as file,  # noqa: PTH123 - a descriptor has no path
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive,
    ):
        for member in parts:
            if time.monotonic() >= until or room < _LEAST:
                return
            most = min(member.most, room)
            if isinstance(member.source, Path):
                text = last_lines(member.source, most, clean)
            else:
                text = masked_end(member.source, most, clean)
            if text:
                data = text.encode(errors="replace")
                _add(archive, [top, *member.name.split("/")], data)
                room -= len(data)


def _add(archive: tarfile.TarFile, path: Iterable[str], data: bytes) -> None:
    """Add a file that only its owner may read."""
    info = tarfile.TarInfo("/".join(map(safe_name, path)))
    info.size = len(data)
    info.mode = 0o600
    info.mtime = int(time.time())
    archive.addfile(info, io.BytesIO(data))
