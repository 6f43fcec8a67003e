"""Slow nodes: those whose GPUs differ from the median of all nodes for minutes.

Nodes of one job do the same work, so one whose use, power or clock is far below the others' holds
them up. Where many differ, they have another role, such as rollouts beside training: then none is
named.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Literal

from agent.base import times
from agent.base.text import duration_text
from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.node.figures import Figures, GpuFigures

Measure = Literal["use", "power", "clock"]
MEASURES: Mapping[Measure, tuple[int, str, str]] = {
    "use": (50, "GPU utilization", "%"),
    "power": (60, "GPU power", "W"),
    "clock": (80, "GPU clock", "MHz"),
}
"""By figure: the percent of the median below which a node is slow, its name and unit."""
LEAST_NODES = 3  # with fewer, nobody can say which one is slow
LEAST_READINGS = 10
SHORTEST = LEAST_READINGS * times.FIGURES_SENT  # seconds for which a slow node was slow, about
LEAST_USE = 30  # percent of utilization: below, the median node is idle
MOST_SLOW = 4  # one node in so many may be slow; more have another role
_WEIGHT = 10  # a new reading counts as one of so many


class GpuMean(Value):
    """What one GPU does, averaged over the last minutes; None if not known."""

    index: int
    use: float | None = None
    power: float | None = None
    clock: float | None = None

    def with_reading(self, gpu: GpuFigures, count: int) -> GpuMean:
        """Return the means after another reading; `count` readings were before it."""
        weight = min(count + 1, _WEIGHT)
        return GpuMean(
            self.index,
            _mean(self.use, gpu.use, weight),
            _mean(self.power, gpu.power, weight),
            _mean(self.clock, gpu.clock, weight),
        )


def _mean(former: float | None, new: int | None, weight: int) -> float | None:
    if new is None or former is None:
        return new
    return former + (new - former) / weight


class NodeMean(Value):
    """What the GPUs of one node do, averaged over the last minutes."""

    at: float = -1.0  # when its last reading was made, on the node's clock
    readings: int = 0
    gpus: tuple[GpuMean, ...] = ()
    throttled: tuple[str, ...] = ()  # why a clock is limited, except by usual power limits

    def with_figures(self, figures: Figures) -> NodeMean:
        """Return the means after a report, which may repeat the last figures."""
        of_job = [gpu for gpu in figures.gpus if not gpu.is_of_service]
        if figures.at == self.at or not of_job:
            return self
        known = {gpu.index: gpu for gpu in self.gpus}
        count = self.readings if known.keys() == {gpu.index for gpu in of_job} else 0
        gpus = tuple(
            known.get(gpu.index, GpuMean(gpu.index)).with_reading(gpu, count) for gpu in of_job
        )
        reasons = (reason for gpu in of_job for reason in gpu.throttled if reason != "power")
        return NodeMean(figures.at, count + 1, gpus, tuple(dict.fromkeys(reasons)))

    def value(self, measure: Measure) -> float | None:
        """Return a node's figure: of use and power the mean, of clocks the slowest GPU's."""
        values = [getattr(gpu, measure) for gpu in self.gpus]
        known = [value for value in values if value is not None]
        if not known:
            return None
        slowest: float = min(known)
        return slowest if measure == "clock" else sum(known) / len(known)


class SlowNode(Value):
    """A node that is slower than the others, in one figure."""

    key: str
    measure: Measure
    value: float
    median: float
    throttled: tuple[str, ...] = ()

    def sentence(self, seconds: float = SHORTEST) -> str:
        """Return it in words: `GPU utilization 14 %, median of all nodes 91 %, for 5 min`."""
        _, what, unit = MEASURES[self.measure]
        figure = f"{what} {self.value:.0f} {unit}"
        middle = f"median of all nodes {self.median:.0f} {unit}"
        why = f" (limited by {', '.join(self.throttled)})" if self.throttled else ""
        return f"{figure}, {middle}, for {duration_text(seconds)}{why}"


def slow_nodes(nodes: Mapping[str, NodeMean]) -> tuple[SlowNode, ...]:
    """Return the nodes that are slow, the slowest first, each by its clearest figure."""
    known = {key: node for key, node in nodes.items() if node.readings >= LEAST_READINGS}
    if len(known) < LEAST_NODES:
        return ()

    # Does the median node work at all?
    uses = _values(known.values(), "use")
    if not uses or median(uses) < LEAST_USE:
        return ()

    found: dict[str, SlowNode] = {}
    for measure, (percent, _, _) in MEASURES.items():
        values = {key: node.value(measure) for key, node in known.items()}
        present = {key: value for key, value in values.items() if value is not None}
        if len(present) < LEAST_NODES:
            continue
        middle = median(present.values())
        slow = {key: value for key, value in present.items() if value < middle * percent / 100}
        if len(slow) * MOST_SLOW > len(present) and len(slow) > 1:
            continue
        for key, value in slow.items():
            one = SlowNode(key, measure, value, middle, known[key].throttled)
            if key not in found or value / middle < found[key].value / found[key].median:
                found[key] = one
    return tuple(sorted(found.values(), key=lambda one: one.value / one.median))


def _values(nodes: Iterable[NodeMean], measure: Measure) -> list[float]:
    values = (node.value(measure) for node in nodes)
    return [value for value in values if value is not None]
