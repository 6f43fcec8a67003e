"""torch.compile: the first start, the second, and that of a node whose caches are seeded."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.processes.cache_program import CachePlace, save, seed
from tools.gpu.memory import read_last

if TYPE_CHECKING:
    from tools.gpu.part import Work

COMPILED = Path(__file__).parent / "inside" / "compiled.py"
ON_GPU, ON_CPUS = ("12", "1024"), ("1", "64")
"""Layers and width: on a GPU it compiles for most of a minute."""


def run(at: Work) -> None:
    """Start four times: cold, again, seeded from the agent's archive, and at another path."""
    place = CachePlace(
        volume=str(at.folder / "volume"),
        folder=str(at.folder / "node" / "caches"),
        archives=("gpu.tar.gz",),
        kind="gpu",
    )
    seed(place)
    cold = at.figures["cold"] = started(at, "cold", place.root)
    at.figures["again"] = again = started(at, "again", place.root)
    at.figures["archive"] = written(place)
    shutil.rmtree(place.root)
    at.figures["seeding"] = to_builtins(seed(place))
    at.figures["seeded"] = seeded = started(at, "seeded", place.root)
    elsewhere = at.folder / "elsewhere"
    place.root.rename(elsewhere)
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


def written(place: CachePlace) -> dict[str, float | int | str]:
    """Have the agent write its archive; return its size and time."""
    began = time.monotonic()
    result = save(place)
    return {
        "seconds": round(time.monotonic() - began, 2),
        "mb": round(place.own_archive.stat().st_size / 1e6, 2),
        "result": result.sentence,
    }
