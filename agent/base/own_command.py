"""The argv that starts this agent again, even next to a user's package named `agent`."""

from __future__ import annotations

import re
from pathlib import Path

_SHELL_SPECIAL = re.compile(r"""[\s|&;()<>$`\\"'*?]|\{[^}]*(?:,|\.\.)[^}]*\}""")
"""What a shell does not keep as part of an unquoted word (bash 5.2)."""


def own_command(python: str, *arguments: str) -> list[str]:
    """Return an argv that runs this agent by its file, since `-m` searches the cwd first."""
    return [python, str(Path(__file__).parents[1] / "__main__.py"), *arguments]


def needs_shell_quoting(path: str) -> bool:
    """Return whether a shell changes this path unless it is quoted."""
    return _SHELL_SPECIAL.search(path) is not None
