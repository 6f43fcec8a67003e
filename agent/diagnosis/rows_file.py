"""The table of what a line is: rows.toml, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from agent.base.text import parse_toml


@cache
def read_rows() -> dict[str, Any]:
    """Return the table, read at its first use: most runs start before they need it."""
    return parse_toml(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
