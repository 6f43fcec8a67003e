"""Keys in the run folder of a run without a token: of this node's users, and of its fronts."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.record.files import read_small, reading, safe_name, write_atomically
from agent.record.log_dir import LogDir, owner_of_runs
from agent.record.run_search import belongs_to, newest_of, nodes_below

if TYPE_CHECKING:
    from pathlib import Path

KEY_FILE = "control.key"  # on a head without a token: by it this node's users stop the run
_FRONT_KEY_FILE = "front.key"  # of its orders to fronts
_KEY_LENGTH = 32
_KEY_FORM = f"[0-9a-f]{{{_KEY_LENGTH}}}"


def new_key() -> str:
    """Return a new random key for this node's users."""
    return secrets.token_hex(_KEY_LENGTH // 2)


def write_key(folder: Path, key: str) -> bool:
    """Write the key where only this node's users find it; return whether that worked."""
    return write_atomically(folder / KEY_FILE, key, mode=0o600) is None


def newest_key(root: Path, run_id: str = "") -> str | None:
    """Return the key that was written last in a run of a log folder, if it is readable.

    Without an id that is the latest run, which may be another than the one that answers.
    It is sent to whoever answers as the head: no link may make a private file of it, and a folder
    that others may write into may have a `latest` or runs of other users.
    """
    place = LogDir()
    keys = list[tuple[float, str]]()
    owner = owner_of_runs(root)
    place.obey(str(root.absolute()), owner, "private")

    # Which run? In the place of `latest` another user may have made a link.
    name = run_id
    if not name:
        with suppress(OSError):
            name = str((root / "latest").readlink())
    run = root / safe_name(name) if name else None
    owners = None if owner is None else {owner}
    if run is not None and owners is not None and not belongs_to(owners, run):
        run = None
    if run is None and not run_id:
        run = newest_of(nodes_below(root.resolve(), owners))
    if run is None:
        return None

    with suppress(OSError):
        for node in place.names(run):
            with suppress(OSError, ValueError), reading(run / node / KEY_FILE, place) as file:
                key = file.read(_KEY_LENGTH + 1).decode().strip()
                if re.fullmatch(_KEY_FORM, key):
                    keys.append((os.fstat(file.fileno()).st_mtime, key))
    return max(keys)[1] if keys else None


def front_key(folder: Path) -> str:
    """Return the key of the fronts of a run without a token, which a run folder keeps.

    If its disk takes none, it is a new one: fronts that a later agent finds get no more orders.
    """
    path = folder / _FRONT_KEY_FILE
    with suppress(OSError, ValueError):
        known = read_small(path)
        if re.fullmatch(_KEY_FORM, known):
            return known
    key = new_key()
    write_atomically(path, key, mode=0o600)
    return key
