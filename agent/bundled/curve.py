"""The picture of a rehearsal: mean reward by step, as a self-contained SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 724, 64, 360
_FONT = "font-family='system-ui, Helvetica, Arial, sans-serif' font-size='13' fill='#52606d'"
_CENTRED = "text-anchor='middle'"
_INK, _MUTED, _GRID = "#1f2933", "#52606d", "#e4e7eb"
_CURVE, _TARGET, _CHANCE = "#2563eb", "#15803d", "#b45309"


def svg(rewards: Sequence[float], *, target: float, chance: float, title: str) -> str:
    """Draw the mean reward of steps 1, 2, … with the lines of target and chance."""
    low = min(0.0, math.floor(min(rewards, default=0.0)))
    high = max(1.0, math.ceil(max(rewards, default=1.0)))
    plot = _Plot(len(rewards), low, high)
    size = f"width='{_WIDTH}' height='{_HEIGHT}'"
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' {size} {_FONT}>"
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f"<rect {size} fill='#ffffff'/>",
        _text(_LEFT, 32, title, f"font-size='18' font-weight='600' fill='{_INK}'"),
        *plot.axes(),
        *plot.level(chance, -6, f"chance {chance:g}", _CHANCE),
        *plot.level(target, 16, f"target {target:g}", _TARGET),
        *plot.curve(rewards),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Plot:
    """The coordinates of the picture, and the parts that need them."""

    def __init__(self, steps: int, low: float, high: float) -> None:
        self._steps, self._low, self._high = steps, low, high

    def _x(self, step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (step - 1) / max(self._steps - 1, 1)

    def _y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self._low) / (self._high - self._low)

    def axes(self) -> list[str]:
        """Ticks with their grid, both axes and their names."""
        parts = []
        for index in range(6):
            value = self._low + (self._high - self._low) * index / 5
            y = self._y(value)
            parts.append(_line((_LEFT, y), (_RIGHT, y), _GRID))
            parts.append(_text(_LEFT - 10, y + 4, f"{value:.1f}", "text-anchor='end'"))
        for step in _ticks(self._steps):
            x = self._x(step)
            parts.append(_line((x, _BOTTOM), (x, _BOTTOM + 5), _MUTED))
            parts.append(_text(x, _BOTTOM + 20, str(step), _CENTRED))
        middle = (_TOP + _BOTTOM) / 2
        turned = f"{_CENTRED} transform='rotate(-90 20 {middle:.1f})'"
        return [
            *parts,
            _line((_LEFT, _TOP), (_LEFT, _BOTTOM), _MUTED),
            _line((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM), _MUTED),
            _text((_LEFT + _RIGHT) / 2, _HEIGHT - 14, "step", _CENTRED),
            _text(20, middle, "mean reward", turned),
        ]

    def level(self, value: float, offset: float, name: str, colour: str) -> list[str]:
        """A dashed line across, with its name at the right end, above or below."""
        y = self._y(value)
        line = _line((_LEFT, y), (_RIGHT, y), colour, "stroke-dasharray='6 4' stroke-width='1.5'")
        return [line, _text(_RIGHT, y + offset, name, f"text-anchor='end' fill='{colour}'")]

    def curve(self, rewards: Sequence[float]) -> list[str]:
        """The curve itself, with a dot for each step."""
        points = [(self._x(step), self._y(reward)) for step, reward in enumerate(rewards, 1)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{_CURVE}'/>" for x, y in points]
        line = f"<polyline points='{path}' fill='none' stroke='{_CURVE}' stroke-width='2.5'"
        return [line + " stroke-linejoin='round' stroke-linecap='round'/>", *dots]


def _ticks(steps: int) -> list[int]:
    """The first step, and round ones at even distances: at most a dozen."""
    size = 10 ** max(len(str(steps)) - 2, 0)
    gap = next(g * size for g in (1, 2, 5, 10) if steps <= 10 * g * size)
    return sorted({1, *range(gap, steps + 1, gap)} - ({2} if gap > 1 else set()))


def _line(
    start: tuple[float, float], end: tuple[float, float], colour: str, style: str = ""
) -> str:
    ends = f"x1='{start[0]:.1f}' y1='{start[1]:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}'"
    return f"<line {ends} stroke='{colour}' {style}/>"


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
