"""A node that writes to a volume, or is seeded from it, many times.

What a file has follows from its path, so that each node knows what is right.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

from agent.caches.cache_folder import CachePlace
from agent.caches.cache_store import save, seed
from support.cache_places import ARCHIVE, KIND, SEALED

_BYTES = 2000


def right_bytes(path: str) -> bytes:
    """Return what is in the file of this path, which cannot be compressed."""
    return random.Random(path).randbytes(_BYTES)  # noqa: S311 - no secret


def place_of_node(folder: Path, name: str, volume: str) -> CachePlace:
    """Return the place of a node with this volume."""
    return CachePlace(volume, str(folder / name / "caches"), ARCHIVE, KIND)


def write(folder: Path, name: str, volume: str, rounds: int) -> None:
    """Compile one file more in each round, and write it back in a run of its own."""
    place = place_of_node(folder, name, volume)
    seed(place, SEALED)
    for number in range(rounds):
        path = f"triton/{name}-{number}/x"
        file = place.root / path
        file.parent.mkdir(parents=True)
        file.write_bytes(right_bytes(path))
        print(save(place, SEALED, f"run-of-{name}-{number}", name), flush=True)


def read(folder: Path, name: str, volume: str, rounds: int) -> None:
    """Be seeded as a fresh node in each round, and compare all files."""
    for _ in range(rounds):
        place = place_of_node(folder, name, volume)
        seeded = seed(place, SEALED)
        wrong = 0
        for file in place.root.glob("*/*/x"):
            wrong += file.read_bytes() != right_bytes(str(file.relative_to(place.root)))
        print(f"{seeded.state}, {wrong} wrong: {seeded.sentence}", flush=True)
        shutil.rmtree(place.root.parent)


if __name__ == "__main__":
    role, own_name, own_folder, own_volume, many = sys.argv[1:]
    act = {"write": write, "read": read}[role]
    act(Path(own_folder), own_name, own_volume, int(many))
