"""The command line: which rows to run, and the results of earlier runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tools.lab as podlab
from tools.faults import page
from tools.faults.results import FAILED, HELD, Seen, load, read_junit, save, table
from tools.faults.rows import ROWS, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

CANNOT = 77
REPO = Path(__file__).parents[3]
FOLDER = REPO / ".faults"
PAGE = REPO / "docs" / "faults.md"
NAMES = [row.name for row in ROWS]
EPILOG = """\
exit codes: 0 if all rows passed; 1; 77 if no lab can be made

Rows that passed before are run again only if they are named. Results are stored in .faults/.
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/faults",
        description="The scenarios of every kind of fault, row by row, in the pod lab.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--table", action="store_true", help="only print the stored results")
    parser.add_argument(
        "--page", action="store_true", help="only write the rows into docs/faults.md"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows and print the table."""
    parser = make_parser()
    options = parser.parse_args(argv)
    unknown = [name for name in options.rows if name not in NAMES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if options.page:
        PAGE.write_text(page.with_table(PAGE.read_text(), ROWS))
        return 0
    path = FOLDER / "seen.json"
    seen = load(path)
    if options.table:
        print(table(ROWS, seen))
        return 0
    if (reason := podlab.missing()) is not None:
        print(f"scripts/faults: {reason}", file=sys.stderr)
        return CANNOT
    FOLDER.mkdir(exist_ok=True)
    for row in ROWS:
        known = seen.get(row.name)
        if row.name in options.rows or (not options.rows and (not known or known.word != HELD)):
            seen[row.name] = attempt(row)
            save(path, seen)
            print(f"{row.name}: {seen[row.name].word}", file=sys.stderr, flush=True)
    print(table(ROWS, seen))
    return int(any(one.word == FAILED for one in seen.values()))


def attempt(row: Row) -> Seen:
    """Run a row's scenarios by pytest, slow ones included."""
    report = FOLDER / f"{row.name}.xml"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *row.tests]
    subprocess.run(argv, cwd=REPO, stdout=sys.stderr, check=False)
    if not report.exists():
        return Seen(FAILED, 0.0, "pytest ended without a report")
    return read_junit(report.read_text())
