"""Read from the sources which folder of `agent/` imports which, and what each is for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDER_IN = "tests/unit/test_architecture.py"
"""Where the order of the folders stands, in `FOLDERS`: the test that guards it."""
PROGRAM = "cli"
"""Stands for the files that lie in no folder: the command line."""


class House(NamedTuple):
    """The folders in their order, what each is for, and the imports between them."""

    rooms: tuple[str, ...]
    apart: tuple[str, ...]
    """Those outside the order: programs of their own."""
    purposes: dict[str, str]
    imports: dict[tuple[str, str], int]
    """(importing folder, imported folder): how many files of the one import from the other."""


def read_house(root: Path) -> House:
    """Read all of `agent/`."""
    order = _order((root / ORDER_IN).read_text(encoding="utf-8"))
    folders = sorted(path.parent.name for path in root.glob("agent/*/__init__.py"))
    apart = tuple(name for name in folders if name not in order)
    rooms = (*order, *apart, PROGRAM)
    purposes = {PROGRAM: "The command line: `python -m agent` and its verbs."}
    for name in folders:
        text = (root / "agent" / name / "__init__.py").read_text(encoding="utf-8")
        purposes[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    imports: dict[tuple[str, str], int] = {}
    for path in sorted(root.glob("agent/**/*.py")):
        parts = path.relative_to(root / "agent").parts
        room = parts[0] if len(parts) > 1 else PROGRAM
        for other in sorted(set(_imported(ast.parse(path.read_text(encoding="utf-8")), rooms))):
            if other != room:
                imports[room, other] = imports.get((room, other), 0) + 1
    return House(rooms, apart, purposes, imports)


def _order(text: str) -> tuple[str, ...]:
    """Return `FOLDERS` of the test of the architecture."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS":
            words = [w for w in ast.walk(node.value) if isinstance(w, ast.Constant)]
            words.sort(key=lambda word: (word.lineno, word.col_offset))
            return tuple(str(word.value) for word in words)
    raise ValueError(f"{ORDER_IN} has no FOLDERS")


def _imported(tree: ast.AST, rooms: tuple[str, ...]) -> Iterator[str]:
    """Name the folders that a file imports from, for types or at run time."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "agent" and len(parts) > 1:
                if parts[1] in rooms:
                    yield parts[1]
                elif parts[1] == "__main__":
                    yield PROGRAM
