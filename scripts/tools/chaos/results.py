"""The results of each seed: stored between runs, printed as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class Result:
    """The result of one seed."""

    seed: int
    seconds: float
    planned: int
    """The number of faults that the seed plans."""
    faults: tuple[str, ...]
    """Those that hit something before the run was over."""
    codes: tuple[int | None, ...]
    """The exit code of each pod's agent; None: its pod was killed for good, or it never ended."""
    attempts: int
    took: float
    problems: tuple[str, ...]

    def sentence(self) -> str:
        """Render one line."""
        word = "; ".join(self.problems) if self.problems else "as predicted"
        codes = ", ".join("none" if code is None else str(code) for code in self.codes)
        counts = f"{len(self.faults)} of {self.planned} faults hit, {self.attempts} attempt(s)"
        ends = f"exit codes {codes}, {self.took:.0f} s"
        return f"seed {self.seed}, {self.seconds:g} s: {word} ({counts}, {ends})"


def load(folder: Path, seed: int, seconds: float) -> Result | None:
    """Read a seed's result of an earlier run."""
    path = file_of(folder, seed, seconds)
    if not path.exists():
        return None
    data = json.loads(path.read_text())
    for name in ("faults", "codes", "problems"):
        data[name] = tuple(data[name])
    return Result(**data)


def save(folder: Path, result: Result) -> None:
    """Write the file atomically for the next run."""
    path = file_of(folder, result.seed, result.seconds)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(result), indent=1) + "\n")
    new.replace(path)


def file_of(folder: Path, seed: int, seconds: float) -> Path:
    """Return the file of a seed's result."""
    return folder / f"seed-{seed}-{seconds:g}s.json"


def table(results: Iterable[Result]) -> str:
    """Render a line per seed, and the counts."""
    every = list(results)
    good = sum(not result.problems for result in every)
    return "\n".join([*(one.sentence() for one in every), f"{good} of {len(every)} as predicted"])
