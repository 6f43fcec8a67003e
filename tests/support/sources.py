"""The sources as syntax trees, parsed only in the process that runs a test of them."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("base", "settings", "node", "platforms", "frameworks", "job", "checks", "plan"),
    *(
        "decisions",
        "diagnosis",
        "record",
        "processes",
        "bridge",
        "serving",
        "front",
        "port",
        "runpod",
        "run",
    ),
    "cli",
)
"""The folders of `agent/` in order: a file imports from its own folder and from those before it."""
BUNDLED = "bundled"
"""Programs that ship with the agent, and import nothing but themselves; the servers also SHARED."""
README = ROOT / "README.md"
DOCS = [README, ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the tree of each file in `agent/`, by its path from the root.

    They stay: the garbage collection need not look at their 400,000 nodes, now or later.
    """
    found = sorted(ROOT.glob("agent/**/*.py"))
    was_enabled = gc.isenabled()
    gc.disable()
    parsed = {str(p.relative_to(ROOT)): ast.parse(p.read_text(), str(p)) for p in found}
    gc.freeze()
    if was_enabled:
        gc.enable()
    return parsed


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's tree: `ast.walk`, which takes as long as parsing, done once."""
    return tuple(ast.walk(tree))


@functools.cache
def modules() -> dict[str, str]:
    """Return the file of each module, by its dotted name."""
    return {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name in trees()
    }


def name_of(path: Path) -> str:
    """Return the path of a document within the repository."""
    return str(path.relative_to(ROOT))
