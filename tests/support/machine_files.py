"""Programs and trees of files that stand for those of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def program(folder: Path, name: str, script: str) -> str:
    """Make a program from a shell script; return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def cgroup_tree(root: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Make a /proc with these cgroups of this process, and a /sys/fs/cgroup with these files."""
    proc, base = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(lines)
    base.mkdir()
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text + "\n")
    return proc, base
