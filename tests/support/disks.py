"""Disks of a few kilobytes, for tests with full disks."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.returncode == 0


needs_mount = pytest.mark.skipif(not _may_mount(), reason="only root may mount a disk")


@contextmanager
def full_disk(at: Path, options: str) -> Iterator[Path]:
    """Mount a small disk in memory, and unmount it afterwards."""
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def fill_up(folder: Path) -> Path:
    """Write a file until its disk is full; return the file."""
    path = folder / "fill"
    with path.open("wb", buffering=0) as file:
        for _ in range(3):  # tmpfs counts for each CPU: a page may be free again a moment later
            with suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
    return path


def fill_with_files(folder: Path) -> list[Path]:
    """Make files until the disk has room for no more; return them."""
    made: list[Path] = []
    with suppress(OSError):
        while True:
            path = folder / f"fill-{len(made)}"
            path.touch()
            made.append(path)
    return made


@contextmanager
def read_only(at: Path) -> Iterator[None]:
    """Make a folder read-only, like a disk with errors: open files stay writable."""
    subprocess.run(["mount", "--bind", str(at), str(at)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(at)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
