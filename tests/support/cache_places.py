"""Cache folders and volumes in a test's folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.processes.cache_folder import OWN_FOLDER
from agent.processes.cache_program import CachePlace

if TYPE_CHECKING:
    from agent.job.compile_caches import CompileCaches

KIND = "0123456789abcdef"
HEAD, WORKER = (f"x86_64-{KIND}-{role}-u0.tar.gz" for role in ("head", "worker"))
SEAL = "ab" * 32


def place_of(folder: Path, node: str, *, seal: str = "", is_head: bool = True) -> CachePlace:
    """Return the place of a node; all nodes share the volume."""
    archives = (HEAD, WORKER) if is_head else (WORKER, HEAD)
    return CachePlace(str(folder / "volume"), str(folder / node / "caches"), archives, KIND, seal)


def compile_here(place: CachePlace | CompileCaches, *paths: str, text: str = "code") -> None:
    """Write files into a node's folder, as a job that compiles does."""
    for path in paths:
        file = Path(place.folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def make_older(place: CachePlace | CompileCaches, path: str, seconds: float) -> None:
    """Give a file the time of a change so many seconds ago."""
    then = time.time() - seconds
    os.utime(Path(place.folder, path), (then, then))


def contents(place: CachePlace) -> dict[str, str]:
    """Return the files of a node's folder, without the program's own."""
    return {
        str(file.relative_to(place.root)): file.read_text()
        for file in place.root.rglob("*")
        if file.is_file() and OWN_FOLDER not in file.parts
    }
