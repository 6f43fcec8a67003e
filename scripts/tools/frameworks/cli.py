"""The command line: which parts to run, the results of earlier runs, the table."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tools.frameworks.packages import FOLDER
from tools.frameworks.parts import PARTS, digest, run
from tools.frameworks.results import details, load, save, table

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = FOLDER / "results"
EPILOG = """\
Packages, environments and results stay in .frameworks. A part that was run with the recipes and
judges as they are is not run again, so that the suite can be stopped at any time and goes on from
there. Needs a package index that pip knows, and some 6 GB: torch, three times, is most of it. The
parts whose names begin with trl train two processes for eight steps. train-trl trains over two pods
of the lab, and torchrun-pods has torchrun's own scenarios there; both as root. start-verl and
start-openrlhf start verl's own main_ppo and OpenRLHF's own train_ppo_ray here, with GPUs that are
not there. slime and prime-rl, which no index has, are read in checkouts: POD_AGENT_SLIME with
POD_AGENT_MEGATRON (the commit of slime's Dockerfile), and POD_AGENT_PRIME_RL with
POD_AGENT_PRIME_RL_PYTHON, a Python 3.12 with the packages of prime-rl-configs, psutil, loguru and
setproctitle; without them these parts are left out. first-sync-verl runs the sender of weights of
each verl, adapters-verl its collection of adapters, checkpoint-verl its checkpoints. All others
only read what they fetch.

examples:
  scripts/frameworks                        every part that is not done
  scripts/frameworks verl-0.9.1 openrlhf-m  these two
  scripts/frameworks --again verl-0.9.1     though it is done
  scripts/frameworks --table                no runs, only what was found

exit codes: 0; 1 if a recipe has an error, or a part could not be checked
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    parser = argparse.ArgumentParser(
        prog="scripts/frameworks",
        description="Check every recipe with the frameworks' own parsers, for "
        "each supported version and for nodes of many sizes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to run (default: all): {', '.join(names)}"
    )
    parser.add_argument("--again", action="store_true", help="also run finished parts")
    parser.add_argument("--table", action="store_true", help="only print the stored results")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and print the table."""
    parser = make_parser()
    options = parser.parse_args(argv)
    parts = {part.name: part for part in PARTS}
    if unknown := [name for name in options.parts if name not in parts]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    chosen = [parts[name] for name in options.parts]
    chosen = chosen or [part for part in PARTS if part.is_possible]
    found = {part.name: load(RESULTS, part.name) for part in chosen}
    for part in chosen:
        before = found[part.name]
        done = before is not None and before.digest == digest(part) and not before.broken
        if options.table or (done and not options.again):
            continue
        result = run(part)
        save(RESULTS, result)
        found[part.name] = result
        print(result.sentence(), file=sys.stderr, flush=True)
    print(table(found))
    for line in details(found.values()):
        print(f"\n{line}")
    return int(any(result is None or result.bad for result in found.values()))
