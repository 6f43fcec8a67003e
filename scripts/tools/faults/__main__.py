"""Entry point of scripts/faults, in .venv: runs rows, and stores and prints their results."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

import tools.lab as podlab
from tools.faults.results import FAILED, HELD, Result, load, read_junit, save
from tools.faults.rows import PAGE, REPO, Row, read_rows, with_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CANNOT = 77
FOLDER = REPO / ".faults"
EPILOG = """\
exit codes: 0 if all rows passed; 1; 77 if no lab can be made

Rows that passed before are run again only if they are named. Results are stored in .faults/.
A scenario belongs to a row by its marker, @pytest.mark.fault("ROW").
"""


def make_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/faults",
        description="The scenarios of every kind of fault, row by row, in the pod lab.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(names)}")
    parser.add_argument("--table", action="store_true", help="only print the stored results")
    parser.add_argument(
        "--page", action="store_true", help="only write the rows into docs/faults.md"
    )
    return parser


def main() -> int:
    """Run the rows and print the results."""
    rows = {row.name: row for row in read_rows()}
    parser = make_parser(rows)
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in rows]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if options.page:
        PAGE.write_text(with_table(PAGE.read_text(), list(rows.values())))
        return 0
    path = FOLDER / "seen.json"
    results = load(path)
    if options.table:
        print_results(rows, results)
        return 0
    if (reason := podlab.missing()) is not None:
        print(f"scripts/faults: {reason}", file=sys.stderr)
        return CANNOT
    FOLDER.mkdir(exist_ok=True)
    missing = [name for name in rows if name not in results or results[name].word != HELD]
    for name in options.rows or missing:
        results[name] = attempt(rows[name])
        save(path, results)
        print(f"{name}: {results[name].word}", file=sys.stderr, flush=True)
    print_results(rows, results)
    return int(any(result.word == FAILED for result in results.values()))


def attempt(row: Row) -> Result:
    """Run a row's scenarios by pytest, slow ones included."""
    report = FOLDER / f"{row.name}.xml"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *row.tests]
    subprocess.run(argv, cwd=REPO, stdout=sys.stderr, check=False)
    if not report.exists():
        return Result(FAILED, 0.0, "pytest ended without a report")
    return read_junit(report.read_text())


def print_results(rows: Iterable[str], results: Mapping[str, Result]) -> None:
    """Print a line for each row."""
    for name in rows:
        result = results.get(name)
        if result is None:
            print(f"{name:16} not run")
            continue
        failure = f": {result.what}" if result.what else ""
        print(f"{name:16} {result.word}, {result.seconds:.0f} s{failure}")


if __name__ == "__main__":
    sys.exit(main())
