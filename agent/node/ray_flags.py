"""Which flags the `ray start` of an installed Ray has, by its own source: nothing is imported."""

from __future__ import annotations

import re
from pathlib import Path

_SOURCE = "scripts/scripts.py"
_NAME = re.compile(r'"(--[a-z][a-z-]*)"')
_FOR_ALL_COMMANDS = {"--log-style": True, "--log-color": True, "--verbose": False, "-v": False}
"""What Ray gives every command of its own (2.40 to 2.60), declared in another file."""


def start_flags(folder: str) -> dict[str, bool] | None:
    """Return each flag and whether it takes a value; None where the source tells nothing.

    Click's decorators stand right before `def start` (2.40 to 2.60).
    """
    try:
        text = (Path(folder) / _SOURCE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    before, found, _ = text.partition("\ndef start(")
    _, marked, decorators = before.rpartition("\n@cli.command(")
    if not found or not marked:
        return None
    flags: dict[str, bool] = {}
    for option in decorators.split("@click.option(")[1:]:
        declared = option.partition("help=")[0]  # a help text may name other flags
        flags |= dict.fromkeys(_NAME.findall(declared), "is_flag=True" not in option)
    return {**flags, **_FOR_ALL_COMMANDS} if flags else None
