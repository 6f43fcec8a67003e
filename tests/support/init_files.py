"""`pod-agent init` with a line of words: the files that it writes, and what it prints."""

from __future__ import annotations

import contextlib
import io
import shlex
from typing import TYPE_CHECKING, NamedTuple

from agent.cli.command_line import main
from support.stand_in_packages import ONE_FILE

if TYPE_CHECKING:
    from pathlib import Path


class Written(NamedTuple):
    """The text files of a run by name, and what the verb printed."""

    files: dict[str, str]
    printed: str


def init(line: str, to: Path, code: int = 0) -> str:
    """Run the verb without a terminal; return what it printed, and what was wrong."""
    words = shlex.split(line)
    at = words.index("--") if "--" in words else len(words)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            found: object = main(["init", *words[:at], "--to", str(to), *words[at:]])
        except SystemExit as usage:
            found = usage.code
    assert found == code, printed.getvalue()
    return printed.getvalue()


def written(line: str, folder: Path) -> Written:
    """Run the verb into a folder; on Slurm with a small one file, unless a URL names one."""
    if line.startswith("slurm") and "--agent" not in line:
        one_file = folder.parent / "pod-agent"
        one_file.write_bytes(ONE_FILE)
        words, _, command = line.partition(" -- ")
        line = f"{words} --agent {one_file}" + (f" -- {command}" if command else "")
    printed = init(line, folder)
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in {".whl", ".gz"} and path.name != "pod-agent"
    }
    return Written(files, printed)
