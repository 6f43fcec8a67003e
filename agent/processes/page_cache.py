"""Reads a model's files into the page cache, so that the job's loaders find them in memory.

A program of its own, since a read may hang with its disk. It reads each file once, in the order in
which loaders do, with a few threads, and below the priority of all others. It reads no more than
the free memory holds, and stops when other programs need that memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from agent.base.text import error_text, gigabytes
from agent.node import limits
from agent.node.python_facts import text_of
from agent.node.read import cached_model, mount_of
from agent.node.read_figures import read_host_memory
from agent.record.background import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent.node.read_figures import HostMemory

_MEMORY_LOOK = 0.5  # Between two looks at the memory while the model is read ahead.
MOST_OF_FREE = 0.9  # Of the free memory: what the job needs at its start stays free
THREADS = 4  # A network disk answers several reads at once; more threads take the job's CPUs
PRESSURE = 10  # Percent of ten seconds in which some program waited for memory
_PART = 32 << 20  # Bytes that one thread reads in a row, so that the kernel reads ahead of it
_READ = 4 << 20
_SMALL = 64 << 20  # Of files without weights: the tokenizer's are below this
_WEIGHTS = ("safetensors", "bin", "pt", "pth")
"""The formats of weights in the order in which frameworks prefer them."""
_OF_OTHERS = {"gguf", "h5", "msgpack", "onnx", "ot", "tflite", "ckpt"}
"""Formats that no supported framework loads."""
_IN_MEMORY = {"tmpfs", "ramfs"}
_UNREADABLE = (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError)
"""What an index that is no index raises; the last for one nested too deeply."""


# --- which files, and in which order --------------------------------------------------------------


def folder_of_model(model: str, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a model: a local one, or the one in the hub's cache; None without."""
    local = Path(model).expanduser()
    if local.exists():
        return local
    return cached_model(model, environ, revision)


def files_in_order(folder: Path) -> list[Path]:
    """Return a model's files as loaders read them: small ones, then the weights of one format."""
    if folder.is_file():
        return [folder]
    files = sorted(path for path in folder.iterdir() if path.is_file())
    by_format: dict[str, list[Path]] = {}
    for path in files:
        by_format.setdefault(path.suffix.removeprefix(".").lower(), []).append(path)

    # The tokenizer and the configuration come first.
    weights = {*_WEIGHTS, *_OF_OTHERS}
    small = [
        path
        for kind, paths in by_format.items()
        if kind not in weights
        for path in paths
        if path.stat().st_size <= _SMALL
    ]

    # Of the weights those that the index names: some models have a second copy beside them.
    chosen = next((by_format[kind] for kind in _WEIGHTS if kind in by_format), [])
    indexed = _names_in_index(folder, {path.suffix for path in chosen})
    return [*sorted(small), *(path for path in chosen if not indexed or path.name in indexed)]


def _names_in_index(folder: Path, suffixes: set[str]) -> set[str]:
    """Return the names of the files in the index of a model's weights; empty without an index."""
    for suffix in suffixes:
        for path in folder.glob(f"*{suffix}.index.json"):
            with suppress(*_UNREADABLE):
                return set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    return set()


# --- the memory -----------------------------------------------------------------------------------


def pressure(proc: Path = limits.PROC, base: Path = limits.BASE) -> float:
    """Return the percent of the last ten seconds in which a program waited for memory, or 0."""
    files = [folder / "memory.pressure" for folder in limits.folders("memory", proc, base)]
    for file in (*files, proc / "pressure/memory"):
        for line in text_of(file).splitlines():
            kind, _, fields = line.partition(" ")
            values = dict(field.split("=") for field in fields.split())
            if kind == "some" and "avg10" in values:
                return float(values["avg10"])
    return 0.0


class FreeMemory:
    """The memory that may be filled with files."""

    def __init__(
        self,
        memory: Callable[[], HostMemory] = read_host_memory,
        stalled: Callable[[], float] = pressure,
    ) -> None:
        self._memory = memory
        self._stalled = stalled
        self._free = self._read_free()
        self.size = int(self._free * MOST_OF_FREE)

    def is_needed(self, filled: int) -> bool:
        """Return whether other programs need memory that `filled` bytes of files have."""
        free = self._read_free() - filled
        return free < (self._free - self.size) / 2 or self._stalled() > PRESSURE

    def _read_free(self) -> int:
        """Return the free bytes; the page cache counts as free."""
        memory = self._memory()
        return memory.total - memory.used


