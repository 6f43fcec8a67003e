"""Which framework the job's Python would find, and of which version, without importing it.

It is looked for as `python -m` does: first in the folder in which the job starts, which may be a
checkout, then on the Python's own path. Another Python is asked, so that this file rests on the
standard library alone.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.own_command import own_command
from agent.base.value import dataclass
from agent.node.facts import Framework

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = "framework-facts"
"""The verb with which another Python is asked."""

_ASK_LIMIT = 30.0
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_LONGEST_VERSION = 100


@dataclass(frozen=True)
class _Marks:
    """By what a framework is known where it lies."""

    module: str
    """The package that the job's command runs."""
    version_files: tuple[str, ...] = ()
    """Where a checkout has its version, seen from the folder around the package."""
    has: str = ""
    """What only this one has, seen likewise: forks share their package's name."""


_KNOWN = {
    "verl": _Marks("verl", ("verl/version/version",)),
    "openrlhf": _Marks("openrlhf", ("version.txt",)),
    "openrlhf-m": _Marks("openrlhf", has="openrlhf/models/remote_rm"),
    "search-r1": _Marks("verl", has="search_r1"),
    "trl": _Marks("trl", ("trl/VERSION", "VERSION")),
}
"""By the name in a recipe's row."""


def find(name: str, python: str, folder: str) -> Framework:
    """Find a framework as a job would that this Python runs in this folder."""
    return look_here(name, folder) if python == sys.executable else _look_at(name, python, folder)


def look_here(name: str, folder: str) -> Framework:
    """Look for a framework in a folder and on this Python's own path."""
    marks = _KNOWN[name]
    path = [folder, *sys.path]
    found = _around(marks.module, path)
    if found is None or not (found / marks.has).exists():
        return Framework(name)
    return Framework(name, str(found), _version(name, marks, found, path))


def tell(argv: list[str]) -> int:
    """Print what this Python would find, for the one that asks: a name and a folder."""
    name, folder = argv
    print(json.dumps(asdict(look_here(name, folder))))
    return 0


def _look_at(name: str, python: str, folder: str) -> Framework:
    from agent.node.process_limits import starting  # noqa: PLC0415 - the one asked needs none of it

    try:
        with starting(f"{python}, which is to run the job,"):
            done = subprocess.run(
                own_command(python, PROGRAM, name, folder),
                capture_output=True,
                text=True,
                timeout=_ASK_LIMIT,
                check=True,
            )
        return Framework(**json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        return Framework(name)


def _around(module: str, path: list[str]) -> Path | None:
    """Return the folder around a package; it may also be found by what an editable install left."""
    spec = importlib.machinery.PathFinder.find_spec(module, path)
    if spec is None or spec.submodule_search_locations is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve().parent if places else None


def _version(name: str, marks: _Marks, found: Path, path: list[str]) -> str:
    """Return its version, '' where none is told.

    The metadata beside the package is its own. Metadata that lies elsewhere is an editable
    install's, as old as that install: there the checkout's own file knows better.
    """
    told = list(_metadata(name, path))
    beside = next((version for folder, version in told if folder == found), "")
    files = filter(None, (_first_line(found / file) for file in marks.version_files))
    return beside or next(files, "") or (told[0][1] if told else "")


def _metadata(name: str, path: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield where a distribution's metadata lies, and the version in its name."""
    for entry in path:
        folder = Path(entry or ".")
        with suppress(OSError):
            for item in folder.iterdir():
                match = _METADATA.fullmatch(item.name)
                if match is not None and _plain(match["name"]) == name:
                    yield folder.resolve(), match["version"]


def _plain(name: str) -> str:
    """Return a distribution's name as all its spellings have it in common."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _first_line(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError, IndexError):
        return file.read_text(encoding="utf-8").split("\n")[0].strip()[:_LONGEST_VERSION]
    return ""
