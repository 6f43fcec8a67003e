"""Which disk a path lies on, named alike by all nodes that share it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_LOCAL = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "aufs"),
        *("tmpfs", "ramfs", "rootfs", "vfat", "squashfs"),
    }
)
"""File systems of one machine; any other is taken for one that others may have, too."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def disk_of(path: str) -> str:
    """Name the disk under a path; nodes that may share it name it alike.

    Two that name it alike need not share it: they take turns then, which costs time and no data.
    So a network file system goes by its kind alone: one server has many names.
    """
    folder = _there_already(Path(path).parent)
    with suppress(OSError, ValueError):
        kind = _kind_of(folder.resolve(), _MOUNTS.read_text(errors="replace"))
        if kind not in _LOCAL:
            return kind
        return f"{_BOOT.read_text(encoding='ascii').strip()} {os.stat(folder).st_dev}"  # noqa: PTH116 - one call
    return "?"


def free_at(folder: str) -> int | None:
    """Return the bytes that are free where a folder lies, or will; None where that is not told."""
    with suppress(OSError):
        return shutil.disk_usage(_there_already(Path(folder))).free
    return None


def weights_in(model: str | None) -> int:
    """Return the bytes of a model's weights, where it is a folder of this machine; else 0."""
    if not model:
        return 0
    for pattern in _WEIGHTS:  # one kind: some models come in two
        with suppress(OSError):
            sizes = [file.stat().st_size for file in Path(model).glob(pattern)]
            if sizes:
                return sum(sizes)
    return 0


def _there_already(folder: Path) -> Path:
    """Return the nearest folder on the way up that is there."""
    return next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))


def _kind_of(folder: Path, mounts: str) -> str:
    """Return the type of what is mounted where a folder lies."""
    found = ("", "?")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].replace("\\040", " ")
        is_above = folder == Path(point) or Path(point) in folder.parents
        if is_above and len(point) >= len(found[0]):
            found = (point, after.partition(" ")[0])
    return found[1]
