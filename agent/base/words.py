"""Small words of sentences, put together as a person would."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def listed(names: Iterable[str]) -> str:
    """Join names as a person would."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last
