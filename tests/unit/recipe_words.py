"""Commands of recipes, taken apart for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.work.recipes.recipe import Command


def flags_of(command: Command, after: int = 3) -> dict[str, tuple[str, ...]]:
    """Return a command's flags, each with its words; none may stand twice."""
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for word in command.argv[after:]:
        if word.startswith("--"):
            flag = word[2:]
            assert flag not in found, f"{flag} stands twice"
            found[flag] = ()
        else:
            found[flag] += (word,)
    return found
