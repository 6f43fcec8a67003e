"""Python's compiled files of installed packages: which are archived, and where they belong.

uv installs packages without .pyc files unless asked, and Python writes each as it first imports its
source. A fresh node has none again: for TRL, 15 s of CPU. They lie beside their sources, as Python
puts them. In an archive the name of one has a digest of its source: on another node it counts only
where the source is the same, and gets the time that the source has there.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import struct
import sys
from contextlib import suppress
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING

from agent.caches.cache_files import PYTHON, CacheFile, Target
from agent.node.python_facts import INSTALLED_IN, TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD = struct.Struct("<4sIII")
"""Of a .pyc file: a number of Python's version, 0, time and size of its source."""
_32_BITS = 0xFFFFFFFF
_FOLDER = "__pycache__"
_SUFFIX = f".{sys.implementation.cache_tag}.pyc"
_DIGITS = 32  # of a source's digest


def lacks_compiled(folders: Sequence[str]) -> bool:
    """Return whether torch is installed in one of these folders without its .pyc file."""
    for folder in folders:
        source = Path(folder, TORCH, "__init__.py")
        if source.is_file():
            return not _compiled(source).is_file()
    return False


def _compiled(source: Path) -> Path:
    """Return where Python looks for the compiled file of a source."""
    return source.parent / _FOLDER / f"{source.stem}{_SUFFIX}"


def file_of(path: str) -> str:
    """Return the compiled file of an archive's path."""
    return str(_compiled(_source_of(path)))


def _source_of(path: str) -> Path:
    """Return the source that an archive's path names: `python/<digest>/usr/lib/…/x.py`."""
    _, _, rest = path.split("/", 2)
    return Path("/", rest)


def list_compiled(folders: Sequence[str], since: float) -> list[CacheFile]:
    """Return the compiled files that are whole and belong to their sources, by archive path.

    Those from before `since` are the image's own: another node has them, too.
    """
    return [file for folder in folders for file in _of_folder(folder, since)]


def _of_folder(folder: str, since: float) -> Iterator[CacheFile]:
    for at, names, _ in os.walk(folder):
        # Packages that are installed below the standard library have a folder of their own.
        names[:] = [name for name in names if name not in INSTALLED_IN]
        if _FOLDER not in names:
            continue
        names.remove(_FOLDER)
        with suppress(OSError), os.scandir(f"{at}/{_FOLDER}") as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) and entry.stat().st_mtime >= since:
                    file = _checked(Path(at, f"{entry.name.removesuffix(_SUFFIX)}.py"))
                    if file is not None:
                        yield file


def _checked(source: Path) -> CacheFile | None:
    """Return the compiled file of a source; None where it is cut, or of another text.

    A full disk may leave one that is cut, of which each import fails.
    """
    compiled = _compiled(source)
    try:
        data = compiled.read_bytes()
        text = source.read_bytes()
        time_ns = compiled.stat().st_mtime_ns
        head = _head_of(source)
    except OSError:  # a source may be gone, and another process may replace the file
        return None
    if data[: _HEAD.size] != head:
        return None
    try:
        marshal.loads(data[_HEAD.size :])  # noqa: S302 - Python itself loads it at each import
    except (EOFError, ValueError, TypeError):
        return None
    return CacheFile(f"{PYTHON}/{_digest_of(text)}{source}", len(data), time_ns)


def _head_of(source: Path) -> bytes:
    """Return how the compiled file of a source begins."""
    status = source.stat()
    return _HEAD.pack(MAGIC_NUMBER, 0, int(status.st_mtime) & _32_BITS, status.st_size & _32_BITS)


def _digest_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_DIGITS]


def target_of(path: str, folders: Sequence[str]) -> Target | None:
    """Return where to write an archive's file; None where it is there, or its source is another."""
    source = _source_of(path)
    compiled = _compiled(source)
    is_installed = any(source.is_relative_to(folder) for folder in folders)
    if not is_installed or source.suffix != ".py" or os.path.lexists(compiled):
        return None
    try:
        text = source.read_bytes()
        head = _head_of(source)
        if path.split("/", 2)[1] != _digest_of(text):
            return None
        compiled.parent.mkdir(exist_ok=True)
    except OSError:  # this node has no such source, or its folder takes no files
        return None
    return Target(str(compiled), head, is_public=True)
