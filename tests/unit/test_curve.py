"""The curve's picture is well-formed and shows what it should, whatever was measured."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from agent.bundled.rehearsal import svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "rewards", [[], [0.5], [0.1, 0.9], [-3.0, 12.5], [i / 4000 for i in range(4000)]]
)
def test_the_picture_is_well_formed(rewards: list[float]) -> None:
    """Each step has its dot within the picture, and the axes have their names."""
    root = ET.fromstring(svg(rewards, target=0.9, chance=0.1, title="a < b & c"))  # noqa: S314 # our own text
    dots = root.findall(f"{SVG}circle")
    assert len(dots) == len(rewards)
    assert all(0 <= float(dot.attrib["cx"]) <= 760 for dot in dots)
    assert all(0 <= float(dot.attrib["cy"]) <= 420 for dot in dots)
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {"a < b & c", "step", "mean reward", "target 0.9", "chance 0.1"} <= set(texts)


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        (1, ["1"]),
        (5, ["1", "2", "3", "4", "5"]),
        (40, ["1", "5", "10", "15", "20", "25", "30", "35", "40"]),
        (1000, ["1", *map(str, range(100, 1001, 100))]),
    ],
)
def test_ticks_are_round(steps: int, ticks: list[str]) -> None:
    """The first step and round numbers are marked, never too many."""
    root = ET.fromstring(svg([0.5] * steps, target=0.9, chance=0.1, title=""))  # noqa: S314 # our own text
    below = [text for text in root.findall(f"{SVG}text") if text.attrib["y"] == "380.0"]
    assert [text.text for text in below] == ticks
