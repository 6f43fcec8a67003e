"""The history of all GPUs: medians, the lowest node, and its bound."""

from __future__ import annotations

import json

from agent.diagnosis.gpu_history import MOST_POINTS, GpuHistory
from agent.node.figures import Figures, GpuFigures


def node(use: int | None, memory: int | None = 40) -> Figures:
    """Return the figures of a node with eight equal GPUs of 80 MiB."""
    return Figures(0.0, tuple(GpuFigures(index, use, memory, 80) for index in range(8)))


def test_a_point_has_medians_and_the_lowest_node() -> None:
    """Over all nodes at one time; a node without figures is left out."""
    history = GpuHistory()
    history.add(30.0, [node(90), node(96, 60), node(20), Figures(0.0)])
    assert history.to_status() == {"seconds": [30], "use": [90], "lowest": [20], "memory": [50]}


def test_without_figures_there_is_no_point() -> None:
    """A driver that reports nothing is not an idle GPU."""
    history = GpuHistory()
    for figures in ([], [Figures(0.0)], [node(None)], [node(90, None)]):
        history.add(30.0, figures)
    assert history.to_status() == {"seconds": [], "use": [], "lowest": [], "memory": []}


def test_a_long_run_keeps_its_whole_course_in_few_points() -> None:
    """A week with readings every 30 s."""
    history = GpuHistory()
    readings = 7 * 24 * 120
    for number in range(readings):
        history.add(30.0 * number, [node(0 if number < readings // 2 else 90)])
        assert len(history.to_status()["seconds"]) <= MOST_POINTS
    status = history.to_status()
    count = len(status["seconds"])
    assert count > MOST_POINTS // 2 - 2
    assert (status["use"][0], status["use"][-1]) == (0, 90)
    assert abs(sum(use == 90 for use in status["use"]) - count / 2) <= 2
    distances = {
        later - at for at, later in zip(status["seconds"], status["seconds"][1:], strict=False)
    }
    assert max(distances) <= 30 * readings / (MOST_POINTS / 2 - 2)
    assert len(json.dumps(status)) < 4_000


def test_its_size_does_not_depend_on_the_nodes() -> None:
    """A thousand nodes make the points of one."""
    small, large = GpuHistory(), GpuHistory()
    for number in range(MOST_POINTS + 5):
        small.add(30.0 * number, [node(90)])
        large.add(30.0 * number, [node(90)] * 1_000)
    assert small.to_status() == large.to_status()
