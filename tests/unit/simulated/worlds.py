"""Many worlds, and the history of the first in which a rule is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unit.simulated.world import in_a_world, play

if TYPE_CHECKING:
    from collections.abc import Iterable

_AGAIN = "POD_AGENT_WORLDS={seed} .venv/bin/pytest tests/unit/test_worlds.py"


def broken_rules(seeds: Iterable[int]) -> str:
    """Play worlds; return which rules are broken in which, and the first history, or ''."""
    broken, story = [], ""
    with in_a_world():
        for seed in seeds:
            world = play(seed)
            if world.rules.broken:
                again = _AGAIN.format(seed=seed)
                broken.append(f"seed {seed} ({again}): {world.rules.broken[0]}")
                story = story or world.story()
    return "\n".join([story, *broken]) if broken else ""
