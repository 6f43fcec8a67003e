"""The names that a package's sources read: an argument that nothing reads has no effect."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READERS = frozenset({"getattr", "hasattr", "get", "pop", "select"})


def names_read(folder: Path, *, but: frozenset[str] = frozenset()) -> frozenset[str]:
    """Collect attribute names and names given as text, except in the functions in `but`."""
    found: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        found.update(names_in(ast.parse(path.read_text(encoding="utf-8")), but))
    for path in sorted(folder.rglob("*.yaml")):
        found.update(interpolated(path.read_text(encoding="utf-8")))
    return frozenset(found)


def interpolated(text: str) -> Iterator[str]:
    """List the keys whose values a hydra configuration copies: `${a.b}`, `${oc.select:a.b,1}`.

    A key at the top chooses a part of the configuration, as `${model_engine}_actor` does in verl.
    """
    for line in text.splitlines():
        for key in re.findall(r"\$\{(?:oc\.select:)?([\w.]+)", line.partition("#")[0]):
            parts = key.split(".")
            if len(parts) == 1:
                yield f"config.{key}"
            yield from (f"{a}.{b}" for a, b in itertools.pairwise(parts))


def names_in(node: ast.AST, but: frozenset[str]) -> Iterator[str]:
    """List the names that one piece of source reads, each as WHERE.NAME."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in but:
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield f"{owner(node.value)}.{node.attr}"
    elif isinstance(node, ast.Call):
        yield from asked_for(node)
    elif isinstance(node, ast.Subscript):
        yield from texts(owner(node.value), [node.slice])
    for child in ast.iter_child_nodes(node):
        yield from names_in(child, but)


def owner(node: ast.expr) -> str:
    """Name the variable or attribute that a name is read from."""
    return str(getattr(node, "attr", getattr(node, "id", "?")))


def asked_for(call: ast.Call) -> Iterator[str]:
    """List names that a call reads by their text: getattr(args, "x"), config.get("x")."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in READERS:
        where = call.args[0] if call.func.attr == "select" and call.args else call.func.value
        yield from texts(owner(where), call.args)
    elif isinstance(call.func, ast.Name) and call.func.id in READERS and call.args:
        yield from texts(owner(call.args[0]), call.args[1:])


def texts(where: str, nodes: list[ast.expr]) -> Iterator[str]:
    """List the constant strings among these, with a dotted one split into its parts."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = [where, *node.value.split(".")]
            yield from (f"{a}.{b}" for a, b in itertools.pairwise(parts))
