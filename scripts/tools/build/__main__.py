"""The command line of ./scripts/build."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.build.lock import REPO, TARGETS, BuildError, digest, read_lock, write_lock
from tools.build.make import changed, make

EPILOG = """\
dist/pod-agent is one executable for CPython 3.10 to 3.13 on Linux, x86-64 and arm64. It holds the
agent and its libraries, without Ray, which it finds in the image: see docs/install.md. With --for it
holds the libraries of one Python and machine, a third of the size, and is named after them.

The libraries are those of requirements/onefile.txt, with their digests. The same commit gives the
same bytes. Needs a package index that pip knows, once: wheels stay in .onefile.
"""


ALL_NAMES = tuple(target.name for target in TARGETS)


def main() -> int:
    """Build, or resolve the libraries again."""
    parser = argparse.ArgumentParser(
        prog="scripts/build",
        description="Build dist/pod-agent, the wheel and the sdist, with checksums and a software "
        "bill of materials.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lock", action="store_true", help="write requirements/onefile.txt anew")
    parser.add_argument(
        "--to", type=Path, default=REPO / "dist", metavar="FOLDER", help="default: dist"
    )
    parser.add_argument(
        "--for",
        dest="targets",
        action="append",
        choices=[target.name for target in TARGETS],
        metavar="TARGET",
        help="hold only the libraries of this Python and machine, for example cp312-x86_64; may be"
        " given again; default: all of %(choices)s",
    )
    options = parser.parse_args()
    targets = tuple(one for one in TARGETS if one.name in (options.targets or ALL_NAMES))
    try:
        if options.lock:
            print(f"requirements/onefile.txt: {len(write_lock())} wheels")
            return 0
        if names := changed():
            print(f"build: with {len(names)} uncommitted change(s) in it", file=sys.stderr)
        made = make(options.to, read_lock(), targets)
    except BuildError as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    for file in made.files():
        print(f"{digest(file)}  {file.name}  {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
