"""torch's flight recorder: its variables, a dump on demand, and a reader that runs no code."""

from __future__ import annotations

import io
import os
import pickle
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.gpu.part import PartError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = (
    *("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
)
ENTRIES = 2000
DUMP_SECONDS = 20.0
POLL_SECONDS = 0.1
FRAMES = 3
DEFAULT = Path.home() / ".cache" / "torch"
"""Where torch writes dumps if it does not read the variable."""


class DumpError(Exception):
    """A dump that is more than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - it returns nothing
        raise DumpError(f"the dump names {module}.{name}")


def load(data: bytes) -> Any:  # noqa: ANN401 - lists, mappings, texts and numbers
    """Read a dump; raise DumpError if it is more than plain data."""
    return _PlainUnpickler(io.BytesIO(data)).load()  # it resolves no names


def variables(folder: Path) -> dict[str, str]:
    """Return the variables that turn the recorder on, by their present names."""
    return {
        "TORCH_FR_BUFFER_SIZE": str(ENTRIES),
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "dump_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "pipe_"),
    }


def names_in(libraries: list[Path]) -> dict[str, bool]:
    """Return which of the variables torch's libraries contain."""
    found = dict.fromkeys(NAMES, False)
    for library in libraries:
        with suppress(OSError):
            data = library.read_bytes()
            for name in NAMES:
                found[name] = found[name] or name.encode() + b"\0" in data
    return found


def dumped(folder: Path, seconds: float) -> dict[str, Path]:
    """Request a dump by each pipe; return the dumps by file name, once they no longer grow."""
    for pipe in folder.glob("*.pipe"):
        with suppress(OSError):  # without a reader
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(end, b"1\n")
            os.close(end)
    until, sizes = time.monotonic() + min(seconds, DUMP_SECONDS), dict[str, int]()
    while time.monotonic() < until:
        time.sleep(POLL_SECONDS * 5)
        found = {one.name: one for one in folder.glob("dump_*")}
        now = {name: path.stat().st_size for name, path in found.items()}
        if now and now == sizes and all(now.values()):
            return found
        sizes = now
    pipes = sorted(one.name for one in folder.glob("*.pipe"))
    others = sorted(one.name for one in DEFAULT.glob("*trace_rank_*"))
    where = f"pipes: {', '.join(pipes) or 'none'}; in {DEFAULT}: {', '.join(others) or 'none'}"
    raise PartError(f"no dump in {folder.name}; {where}")


def about(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a dump says about the last collectives."""
    entries = dump.get("entries", [])
    last = entries[-1] if entries else {}
    frames = [f"{one.get('name')} ({one.get('filename')}:{one.get('line')})"
              for one in last.get("frames", [])[:FRAMES]]  # fmt: skip
    keys = ("profiling_name", "state", "collective_seq_id", "pg_id", "timeout_ms")
    states: dict[str, int] = {}
    for entry in entries:
        states[str(entry.get("state"))] = states.get(str(entry.get("state")), 0) + 1
    return {
        "version": dump.get("version"),
        "keys": sorted(map(str, dump)),
        "entries": len(entries),
        "states": states,
        "last": {key: last.get(key) for key in keys},
        "last_frames": frames,
    }
