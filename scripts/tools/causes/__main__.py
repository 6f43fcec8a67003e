"""Measure how well the agent names the causes of failed runs; without arguments: all cases.

Needs nothing but Python. The cases and their format: tests/causes/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tools.causes.cases import Result, diagnosis, judge, live_answer, load
from tools.causes.ordinary import count_false_causes
from tools.causes.perturbed import count_changes
from tools.causes.runs import Grade, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

CASES = Path(__file__).resolve().parents[3] / "tests" / "causes"
SEEN = CASES / "seen"
SEEN_RUNS = CASES / "seen_runs"
HELD_OUT = CASES / "held_out"


def main(argv: list[str]) -> int:
    """Print the figures: 0."""
    parser = argparse.ArgumentParser(
        prog="scripts/causes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="*", type=Path, help="folders with cases like the seen")
    parser.add_argument(
        "--cases", metavar="FOLDER", type=Path, help="a folder with runs like the held-out ones"
    )
    parser.add_argument(
        "-v",
        action="store_true",
        help="show answers that are not right, except those of "
        f"{HELD_OUT.name}, which no author of a row may read",
    )
    parser.add_argument(
        "--ordinary",
        metavar="FOLDER",
        type=Path,
        help="count the causes named in the ordinary logs of tests/causes/ordinary_sources.toml: "
        "they are fetched into this folder, and whatever else lies there counts too",
    )
    parser.add_argument(
        "--mirrors",
        metavar="FOLDER",
        type=Path,
        help="with --ordinary: clones to read instead of GitHub, as OWNER+NAME or OWNER+NAME/repo",
    )
    parser.add_argument(
        "--perturbed",
        metavar="SEED",
        type=int,
        help="count the answers that harmless lines in the logs change",
    )
    options = parser.parse_args(argv)
    if options.perturbed is not None:
        return _print_changes(options.perturbed, show=options.v)
    if options.ordinary is not None:
        return count_false_causes(options.ordinary, options.mirrors)
    chosen = options.folders or ([] if options.cases else [SEEN])
    for folder in chosen:
        _print_seen(folder, show=options.v)
    runs = [] if options.folders else [SEEN_RUNS, HELD_OUT]
    for folder in [options.cases] if options.cases else runs:
        _print_runs(folder, show=options.v and folder != HELD_OUT)
    return 0


def _print_changes(seed: int, *, show: bool) -> int:
    counted = count_changes(seed)
    for change in counted.changes:
        print(f"{change.corpus}: {change.case}: harmless lines {change.where}: {change.when}")
        if show and change.corpus != HELD_OUT.name:
            print(f"    was: {change.former or 'nothing'}\n    is:  {change.now or 'nothing'}")
    by = Counter((one.corpus, one.where, one.when) for one in counted.changes)
    for (corpus, where, when), count in sorted(by.items()):
        print(f"{corpus:12}{where:10}{when:12}{count:6}")
    print(f"{len(counted.changes)} of {counted.answers} answers changed")
    return 1 if counted.changes else 0


def _print_runs(folder: Path, *, show: bool) -> None:
    figures = measure(folder, show=show)
    for title, kinds in (("at the end", figures.end), ("as it runs", figures.live)):
        print(f"\n{folder.name}, {title:20}{''.join(f'{one.value:>8}' for one in Grade)}")
        for kind in sorted(kinds, key=lambda kind: (kind == "trap", kind)):
            print(f"  {kind:30}{_grades(kinds[kind])}")
        cases = _sum({kind: grades for kind, grades in kinds.items() if kind != "trap"})
        print(f"  {'all but traps':30}{_grades(cases)}   of {cases.total()}")


def _sum(kinds: Mapping[str, Counter[Grade]]) -> Counter[Grade]:
    return sum(kinds.values(), Counter[Grade]())


def _grades(counts: Counter[Grade]) -> str:
    return "".join(f"{counts[one]:8}" for one in Grade)


def _print_seen(folder: Path, *, show: bool) -> None:
    classes: dict[str, Counter[Result]] = defaultdict(Counter)
    live: Counter[Result] = Counter()
    for name, case in load(folder):
        answer = diagnosis(case)
        result = judge(case, answer)
        classes[name][result] += 1
        live[judge(case, live_answer(case))] += 1
        if show and result is not Result.RIGHT:
            answered = (
                " or ".join(answer.row.labels if answer.row else ()) or answer.key or "no cause"
            )
            print(f"{result.value}: {case['id']} is {case['cause']}, answered {answered}")
            print(f"    the case's line: {case['evidence']}\n    the answer's line: {answer.line}")
    total = sum(classes.values(), Counter[Result]())
    print(f"{folder.name:16}{''.join(f'{one.value:>8}' for one in Result)}")
    for name, counts in classes.items():
        print(f"  {name:14}{_figures(counts)}")
    print(f"  {'all':14}{_figures(total)}   of {total.total()}")
    print(f"  {'as it runs':14}{_figures(live)}")


def _figures(counts: Counter[Result]) -> str:
    return "".join(f"{counts[one]:8}" for one in Result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
