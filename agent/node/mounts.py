"""What a folder lies on, by the kernel's own list of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.node.facts import Mount

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_SEPARATOR = " - "


def mount_of(folder: str, mounts: Path = _MOUNTS) -> Mount | None:
    """Return what a folder lies on, or would once it is made; None where that is not told."""
    place = Path(os.path.realpath(folder))
    above = {str(place), *map(str, place.parents)}
    found: Mount | None = None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:  # of two at one place the later one is on top
        where, kind, source = _parts(line)
        if where in above and (found is None or len(where) >= len(found.folder)):
            found = Mount(where, kind, source)
    return found


def _parts(line: str) -> tuple[str, str, str]:
    """Read a line: before the dash where it is mounted, behind it what."""
    before, _, behind = line.partition(_SEPARATOR)
    fields, (kind, source, *_) = before.split(" "), [*behind.split(" "), "", ""]
    where = fields[4] if len(fields) > 4 else ""
    return _plain(where), kind, _plain(source)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
