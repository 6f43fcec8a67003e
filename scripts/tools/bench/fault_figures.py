"""The pure part of --faults: a round's measurements, the promises, and the table."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tools.bench.figures import NOTHING, Target, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    """One promise: the measurement, its reference, and the allowed value per round."""

    name: str
    measure: Callable[[FaultRound], float | None]
    beside: Callable[[FaultRound], float | None] | None
    promise: str
    limit: float
    unit: str = " s"


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _more(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part


FIGURES = (
    Figure("worker killed: named at the head", lambda r: r.worker_named, None, "itself", 3.0),
    Figure(
        "worker restarted: its node in Ray again",
        lambda r: r.worker_back,
        lambda r: r.rays_start,
        "beyond Ray's own start",
        2.0,
    ),
    Figure(
        "head restarted: all rejoined, the job runs again",
        lambda r: r.head_back,
        lambda r: r.cold_boot,
        "over a cold boot",
        1.3,
        " times",
    ),
    Figure(
        "reward server killed: scores again",
        lambda r: r.scores_again,
        lambda r: r.rewards_start,
        "beyond its own start",
        1.5,
    ),
    Figure("head's agent killed: follows again", lambda r: r.head_follows, None, "itself", 2.0),
    Figure("worker's agent killed: follows again", lambda r: r.worker_follows, None, "itself", 2.0),
)


def value_of(figure: Figure, one: FaultRound) -> float | None:
    """Return a round's value for a promise."""
    found = figure.measure(one)
    if figure.beside is None:
        return found
    known = figure.beside(one)
    return _over(found, known) if figure.unit == " times" else _more(found, known)


def fault_targets(rounds: Sequence[FaultRound]) -> list[Target]:
    """Compare the medians with the promises."""
    found = []
    for figure in FIGURES:
        values = [value for one in rounds if (value := value_of(figure, one)) is not None]
        name = figure.name if figure.beside is None else f"{figure.name}, {figure.promise}"
        found.append(Target(name, figure.limit, median(values) if values else None, figure.unit))
    return found


def fault_table(rounds: Sequence[FaultRound]) -> str:
    """Render the table: median and worst, the reference's median, and the promises."""
    rows = [["seconds", "median", "worst", "beside it, median"]]
    for figure in FIGURES:
        values = _known(figure.measure(one) for one in rounds)
        beside = [] if figure.beside is None else _known(map(figure.beside, rounds))
        rows.append([figure.name, _middle(values), _worst(values), _middle(beside)])
    lines = [*columns(rows), "", f"rounds: {len(rounds)}", ""]
    lines += [target.sentence() for target in fault_targets(rounds)]
    lines += [f"FAILED        round {one.round}: {one.problem}" for one in rounds if one.problem]
    lines += [
        f"DISTURBED     round {one.round}: others took {one.others:.1f} CPU-seconds"
        for one in rounds
        if one.disturbed
    ]
    return "\n".join(lines)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _middle(values: Sequence[float]) -> str:
    return f"{median(values):.2f}" if values else NOTHING


def _worst(values: Sequence[float]) -> str:
    return f"{max(values):.2f}" if values else NOTHING
