"""Draw the picture of `agent/` and its page's table, or say whether they are stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from import_map import page, picture
from import_map.imports import read_house

ROOT = Path(__file__).resolve().parents[2]


def wanted(root: Path) -> dict[Path, str]:
    """Return what the drawn files should hold."""
    house = read_house(root)
    document = root / "docs" / "architecture.md"
    return {
        root / "docs" / "architecture.svg": picture.draw(house),
        document: page.with_table(document.read_text(encoding="utf-8"), house),
    }


def main(argv: list[str]) -> int:
    """Draw: 0; with --check 1 where a file is stale."""
    parser = argparse.ArgumentParser(prog="scripts/architecture", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, tell what is stale")
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
