"""The standard streams: always there, and fit for any text."""

from __future__ import annotations

import io
import os
import sys


def make_streams_safe() -> None:
    """Let no word fail for want of a stream, or for what a stream's encoding lacks.

    Where the caller closed one (`>&-`), its number would go to the next file that is opened, and
    the job's output with it.
    """
    for number in range(3):
        _make_open(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _make_open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
