"""Finds the disk of a path, and its free space."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from agent.node.facts import Mount

_LOCAL = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "aufs"),
        *("tmpfs", "ramfs", "rootfs", "vfat", "squashfs"),
    }
)
"""File systems of one machine; all others may be shared."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def disk_of(path: str) -> str:
    """Return a name for the disk of a path that is equal on all nodes that may share it.

    Equal names do not prove a shared disk: such nodes only take turns, which costs time but no
    data. A network file system is named by its type only, since one server has many names.
    """
    folder = _existing_parent(Path(path).parent)
    mount = mount_of(str(folder))
    if mount is None or mount.kind not in _LOCAL:
        return "?" if mount is None else mount.kind
    with suppress(OSError):
        return f"{_BOOT.read_text(encoding='ascii').strip()} {folder.stat().st_dev}"
    return "?"


def free_at(folder: str) -> int | None:
    """Return the free bytes on the disk of a folder, which need not exist; None if unknown."""
    with suppress(OSError):
        return shutil.disk_usage(_existing_parent(Path(folder))).free
    return None


def weights_in(model: str | None) -> int:
    """Return the bytes of a model's weights if it is a local folder, else 0."""
    if not model:
        return 0
    for pattern in _WEIGHTS:  # only one format: some models contain two
        with suppress(OSError):
            sizes = [file.stat().st_size for file in Path(model).glob(pattern)]
            if sizes:
                return sum(sizes)
    return 0


def _existing_parent(folder: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    return next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))


_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_of(folder: str, mounts: Path = _MOUNTS) -> Mount | None:
    """Return the mount of a folder, which need not exist; None if unknown."""
    place = Path(os.path.realpath(folder))
    above = {str(place), *map(str, place.parents)}
    found: Mount | None = None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:  # a later mount at the same place is on top
        where, kind, source = _parts(line)
        if where in above and (found is None or len(where) >= len(found.folder)):
            found = Mount(where, kind, source)
    return found


def _parts(line: str) -> tuple[str, str, str]:
    """Parse a line into mount point, type and source."""
    before, _, behind = line.partition(" - ")
    fields, (kind, source, *_) = before.split(" "), [*behind.split(" "), "", ""]
    where = fields[4] if len(fields) > 4 else ""
    return _unescaped(where), kind, _unescaped(source)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
