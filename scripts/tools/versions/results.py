"""The results of each pair: stored between runs, printed as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tools.versions.pairs import NEWEST, REFUSAL, Pair, every_pair

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OK = "ok"
FAILED = "failed"
REFUSED = "refused"
"""The scenario passed, and it proves that the start is refused with a message."""
NO_WHEEL = "no wheel"
NO_PYTHON = "no such Python here"
NOT_INSTALLED = "not installed"
NOT_RUN = "not run"
BAD = frozenset({FAILED, NOT_INSTALLED})


@dataclass(frozen=True)
class Step:
    """The result of one scenario."""

    name: str
    word: str
    seconds: float
    what: str = ""
    """The failure, as pytest describes it."""


@dataclass(frozen=True)
class Result:
    """The result of one pair: the setup, and each scenario."""

    pair: Pair
    word: str
    installed: str = ""
    """Ray's full version, from the agent in that environment."""
    python: str = ""
    seconds: float = 0.0
    what: str = ""
    steps: tuple[Step, ...] = field(default=())

    @property
    def bad(self) -> bool:
        """Return whether this is a failure, and not a pair without wheels."""
        return self.word in BAD

    def sentence(self) -> str:
        """Render one line."""
        names = f" (Ray {self.installed}, Python {self.python})" if self.installed else ""
        steps = ", ".join(f"{step.name} {step.word} {step.seconds:.0f} s" for step in self.steps)
        parts = [f"{self.pair}{names}: {self.word}", steps]
        parts += [self.what, *(step.what for step in self.steps if step.what)]
        return "; ".join(part for part in parts if part) + f" ({self.seconds:.0f} s in all)"


def of_steps(
    pair: Pair, versions: tuple[str, str], seconds: float, steps: Sequence[Step]
) -> Result:
    """Sum up a pair whose scenarios ran."""
    word = FAILED if any(step.word == FAILED for step in steps) else OK
    installed, python = versions
    return Result(pair, word, installed, python, seconds, "", tuple(steps))


def passed_word(test: str) -> str:
    """Name a passed scenario's result."""
    return REFUSED if test == REFUSAL.test else OK


def load(path: Path) -> dict[Pair, Result]:
    """Read the results of earlier runs."""
    if not path.exists():
        return {}
    found = {}
    for row in json.loads(path.read_text()):
        pair = Pair(**row.pop("pair"))
        steps = tuple(Step(**step) for step in row.pop("steps"))
        found[pair] = Result(pair=pair, steps=steps, **row)
    return found


def save(path: Path, results: Mapping[Pair, Result]) -> None:
    """Write the file atomically for the next run."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps([asdict(result) for result in results.values()], indent=1) + "\n")
    new.replace(path)


def table(results: Mapping[Pair, Result]) -> str:
    """Render all pairs as Markdown: one row per Ray, one column per Python."""
    pairs = list(dict.fromkeys([*every_pair(), *results]))
    pythons = sorted({p.python for p in pairs}, key=numbers)
    rays = sorted({p.ray for p in pairs}, key=lambda ray: (ray == NEWEST, numbers(ray)))
    lines = ["| Ray | " + " | ".join(f"Python {python}" for python in pythons) + " |"]
    lines.append("| --- " * (len(pythons) + 1) + "|")
    for ray in rays:
        row = [results.get(Pair(ray, python)) for python in pythons]
        full = sorted({r.installed for r in row if r and r.installed}, key=numbers)
        head = f"{ray} ({', '.join(full)})" if full else ray
        lines.append(f"| {head} | " + " | ".join(cell(result) for result in row) + " |")
    return "\n".join(lines)


def cell(result: Result | None) -> str:
    """Render one pair's result for the table."""
    if result is None:
        return NOT_RUN
    if not result.steps:
        return result.word
    return ", ".join(f"{step.name} {step.word} {step.seconds:.0f} s" for step in result.steps)


def numbers(text: str) -> tuple[int, ...]:
    """Return a version's numbers, to sort by."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())
