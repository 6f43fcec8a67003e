"""Slow nodes are named with the figure in which they differ from the others' median."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.slow_nodes import LEAST_READINGS, NodeMean, slow_nodes
from agent.node.figures import Figures, GpuFigures

USE = "GPU utilization {} %, median of all nodes 91 %, for 5 min"


def node(use: int = 91, power: int = 650, clock: int = 1_395, **more: Any) -> NodeMean:  # noqa: ANN401
    """Return the means of a node whose eight GPUs all do the same for minutes."""
    mean = NodeMean()
    for at in range(LEAST_READINGS):
        gpus = (GpuFigures(n, use, power=power, clock=clock, **more) for n in range(8))
        mean = mean.with_figures(Figures(float(at), tuple(gpus)))
    return mean


def sentences(nodes: dict[str, NodeMean]) -> list[str]:
    """Return what is said about these nodes."""
    return [f"{one.key}: {one.sentence()}" for one in slow_nodes(nodes)]


def fleet(count: int, **others: NodeMean) -> dict[str, NodeMean]:
    """Return ordinary nodes and others."""
    return {**{f"pod{number}": node() for number in range(count)}, **others}


def test_one_of_many() -> None:
    """Named with its figure and the median."""
    assert sentences(fleet(255, pod170=node(use=14))) == [f"pod170: {USE.format(14)}"]
    assert sentences(fleet(3, slow=node(power=260))) == [
        "slow: GPU power 260 W, median of all nodes 650 W, for 5 min"
    ]
    hot = node(clock=345, throttled=("power", "temperature"))
    assert sentences(fleet(7, hot=hot)) == [
        "hot: GPU clock 345 MHz, median of all nodes 1395 MHz, for 5 min (limited by temperature)"
    ]


def test_one_gpu_of_a_node_has_a_low_clock() -> None:
    """Its node is as slow as that GPU."""
    mean = NodeMean()
    for at in range(LEAST_READINGS):
        gpus = [GpuFigures(n, 91, power=650, clock=1_395) for n in range(8)]
        gpus[5] = GpuFigures(5, 91, power=650, clock=600)
        mean = mean.with_figures(Figures(float(at), tuple(gpus)))
    assert sentences(fleet(7, one=mean)) == [
        "one: GPU clock 600 MHz, median of all nodes 1395 MHz, for 5 min"
    ]


def test_the_clearest_figure_of_each_node_and_the_slowest_first() -> None:
    """A node is named once."""
    nodes = fleet(20, idle=node(use=9, power=140), late=node(use=40))
    assert sentences(nodes) == [f"idle: {USE.format(9)}", f"late: {USE.format(40)}"]


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        fleet(3),
        {"a": node(), "b": node(use=10)},  # of two, which one is slow?
        fleet(8, **{f"rollout{number}": node(power=250) for number in range(4)}),  # another role
        {f"pod{number}": node(use=number) for number in range(9)},  # nothing works
        fleet(8, new=NodeMean().with_figures(Figures(1.0, (GpuFigures(0, 1),)))),
        fleet(8, bare=NodeMean().with_figures(Figures(1.0))),
    ],
)
def test_none_is_named(nodes: dict[str, NodeMean]) -> None:
    """Without enough nodes, readings or work, or where many differ."""
    assert slow_nodes(nodes) == ()


def test_a_repeated_report_is_no_reading() -> None:
    """The head keeps the last figures of a worker between two reports that have some."""
    figures = Figures(1.0, (GpuFigures(0, 91),))
    mean = NodeMean().with_figures(figures)
    assert mean.with_figures(figures) is mean
    assert mean.with_figures(Figures(2.0, (GpuFigures(0, 91),))).readings == 2


def test_minutes_count_and_not_one_reading() -> None:
    """A node that idles for one reading, as between two phases, is not slow."""
    short = node().with_figures(Figures(99.0, tuple(GpuFigures(n, 0, power=80) for n in range(8))))
    assert sentences(fleet(7, short=short)) == []


NUMBERS = st.none() | st.integers(0, 2**53)
GPUS = st.lists(st.builds(GpuFigures, st.integers(0, 3), NUMBERS, power=NUMBERS, clock=NUMBERS))


@given(st.lists(st.lists(GPUS, max_size=14), max_size=6))
def test_any_figures(nodes: list[list[list[GpuFigures]]]) -> None:
    """Hostile numbers raise nothing."""
    means = {}
    for number, readings in enumerate(nodes):
        mean = NodeMean()
        for at, gpus in enumerate(readings):
            mean = mean.with_figures(Figures(float(at), tuple(gpus)))
        means[f"pod{number}"] = mean
    assert len(slow_nodes(means)) <= len(means)
