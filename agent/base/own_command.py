"""How to start ourselves again, without a user's own `agent` package getting in the way."""

from __future__ import annotations

from pathlib import Path


def own_command(python: str, *arguments: str) -> list[str]:
    """Return an argv that runs this very agent: by its file, since `-m` would search the cwd."""
    return [python, str(Path(__file__).parents[1] / "__main__.py"), *arguments]
