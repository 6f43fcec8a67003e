"""torch.compile: the first start, the second, and that of a node whose caches are seeded."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.gpu.memory import read_last

if TYPE_CHECKING:
    from tools.gpu.part import Work

COMPILED = Path(__file__).parent / "inside" / "compiled.py"
ON_GPU, ON_CPUS = ("12", "1024"), ("1", "64")
"""Layers and width: on a GPU it compiles for most of a minute."""


def run(at: Work) -> None:
    """Start four times: cold, again, seeded at the same path, seeded at another path."""
    caches, archive = at.folder / "caches", at.folder / "caches.tar.gz"
    elsewhere = at.folder / "elsewhere"
    cold = at.figures["cold"] = started(at, "cold", caches)
    at.figures["again"] = again = started(at, "again", caches)
    at.figures["archive"] = pack(caches, archive)
    shutil.rmtree(caches)
    unpack(archive, at.folder)
    at.figures["seeded"] = seeded = started(at, "seeded", caches)
    caches.rename(elsewhere)
    at.figures["seeded_at_another_path"] = moved = started(at, "moved", elsewhere)
    for name, other in (("again", again), ("seeded", seeded), ("moved", moved)):
        at.figures[f"{name}_ratio"] = round(
            other["start_to_first_step"] / cold["start_to_first_step"], 3
        )


def started(at: Work, name: str, caches: Path) -> dict[str, Any]:
    """Compile in a new process with these caches; return its times."""
    layers, hidden = ON_GPU if at.has_gpu else ON_CPUS
    env = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "HF_HUB_OFFLINE": "1",
    }
    argv = [sys.executable, str(COMPILED), "--layers", layers, "--hidden", hidden]
    printed: dict[str, Any] = json.loads(read_last(at.run(name, argv, env)))
    return printed


def pack(caches: Path, archive: Path) -> dict[str, float | int]:
    """Write the caches as one archive; return its size and time."""
    began = time.monotonic()
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(caches, caches.name)
    files = [one for one in caches.rglob("*") if one.is_file()]
    return {
        "seconds": round(time.monotonic() - began, 2),
        "mb": round(archive.stat().st_size / 1e6, 2),
        "files": len(files),
        "mb_unpacked": round(sum(one.stat().st_size for one in files) / 1e6, 2),
    }


def unpack(archive: Path, folder: Path) -> None:
    """Unpack our own archive."""
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
