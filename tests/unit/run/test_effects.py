"""A run acts by its effects alone, so that simulated worlds replace all of them."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from agent.run.effects import REAL
from support.sources import nodes, trees

DECLARE = {"agent/run/effects.py", "agent/run/late_effects.py"}
OUTSIDE = {
    "agent/run/holding.py": "it holds a pod whose run is over",
    "agent/run/make_ready.py": "the verb `plan` looks for taken ports without a run",
    "agent/run/plan_input.py": "the plan is made before there is a run",
}
"""Files that call some effects themselves, and why."""


def real_names() -> set[str]:
    """Return the full names of the real effects' functions."""
    groups: tuple[tuple[Any, ...], ...] = (
        REAL.processes,
        REAL.machine,
        REAL.network,
        REAL.late(),
    )
    effects = {effect for group in groups for effect in group if inspect.isroutine(effect)}
    return {f"{effect.__module__}.{effect.__qualname__}" for effect in effects}


def names_of_modules(tree: ast.AST) -> dict[str, str]:
    """Return the modules and functions that a file imports, by the name that it uses."""
    names: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def test_no_other_file_of_a_run_names_a_real_effect() -> None:
    """Neither imported by its name nor as an attribute of its module."""
    real = real_names()
    found = set()
    for path, tree in trees().items():
        if not path.startswith("agent/run/") or path in DECLARE | OUTSIDE.keys():
            continue
        imported = names_of_modules(tree)
        used = {*imported.values()}
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add(f"{imported.get(node.value.id)}.{node.attr}")
        found |= {f"{path}: {name}" for name in used & real}
    assert found == set()
