"""Commands of recipes, parsed for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command


def flags_of(command: Command, after: int = 3) -> dict[str, tuple[str, ...]]:
    """Return a command's flags, each with its values; no flag may occur twice."""
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


def arguments(command: Command) -> dict[str, str]:
    """Return the arguments of verl's command by key; no key may occur twice."""
    assert command.argv[:3] == ("python3", "-m", "verl.trainer.main_ppo")
    pairs = [argument.partition("=") for argument in command.argv[3:]]
    keys = [key.lstrip("+") for key, _, _ in pairs]
    assert len(keys) == len(set(keys)), "a key stands twice"
    return {key: value for key, (_, _, value) in zip(keys, pairs, strict=True)}
