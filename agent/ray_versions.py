"""What Ray can from which version on, where that changes what this program does."""

from __future__ import annotations

import re

OLDEST = (2, 40)
FIRST_WITH_TOKEN = (2, 52)


def version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def honours_token(ray: str | None) -> bool:
    """Say whether Ray asks for the token on its own ports; without Ray nothing is started."""
    return ray is None or version(ray) >= FIRST_WITH_TOKEN
