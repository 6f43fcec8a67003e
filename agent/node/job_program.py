"""Whether the job's program can be started here, looked up as the shell will that runs `exec`."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHELLS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a shell looks that was given no PATH."""
_DEEPEST = 4
"""So many interpreters of interpreters Linux follows."""


def fault_of(word: str, path: str | None) -> str:
    """Return why `exec WORD` will fail in the current directory, or '' where it will not.

    What we may not look at (a folder of another's on PATH, a directory that is gone) is no fault:
    the shell will tell.
    """
    try:
        return _fault_of(word, path)
    except (OSError, ValueError):
        return ""


def _fault_of(word: str, path: str | None) -> str:
    if word.startswith("-"):
        return "begins with a dash, so the shell takes it for an option of `exec`"
    if "/" not in word:
        found = _on_path(word, path)
        return _hint(word) if found is None else _fault(found, path)
    if not os.path.lexists(word):
        return f"is not there{_seen_from(word)}"
    if not os.path.exists(word):  # noqa: PTH110 - a Path's own raises where we may not look
        return "is a link to nothing"
    return _fault(Path(word), path)


def _seen_from(word: str) -> str:
    if word.startswith("~"):
        return ": `~` stays as it is here; write the whole path, or $HOME in your shell"
    return "" if word.startswith("/") else f", seen from {Path.cwd()}"


def _on_path(word: str, path: str | None) -> Path | None:
    """Find a program as a shell does: what can be run first, else what is only there."""
    if not word:
        return None
    folders = (_SHELLS_PATH if path is None else path).split(os.pathsep)
    there = [Path(folder or ".", word) for folder in folders]
    files = [file for file in there if os.path.isfile(file)]  # noqa: PTH113 - same
    return next((f for f in files if os.access(f, os.X_OK)), files[0] if files else None)


def _hint(word: str) -> str:
    """Say that it is not on PATH, and what was probably meant."""
    if not word.strip():
        return "is empty"
    if any(c.isspace() for c in word):
        return "is not on PATH: give its words one by one, or a shell: -- bash -c '…'"
    if "=" in word:
        return "is not on PATH: variables go before pod-agent, or after `env`: -- env NAME=…"
    if os.path.isfile(word):  # noqa: PTH113 - same
        return f"is not on PATH: the file here is run as ./{word}, or by its interpreter"
    return "is not on PATH"


def _fault(file: Path, path: str | None, depth: int = 0) -> str:
    if os.path.isdir(file):  # noqa: PTH112 - same
        return f"is a folder ({file})"
    if not os.access(file, os.X_OK):
        return f"may not be executed ({file}): run `chmod +x`, or name its interpreter before it"
    interpreter = _interpreter(file)
    return _fault_of_script(interpreter, path, depth) if interpreter and depth < _DEEPEST else ""


def _fault_of_script(interpreter: list[str], path: str | None, depth: int) -> str:
    program = Path(interpreter[0])
    if not _is_there(program):
        odd = " (its first line ends as Windows' do)" if interpreter[0].endswith("\r") else ""
        return f"is a script for {interpreter[0].strip()}, which is not there{odd}"
    if _fault(program, path, depth + 1):
        return f"is a script for {program}, which cannot be run"
    called = _called_by_env(interpreter) if program.name == "env" else None
    if called is not None and "/" not in called and _on_path(called, path) is None:
        return f"is a script for {called.strip()}, which is not on PATH"
    return ""


def _is_there(program: Path) -> bool:
    """Say whether a program is there; raises PermissionError where we may not look."""
    try:
        program.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _interpreter(file: Path) -> list[str]:
    """Return the words of a script's first line, as Linux splits it: a program and one argument."""
    try:
        with file.open("rb") as opened:
            line = opened.read(256).partition(b"\n")[0]
    except OSError:  # it may be executed, and not read
        return []
    if not line.startswith(b"#!"):
        return []
    words = line[2:].decode(errors="surrogateescape").strip(" \t")
    return re.split(r"[ \t]+", words, maxsplit=1) if words else []


def _called_by_env(interpreter: list[str]) -> str | None:
    """Return the program that `env` will look up: with -S it splits its one argument itself."""
    argument = interpreter[1] if len(interpreter) > 1 else ""
    if argument.startswith(("-S", "--split-string")):
        words = argument.removeprefix("--split-string").removeprefix("-S").lstrip("= ").split()
        # with options, variables or quotes before it only env itself knows which word it is
        return words[0] if words and re.fullmatch(r"[\w.][\w./+-]*", words[0]) else None
    return argument if argument and not argument.startswith("-") else None
