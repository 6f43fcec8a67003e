"""Which Python has Ray, and which Ray: our own, or that of the image that we were put into.

In an image the agent has a virtual environment of its own, so that its libraries and a
framework's never meet. Ray, its bridge, the rehearsal and the bundled reward server then run in
Ray's Python, which is asked here; so this file rests on the standard library alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path

from agent.base.own_command import own_command
from agent.node import libraries
from agent.node.facts import RayPython

PROGRAM = "ray-facts"
"""The verb with which another Python is asked about itself."""
RECORD = "ray-python"
"""A file in our virtual environment, written by the image's build: the Python that has Ray."""

_ASK_LIMIT = 30.0
_DEFAULT_EXTRA = ("aiohttp", "aiohttp_cors", "opencensus")


def find(path: str | None) -> RayPython:
    """Find the Python that has Ray: this one, the recorded one, or that of `ray` on PATH."""
    here = look_here()
    if here.version is not None:
        return here
    other = recorded(Path(sys.prefix) / RECORD) or of_ray_command(path)
    return here if other is None or other == sys.executable else look_at(other)


def look_here() -> RayPython:
    """Look at this Python, without importing Ray."""
    missing = tuple(name for name in _DEFAULT_EXTRA if importlib.util.find_spec(name) is None)
    version = platform.python_version()
    copies = hasattr(Enum, "__deepcopy__")
    ray = importlib.util.find_spec("ray")
    folder = str(Path(ray.origin).parent) if ray is not None and ray.origin is not None else ""
    return RayPython(
        sys.executable,
        version,
        _ray_version(folder),
        missing,
        _command(),
        click=_version_by_folder("click"),
        enum_copies_are_same=copies,
        folder=folder,
        hub=_version_by_folder("huggingface_hub"),
        debugpy=_version_by_folder("debugpy"),
        libraries=libraries.installed(sys.path),
    )


def tell(argv: list[str]) -> int:
    """Print what this Python has, for the one that asks; there is nothing to choose."""
    del argv
    print(json.dumps(asdict(look_here())))
    return 0


def of_ray_command(path: str | None) -> str | None:
    """Return the Python of the `ray` command on PATH."""
    return of_command("ray", path)


def of_command(name: str, path: str | None) -> str | None:
    """Return the Python of a command on PATH, by the script's first lines."""
    script = shutil.which(name, path=path)
    if script is None:
        return None
    try:
        lines = Path(script).read_text(encoding="utf-8", errors="replace").splitlines()[:2]
    except OSError:
        return None
    return _interpreter(lines, path)


def _interpreter(lines: list[str], path: str | None) -> str | None:
    """Read `#!/path/python`, `#!/usr/bin/env python`, and pip's way around long or odd paths."""
    first = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if first[:1] == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith("'''exec'"):
        first = shlex.split(lines[1].removeprefix("'''exec'"))[:1]
    if first and os.path.basename(first[0]) == "env":  # noqa: PTH119 - a word, not a path of ours
        found = [shutil.which(word, path=path) for word in first[1:2]]
        first = [word for word in found if word is not None]
    named_so = first and os.path.basename(first[0]).startswith("python")  # noqa: PTH119 - same
    return first[0] if named_so else None


def recorded(file: Path) -> str | None:
    """Return the Python that the image's build wrote down, if it did."""
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def look_at(executable: str) -> RayPython:
    """Ask another Python what it has."""
    from agent.node.process_limits import starting  # noqa: PLC0415 - the one asked needs none of it

    try:
        with starting(f"{executable}, which has Ray,"):
            done = subprocess.run(
                own_command(executable, PROGRAM),
                capture_output=True,
                text=True,
                timeout=_ASK_LIMIT,
                check=True,
            )
        told = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return RayPython(executable, "does not run", None)
    lists = {name: tuple(told[name]) for name in ("missing", "command")}
    return RayPython(**{**told, **lists, "executable": executable})


def _command() -> tuple[str, ...]:
    """Return this Python's `ray`: beside it, or where its pip puts scripts, as on Debian."""
    script = Path(sys.executable).parent / "ray"
    if not script.exists():
        import sysconfig  # noqa: PLC0415 - only where the short way fails

        script = Path(sysconfig.get_path("scripts")) / "ray"
    return (str(script),) if script.exists() else (sys.executable, "-m", "ray.scripts.scripts")


def _ray_version(folder: str) -> str | None:
    """Return Ray's version without importing it, nor the package metadata, which costs 40 ms."""
    if not folder:
        return None
    try:
        text = (Path(folder) / "_version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    return match[1] if match else _from_metadata("ray")


def _version_by_folder(package: str) -> str | None:
    """Return a package's version by the name of its metadata's folder; None where there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folders = Path(spec.origin).parents[1].glob(f"{package}-*.dist-info")
    return next((f.name[len(package) + 1 : -len(".dist-info")] for f in folders), None)


def _from_metadata(package: str) -> str | None:
    import importlib.metadata  # noqa: PLC0415 - only where the short way fails

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
