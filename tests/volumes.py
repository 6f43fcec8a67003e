"""Disks for the pods of a lab: small ones that fill up, and one that blocks every write."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BALLAST = "ballast"
_PIECE = b"\0" * (1 << 16)


def _run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True, capture_output=True)


class Disk:
    """A disk of its own under a folder that a pod sees; mounted before the pod is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no room for another byte."""
        with suppress(OSError), (self.folder / _BALLAST).open("ab", buffering=0) as file:
            while True:
                file.write(_PIECE)
        with suppress(OSError), (self.folder / _BALLAST).open("ab", buffering=0) as file:
            while True:
                file.write(b"\0")

    def free(self) -> None:
        """Make room again."""
        (self.folder / _BALLAST).unlink()

    def freeze(self) -> None:
        """Have every write to it wait."""
        _run("fsfreeze", "--freeze", self.folder)

    def thaw(self) -> None:
        """Let the writes go on."""
        _run("fsfreeze", "--unfreeze", self.folder)


@contextmanager
def memory_disk(folder: Path, size: str) -> Iterator[Disk]:
    """Mount a small disk in memory."""
    folder.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", folder)
    try:
        yield Disk(folder)
    finally:
        _run("umount", "--lazy", folder)


@contextmanager
def loop_disk(folder: Path, image: Path) -> Iterator[Disk]:
    """Mount an ext4 of 64 MiB in a file, which can be frozen; thawed at the end in any case."""
    folder.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(64 << 20)
    _run("mkfs.ext4", "-q", image)
    _run("mount", "-o", "loop", image, folder)
    disk = Disk(folder)
    try:
        yield disk
    finally:
        with suppress(subprocess.CalledProcessError):  # it is not frozen
            disk.thaw()
        _run("umount", "--lazy", folder)
