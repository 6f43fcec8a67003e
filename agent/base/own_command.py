"""How to start ourselves again, without a user's own `agent` package getting in the way."""

from __future__ import annotations

import re
from pathlib import Path

_TAKEN_APART = re.compile(r"""[\s|&;()<>$`\\"'*?]|\{[^}]*(?:,|\.\.)[^}]*\}""")
"""What stays no part of a word in an unquoted shell line (tried with bash 5.2 and Ray 2.60)."""


def own_command(python: str, *arguments: str) -> list[str]:
    """Return an argv that runs this very agent: by its file, since `-m` would search the cwd."""
    return [python, str(Path(__file__).parents[1] / "__main__.py"), *arguments]


def is_special_to_a_shell(path: str) -> bool:
    """Say whether a path becomes something else in a shell line that does not quote it."""
    return _TAKEN_APART.search(path) is not None
