"""The command line: which seeds, how long each, and what earlier runs found."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import podlab
from mishaps.plan import plan
from mishaps.results import Result, load, save, table
from mishaps.seed import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

CANNOT = 77
FOLDER = Path(__file__).parents[2] / ".chaos"
EPILOG = """\
exit codes: 0 where all seeds ended as predicted; 1; 77 where no lab can be made

Seeds that were tried before, for as long, are not tried again, but those that failed: what was seen
of them is kept in .chaos/, with the agents' logs. 200 s of mishaps take three to seven minutes.
To repeat one that failed: scripts/chaos --first SEED --seeds 1
"""


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Random mishaps from a seed over three pods with real agents and Rays: "
        "whatever is killed, stopped, cut off or full, the run ends as a small model predicts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="default 20")
    parser.add_argument("--first", type=int, default=1, metavar="S", help="default 1")
    parser.add_argument(
        "--seconds", type=float, default=200.0, metavar="T", help="of mishaps, default 200"
    )
    parser.add_argument("--again", action="store_true", help="try also those that held before")
    parser.add_argument("--show", action="store_true", help="only print what the seeds stand for")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Try and print."""
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
    """Return what came of a seed, from before or from now."""
    known = load(FOLDER, seed, seconds)
    if known is not None and not known.problems and not again:
        return known
    say(f"seed {seed}, {seconds:g} s of mishaps")
    result = attempt(seed, seconds, FOLDER / f"{seed}-{seconds:g}s", say)
    save(FOLDER, result)
    say(result.sentence())
    return result


def say(sentence: str) -> None:
    """Tell what happens."""
    print(sentence, file=sys.stderr, flush=True)


def leave(number: int, _frame: object) -> NoReturn:
    """Turn a request to stop into an exception, so that the lab is taken away."""
    raise SystemExit(128 + number)
