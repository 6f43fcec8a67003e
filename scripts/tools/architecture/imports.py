"""Read the imports between the folders of `agent/` from the sources."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDER_IN = "tests/support/sources.py"
"""The test that defines the order of the folders, in `FOLDERS`."""
PROGRAM = "__main__"
"""The name for the files outside of every folder: the entrypoint."""


class FolderMap(NamedTuple):
    """The folders in order, the purpose of each, and the imports between them."""

    folders: tuple[str, ...]
    apart: tuple[str, ...]
    """Folders outside the order: separate programs."""
    purposes: dict[str, str]
    imports: dict[tuple[str, str], int]
    """(importing folder, imported folder): the number of importing files."""


@functools.cache
def read_folders(root: Path) -> FolderMap:
    """Read all of `agent/`, once a process."""
    order = _order((root / ORDER_IN).read_text(encoding="utf-8"))
    present = sorted(path.parent.name for path in root.glob("agent/*/__init__.py"))
    apart = tuple(name for name in present if name not in order)
    folders = (*order, *apart, PROGRAM)
    purposes = {PROGRAM: "The entrypoint: `python -m agent`, its parent process and its verb."}
    for name in present:
        text = (root / "agent" / name / "__init__.py").read_text(encoding="utf-8")
        purposes[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    imports: dict[tuple[str, str], int] = {}
    for path in sorted(root.glob("agent/**/*.py")):
        parts = path.relative_to(root / "agent").parts
        folder = parts[0] if len(parts) > 1 else PROGRAM
        for other in sorted(set(_imported(ast.parse(path.read_text(encoding="utf-8")), folders))):
            if other != folder:
                imports[folder, other] = imports.get((folder, other), 0) + 1
    return FolderMap(folders, apart, purposes, imports)


def _order(text: str) -> tuple[str, ...]:
    """Return `FOLDERS` of the architecture test."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS":
            words = [w for w in ast.walk(node.value) if isinstance(w, ast.Constant)]
            words.sort(key=lambda word: (word.lineno, word.col_offset))
            return tuple(str(word.value) for word in words)
    raise ValueError(f"{ORDER_IN} has no FOLDERS")


def _imported(tree: ast.AST, folders: tuple[str, ...]) -> Iterator[str]:
    """List the folders that a file imports from, for types or at run time."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "agent" and len(parts) > 1:
                if parts[1] in folders:
                    yield parts[1]
                elif parts[1] == "__main__":
                    yield PROGRAM
