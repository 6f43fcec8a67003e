"""Which rank failed first on a node, by what torchrun says of it: its own code is always 1.

The error file of torch has a rank's exception, but neither its exit code nor its local rank, and
is written only where the job's main function is decorated with `record`. Both stand in a line that
torchrun logs when it has stopped the others, and in the summary with which it ends (the same from
torch 1.13 to 2.13).
"""

from __future__ import annotations

import json
import re

from agent.base.outcome import shell_code
from agent.base.value import dataclass

_STAMP = r"(?:[EWI]\d{4}|\[?\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)[.,](\d{3,6})"
_FAILED = re.compile(
    r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,6}) \(pid: \d+\) of binary"
)
_SUMMARY = re.compile(
    r"Root Cause \(first observed failure\):\s*\n\[\d+\]:(?:\n[^\n]*){0,3}?"
    r"\n\s*rank\s*: \d+ \(local_rank: (\d{1,6})\)\s*\n\s*exitcode\s*: (-?\d{1,9}) "
)
_CLOSES = re.compile(r"Sending process \d+ closing signal")
_TOLD_TO = re.compile(r"death signal, shutting down")
_DAY = 86_400.0
_LONGEST_WORDS = 300


@dataclass(frozen=True)
class RankFailure:
    """The rank that failed first on a node."""

    code: int
    """As a shell would tell it."""
    local_rank: int
    ago: float
    """How long ago torchrun noticed; 0 where it does not say."""


def first_failure(text: str, now: float) -> RankFailure | None:
    """Find the failure in the end of torchrun's output; `now` is this node's time of day.

    torchrun stops its other ranks before it names the one that failed, which may take them long:
    it noticed when it began to.
    """
    lines = text.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        named = _FAILED.search(lines[at])
        if named is not None:
            noticed = next(filter(_closes, lines[max(0, at - 1000) : at]), lines[at])
            ago = _since(noticed, now) if closes_by_itself(text) else _since(lines[at], now)
            return RankFailure(shell_code(int(named[1])), int(named[2]), ago)
    summed = _SUMMARY.search(text)
    return None if summed is None else RankFailure(shell_code(int(summed[2])), int(summed[1]), 0.0)


def closes_by_itself(text: str) -> bool:
    """Say whether torchrun has begun to stop its ranks without being told to: one has failed."""
    return _CLOSES.search(text) is not None and _TOLD_TO.search(text) is None


def words_in(error_file: str) -> str:
    """Return what a rank's exception said, from torch's error file; '' where it says nothing."""
    try:
        message = json.loads(error_file)["message"]
        said = message["message"] if isinstance(message, dict) else message
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    lines = said.strip().splitlines() if isinstance(said, str) else []
    return lines[0][:_LONGEST_WORDS] if lines else ""


def _closes(line: str) -> bool:
    return _CLOSES.search(line) is not None


def _since(line: str, now: float) -> float:
    """Return the seconds from a line's stamp until now; 0 where it has none."""
    stamp = re.search(_STAMP, line)
    if stamp is None:
        return 0.0
    hours, minutes, seconds = (int(stamp[n]) for n in (1, 2, 3))
    then = hours * 3600 + minutes * 60 + seconds + float(f"0.{stamp[4]}")
    passed = (now - then) % _DAY
    return passed if passed < _DAY / 2 else 0.0  # a clock that was set back
