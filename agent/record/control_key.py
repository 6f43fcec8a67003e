"""`control.key`: what proves, where there is no token, that a caller is on the head's node."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.record.files import read_small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "control.key"


def make(folder: Path) -> str | None:
    """Leave a new random key for this node's users; None where the disk takes none."""
    key, path = secrets.token_hex(16), folder / FILE
    try:
        path.unlink(missing_ok=True)  # a former life's, or whatever else lies there
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(key)
    except OSError:
        return None
    return key


def found_in(root: Path) -> Iterator[str]:
    """Yield the keys of the newest run under a log folder, as far as we may read them."""
    for path in sorted((root / "latest").glob(f"*/{FILE}")):
        with suppress(OSError, ValueError):
            yield read_small(path).strip()
