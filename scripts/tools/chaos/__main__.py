"""Entry point of scripts/chaos, in .venv: plays seeds, and keeps and prints their results."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

import tools.lab as podlab
from tools.chaos.faults import faults_of
from tools.chaos.seed import Result, play

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
    add = parser.add_argument
    add("--seeds", type=int, default=20, metavar="N", help="default 20")
    add("--first", type=int, default=1, metavar="S", help="default 1")
    add("--seconds", type=float, default=200.0, metavar="T", help="of faults, default 200")
    add("--again", action="store_true", help="also run seeds that passed before")
    add("--show", action="store_true", help="only print the seeds' faults")
    return parser


def main() -> int:
    """Run the seeds and print a line for each."""
    options = make_parser().parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.show:
        for seed in seeds:
            print(f"seed {seed}:")
            for fault in faults_of(seed, options.seconds):
                print(f"  {fault.sentence()}")
        return 0
    if (reason := podlab.missing()) is not None:
        print(f"scripts/chaos: {reason}", file=sys.stderr)
        return CANNOT
    signal.signal(signal.SIGTERM, leave)
    good = 0
    for seed in seeds:
        result = result_of(seed, options.seconds, again=options.again)
        word = "; ".join(result.problems) or "as predicted"
        print(f"seed {seed}, {options.seconds:g} s: {word} ({result.summary})", flush=True)
        good += not result.problems
    print(f"{good} of {len(seeds)} as predicted")
    return int(good < len(seeds))


def result_of(seed: int, seconds: float, *, again: bool) -> Result:
    """Return a seed's result, from an earlier run or by playing it."""
    folder = FOLDER / f"{seed}-{seconds:g}s"
    path = folder / "result.json"
    if path.exists() and not again:
        former = msgspec.json.decode(path.read_bytes(), type=Result)
        if not former.problems:
            return former
    result = play(seed, seconds, folder)
    path.write_bytes(msgspec.json.encode(result))
    return result


def leave(number: int, _frame: object) -> NoReturn:
    """Turn a stop signal into an exception, so that the lab is removed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
