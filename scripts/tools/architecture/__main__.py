"""Draw the picture of `agent/` and its page's table, or check whether they are stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.architecture import page, picture
from tools.architecture.imports import read_folders

ROOT = Path(__file__).resolve().parents[3]


def wanted(root: Path) -> dict[Path, str]:
    """Return the content that the drawn files should have."""
    folder_map = read_folders(root)
    document = root / "docs" / "architecture.md"
    return {
        root / "docs" / "architecture.svg": picture.draw(folder_map),
        document: page.with_table(document.read_text(encoding="utf-8"), folder_map),
    }


def main(argv: list[str]) -> int:
    """Draw and return 0; with --check, return 1 if a file is stale."""
    parser = argparse.ArgumentParser(prog="scripts/architecture", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, report stale files")
    options = parser.parse_args(argv)
    stale = 0
    for path, text in wanted(ROOT).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale = 1
        if options.check:
            print(f"{path.relative_to(ROOT)} is stale: run ./scripts/architecture")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is drawn anew")
    return stale if options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
