"""The figures of a start: the measurements, their statistics, the targets and the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NOTHING = "-"
DISTURBANCE = 1.0
"""CPU-seconds of other processes until the job's start; three pods use about 25 themselves."""
SLOW = "symmetric-run"


@dataclass
class Run:
    """One run of one system; times in seconds, None if the run did not get that far.

    `to_job`, `job_end` and `all_gone` count from the pods' start, `head_gone` and `workers_gone`
    (of the last worker) from the job's end. `launched` is the start time of the head's `ray start`,
    counted from its pod's entrypoint. `cpu_to_job` is the CPU time of the whole machine until the
    job started, in seconds; `others_to_job` is its part that is neither the lab's nor the kernel's.
    `own_head`, `own_bridge` and `own_worker` are the CPU time of the agent's processes until then:
    the head's agent with its parent, the bridge to Ray, and a worker's agent on average.
    """

    system: str
    round: int
    to_job: float | None = None
    job_end: float | None = None
    head_gone: float | None = None
    workers_gone: float | None = None
    all_gone: float | None = None
    launched: float | None = None
    cpu_to_job: float | None = None
    others_to_job: float | None = None
    own_head: float | None = None
    own_bridge: float | None = None
    own_worker: float | None = None
    codes: list[int] = field(default_factory=list)
    problem: str = ""

    @property
    def disturbed(self) -> bool:
        """True if other processes used more CPU time than a comparison allows."""
        return (self.others_to_job or 0.0) > DISTURBANCE


MEASURES = {
    "time to job": "to_job",
    "head gone after job": "head_gone",
    "workers gone after job": "workers_gone",
    "start to all gone": "all_gone",
    "ray start launched": "launched",
    "CPU-seconds to job": "cpu_to_job",
    "own CPU, head's agent": "own_head",
    "own CPU, bridge to Ray": "own_bridge",
    "own CPU, a worker's agent": "own_worker",
}
"""The fields of a run that the table has."""
PAIRS = (
    ("agent", "former"),
    ("agent", "handmade"),
    ("handmade", SLOW),
    ("agent", SLOW),
)


class Target(NamedTuple):
    """A promise, the largest permitted value, and the measured one (None: not measured)."""

    name: str
    limit: float
    value: float | None
    unit: str = ""

    @property
    def holds(self) -> bool | None:
        """None if nothing was measured."""
        return None if self.value is None else self.value <= self.limit

    def sentence(self) -> str:
        """Render one line."""
        word = {None: "not measured", True: "holds", False: "MISSED"}[self.holds]
        value = NOTHING if self.value is None else f"{self.value:.2f}{self.unit}"
        return f"{word:12}  {self.name}: {value} (at most {self.limit:g}{self.unit})"


def is_missed(targets: Iterable[Target]) -> bool:
    """Return whether a promise does not hold."""
    return any(target.holds is False for target in targets)


def schedule(systems: Sequence[str], rounds: int, slow_rounds: int) -> Iterator[tuple[int, str]]:
    """Yield round and system, in rotation, so that no system always runs first.

    The slow system runs only in the first rounds.
    """
    for number in range(rounds):
        present = [system for system in systems if system != SLOW or number < slow_rounds]
        turn = number % max(1, len(present))
        for system in [*present[turn:], *present[:turn]]:
            yield number, system


def values(runs: Iterable[Run], system: str, measure: str) -> list[float]:
    """Return a system's values of a field."""
    return known(getattr(run, measure) for run in runs if run.system == system)


def ratios(runs: Sequence[Run], over: str, under: str, measure: str) -> list[float]:
    """Return the ratio of two systems in every round that has both."""
    found = []
    for number in sorted({run.round for run in runs}):
        of_round = [run for run in runs if run.round == number]
        above, below = values(of_round, over, measure), values(of_round, under, measure)
        if above and below:
            found.append(above[0] / below[0])
    return found


def targets(runs: Sequence[Run]) -> list[Target]:
    """Compare the measurements with the promises: medians of ratios, and the worst exit."""
    exits = values(runs, "agent", "head_gone") + values(runs, "agent", "workers_gone")
    launches = values(runs, "agent", "launched")

    def ratio(peer: str, measure: str) -> float | None:
        found = ratios(runs, "agent", peer, measure)
        return median(found) if found else None

    return [
        Target("time to job, agent/former", 1.05, ratio("former", "to_job")),
        Target("start to all gone, agent/former", 1.05, ratio("former", "all_gone")),
        Target("time to job, agent/handmade", 1.10, ratio("handmade", "to_job")),
        Target("start to all gone, agent/symmetric-run", 0.25, ratio(SLOW, "all_gone")),
        Target("last pod's exit after the job's end", 6.0, max(exits, default=None), " s"),
        Target("ray start launched", 0.5, max(launches, default=None), " s"),
    ]


def table(runs: Sequence[Run], systems: Sequence[str]) -> str:
    """Render the whole table."""
    present = [system for system in systems if any(run.system == system for run in runs)]
    rows = [["seconds: median (least-most)", *present]]
    for name, measure in MEASURES.items():
        rows.append([name, *(summary(values(runs, system, measure)) for system in present)])
    rows.append(["runs", *(str(sum(run.system == system for run in runs)) for system in present)])
    ratio_rows = [["ratio of each round", "time to job", "start to all gone"]]
    for over, under in PAIRS:
        cells = [summary(ratios(runs, over, under, one)) for one in ("to_job", "all_gone")]
        ratio_rows.append([f"{over} / {under}", *cells])
    lines = [*columns(rows), "", *columns(ratio_rows), ""]
    lines += [target.sentence() for target in targets(runs)]
    for run in runs:
        which = f"{run.system}, round {run.round}"
        lines += trouble(which, run.problem, run.others_to_job if run.disturbed else None)
    return "\n".join(lines)


def trouble(which: str, problem: str, others: float | None) -> list[str]:
    """Render what was wrong with a run: it failed, or others used too much CPU time."""
    lines = [f"FAILED        {which}: {problem}"] if problem else []
    if others is not None:
        lines.append(f"DISTURBED     {which}: others took {others:.1f} CPU-seconds")
    return lines


def known(numbers: Iterable[float | None]) -> list[float]:
    """Leave out what was not measured."""
    return [number for number in numbers if number is not None]


def summary(numbers: Sequence[float]) -> str:
    """Format the median, with minimum and maximum."""
    if not numbers:
        return NOTHING
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{median(numbers):.2f} ({min(numbers):.2f}-{max(numbers):.2f})"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
