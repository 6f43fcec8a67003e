"""The page's static files: public, without data of a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from agent.port.glance import SIGNS

if TYPE_CHECKING:
    from agent.port.status_model import State

SCRIPTS = tuple(
    f"/{name}.js"
    for name in (
        *("base", "strip", "vitals", "curves", "nodes", "gpus", "happened", "runs", "log"),
        "page",
    )
)
"""In the order in which the page loads them: the last one begins."""
ICONS: tuple[State, ...] = tuple(SIGNS)


def icon_path(state: State) -> str:
    """Return the path of the tab's icon in a state of the run."""
    return f"/{state}.svg"


ASSETS = {
    **dict.fromkeys(SCRIPTS, "text/javascript"),
    "/page.css": "text/css",
    **{icon_path(state): "image/svg+xml" for state in ICONS},
}
"""The files and their types."""


@cache
def asset(path: str) -> bytes:
    """Return one of the page's files."""
    return (Path(__file__).parent / "assets" / path.removeprefix("/")).read_bytes()
