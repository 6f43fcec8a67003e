"""The pure part: the measurements, their statistics, the targets and the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LEAVE_LIMIT = 6.0
LAUNCH_LIMIT = 0.5
MEMORY_LIMIT = 80.0
CPU_LIMIT = 0.5
JOB_RATIO = 1.10
DISTURBANCE = 1.0
"""CPU-seconds of other processes until the job's start; three pods use about 25 themselves."""
GONE_RATIO = 0.25
NOTHING = "-"
PAIRS = (
    ("agent", "former"),
    ("agent", "handmade"),
    ("handmade", "symmetric-run"),
    ("agent", "symmetric-run"),
)
FORMER_RATIO = 1.05
"""The maximum ratio of the new version's time to the former one's."""


@dataclass
class Run:
    """One run of one system; times in seconds, None if the run did not get that far.

    `to_job`, `job_end` and `all_gone` count from the pods' start, `head_gone` and `workers_gone`
    (of the last worker) from the job's end. `launched` is the start time of the head's `ray start`,
    counted from its pod's entrypoint; `launched_own` is the same by the agent's clock, which starts
    after its imports. `cpu_to_job` is the CPU time of the whole machine until the job started, in
    seconds; `others_to_job` is its part that is neither the lab's nor the kernel's. `own_head`,
    `own_bridge` and `own_workers` are the CPU time of the agent's processes until then: the head's
    agent with its parent, the bridge to Ray, and the agents of the workers.
    """

    system: str
    round: int
    to_job: float | None = None
    job_end: float | None = None
    head_gone: float | None = None
    workers_gone: float | None = None
    all_gone: float | None = None
    launched: float | None = None
    launched_own: float | None = None
    cpu_to_job: float | None = None
    others_to_job: float | None = None
    own_head: float | None = None
    own_bridge: float | None = None
    own_workers: list[float] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    problem: str = ""

    @property
    def disturbed(self) -> bool:
        """True if other processes used more CPU time than a comparison allows."""
        return (self.others_to_job or 0.0) > DISTURBANCE


@dataclass(frozen=True)
class Share:
    """The cost of one agent process: MB resident and proportional, percent of a core."""

    role: str
    resident: float
    proportional: float
    cpu: float


@dataclass(frozen=True)
class Follow:
    """The cost of a following worker's agent, over a number of seconds."""

    seconds: float
    shares: list[Share]
    codes: list[int]


@dataclass(frozen=True)
class Target:
    """A promise, the measured value (None: not measured), and whether it holds."""

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


MEASURES: dict[str, Callable[[Run], float | None]] = {
    "time to job": lambda run: run.to_job,
    "head gone after job": lambda run: run.head_gone,
    "workers gone after job": lambda run: run.workers_gone,
    "start to all gone": lambda run: run.all_gone,
    "ray start launched": lambda run: run.launched,
    "same, agent's clock": lambda run: run.launched_own,
    "CPU-seconds to job": lambda run: run.cpu_to_job,
    "own CPU, head's agent": lambda run: run.own_head,
    "own CPU, bridge to Ray": lambda run: run.own_bridge,
    "own CPU, a worker's agent": lambda run: mean(run.own_workers) if run.own_workers else None,
}


def order(systems: Sequence[str], number: int) -> list[str]:
    """Rotate the order from round to round, so that no system always runs first."""
    turn = number % len(systems)
    return [*systems[turn:], *systems[:turn]]


def values(runs: Iterable[Run], system: str, measure: str) -> list[float]:
    """Return a system's values of a measure."""
    found = (MEASURES[measure](run) for run in runs if run.system == system)
    return [value for value in found if value is not None]


def summary(numbers: Sequence[float]) -> str:
    """Format the median, with minimum and maximum."""
    if not numbers:
        return NOTHING
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{median(numbers):.2f} ({min(numbers):.2f}-{max(numbers):.2f})"


def ratios(runs: Sequence[Run], over: str, under: str, measure: str) -> list[float]:
    """Return the ratio of two systems in every round that has both."""
    found = []
    for number in sorted({run.round for run in runs}):
        of_round = [run for run in runs if run.round == number]
        above, below = values(of_round, over, measure), values(of_round, under, measure)
        if above and below:
            found.append(above[0] / below[0])
    return found


def targets(runs: Sequence[Run], follow: Follow | None) -> list[Target]:
    """Compare the measurements with the promises."""
    job = ratios(runs, "agent", "handmade", "time to job")
    gone = ratios(runs, "agent", "symmetric-run", "start to all gone")
    exits = [
        *values(runs, "agent", "head gone after job"),
        *values(runs, "agent", "workers gone after job"),
    ]
    launch = values(runs, "agent", "ray start launched")
    shares = follow.shares if follow else []
    before = ratios(runs, "agent", "former", "time to job")
    after = ratios(runs, "agent", "former", "start to all gone")
    return [
        Target("time to job, agent/former", FORMER_RATIO, _middle(before)),
        Target("start to all gone, agent/former", FORMER_RATIO, _middle(after)),
        Target("time to job, agent/handmade", JOB_RATIO, median(job) if job else None),
        Target("start to all gone, agent/symmetric-run", GONE_RATIO, _middle(gone)),
        Target("last pod's exit after the job's end", LEAVE_LIMIT, max(exits, default=None), " s"),
        Target("ray start launched", LAUNCH_LIMIT, max(launch, default=None), " s"),
        Target("worker's agent, memory", MEMORY_LIMIT, _sum(s.resident for s in shares), " MB"),
        Target("worker's agent, CPU", CPU_LIMIT, _sum(s.cpu for s in shares), " % of a core"),
    ]


def table(runs: Sequence[Run], follow: Follow | None, systems: Sequence[str]) -> str:
    """Render the whole table."""
    present = [name for name in systems if any(run.system == name for run in runs)]
    lines = []
    if present:
        rows = [["seconds: median (least-most)", *present]]
        rows += [[m, *(summary(values(runs, s, m)) for s in present)] for m in MEASURES]
        counts = [sum(run.system == s for run in runs) for s in present]
        rows.append(["runs", *map(str, counts)])
        lines += [*columns(rows), ""]
        ratio_rows = [["ratio of each round", "time to job", "start to all gone"]]
        for over, under in PAIRS:
            cells = [
                summary(ratios(runs, over, under, m)) for m in ("time to job", "start to all gone")
            ]
            ratio_rows.append([f"{over} / {under}", *cells])
        lines += [*columns(ratio_rows), ""]
    if follow is not None:
        rows = [["a worker's agent, following", "resident MB", "proportional MB", "% of a core"]]
        rows += [
            [s.role, f"{s.resident:.1f}", f"{s.proportional:.1f}", f"{s.cpu:.2f}"]
            for s in follow.shares
        ]
        lines += [*columns(rows), ""]
    lines += [target.sentence() for target in targets(runs, follow)]
    lines += [f"FAILED        {r.system}, round {r.round}: {r.problem}" for r in runs if r.problem]
    lines += [
        f"DISTURBED     {r.system}, round {r.round}: others took {r.others_to_job:.1f} CPU-seconds"
        for r in runs
        if r.disturbed
    ]
    return "\n".join(lines)


def _middle(numbers: Sequence[float]) -> float | None:
    return median(numbers) if numbers else None


def _sum(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    return sum(found) if found else None


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
