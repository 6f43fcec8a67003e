"""Finds the Python with Ray, torch or the framework, without importing them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from agent.base import times
from agent.base.text import own_command
from agent.node.facts import Framework, RayPython, TorchPython
from agent.node.limits import starting
from agent.node.python_facts import framework_facts, of_command, ray_facts, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


RECORD = "ray-python"
"""A file in our virtual environment with the Python that has Ray; the image's build writes it."""
STARTED_BY = "started-by"
"""A file in our virtual environment with the Python that unpacked it; the one file writes it."""


def find_ray(path: str | None) -> RayPython:
    """Find the Python with Ray.

    It is this one, the recorded one, that of `ray` on PATH, or the one that started the one file.
    """
    here = ray_here()
    if here.version is not None:
        return here
    other = _recorded(RECORD) or of_command("ray", path) or _recorded(STARTED_BY)
    return here if other is None or other == sys.executable else ask_python(other)


def ray_here() -> RayPython:
    """Return the facts of this Python, without importing Ray."""
    return msgspec.convert(ray_facts(), RayPython)


def _recorded(name: str) -> str | None:
    """Return the Python that a file in our virtual environment names."""
    return text_of(Path(sys.prefix, name)).strip() or None


def ask_python(executable: str) -> RayPython:
    """Return the facts of another Python."""
    argv = own_command(executable, "ray-facts")
    found = _answer(argv, f"{executable}, which has Ray,", RayPython)
    unknown = RayPython(executable, "does not run", None)
    return unknown if found is None else replace(found, executable=executable)


def _answer(
    argv: list[str], what: str, kind: type[T], environ: Mapping[str, str] | None = None
) -> T | None:
    """Run a program of the agent and return the JSON of its last line; None if it fails."""
    try:
        with starting(what):
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=times.PYTHON_ANSWERS,
                check=True,
                env=None if environ is None else dict(environ),
            )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


_TORCH_QUESTION = """
import importlib.util, json, re
from pathlib import Path
spec = importlib.util.find_spec("torch")
version = None
if spec is not None and importlib.util.find_spec("torch.distributed") is not None:
    file = Path(spec.origin or "").with_name("version.py")
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    match = re.search("^__version__ = ['\\"]([^'\\"]+)", text, re.MULTILINE)
    version = match[1] if match else "unknown"
print(json.dumps(version))
"""
"""Prints torch's version without importing torch, which takes seconds."""


def find_torch(environ: Mapping[str, str], named: str | None) -> TorchPython:
    """Find the Python with torch.

    A Python in the job's command is the only candidate. Otherwise the candidates are those of
    `torchrun` and `python` on PATH, the image's Python with Ray, and our own.
    """
    path = environ.get("PATH")
    found = None if named is None else shutil.which(named, path=path)
    candidates = [found]
    if found is None and "/" not in (named or ""):  # `python` may be missing, `python3` not
        candidates = [
            of_command("torchrun", path),
            *(shutil.which(name, path=path) for name in ("python3", "python")),
            *(_recorded(name) for name in (RECORD, STARTED_BY)),
            sys.executable,
        ]
    searched = []
    for executable in dict.fromkeys(filter(None, candidates)):
        argv = [executable, "-c", _TORCH_QUESTION]
        version = _answer(argv, f"{executable}, which may have torch,", str, environ)
        if version is not None:
            return TorchPython(executable, version)
        searched.append(executable)
    return TorchPython(searched[0] if searched else named or sys.executable, None, tuple(searched))


def find_framework(name: str, python: str, folder: str) -> Framework:
    """Find a framework as a job of this Python in this folder does."""
    if python == sys.executable:
        return msgspec.convert(framework_facts(name, folder), Framework)
    argv = own_command(python, "framework-facts", name, folder)
    found = _answer(argv, f"{python}, which is to run the job,", Framework)
    return Framework(name) if found is None else found
