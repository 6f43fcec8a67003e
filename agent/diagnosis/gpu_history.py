"""What the GPUs of all nodes did over time: medians, and the node with the lowest use.

It has at most MOST_POINTS points, whatever the number of nodes and the length of the run: a full
history keeps the mean of every two points, and adds later ones at twice the distance.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.node.figures import Figures

MOST_POINTS = 120


class _Point(NamedTuple):
    seconds: float  # on the clock of the run
    use: float  # percent, the median of all GPUs
    lowest: float  # percent, the mean of the node with the lowest one
    memory: float  # percent, the median of all GPUs


class GpuHistory:
    """The history of one run, by the readings of all nodes at one time."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._latest: list[_Point] = []  # the readings of the next point
        self._each = 1  # readings of a point

    def add(self, seconds: float, nodes: Iterable[Figures]) -> None:
        """Add the newest figures of all nodes; nothing where no GPU has any."""
        point = _point_of(seconds, nodes)
        if point is None:
            return
        self._latest.append(point)
        if len(self._latest) < self._each:
            return
        self._points.append(_mean_of(self._latest))
        self._latest = []
        if len(self._points) == MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [_mean_of(pair) for pair in pairs]
            self._each *= 2

    def to_status(self) -> dict[str, list[int]]:
        """Return one list for each figure, in the order of time."""
        points = [*self._points]
        if self._latest:
            points.append(_mean_of(self._latest))
        return {name: [round(getattr(point, name)) for point in points] for name in _Point._fields}


def _point_of(seconds: float, nodes: Iterable[Figures]) -> _Point | None:
    uses: list[float] = []
    means: list[float] = []
    shares: list[float] = []
    for figures in nodes:
        of_node = [gpu.use for gpu in figures.gpus if gpu.use is not None]
        uses += of_node
        if of_node:
            means.append(fmean(of_node))
        shares += [
            100 * gpu.memory_used / gpu.memory_total
            for gpu in figures.gpus
            if gpu.memory_used is not None and gpu.memory_total
        ]
    if not uses or not shares:
        return None
    return _Point(seconds, median(uses), min(means), median(shares))


def _mean_of(points: Sequence[_Point]) -> _Point:
    return _Point(*(fmean(values) for values in zip(*points, strict=True)))
