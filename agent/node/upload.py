"""Measures what Ray would upload of a working_dir, and finds credentials in it.

Ray packs without compression, and excludes files by its own copy of `pathspec`. That copy is loaded
from Ray's folder here, without importing Ray.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from agent.node import code_archive
from agent.node.facts import UploadSize
from agent.node.python_facts import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Excludes = Callable[[Path], bool]
    MakeRule = Callable[[Path, Sequence[str]], Excludes]
    """From a folder and the lines of its .gitignore."""


UPLOAD_COUNTED = 20.0  # For counting a working_dir; one that takes longer is reported as too large.
LIMIT = code_archive.LIMIT  # of Ray's dashboard (2.40 to 2.60); GCS accepts 512 MiB
_ENTRY = 30 + 46  # bytes of an entry in a zip file, without its name, which is stored twice


def measure(
    folder: Path, excludes: Sequence[str], ray: str, environ: Mapping[str, str]
) -> UploadSize | None:
    """Measure what the Ray in this folder would pack; None if its rules cannot be read."""
    make_rule = _rays_rules(ray)
    if make_rule is None:
        return None

    # What does this Ray exclude? Newer versions have defaults, such as .git, and .rayignore.
    private = Path(ray, "_private")
    ignore_files = []
    if environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE") != "1":
        ignore_files.append(".gitignore")
    if '".rayignore"' in text_of(private / "runtime_env/packaging.py"):  # after Ray 2.48
        ignore_files.append(".rayignore")
    pattern = r'^RAY_RUNTIME_ENV_DEFAULT_EXCLUDES = "([^"]*)"'
    default = re.search(pattern, text_of(private / "ray_constants.py"), re.MULTILINE)
    if default is not None:
        names = environ.get("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", default[1]).split(",")
        excludes = [*(name.strip() for name in names if name.strip()), *excludes]
    rules = [make_rule(folder, excludes)] if excludes else []

    # Count what is left, as long as there is time.
    size = 22
    files = 0
    until = time.monotonic() + UPLOAD_COUNTED
    parts: Counter[str] = Counter()
    credentials: list[str] = []
    for path, amount in _walk(folder, make_rule, ignore_files, rules):
        relative = path.relative_to(folder)
        size += amount + _ENTRY + 2 * len(str(relative).encode(errors="surrogateescape"))
        files += 1
        parts[relative.parts[0]] += amount
        if code_archive.holds_credentials(path, relative.as_posix(), amount):
            credentials.append(str(relative))
        if time.monotonic() > until:
            break
    return UploadSize(size, files, tuple(parts.most_common(5)), tuple(credentials))


def _walk(
    path: Path, make_rule: MakeRule, ignore_files: Sequence[str], rules: list[Excludes]
) -> Iterator[tuple[Path, int]]:
    """Yield each file that is not excluded, as Ray walks a folder (2.40 to 2.60)."""
    files = [path / name for name in ignore_files if (path / name).is_file()]
    lines = [file.read_text(errors="replace").splitlines() for file in files]
    rules = [*rules, *(make_rule(path, patterns) for patterns in lines)]
    if any(rule(path) for rule in rules):
        return
    try:
        if path.is_dir():
            for inner in sorted(path.iterdir()):
                yield from _walk(inner, make_rule, ignore_files, rules)
        elif path.is_file():
            yield path, path.stat().st_size
    except OSError:  # Ray reports what it cannot read
        return


def _rays_rules(ray: str) -> MakeRule | None:
    """Load Ray's copy of pathspec; None if it has none."""
    init = Path(ray, "_private/thirdparty/pathspec/__init__.py")
    name = "pod_agent_rays_pathspec"
    spec = importlib.util.spec_from_file_location(name, init)
    if not ray or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its own parts are imported from it
    try:
        spec.loader.exec_module(module)
        from_lines = module.PathSpec.from_lines
    except (OSError, ImportError, SyntaxError, AttributeError):
        return None

    def make_rule(root: Path, lines: Sequence[str]) -> Excludes:
        rules = from_lines("gitwildmatch", lines)
        return lambda path: bool(rules.match_file(str(path.relative_to(root))))

    return make_rule
