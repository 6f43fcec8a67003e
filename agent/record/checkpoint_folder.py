"""The folder of a job's checkpoints: whose it is, and which is the newest whole one."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain
from pathlib import Path

from msgspec import to_builtins

from agent.base.text import error_text
from agent.base.typed import decode
from agent.base.value import Value
from agent.job import checkpoints
from agent.record.files import read_small, write_atomically

_PLACES = ("*", "*/*", "*/*/*")  # of steps in a folder, as in `ckpt/_actor/global_step40`


def read_checkpoints(folder: str) -> checkpoints.FolderContents:
    """Return the checkpoints in a folder; none if it does not exist."""
    place = Path(folder)

    # Whose are they?
    mark: checkpoints.CheckpointOwner | None = None
    fault = ""
    try:
        text = read_small(place / checkpoints.CHECKPOINT_FILE)
        mark = decode(text, checkpoints.CheckpointOwner)
    except FileNotFoundError:
        fault = ""
    except OSError as error:
        fault = error_text(error)
    except (ValueError, TypeError) as error:
        fault = str(error)

    # Which is the newest, and which one does the framework's own file name?
    tracked = ""
    for tracker in checkpoints.tracker_files():
        with suppress(OSError, ValueError):
            tracked = read_small(place / tracker).strip()
    newest = ""
    whole = ""
    with suppress(OSError):
        paths = chain.from_iterable(map(place.glob, _PLACES))
        found = (str(path.relative_to(place)) for path in paths)
        named = (path for path in found if checkpoints.step_of(path) is not None)
        folders = [path for path in named if (place / path).is_dir()]
        newest = checkpoints.latest(folders)
        whole = _newest_whole(place, folders)
    return checkpoints.FolderContents(mark, fault, newest, whole, tracked)


def _newest_whole(place: Path, folders: list[str]) -> str:
    """Return the newest checkpoint with its framework's last file; a killed save lacks it."""
    remaining = set(folders)
    while remaining:
        newest = checkpoints.latest(remaining)
        for prefix, name in checkpoints.last_files():
            if newest.startswith(prefix) and _is_written(place / newest / name):
                return newest
        remaining.remove(newest)
    return ""


def _is_written(path: Path) -> bool:
    """Return whether a file is there, and whole if it is JSON."""
    if path.suffix != ".json":
        return path.is_file()
    with suppress(OSError, ValueError, RecursionError):
        json.loads(read_small(path))
        return True
    return False


class CheckpointFiles(Value):
    """A checkpoint and its files."""

    path: str
    files: tuple[tuple[str, int, int], ...]  # path, size and time of the last change
    is_marked_whole: bool  # True once it has the file that its framework writes last


def read_newest_files(folder: str, framework: str) -> CheckpointFiles | None:
    """Return the newest checkpoint that a framework would resume from, with its files."""
    contents = read_checkpoints(folder)
    path = checkpoints.resumes_from(contents, framework) if framework else contents.newest
    if not path:
        return None

    place = Path(folder) / path
    files_there = []
    for file in sorted(place.rglob("*")):
        with suppress(OSError):  # it was removed meanwhile
            status = file.stat()
            files_there.append((str(file), status.st_size, status.st_mtime_ns))

    last_file = checkpoints.last_file(framework)
    is_whole = bool(last_file) and _is_written(place / last_file)
    return CheckpointFiles(path, tuple(files_there), is_marked_whole=is_whole)


def write_mark(folder: str, mark: checkpoints.CheckpointOwner) -> str:
    """Write the owner of a checkpoint folder into it; return an error, or ''."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error_text(error)
    text = json.dumps(to_builtins(mark), indent=2) + "\n"
    failure = write_atomically(Path(folder) / checkpoints.CHECKPOINT_FILE, text, mode=0o666)
    return "" if failure is None else error_text(failure)
