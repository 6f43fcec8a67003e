"""The folder for a job's checkpoints: what lies in it, and the mark that says whose it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.record.files import read_small, why, write_atomically
from agent.work.checkpoints import FILE, TRACKER, Held, Mark, is_step, latest

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 2
"""So many folders deep frameworks put their steps, as in `ckpt/_actor/global_step40`."""


def look(folder: str) -> Held:
    """Look at a folder; one that is not there holds nothing."""
    place = Path(folder)
    mark, fault = None, ""
    try:
        mark = Mark.read(read_small(place / FILE))
    except FileNotFoundError:
        pass
    except OSError as error:
        fault = why(error)
    except (ValueError, TypeError) as error:
        fault = str(error)
    tracked = ""
    with suppress(OSError, ValueError):
        tracked = read_small(place / TRACKER).strip()
    return Held(mark, fault, latest(_folders(place, "", 0)), tracked)


def put_mark(folder: str, mark: Mark) -> str:
    """Say in a folder whose checkpoints it will hold; return why that cannot be, '' where done."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return why(error)
    failure = write_atomically(place / FILE, mark.text())
    return "" if failure is None else why(failure)


def _folders(place: Path, above: str, depth: int) -> Iterator[str]:
    """Yield the folders in a folder, by their paths from its top; what is a step is not opened."""
    found: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(place) as entries:
        found = [entry for entry in entries if entry.is_dir()]
    for entry in found:
        path = f"{above}{entry.name}"
        yield path
        if depth < _DEEPEST and not is_step(entry.name):
            yield from _folders(Path(entry.path), f"{path}/", depth + 1)
