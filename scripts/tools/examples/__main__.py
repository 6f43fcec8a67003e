"""Write the start files in examples/ anew, by the commands in examples/README.md.

scripts/examples [FOLDER]    default: examples
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path

from agent.cli.command_line import main as agent

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"\]\(([\w./-]+)\)[^`\n]*`pod-agent (init [^`]+)`")


def commands() -> dict[str, list[str]]:
    """Return the arguments of `pod-agent` by the file that they make."""
    table = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    return {path: shlex.split(words) for path, words in ROW.findall(table)}


def write_to(folder: Path) -> None:
    """Run each command, and move what it writes to its place."""
    for path, words in commands().items():
        with tempfile.TemporaryDirectory() as place:
            with contextlib.redirect_stdout(io.StringIO()):
                agent([*words, "--to", place])
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            for file in Path(place).iterdir():
                name = target.name if len(list(Path(place).iterdir())) == 1 else file.name
                target.with_name(name).write_bytes(file.read_bytes())
                target.with_name(name).chmod(file.stat().st_mode)


def main(arguments: list[str]) -> int:
    """Write the files to the folder that is named, or to examples/."""
    if any(word.startswith("-") for word in arguments):
        print(__doc__)
        return 0 if arguments[0] in {"-h", "--help"} else 2
    write_to(Path(arguments[0]) if arguments else ROOT / "examples")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
