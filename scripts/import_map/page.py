"""The table of folders in docs/architecture.md, from each folder's own words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from import_map.imports import PROGRAM

if TYPE_CHECKING:
    from import_map.imports import House

_BEGIN, _END = "<!-- folders -->\n", "<!-- /folders -->"


def table(house: House) -> str:
    """Render the folders in their order."""
    lines = ["| folder | is for |", "| --- | --- |"]
    for room in house.rooms:
        link = "../agent/cli.py" if room == PROGRAM else f"../agent/{room}"
        purpose = house.purposes[room].replace("|", "\\|")
        lines.append(f"| [{room}]({link}) | {purpose} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, house: House) -> str:
    """Put the table between its marks."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError("docs/architecture.md has no place for the table of folders")
    return pattern.sub(lambda _: f"{_BEGIN}{table(house)}{_END}", text)
