"""The command line: the seeds, their duration, and the results of earlier runs."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import tools.lab as podlab
from tools.chaos.plan import plan
from tools.chaos.results import Result, load, save, table
from tools.chaos.seed import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

CANNOT = 77
FOLDER = Path(__file__).parents[3] / ".chaos"
EPILOG = """\
exit codes: 0 if all seeds ended as predicted; 1; 77 if no lab can be made

Results are stored in .chaos/, with the agents' logs. A seed that ended as predicted is not run
again for the same number of seconds. 200 s of faults take three to seven minutes.
To repeat a failed seed: scripts/chaos --first SEED --seeds 1
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Random faults, from a seed, over three pods with real agents and Rays. "
        "Each run must end as a small model predicts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="default 20")
    parser.add_argument("--first", type=int, default=1, metavar="S", help="default 1")
    parser.add_argument(
        "--seconds",
        type=float,
        default=200.0,
        metavar="T",
        help="duration of the faults, default 200",
    )
    parser.add_argument("--again", action="store_true", help="also run seeds that passed before")
    parser.add_argument("--show", action="store_true", help="only print the seeds' faults")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds and print the table."""
    options = make_parser().parse_args(argv)
    seeds = range(options.first, options.first + options.seeds)
    if options.show:
        for seed in seeds:
            print(f"seed {seed}:")
            print("\n".join(f"  {one.sentence()}" for one in plan(seed, options.seconds)))
        return 0
    if (reason := podlab.missing()) is not None:
        print(f"scripts/chaos: {reason}", file=sys.stderr)
        return CANNOT
    signal.signal(signal.SIGTERM, leave)
    FOLDER.mkdir(exist_ok=True)
    results = [one_seed(seed, options.seconds, again=options.again) for seed in seeds]
    print(table(results))
    return int(any(result.problems for result in results))


def one_seed(seed: int, seconds: float, *, again: bool) -> Result:
    """Return a seed's result, from an earlier run or by running it."""
    known = load(FOLDER, seed, seconds)
    if known is not None and not known.problems and not again:
        return known
    say(f"seed {seed}, {seconds:g} s of faults")
    result = attempt(seed, seconds, FOLDER / f"{seed}-{seconds:g}s", say)
    save(FOLDER, result)
    say(result.sentence())
    return result


def say(sentence: str) -> None:
    """Print progress."""
    print(sentence, file=sys.stderr, flush=True)


def leave(number: int, _frame: object) -> NoReturn:
    """Turn a stop signal into an exception, so that the lab is removed."""
    raise SystemExit(128 + number)
