"""The findings: one JSON file per part, stored between runs, and the table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tools.frameworks.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Verdict:
    """The result of one command; without faults and misfit it is valid."""

    recipe: str
    nodes: str
    how: str
    faults: tuple[Fault, ...] = ()
    misfit: str = ""
    """The recipe's own reason why it makes no command for these nodes."""

    @property
    def where(self) -> str:
        """Name the command."""
        return f"{self.recipe} on {self.nodes} ({self.how})"


@dataclass(frozen=True)
class Result:
    """The result of one part."""

    part: str
    digest: str
    """A hash of the recipes and checkers behind it: if it changes, the part runs again."""
    seconds: float
    verdicts: tuple[Verdict, ...] = ()
    detail: str = ""
    """For a real run: what was observed."""
    broken: str = ""
    """Why nothing could be checked."""

    @property
    def bad(self) -> bool:
        """Return whether anything is wrong."""
        return bool(self.broken) or any(verdict.faults for verdict in self.verdicts)

    def sentence(self) -> str:
        """Render one line."""
        ends = [self.broken or (count(self.verdicts) if self.verdicts else ""), self.detail]
        end = "; ".join(end for end in ends if end)
        return f"{self.part}: {end} ({self.seconds:.0f} s)"


def count(verdicts: Sequence[Verdict]) -> str:
    """Count the commands by result."""
    faulty = sum(1 for verdict in verdicts if verdict.faults)
    misfits = sum(1 for verdict in verdicts if verdict.misfit)
    words = [f"{len(verdicts) - faulty - misfits} right"]
    words += [f"{misfits} do not fit"] if misfits else []
    words += [f"{faulty} FAULTY"] if faulty else []
    return ", ".join(words)


def load(folder: Path, part: str) -> Result | None:
    """Read the result of an earlier run."""
    path = folder / f"{part}.json"
    if not path.exists():
        return None
    row = json.loads(path.read_text(encoding="utf-8"))
    verdicts = tuple(
        Verdict(**{**verdict, "faults": tuple(Fault(**fault) for fault in verdict["faults"])})
        for verdict in row.pop("verdicts")
    )
    return Result(**row, verdicts=verdicts)


def save(folder: Path, result: Result) -> None:
    """Write the file atomically for the next run."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{result.part}.new"
    new.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    new.rename(folder / f"{result.part}.json")


def table(results: Mapping[str, Result | None]) -> str:
    """Render the parts as Markdown: one row per part, one column for its recipes."""
    lines = ["| part | recipe | commands |", "| --- | --- | --- |"]
    for part, result in results.items():
        lines += [f"| {part} | {recipe} | {end} |" for recipe, end in rows(result)]
    return "\n".join(lines)


def rows(result: Result | None) -> Iterable[tuple[str, str]]:
    """Render a part's result, recipe by recipe."""
    if result is None:
        return [("", "not run")]
    if not result.verdicts:
        return [("", result.broken or result.detail)]
    recipes = dict.fromkeys(verdict.recipe for verdict in result.verdicts)
    return [
        (recipe, count([verdict for verdict in result.verdicts if verdict.recipe == recipe]))
        for recipe in recipes
    ]


def details(results: Iterable[Result | None]) -> list[str]:
    """List errors and misfits, each once with all the commands that have it."""
    found: dict[str, list[str]] = {}
    for result in results:
        part, verdicts = (result.part, result.verdicts) if result else ("", ())
        for verdict in verdicts:
            for what in [*map(str, verdict.faults), *([verdict.misfit] if verdict.misfit else [])]:
                found.setdefault(what, []).append(f"{part} {verdict.where}")
    return [f"{what}\n    {len(where)}x: {'; '.join(where[:6])}" for what, where in found.items()]
