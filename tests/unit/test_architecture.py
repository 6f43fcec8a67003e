"""The house's own rules: who may import whom, read the environment, sleep, or import Ray."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = {str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.glob("agent/**/*.py"))}
TREES = {name: ast.parse(text, name) for name, text in FILES.items()}

ROOMS = (
    *("base", "settings", "node", "topology", "work", "checks", "plan", "decisions"),
    *("record", "runtime", "bridge", "control", "boot"),
)
"""The folders of `agent/`, one a layer: a file imports from its own and from those before it."""
DOORS = {"agent/__init__.py", "agent/__main__.py", "agent/cli.py"}
"""The only files that lie in no folder: they import from any of them."""
BUNDLED = "bundled"
"""What ships to be run: programs of their own, which import nothing but themselves."""
PURE = {"base", "settings", "topology", "work", "checks", "plan", "decisions"}
"""Rooms without effects; `node` reads the machine, but only in files named here."""
READERS = {
    *("agent/node/read.py", "agent/node/addresses.py", "agent/node/pythons.py"),
    *("agent/node/pythons.py", "agent/node/pythons.py", "agent/node/gpus.py"),
}

READ_ENVIRON = {"agent/cli.py", "agent/__main__.py", "agent/runtime/parent.py"}
SLEEP = {"agent/control/ask.py", "agent/control/verbs.py"}
IMPORT_RAY = {"agent/bridge/ray_calls.py"}
LONGEST = 700
LONG = {"agent/decisions/head/state.py"}
"""Longer ones: all that the head decides on stands in one place."""
ACTS = {"anyio", "asyncio", "subprocess", "threading", "socket", "psutil", "aiohttp", "requests"}
"""Modules by which a program acts; a pure room imports none of them."""


def room(name: str) -> str:
    """Return the folder of a file, or the file itself where it lies in none."""
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else name


def imports(tree: ast.AST) -> Iterator[str]:
    """Name every module that is imported, anywhere in a file, for types or at run time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def uses(tree: ast.AST, module: str, *names: str) -> bool:
    """Say whether a file uses one of a module's names, by the module or imported from it."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names and _is(node.value, module))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == module
            and any(alias.name in names for alias in node.names)
        )
        for node in ast.walk(tree)
    )


def _is(node: ast.expr, module: str) -> bool:
    return isinstance(node, ast.Name) and node.id == module


def ours() -> list[str]:
    """Return the agent's own files, without the programs that it ships."""
    return [name for name in FILES if room(name) != BUNDLED]


def imported_rooms(name: str) -> set[str]:
    """Name the rooms, or the loose modules, of `agent` that a file imports."""
    found = {module.split(".")[1] for module in imports(TREES[name]) if module.startswith("agent.")}
    return found - {"__version__"}  # a name of the package itself


def test_every_file_lies_in_a_room() -> None:
    """One ordered tuple of folders fences every file of the agent."""
    rooms = {room(name) for name in FILES}
    assert rooms - set(ROOMS) - {BUNDLED} == DOORS
    assert set(ROOMS) <= rooms
    assert set(FILES) >= READERS | READ_ENVIRON | SLEEP | IMPORT_RAY


@pytest.mark.parametrize("name", sorted(FILES.keys() - DOORS))
def test_imports_go_one_way(name: str) -> None:
    """A file imports from its own room and from those before it, and types are no exception."""
    own = room(name)
    allowed = {BUNDLED} if own == BUNDLED else set(ROOMS[: ROOMS.index(own) + 1])
    assert sorted(imported_rooms(name) - allowed) == []


@pytest.mark.parametrize("name", [n for n in FILES if room(n) in PURE | {"node"}])
def test_what_decides_does_not_act(name: str) -> None:
    """Pure rooms import nothing by which a program acts; of `node` only its readers do."""
    modules = {module.split(".")[0] for module in imports(TREES[name])}
    assert name in READERS or not modules & ACTS


@pytest.mark.parametrize("name", ours())
def test_the_environment_is_read_in_one_place(name: str) -> None:
    """Only the command line and the init read os.environ; everybody else is handed a mapping."""
    reads = uses(TREES[name], "os", "environ", "environb", "getenv", "putenv", "unsetenv")
    assert not reads or name in READ_ENVIRON


@pytest.mark.parametrize("name", FILES)
def test_ray_is_imported_late_and_in_one_place(name: str) -> None:
    """Ray is imported by one file of the bridge and by bundled programs, never at a top."""
    modules = {module.split(".")[0] for module in imports(TREES[name])}
    assert "ray" not in modules or name in IMPORT_RAY or room(name) == BUNDLED
    first = [n for n in TREES[name].body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert "ray" not in {m.split(".")[0] for node in first for m in imports(node)}


@pytest.mark.parametrize("name", ours())
def test_nothing_sleeps_for_a_condition(name: str) -> None:
    """No blocking sleep stands for a condition; what a person watches may sleep."""
    assert not uses(TREES[name], "time", "sleep") or name in SLEEP


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is_and_is_short(name: str) -> None:
    """A module opens with its purpose, and fits a few screens."""
    assert (ast.get_docstring(TREES[name]) or "").strip()
    assert len(FILES[name].splitlines()) <= LONGEST or name in LONG


def test_no_index_address_in_any_file() -> None:
    """No address of a package index appears in the agent or its configuration."""
    texts = [*FILES.values(), (ROOT / "pyproject.toml").read_text()]
    texts += [p.read_text() for p in ROOT.glob("requirements/*")]
    words = ["--index-" + "url", "--extra-index-" + "url", "py" + "pi.org", "/sim" + "ple/"]
    assert [word for word in words for text in texts if word in text] == []
