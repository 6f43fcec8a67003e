"""Draw the folders as a staircase: a line leads from each to those above it that it imports.

A row belongs to the folder that imports, a column to the one that is imported; the number where
they meet counts the files of the first that do. All of them lie below the stairs: an import that
went the other way would stand above them, in red.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from import_map.imports import House

_STEP_X, _STEP_Y = 70, 44
_BOX_X, _BOX_Y = 84, 28
_LEFT, _TOP = 16, 60
_STYLE = """
text { font: 13px system-ui, Helvetica, Arial, sans-serif; fill: #1f2933; }
.title { font-size: 16px; font-weight: 600; }
.note { fill: #52606d; }
.box { fill: #e8eef7; stroke: #486581; }
.apart .box { stroke-dasharray: 5 3; }
.line { fill: none; stroke: #9fb3c8; stroke-width: 1.2; }
.head { fill: #627d98; }
.dot { fill: #ffffff; stroke: #9fb3c8; }
.count { font-size: 11px; }
.back { fill: #ffd5d5; stroke: #c81e1e; }
.paper { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9fb0c0; }
  .box { fill: #1d2b3a; stroke: #7b9cbd; }
  .line { stroke: #4a6076; }
  .head { fill: #7b9cbd; }
  .dot { fill: #0d1117; stroke: #4a6076; }
  .back { fill: #5c1a1a; stroke: #ff7b72; }
  .paper { fill: #0d1117; }
}
"""


def draw(house: House) -> str:
    """Return the picture as SVG; the same sources give the same text."""
    place = {room: index for index, room in enumerate(house.rooms)}
    last = len(house.rooms) - 1
    width = _LEFT * 2 + last * _STEP_X + _BOX_X
    height = _TOP + last * _STEP_Y + _BOX_Y + 24
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(_summary(house))}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(_LEFT + _BOX_X + 24, 28, "agent/: who imports whom", "title"),
        _text(
            _LEFT + _BOX_X + 24,
            48,
            "a number counts the files of its row that import from its column",
            "note",
        ),
        *_lines(house, place),
        *_boxes(house, place),
        *_counts(house, place),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(house: House) -> str:
    edges = [f"{one} imports {other} ({n})" for (one, other), n in sorted(house.imports.items())]
    return "The folders of agent/ and their imports: " + ", ".join(edges)


def _middle(index: int) -> tuple[int, int]:
    """Return where the box of a folder has its middle."""
    return _LEFT + _BOX_X // 2 + index * _STEP_X, _TOP + _BOX_Y // 2 + index * _STEP_Y


def _lines(house: House, place: dict[str, int]) -> list[str]:
    """One line to the left from each row's box, and one with an arrow up to each column's."""
    parts = []
    for room in house.rooms:
        x, y = _middle(place[room])
        row = [place[other] for one, other in house.imports if one == room]
        if row:
            ends = sorted({x, *(_middle(index)[0] for index in row)})
            parts.append(f'<path class="line" d="M{ends[0]} {y}H{ends[-1]}"/>')
        column = [place[one] for one, other in house.imports if other == room]
        below = [index for index in column if index > place[room]]
        if below:
            top = y + _BOX_Y // 2
            parts.append(f'<path class="line" d="M{x} {_middle(max(below))[1]}V{top + 6}"/>')
            parts.append(f'<path class="head" d="M{x} {top}l-5 8h10z"/>')
        above = [index for index in column if index < place[room]]
        if above:
            parts.append(f'<path class="line" d="M{x} {_middle(min(above))[1]}V{y}"/>')
    return parts


def _boxes(house: House, place: dict[str, int]) -> list[str]:
    parts = []
    for room in house.rooms:
        x, y = _middle(place[room])
        parts.append(
            f'<g class="{"apart" if room in house.apart else "room"}">'
            f"<title>{escape(house.purposes[room])}</title>"
            f'<rect class="box" x="{x - _BOX_X // 2}" y="{y - _BOX_Y // 2}" '
            f'width="{_BOX_X}" height="{_BOX_Y}" rx="5"/>'
            f"{_text(x, y + 5, room, 'name', 'middle')}</g>"
        )
    return parts


def _counts(house: House, place: dict[str, int]) -> list[str]:
    parts = []
    for (one, other), count in sorted(
        house.imports.items(), key=lambda edge: (place[edge[0][0]], place[edge[0][1]])
    ):
        x, y = _middle(place[other])[0], _middle(place[one])[1]
        kind = "dot back" if place[other] > place[one] else "dot"
        parts.append(
            f"<g><title>{count} of {one} import from {other}</title>"
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="10"/>'
            f"{_text(x, y + 4, str(count), 'count', 'middle')}</g>"
        )
    return parts


def _text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
