"""Write openapi.json and the table of paths in http.md, or say what is stale."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from agent import __version__
from tools.http.description import PATHS, Described, description

ROOT = Path(__file__).resolve().parents[3]
_TABLE = re.compile(r"(<!-- paths -->\n).*?(<!-- /paths -->)", re.DOTALL)


def table() -> str:
    """Return the paths as a table."""
    return "\n".join(["| path | content | access |", "| --- | --- | --- |", *map(_row, PATHS), ""])


def _row(path: Described) -> str:
    access = f"{path.access}; a head's only" if path.head_only else path.access
    return f"| `{path.method.upper()} {path.path}` | {path.content} | {access} |"


def main(argv: list[str]) -> int:
    """Write them: 0; with --check 1 where one is stale."""
    parser = argparse.ArgumentParser(prog="scripts/http", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, report what is stale")
    options = parser.parse_args(argv)
    folder = ROOT / "docs" / "reference"
    page = (folder / "http.md").read_text(encoding="utf-8")
    wanted = {
        "http.md": _TABLE.sub(lambda found: f"{found[1]}{table()}{found[2]}", page),
        "openapi.json": json.dumps(description(__version__), indent=1) + "\n",
    }
    stale = 0
    for name, text in wanted.items():
        path = folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            print(f"docs/reference/{name} is stale: run ./scripts/http")
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs/reference/{name} is written anew")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
