"""Weights from a slow disk: loaded cold, and after `pod-agent` has read them ahead."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.base.text import own_command
from tools.lab import slow_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARD = 1_000_000_000
_LOADER = """
import glob, mmap, sys
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as weights:
        for at in range(0, len(weights), 1 << 22):
            weights[at : at + (1 << 22)]
"""
"""Reads mapped shards one after the other, as safetensors' loaders do by default."""


class WeightFigures(NamedTuple):
    """Seconds, and what the page cache had lost again."""

    cold: float  # the loader alone
    ahead: float  # the reading ahead
    warmed: float  # the loader after it
    read_again: float  # the share of the weights that it read from the disk once more


@contextmanager
def _slow_model(shards: int, speed: slow_disk.Speed) -> Iterator[tuple[Path, slow_disk.SlowDisk]]:
    """Mount a model of empty shards, of which the page cache holds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        place = Path(folder, "slow")
        place.mkdir()
        (source / "model").mkdir(parents=True)
        for number in range(1, shards + 1):
            name = f"model-{number:05}-of-{shards:05}.safetensors"
            with (source / "model" / name).open("wb") as file:
                file.truncate(_SHARD)
        with slow_disk.mounted(source, place, speed) as disk:
            yield place / "model", disk


def _seconds(argv: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=sys.stderr)
    return time.monotonic() - began


def measure_weights(shards: int, speed: slow_disk.Speed) -> WeightFigures:
    """Load the shards cold, then read them ahead and load them again, from disks that are alike."""
    load = [sys.executable, "-c", _LOADER]
    with _slow_model(shards, speed) as (model, _):
        cold = _seconds([*load, str(model)])
    with _slow_model(shards, speed) as (model, disk):
        ahead = _seconds(own_command(sys.executable, "read-ahead", str(model)))
        before = disk.bytes_read
        warmed = _seconds([*load, str(model)])
        again = (disk.bytes_read - before) / (shards * _SHARD)
    return WeightFigures(cold, ahead, warmed, again)


def show_weights(gigabytes: int) -> None:
    """Measure and print."""
    speed = slow_disk.Speed(delay=0.004, rate=400e6)
    found = measure_weights(gigabytes, speed)
    print(f"{gigabytes} GB, each read of 128 KiB takes 4 ms, all together 400 MB/s at most")
    again = f"{found.read_again:.1%} read from the disk again"
    print(f"cold {found.cold:.1f} s; ahead {found.ahead:.1f} s; then {found.warmed:.1f} s, {again}")
