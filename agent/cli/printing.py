"""What verbs print: lines for a terminal or a pipe, JSON, and warnings on stderr."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

from agent.base.text import NO_TERMINAL, Terminal, map_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def terminal_of(environ: Mapping[str, str]) -> Terminal:
    """Return the terminal of stdout, if it is one."""
    if not sys.stdout.isatty():
        return NO_TERMINAL
    return Terminal.of(environ, shutil.get_terminal_size().columns)


def print_json(data: Any, clean: Callable[[str], str]) -> None:  # noqa: ANN401 - any JSON
    """Print JSON data with the secrets of every text masked."""
    print(json.dumps(map_texts(data, clean), indent=2))


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    print(f"pod-agent: {sentence}", file=sys.stderr)
