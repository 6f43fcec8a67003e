"""Entry point of scripts/bench, in .venv: measures start or recovery."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import tools.lab as podlab
from tools.bench.boot import measure
from tools.bench.fault_figures import FaultRound, fault_table, fault_targets
from tools.bench.faults import fault_round
from tools.bench.figures import Run, is_missed, schedule, table, targets
from tools.bench.systems import SYSTEMS, former

if TYPE_CHECKING:
    from collections.abc import Sequence

CANNOT = 77
EPILOG = """\
exit codes: 0; 1 if a run failed or a target was missed; 77 if no lab can be made

A round with symmetric-run takes about three minutes, one without it half a minute.
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Time to job and to the end: pod-agent, a handmade optimum and "
        "`ray symmetric-run`, interleaved in the pod lab. Run nothing else meanwhile.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pods", type=at_least_two, default=3, metavar="N", help="default 3")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument(
        "--slow-rounds", type=int, default=2, metavar="N", help="of symmetric-run (default 2)"
    )
    parser.add_argument(
        "--peers", type=peers, default=list(SYSTEMS), metavar="A,B", help=",".join(SYSTEMS)
    )
    parser.add_argument("--no-warm-up", action="store_true", help="skip the unmeasured first run")
    parser.add_argument(
        "--again",
        type=int,
        default=2,
        metavar="N",
        help="repeat a run that other processes disturbed up to N times (default 2)",
    )
    parser.add_argument(
        "--former",
        type=Path,
        metavar="CHECKOUT",
        help="also the agent of another checkout, in which ./scripts/setup has run",
    )
    parser.add_argument(
        "--faults",
        action="store_true",
        help="only the time until faults are reported and repaired: --rounds, over a minute each; "
        "rounds already in --json FILE count",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw values there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep every run's logs there")
    return parser


def at_least_two(text: str) -> int:
    """Parse a number of pods."""
    if (number := int(text)) < 2:
        raise argparse.ArgumentTypeError("a cluster has two pods at least")
    return number


def peers(text: str) -> list[str]:
    """Parse a list of systems."""
    names = text.split(",")
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; {', '.join(SYSTEMS)}")
    return names


def main() -> int:
    """Measure and print."""
    options = make_parser().parse_args()
    if (reason := podlab.missing()) is not None:
        print(f"scripts/bench: {reason}", file=sys.stderr)
        return CANNOT
    if options.faults:
        return measure_faults(options.rounds, options.json, options.keep)
    if options.former is not None:
        SYSTEMS["former"] = former(options.former)
        options.peers.append("former")
    if options.rounds > 0 and not options.no_warm_up:
        say("warm-up", measure(options.peers[0], -1, options.pods))
    runs: list[Run] = []
    for number, system in schedule(options.peers, options.rounds, options.slow_rounds):
        runs.append(measure_calmly(system, number, options))
        save(options.json, runs)
    print(table(runs, options.peers))
    return int(is_missed(targets(runs)) or any(run.problem for run in runs))


def measure_calmly(system: str, number: int, options: argparse.Namespace) -> Run:
    """Repeat a measurement that other processes disturbed; keep the least disturbed."""
    tries: list[Run] = []
    while not tries or (tries[-1].disturbed and len(tries) <= options.again):
        tries.append(measure(system, number, options.pods, options.keep))
        say(f"round {number}", tries[-1])
    return min(tries, key=lambda run: (bool(run.problem), run.others_to_job or 0.0))


def measure_faults(rounds: int, path: Path | None, keep: Path | None) -> int:
    """Measure this many rounds, minus those already in the file; print the summary of all."""
    known = [] if path is None or not path.exists() else json.loads(path.read_text())
    found = [FaultRound(**one) for one in known]
    while len(found) < rounds:
        found.append(fault_round(len(found), keep))
        print(f"round {found[-1]}", file=sys.stderr, flush=True)
        save(path, found)
    print(fault_table(found))
    return int(is_missed(fault_targets(found)) or any(one.problem for one in found))


def say(when: str, run: Run) -> None:
    """Print a run's result as soon as it is over."""
    to_job = "never" if run.to_job is None else f"{run.to_job:.2f} s"
    gone = "never" if run.all_gone is None else f"{run.all_gone:.2f} s"
    line = f"{when} {run.system}: time to job {to_job}, all gone {gone}, exit codes {run.codes}"
    disturbed = " (disturbed)" if run.disturbed else ""
    print(f"{line}{disturbed} {run.problem}".rstrip(), file=sys.stderr, flush=True)


def save(path: Path | None, results: Sequence[Run] | Sequence[FaultRound]) -> None:
    """Write all raw values."""
    if path is not None:
        path.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
