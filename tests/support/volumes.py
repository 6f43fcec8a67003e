"""Disks for the pods of a lab: small ones that fill up, and one that blocks writes."""

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
    """A separate disk mounted on a folder that a pod sees, before the pod starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with suppress(OSError), (self.folder / _BALLAST).open("ab", buffering=0) as file:
            while True:
                file.write(_PIECE)
        with suppress(OSError), (self.folder / _BALLAST).open("ab", buffering=0) as file:
            while True:
                file.write(b"\0")

    def free(self) -> None:
        """Free the space again."""
        (self.folder / _BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Block every write."""
        _run("fsfreeze", "--freeze", self.folder)

    def thaw(self) -> None:
        """Unblock the writes."""
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
    """Mount a 64 MiB ext4 in a file, which can be frozen; always thawed at the end."""
    folder.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(64 << 20)
    _run("mkfs.ext4", "-q", image)
    _run("mount", "-o", "loop", image, folder)
    disk = Disk(folder)
    try:
        yield disk
    finally:
        with suppress(subprocess.CalledProcessError):  # it was not frozen
            disk.thaw()
        _run("umount", "--lazy", folder)
