"""Write docs/troubleshooting.md, or check whether it is stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.troubleshooting.page import page

ROOT = Path(__file__).resolve().parents[3]


def main(argv: list[str]) -> int:
    """Write it and return 0; with --check, return 1 if it is stale."""
    parser = argparse.ArgumentParser(prog="scripts/troubleshooting", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, report stale files")
    options = parser.parse_args(argv)
    path, text = ROOT / "docs" / "troubleshooting.md", page(ROOT)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    if options.check:
        print(f"{path.relative_to(ROOT)} is stale: run ./scripts/troubleshooting")
        return 1
    path.write_text(text, encoding="utf-8")
    print(f"{path.relative_to(ROOT)} is written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
