"""The command line: the pairs to run, and the table of all results."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import tools.lab as podlab
from tools.versions.environment import FOLDER
from tools.versions.pairs import NEWEST, Pair, every_pair, parse
from tools.versions.results import Result, load, save, table
from tools.versions.trial import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

CANNOT = 77
RESULTS = FOLDER / "results.json"
EPILOG = f"""\
Pythons are found on PATH by their names (python3.10 and so on). A series stands for its last
release. Each pair gets an environment of its own under .versions, one at a time, which is removed
afterwards; results and logs stay there, and the table shows those of earlier runs too.
A pair takes one to three minutes.

examples:
  scripts/versions                          every pair
  scripts/versions 2.40/3.10 {NEWEST}/3.13    these two
  scripts/versions --table                  no runs, only the table

exit codes: 0; 1 if a pair failed; 77 if no lab can be made
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/versions",
        description="Boot the agent in the pod lab with other Rays and Pythons, and again with a "
        "token, which Rays without token auth must refuse.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "pairs", nargs="*", type=pair, metavar="RAY/PYTHON", help="pairs to run (default: all)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the environments (0.5 GB each)")
    parser.add_argument("--table", action="store_true", help="only print the stored results")
    return parser


def pair(text: str) -> Pair:
    """Parse one pair for argparse."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pairs and print the table."""
    options = make_parser().parse_args(argv)
    results = load(RESULTS)
    if options.table:
        print(table(results))
        return 0
    if (reason := podlab.missing()) is not None:
        print(f"scripts/versions: {reason}", file=sys.stderr)
        return CANNOT
    signal.signal(signal.SIGTERM, leave)
    FOLDER.mkdir(exist_ok=True)
    tried: list[Result] = []
    for one in options.pairs or every_pair():
        log = FOLDER / f"{one.ray}-{one.python}.log"
        result = attempt(one, log, keep=options.keep)
        tried.append(result)
        results[one] = result
        save(RESULTS, results)
        print(result.sentence(), file=sys.stderr, flush=True)
    print(table(results))
    return int(any(result.bad for result in tried))


def leave(number: int, _frame: object) -> NoReturn:
    """Turn a stop signal into an exception, so that lab and environment are removed."""
    raise SystemExit(128 + number)
