"""Which Python has torch, for a job that torchrun starts: the job's own, not the agent's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent.node import ray_python
from agent.node.facts import TorchPython
from agent.node.process_limits import starting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ASK_LIMIT = 30.0
_QUESTION = """
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
"""Asked of each Python; torch itself, which takes seconds, is imported by nobody."""


def find(environ: Mapping[str, str], named: str | None) -> TorchPython:
    """Find the Python that has torch.

    One that the job's command names is the only one asked. Otherwise it is that of `torchrun` or
    `python` on PATH, then the image's that has Ray, then our own.
    """
    asked = []
    for executable in dict.fromkeys(_candidates(environ.get("PATH"), named)):
        version = _version_in(executable, environ)
        if version is not None:
            return TorchPython(executable, version)
        asked.append(executable)
    return TorchPython(asked[0] if asked else named or sys.executable, None, tuple(asked))


def _candidates(path: str | None, named: str | None) -> Iterator[str]:
    if named is not None:
        found = shutil.which(named, path=path)
        if found is not None:
            yield found
        if found is not None or "/" in named:
            return  # `python` alone may be missing where `python3` is there
    command = ray_python.of_command("torchrun", path)
    if command is not None:
        yield command
    for name in ("python3", "python"):
        found = shutil.which(name, path=path)
        if found is not None:
            yield found
    recorded = ray_python.recorded(Path(sys.prefix) / ray_python.RECORD)
    if recorded is not None:
        yield recorded
    yield sys.executable


def _version_in(executable: str, environ: Mapping[str, str]) -> str | None:
    """Ask a Python for torch's version; None where it has no torch, or does not run."""
    try:
        with starting(f"{executable}, which may have torch,"):
            done = subprocess.run(
                [executable, "-c", _QUESTION],
                capture_output=True,
                text=True,
                timeout=_ASK_LIMIT,
                check=True,
                env=dict(environ),
            )
        told = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return told if isinstance(told, str) else None
