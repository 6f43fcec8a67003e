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

PURE = {
    *("settings", "platforms", "topology", "machine", "checks", "services", "recipes", "plan"),
    *("ray_commands", "decisions", "job", "environment", "outcome", "errors", "ports", "budget"),
    *("redact", "ray_versions", "given_ray", "listeners"),
}
EFFECTS = {"control", "boot", "runtime", "bridge", "cli", "run"}
WORKLOADS = "agent/workloads/"
"""What ships to be run: programs of their own, each with its own environment."""

READ_ENVIRON = {"agent/cli.py", "agent/__main__.py", "agent/runtime/pid1.py"}
SLEEP = {"agent/status.py"}
IMPORT_RAY = {"agent/bridge/ray_calls.py"}
LONGEST = 300


def part(name: str) -> str:
    """Return the part of the house that a file belongs to: agent/settings/load.py is settings."""
    return name.split("/")[1].removesuffix(".py")


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
    return [name for name in FILES if not name.startswith(WORKLOADS)]


def test_every_pure_part_is_there() -> None:
    """The rules below speak of parts that exist."""
    parts = {part(name) for name in FILES}
    assert parts >= PURE | EFFECTS
    assert set(FILES) >= READ_ENVIRON | SLEEP | IMPORT_RAY


@pytest.mark.parametrize("name", [name for name in FILES if part(name) in PURE])
def test_pure_parts_import_nothing_with_effects(name: str) -> None:
    """What decides knows nothing of what acts, not even its types."""
    found = {module for module in imports(TREES[name]) if module.startswith("agent.")}
    assert [m for m in sorted(found) if m.split(".")[1] in EFFECTS] == []


def test_settings_come_first() -> None:
    """Settings rest on errors and ports alone; outcome rests on nothing of ours."""
    for name, tree in TREES.items():
        above = {m.split(".")[1] for m in imports(tree) if m.startswith("agent.")}
        if part(name) == "settings":
            assert above <= {"settings", "errors", "ports"}, name
        if part(name) in {"outcome", "ports", "budget", "ray_versions"}:
            assert above == set(), name
        if part(name) == "decisions":
            assert above <= {"decisions", "outcome"}, name


@pytest.mark.parametrize("name", ours())
def test_the_environment_is_read_in_one_place(name: str) -> None:
    """Only the command line and the init read os.environ; everybody else is handed a mapping."""
    reads = uses(TREES[name], "os", "environ", "environb", "getenv", "putenv", "unsetenv")
    assert not reads or name in READ_ENVIRON


@pytest.mark.parametrize("name", FILES)
def test_ray_is_imported_late_and_in_one_place(name: str) -> None:
    """Ray is imported by the bridge's one file and by workloads, and never at a module's top."""
    modules = {module.split(".")[0] for module in imports(TREES[name])}
    assert "ray" not in modules or name in IMPORT_RAY or name.startswith(WORKLOADS)
    first = [n for n in TREES[name].body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert "ray" not in {m.split(".")[0] for node in first for m in imports(node)}


@pytest.mark.parametrize("name", ours())
def test_nothing_sleeps_for_a_condition(name: str) -> None:
    """No blocking sleep stands for a condition; `status --watch` alone sleeps, for a person."""
    assert not uses(TREES[name], "time", "sleep") or name in SLEEP


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is_and_is_short(name: str) -> None:
    """A module opens with its purpose, and fits a few screens."""
    assert (ast.get_docstring(TREES[name]) or "").strip()
    assert len(FILES[name].splitlines()) <= LONGEST


def test_no_index_address_in_any_file() -> None:
    """No address of a package index appears in the agent or its configuration."""
    texts = [*FILES.values(), (ROOT / "pyproject.toml").read_text()]
    texts += [p.read_text() for p in ROOT.glob("requirements/*")]
    words = ["--index-" + "url", "--extra-index-" + "url", "py" + "pi.org", "/sim" + "ple/"]
    assert [word for word in words for text in texts if word in text] == []
