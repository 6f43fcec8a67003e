"""Draw the folders as a staircase, with a line from each to the folders that it imports.

A row is the importing folder, a column the imported one; the number at their crossing counts the
importing files. All numbers are below the stairs: an import in the wrong direction would be above
them, in red.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from tools.architecture.imports import FolderMap

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


def draw(folder_map: FolderMap) -> str:
    """Return the picture as SVG; the same sources give the same text."""
    place = {folder: index for index, folder in enumerate(folder_map.folders)}
    last = len(folder_map.folders) - 1
    width = _LEFT * 2 + last * _STEP_X + _BOX_X
    height = _TOP + last * _STEP_Y + _BOX_Y + 24
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(_summary(folder_map))}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(_LEFT + _BOX_X + 24, 28, "agent/: imports between folders", "title"),
        _text(
            _LEFT + _BOX_X + 24,
            48,
            "a number counts the files of its row that import from its column",
            "note",
        ),
        *_lines(folder_map, place),
        *_boxes(folder_map, place),
        *_counts(folder_map, place),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(folder_map: FolderMap) -> str:
    edges = [
        f"{one} imports {other} ({n})" for (one, other), n in sorted(folder_map.imports.items())
    ]
    return "The folders of agent/ and their imports: " + ", ".join(edges)


def _middle(index: int) -> tuple[int, int]:
    """Return the center of a folder's box."""
    return _LEFT + _BOX_X // 2 + index * _STEP_X, _TOP + _BOX_Y // 2 + index * _STEP_Y


def _lines(folder_map: FolderMap, place: dict[str, int]) -> list[str]:
    """One line to the left from each row's box, and one with an arrow up to each column's."""
    parts = []
    for folder in folder_map.folders:
        x, y = _middle(place[folder])
        row = [place[other] for one, other in folder_map.imports if one == folder]
        if row:
            ends = sorted({x, *(_middle(index)[0] for index in row)})
            parts.append(f'<path class="line" d="M{ends[0]} {y}H{ends[-1]}"/>')
        column = [place[one] for one, other in folder_map.imports if other == folder]
        below = [index for index in column if index > place[folder]]
        if below:
            top = y + _BOX_Y // 2
            parts.append(f'<path class="line" d="M{x} {_middle(max(below))[1]}V{top + 6}"/>')
            parts.append(f'<path class="head" d="M{x} {top}l-5 8h10z"/>')
        above = [index for index in column if index < place[folder]]
        if above:
            parts.append(f'<path class="line" d="M{x} {_middle(min(above))[1]}V{y}"/>')
    return parts


def _boxes(folder_map: FolderMap, place: dict[str, int]) -> list[str]:
    parts = []
    for folder in folder_map.folders:
        x, y = _middle(place[folder])
        parts.append(
            f'<g class="{"apart" if folder in folder_map.apart else "folder"}">'
            f"<title>{escape(folder_map.purposes[folder])}</title>"
            f'<rect class="box" x="{x - _BOX_X // 2}" y="{y - _BOX_Y // 2}" '
            f'width="{_BOX_X}" height="{_BOX_Y}" rx="5"/>'
            f"{_text(x, y + 5, folder, 'name', 'middle')}</g>"
        )
    return parts


def _counts(folder_map: FolderMap, place: dict[str, int]) -> list[str]:
    parts = []
    for (one, other), count in sorted(
        folder_map.imports.items(), key=lambda edge: (place[edge[0][0]], place[edge[0][1]])
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
