"""The folders of weights on the disk: old ones are removed, and the newest one stays.

A trainer may remove a folder once all engines have loaded it, as AReaL does. A member that comes
back later loads the front's own one: hard links to the same files, in `.pod-agent` beside it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_BESIDE = ".pod-agent"
_UNFINISHED = "unfinished"
_CLOCKS_DIFFER = 60.0  # Seconds by which the clock of a shared disk may be behind


def keep(folder: str) -> str:
    """Link the files of a folder, and remove those of older ones; return where they are."""
    path = Path(folder)
    place = path.parent / _BESIDE / path.name  # an engine may read the version from the name
    unfinished = place.with_name(_UNFINISHED)
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(path, unfinished, copy_function=os.link)
    except shutil.Error as problems:
        (_, _, why), *_ = problems.args[0]
        raise OSError(why) from None
    for older in place.parent.iterdir():
        if older != unfinished:
            shutil.rmtree(older)
    unfinished.rename(place)
    return str(place)


def remove(folder: str, began: float) -> bool:
    """Remove a folder, unless it is older than the run; return whether it is."""
    if Path(folder).lstat().st_mtime < began - _CLOCKS_DIFFER:
        return True
    shutil.rmtree(folder)
    return False
