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
ONE_FILE = "dist/pod-agent"
SERVICES = "services/search-r1.toml"
ONCE = {"kubernetes/lws.yaml", "kuberay/rayjob.yaml"}
"""The examples beside which once.sh stays: those of other manifests differ in the agent's file."""
ALONE = {
    "slurm/groups.sbatch",
    "dstack/groups.dstack.yml",
    "skypilot/groups.yaml",
    "kubernetes/groups.yaml",
}
"""The examples beside which nothing stays: it is as beside the others of their platform, or the
`services.toml` with the nodes of each group.
"""


def commands() -> dict[str, list[str]]:
    """Return the arguments of `pod-agent` by the file that they make."""
    table = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    return {path: shlex.split(words) for path, words in ROW.findall(table)}


def write_to(folder: Path) -> None:
    """Run each command, and move what it writes to its place; the agent's own file is left out."""
    for path, words in commands().items():
        with tempfile.TemporaryDirectory() as place:
            one_file = Path(place, "pod-agent")
            one_file.write_bytes(b"PK\5\6" + bytes(18))  # an empty archive
            made = Path(place, "made")
            given = [str(one_file) if word == ONE_FILE else word for word in words]
            with contextlib.redirect_stdout(io.StringIO()):
                code = agent([*given, "--to", str(made)])
            if code:
                sys.exit(code)
            for file in made.iterdir():
                target = place_of(file.name, path, words)
                if target is not None:
                    (folder / target).parent.mkdir(parents=True, exist_ok=True)
                    (folder / target).write_bytes(file.read_bytes())
                    (folder / target).chmod(file.stat().st_mode)


def place_of(name: str, path: str, words: list[str]) -> str | None:
    """Return where a written file goes in examples/; None for one that is left out."""
    example = Path(path)
    if name.endswith(".whl") or name == "pod-agent":
        return None
    if name == "once.sh" and path not in ONCE:
        return None
    if name == "services.toml":
        return None if path in ALONE else SERVICES
    if name == "fetch.sh" and path not in ALONE:
        return str(example.with_name(f"{example.stem}-fetch.sh"))
    is_main = name == example.name or name.startswith((f"{words[2]}.", "loop."))
    if path in ALONE:
        return path if is_main or name == "lws.yaml" else None
    return path if is_main else str(example.with_name(name))


def main(arguments: list[str]) -> int:
    """Write the files to the folder that is named, or to examples/."""
    if any(word.startswith("-") for word in arguments):
        print(__doc__)
        return 0 if arguments[0] in {"-h", "--help"} else 2
    write_to(Path(arguments[0]).resolve() if arguments else ROOT / "examples")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
