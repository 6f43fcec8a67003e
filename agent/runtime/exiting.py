"""The very end of the process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def exit_now(code: int) -> None:
    """End the process: threads stuck in a resolver or a full pipe cannot hold it up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError, ValueError):
            stream.flush()
    os._exit(code)
