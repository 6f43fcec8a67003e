"""The figures of --faults: a round's measurements, the promises, and the table."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tools.bench.figures import Target, columns, known, summary, trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

DISTURBANCE = 5.0
"""CPU-seconds that other processes may use in a round, which takes a minute or two."""


@dataclass
class FaultRound:
    """The measurements of a round in seconds; None if the round did not get that far."""

    round: int
    cold_boot: float | None = None
    """From the pods' start to the job's first line."""
    worker_named: float | None = None
    """From the kill of a worker until the head names it."""
    rays_start: float | None = None
    """For `ray start` alone on an idle pod until its node is in Ray."""
    worker_back: float | None = None
    """From the restart of that worker's pod until its node is in Ray again."""
    rewards_start: float | None = None
    """For the reward server alone on an idle pod until it scores."""
    scores_again: float | None = None
    """From the kill of the reward server until it scores again."""
    head_follows: float | None = None
    """From the kill of the head's agent until the next one follows the running job."""
    worker_follows: float | None = None
    """From the kill of a worker's agent until the next one follows the head."""
    head_back: float | None = None
    """From the restart of the head's pod until all workers rejoined and the job runs again."""
    others: float | None = None
    """CPU-seconds that other processes on this machine used during the round."""
    problem: str = ""

    @property
    def disturbed(self) -> bool:
        """True if other processes used more CPU time than a comparison allows."""
        return (self.others or 0.0) > DISTURBANCE


class Figure(NamedTuple):
    """One promise: a measurement, the largest value, and the measurement that it is beyond."""

    measure: str
    name: str
    limit: float
    beside: str = ""
    is_ratio: bool = False

    def value(self, one: FaultRound) -> float | None:
        """Return a round's value."""
        found: float | None = getattr(one, self.measure)
        if not self.beside:
            return found
        beside: float | None = getattr(one, self.beside)
        if found is None or beside is None:
            return None
        return found / beside if self.is_ratio else found - beside

    def promise(self) -> str:
        """Name what is promised."""
        how = {"rays_start": "Ray's own start", "rewards_start": "its own start"}
        if self.is_ratio:
            return f"{self.name}, over a cold boot"
        return f"{self.name}, beyond {how[self.beside]}" if self.beside else self.name


FIGURES = (
    Figure("worker_named", "worker killed: named at the head", 3.0),
    Figure("worker_back", "worker restarted: its node in Ray again", 2.0, "rays_start"),
    Figure(
        "head_back",
        "head restarted: all rejoined, the job runs again",
        1.3,
        "cold_boot",
        is_ratio=True,
    ),
    Figure("scores_again", "reward server killed: scores again", 1.5, "rewards_start"),
    Figure("head_follows", "head's agent killed: follows again", 2.0),
    Figure("worker_follows", "worker's agent killed: follows again", 2.0),
)


def fault_targets(rounds: Sequence[FaultRound]) -> list[Target]:
    """Compare the medians with the promises."""
    found = []
    for figure in FIGURES:
        values = known(map(figure.value, rounds))
        unit = " times" if figure.is_ratio else " s"
        middle = median(values) if values else None
        found.append(Target(figure.promise(), figure.limit, middle, unit))
    return found


def fault_table(rounds: Sequence[FaultRound]) -> str:
    """Render the measurements, those beside them, and the promises."""
    rows = [["seconds: median (least-most)", "measured", "beside it"]]
    for figure in FIGURES:
        beside = known(getattr(one, figure.beside) for one in rounds) if figure.beside else []
        measured = known(getattr(one, figure.measure) for one in rounds)
        rows.append([figure.name, summary(measured), summary(beside)])
    lines = [*columns(rows), "", f"rounds: {len(rounds)}", ""]
    lines += [target.sentence() for target in fault_targets(rounds)]
    for one in rounds:
        others = one.others if one.disturbed else None
        lines += trouble(f"round {one.round}", one.problem, others)
    return "\n".join(lines)
