"""The recipes, one file each: a job's command, sized from what joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.work.recipes import rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPES: dict[str, Callable[[str], tuple[str, ...]]] = {
    "rehearsal": rehearsal.command,
}
