"""The table of folders in docs/architecture.md, from each folder's docstring."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tools.architecture.imports import PROGRAM

if TYPE_CHECKING:
    from tools.architecture.imports import FolderMap

_BEGIN, _END = "<!-- folders -->\n", "<!-- /folders -->"


def table(folder_map: FolderMap) -> str:
    """Render the folders in order."""
    lines = ["| folder | is for |", "| --- | --- |"]
    for folder in folder_map.folders:
        link = "../agent/__main__.py" if folder == PROGRAM else f"../agent/{folder}"
        purpose = folder_map.purposes[folder].replace("|", "\\|")
        lines.append(f"| [{folder}]({link}) | {purpose} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, folder_map: FolderMap) -> str:
    """Insert the table between its markers."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError("docs/architecture.md has no place for the table of folders")
    return pattern.sub(lambda _: f"{_BEGIN}{table(folder_map)}{_END}", text)