# --- the reading ----------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of a file."""

    path: Path
    begin: int
    size: int


class ReadAhead:
    """Reads files once, in their order, within the memory that is free."""

    def __init__(self, files: Sequence[Path], room: FreeMemory) -> None:
        self._room = room
        self._sizes = {path: path.stat().st_size for path in files}
        self._parts = self._cut()
        self._lock = threading.Lock()
        self._done = threading.Event()  # set to stop
        self._error = ""
        self.read = 0

    def _cut(self) -> Iterator[Part]:
        """Yield the parts in order, up to the size of the room."""
        room = self._room.size
        for path, size in self._sizes.items():
            for begin in range(0, size, _PART):
                part = Part(path, begin, min(_PART, size - begin))
                if part.size > room:
                    return
                room -= part.size
                yield part

    def run(self) -> str:
        """Read until all is read, or other programs need the memory; return what was done."""
        began = time.monotonic()
        running = [start_thread(self._read_parts) for _ in range(THREADS)]
        threads = [thread for thread in running if thread is not None]
        if not threads:
            self._read_parts()  # `pids.max` allows no thread

        # Watch the memory until the threads are done.
        stopped = ""
        while threads:
            if self._room.is_needed(self.read):
                stopped = "other programs need the memory"
                self._done.set()
                break
            threads[0].join(_MEMORY_LOOK)
            threads = [thread for thread in threads if thread.is_alive()]
        return self._sentence(time.monotonic() - began, stopped)

    def _read_parts(self) -> None:
        buffer = bytearray(_READ)
        try:
            while not self._done.is_set():
                with self._lock:
                    part = next(self._parts, None)
                if part is None:
                    return
                self._read_part(part, buffer)
        except OSError as error:
            self._error = error_text(error)
            self._done.set()

    def _read_part(self, part: Part, buffer: bytearray) -> None:
        end = part.begin + part.size
        at = part.begin
        with part.path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), at, part.size, os.POSIX_FADV_SEQUENTIAL)
            while at < end and not self._done.is_set():
                count = os.preadv(file.fileno(), [memoryview(buffer)[: min(_READ, end - at)]], at)
                if count == 0:  # the file was cut meanwhile
                    return
                at += count
                with self._lock:
                    self.read += count

    def _sentence(self, seconds: float, stopped: str) -> str:
        whole = sum(self._sizes.values())
        took = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
        why = self._error or stopped
        of_all = f"{gigabytes(self.read)} of {gigabytes(whole)}"
        if why:
            return f"stopped reading ahead after {of_all} ({took}): {why}"
        if self.read < whole:
            free = f"{MOST_OF_FREE:.0%} of the free memory"
            return f"{of_all} are in the page cache ({took}), which is {free}"
        return f"{gigabytes(whole)} in {len(self._sizes)} file(s) are in the page cache ({took})"


def read_ahead(
    model: str, revision: str | None, environ: Mapping[str, str], room: FreeMemory | None = None
) -> tuple[str, bool]:
    """Read a model's files; return a sentence about it, and whether that is a success."""
    try:
        folder = folder_of_model(model, revision, environ)
        if folder is None:
            return "not read ahead: it is not on this machine", False
        files = files_in_order(folder)
        mount = mount_of(str(folder))
        if mount is not None and mount.kind in _IN_MEMORY:
            return f"not read ahead: {folder} is in memory already ({mount.kind})", True
        reading = ReadAhead(files, room or FreeMemory())
        return reading.run(), True
    except OSError as error:
        return f"not read ahead: {error_text(error)}", False


def lower_priority() -> None:
    """Let all other programs have the CPUs and the disk first."""
    os.nice(19)
    with suppress(OSError, psutil.Error, AttributeError):  # a sandbox may refuse it
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def main(argv: Sequence[str]) -> int:
    """Read one model; the last line of the output says what was done."""
    parser = argparse.ArgumentParser(prog="pod-agent read-ahead", description=__doc__)
    parser.add_argument("model", help="folder, or id on the hub")
    parser.add_argument("--revision", help="branch, tag or commit; default: the newest")
    asked = parser.parse_args(argv)
    lower_priority()
    sentence, _ = read_ahead(asked.model, asked.revision, os.environ)
    print(sentence, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
