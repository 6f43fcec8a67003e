"""What Ray can from which version on, where that changes what this program does."""

from __future__ import annotations

import re

OLDEST = (2, 40)
FIRST_WITH_HIP = (2, 45)
"""The first that gives AMD GPUs to its actors by HIP_VISIBLE_DEVICES."""
FIRST_DEBUGPY = (1, 8)
"""The oldest that Ray's distributed debugger takes."""
FIRST_WITH_TOKEN = (2, 52)
FIRST_FOR_ANY_CLICK = (2, 53)
CLICK_WITHOUT_COPIES = ((8, 3, 0), (8, 5, 1))
"""From the first on, until the second, click's own mark for "not set" cannot be copied."""


def version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def honours_token(ray: str | None) -> bool:
    """Say whether Ray asks for the token on its own ports; without Ray nothing is started."""
    return ray is None or version(ray) >= FIRST_WITH_TOKEN


def has_debugpy(debugpy: str | None) -> bool:
    """Say whether this debugpy serves Ray's debugger."""
    return debugpy is not None and version(debugpy) >= FIRST_DEBUGPY


def breaks_command_line(ray: str, click: str | None, *, enum_copies_are_same: bool) -> bool:
    """Say whether `ray` itself ends with "is not a valid Sentinel", whatever it is asked.

    Rays up to 2.52 make a deep copy of one of their commands as they start, which an enum's member
    in click survives in later Pythons alone. Seen on Python 3.10 with Ray 2.40, 2.49
    and 2.52 and click 8.3.0 to 8.5.0; not with click 8.2.1 and 8.5.1, on Python 3.11, or with Ray
    2.60. Ray 2.53 is the first without that copy.
    """
    if enum_copies_are_same or click is None or version(ray) >= FIRST_FOR_ANY_CLICK:
        return False
    first, fixed = CLICK_WITHOUT_COPIES
    found = tuple(int(number) for number in re.findall(r"\d+", click)[:3])
    return first <= found < fixed
