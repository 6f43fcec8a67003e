"""Rules that the page is checked by in the browser, and simulated color blindness."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

OWN_RULES = Path(__file__).with_name("rules.js").read_text(encoding="utf-8")
"""As axe's on ids, labels, names, texts of pictures and contrast; and the size of texts."""
AXE = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html).slice(0, 3)}`))"""

# --- color blindness ------------------------------------------------------------------------------

Matrix = tuple[tuple[float, float, float], ...]
BLINDNESS: dict[str, Matrix] = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""How linear RGB is seen (Machado, Oliveira and Fernandes 2009, full severity)."""
APART = ("blue", "warn", "bad")
"""Colors of bars and frames in one picture: fine, slow, lost."""
LEAST_DIFFERENCE = 18.0  # CIE76; 2.3 is just noticeable


def color_complaints(style: str) -> list[str]:
    """Return the pairs of APART that some people cannot tell apart, in either scheme."""
    light, dark = (dict(re.findall(r"--([\w-]+): #(\w{6})", part)) for part in _schemes(style))
    wrong = []
    for scheme, colors in (("light", light), ("dark", dark)):
        for kind, matrix in BLINDNESS.items():
            for one, other in combinations(APART, 2):
                first = _lab(_seen(colors[one], matrix))
                second = _lab(_seen(colors[other], matrix))
                squares = ((a - b) ** 2 for a, b in zip(first, second, strict=True))
                difference = sum(squares) ** 0.5
                if difference < LEAST_DIFFERENCE:
                    wrong.append(f"{scheme}, {kind}: {one} and {other} differ by {difference:.0f}")
    return wrong


def _schemes(style: str) -> tuple[str, str]:
    light, _, rest = style.partition("@media (prefers-color-scheme: dark)")
    return light, rest.partition("* {")[0]


def _seen(color: str, matrix: Matrix) -> list[float]:
    """Return a color in linear RGB as it is seen."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    rows = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in matrix)
    return [min(1.0, max(0.0, value)) for value in rows]


def _lab(linear: list[float]) -> tuple[float, float, float]:
    """Return a color of linear RGB in CIELAB, under D65."""
    red, green, blue = linear
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    root = [
        value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z)
    ]
    return 116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])
