"""Reads a model's weights into the page cache, where the job's loaders find them.

A program of its own, since a read may hang with its disk. Its threads read below the priority of
all other programs, and no more than a share of the memory that is free when it begins.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from agent.base.text import error_text, gigabytes
from agent.node.read import cached_model
from agent.node.read_figures import read_host_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_OF_FREE = 0.9  # What the job needs at its start stays free
_THREADS = 4  # A network disk answers several reads at once; more threads take the job's CPUs
_PART = 32 << 20  # Bytes that one thread reads in a row, so that the kernel reads ahead of it
_READ = 4 << 20
_WEIGHTS = ("model*.safetensors", "*.safetensors", "*.bin")
"""The files of weights, the first that a model has: some have a second copy with other names."""


def read_ahead(model: str, revision: str | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Read a model's weights; return a sentence about it, and whether that is a success."""
    local = Path(model).expanduser()
    folder = local if local.is_dir() else cached_model(model, environ, revision)
    if folder is None:
        return "not read ahead: it is not on this machine", False
    memory = read_host_memory()
    room = (memory.total - memory.used) * MOST_OF_FREE
    try:
        return _read_weights(folder, int(room)), True
    except OSError as error:
        return f"not read ahead: {error_text(error)}", False


def _read_weights(folder: Path, room: int) -> str:
    """Read up to `room` bytes of the weights in a folder; return what was read."""
    files = next(filter(None, (sorted(folder.glob(names)) for names in _WEIGHTS)), [])
    sizes = {file: file.stat().st_size for file in files}
    parts = [(file, at) for file, size in sizes.items() for at in range(0, size, _PART)]

    began = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as threads:
        done = sum(threads.map(_read_part, parts[: room // _PART]))
    seconds = time.monotonic() - began

    whole = f"{gigabytes(sum(sizes.values()))} in {len(files)} file(s)"
    took = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if done < sum(sizes.values()):
        share = f"{MOST_OF_FREE:.0%} of the free memory"
        return f"{gigabytes(done)} of {whole} are in the page cache ({took}), which is {share}"
    return f"{whole} are in the page cache ({took})"


def _read_part(part: tuple[Path, int]) -> int:
    """Read a part of a file; return its length."""
    path, begin = part
    buffer = bytearray(_READ)
    done = 0
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while done < _PART and (count := file.readinto(buffer)):
            done += count
    return done


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
