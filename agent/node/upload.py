"""What Ray would pack of a folder and send to the cluster, measured before anything is started.

Ray packs without compressing and takes what its own copy of `pathspec` leaves, so that copy decides
here, too; it is loaded from Ray's folder by itself, without Ray.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Excludes = Callable[[Path], bool]


class Matcher(Protocol):
    """What is used of `pathspec`, of which Ray's copy has no types."""

    def from_lines(self, pattern_factory: str, lines: Sequence[str]) -> Matcher:
        """Read the lines of a .gitignore."""

    def match_file(self, file: str) -> bool:
        """Say whether they leave a path out."""


LIMIT = 100 << 20
"""What Ray's dashboard takes of a package (2.40 to 2.60); GCS itself would take 512 MiB."""
_PATIENCE = 20.0
"""Longest that is spent on counting: a folder of millions of files is said to be too large."""
_MATCHER = "_private/thirdparty/pathspec/__init__.py"
_ENTRY = 30 + 46
"""Bytes of an entry in a zip, twice its name apart."""


@dataclass(frozen=True)
class Upload:
    """What would be packed of a folder."""

    size: int
    """Bytes of the package."""
    files: int
    largest: tuple[tuple[str, int], ...]
    """Its largest parts by their names, the largest first."""
    complete: bool
    """False where it took too long to count all."""


def measure(
    folder: Path, excludes: Sequence[str], ray: str, environ: Mapping[str, str]
) -> Upload | None:
    """Measure what the Ray in this folder would pack; None where its rules cannot be read."""
    spec = _rays_matcher(ray)
    if spec is None:
        return None
    ignore_files = _ignore_files(ray, environ)
    asked = [*_always_left_out(ray, environ), *excludes]
    rules = [_rule(spec, folder, asked)] if asked else []
    size, files, until = 22, 0, time.monotonic() + _PATIENCE
    parts: Counter[str] = Counter()
    complete = True
    for path, amount in _travel(folder, spec, ignore_files, rules):
        relative = path.relative_to(folder)
        size += amount + _ENTRY + 2 * len(str(relative).encode(errors="surrogateescape"))
        files += 1
        parts[relative.parts[0]] += amount
        if time.monotonic() > until:
            complete = False
            break
    return Upload(size, files, tuple(parts.most_common(5)), complete)


def _travel(
    path: Path, spec: Matcher, ignore_files: Sequence[str], rules: list[Excludes]
) -> Iterator[tuple[Path, int]]:
    """Yield each file that is not left out, as Ray goes through a folder (2.40 to 2.60)."""
    here = [
        _rule(spec, path, (path / name).read_text(errors="replace").splitlines())
        for name in ignore_files
        if (path / name).is_file()
    ]
    rules = [*rules, *here]
    if any(rule(path) for rule in rules):
        return
    try:
        if path.is_dir():
            for inner in sorted(path.iterdir()):
                yield from _travel(inner, spec, ignore_files, rules)
        elif path.is_file():
            yield path, path.stat().st_size
    except OSError:  # Ray will say what it cannot read
        return


def _rule(spec: Matcher, root: Path, lines: Sequence[str]) -> Excludes:
    found = spec.from_lines("gitwildmatch", lines)
    return lambda path: bool(found.match_file(str(path.relative_to(root))))


def _rays_matcher(ray: str) -> Matcher | None:
    """Load the matcher that this Ray brings; None where it brings none."""
    init = Path(ray) / _MATCHER
    name = "pod_agent_rays_pathspec"
    found = importlib.util.spec_from_file_location(name, init)
    if not ray or not init.is_file() or found is None or found.loader is None:
        return None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # its own parts are imported from it
    try:
        found.loader.exec_module(module)
    except (ImportError, SyntaxError):
        return None
    return getattr(module, "PathSpec", None)


def _ignore_files(ray: str, environ: Mapping[str, str]) -> list[str]:
    """Return the files that say what is left out; `.rayignore` came after 2.48."""
    mine = [] if environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE") == "1" else [".gitignore"]
    knows_its_own = '".rayignore"' in _text(ray, "_private/runtime_env/packaging.py")
    return [*mine, ".rayignore"] if knows_its_own else mine


def _always_left_out(ray: str, environ: Mapping[str, str]) -> list[str]:
    """Return what newer Rays leave out unasked, such as .git and virtual environments."""
    pattern = r'^RAY_RUNTIME_ENV_DEFAULT_EXCLUDES = "([^"]*)"'
    match = re.search(pattern, _text(ray, "_private/ray_constants.py"), re.MULTILINE)
    if match is None:
        return []
    names = environ.get("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", match[1]).split(",")
    return [name.strip() for name in names if name.strip()]


def _text(ray: str, file: str) -> str:
    try:
        return (Path(ray) / file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
