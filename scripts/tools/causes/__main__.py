"""Print right, wrong and silent answers for the cases of tests/causes, or for other folders."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

from tools.causes.cases import Result, diagnosis, judge, live_answer, load

CASES = Path(__file__).resolve().parents[3] / "tests" / "causes"
SEEN = CASES / "seen"


def main(argv: list[str]) -> int:
    """Print the figures: 0."""
    parser = argparse.ArgumentParser(prog="scripts/causes", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders with other cases")
    parser.add_argument("-v", action="store_true", help="show wrong and silent answers")
    options = parser.parse_args(argv)
    for folder in options.folders or [SEEN]:
        _print(folder, show=options.v)
    return 0


def _print(folder: Path, *, show: bool) -> None:
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
