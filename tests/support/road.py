"""A user's road to a run: `init`, and the steps that it prints, typed into a shell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.launches import STAND_IN, Call
from support.scenario import AGENT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMAND_LINES = {
    "dstack": "dstack",
    "skypilot": "sky",
    "kubernetes": "kubectl",
    "kuberay": "kubectl",
}
"""By platform: its command line, which asks for nothing but what is typed."""
PRINTED_BEFORE = "Nothing in these files is to be changed. Type:"


@dataclass
class Road:
    """The files in a folder, the steps that were printed, and all that is replaced."""

    folder: Path
    steps: list[str]
    programs: Path
    """Stand-ins for the platform's command line; each call is recorded."""
    replaced: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a file; what only the platform has is replaced, and printed."""
        text = (self.folder / name).read_text(encoding="utf-8")
        for before, after in self.replaced.items():
            if before in text:
                print(f"replaced in {name}: {before} by {after}")
                text = text.replace(before, after)
        return text

    def typed(self, *, without: tuple[str, ...] = ()) -> list[Call]:
        """Type the steps, except those that begin with one of these; return the recorded calls."""
        left_out = [step for step in self.steps if step.startswith(without)] if without else []
        for step in left_out:
            print(f"played by the test: {step}")
        lines = [step for step in self.steps if step not in left_out]
        subprocess.run(
            ["bash", "-ec", "\n".join(lines)], env=self.environ(), check=True, timeout=120
        )
        return self.calls()

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the user's shell."""
        path = f"{self.programs}:{os.environ['PATH']}"
        notes = {"STAND_IN_NOTES": str(self.programs / "notes")}
        return {**os.environ, "PATH": path, **notes, **(more or {})}

    def calls(self) -> list[Call]:
        """Return the recorded calls, in their order."""
        notes = [json.loads(path.read_text()) for path in (self.programs / "notes").glob("*.json")]
        notes.sort(key=lambda note: int(note["at"]))
        return [Call(n["program"], tuple(n["argv"]), n["environ"], n["place"]) for n in notes]


def walked(
    folder: Path,
    *words: str,
    at: Path | None = None,
    replaced: Mapping[str, str] | None = None,
) -> Road:
    """Run `init` in the folder `at`, and return what follows from it."""
    made = folder / "made"
    argv = [AGENT, "init", "--to", str(made), *words]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120, cwd=at)
    _, _, rest = done.stdout.partition(f"{PRINTED_BEFORE}\n")
    steps = []
    for line in rest.splitlines():
        if not line.startswith("  "):
            break
        steps.append(line[2:])
    assert steps[:1] == [f"cd {made}"], done.stdout

    programs = folder / "programs"
    (programs / "notes").mkdir(parents=True)
    name = COMMAND_LINES.get(words[0])
    if name is not None:
        add_program(programs, name, shlex.join([sys.executable, "-I", str(STAND_IN), name]))
        print(f"replaced: {name} by a program that records its calls")
    return Road(made, steps, programs, dict(replaced or {}))


def add_program(folder: Path, name: str, command: str) -> None:
    """Write a program that becomes a command."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
