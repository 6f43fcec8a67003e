"""When a job that shows no sign of work is looked at, and when it is taken to hang."""

from __future__ import annotations

from dataclasses import replace

from agent.base.value import dataclass

LOOKS = 10
"""So often within its limit a quiet job's nodes are looked at."""
_SHORTEST, _LONGEST = 1.0, 60.0
_FRAME, _MAIN = "    ", '"MainThread"'
_ORDINARY = (
    *("ray/", "threading.py", "concurrent/", "asyncio/", "socketserver.py", "selectors.py"),
    *("grpc/", "queue.py", "multiprocessing/"),
)
"""Files of which a thread that tells nothing consists."""


@dataclass(frozen=True)
class StalledSinceLoss:
    """An attempt that lost a node shows no sign of work since, for as long as AGENT_STALL."""

    attempt: int
    duration: str


@dataclass(frozen=True)
class Quiet:
    """Since when an attempt at the job has shown no sign of work."""

    attempt: int
    since: float
    is_told: bool = False
    """True once it was taken to hang: that is told once in an attempt, and again after a loss."""
    lost_a_node: bool = False
    """True where the attempt has lost a node, be it back or not: the time counts from then."""

    def worked(self, at: float | None) -> Quiet:
        """Take in a sign of work, and when that was."""
        return self if at is None or at <= self.since else replace(self, since=at)

    def wants_a_look(self, limit: float, now: float) -> bool:
        """Say whether the nodes are to be looked at: nothing else tells of work."""
        return not self.is_told and now >= self.since + step(limit)

    def is_over(self, limit: float, now: float) -> bool:
        """Say whether that is too long."""
        return not self.is_told and now >= self.since + limit


def step(limit: float) -> float:
    """Return how long there is between two looks."""
    return min(_LONGEST, max(_SHORTEST, limit / LOOKS))


def telling(stacks: str) -> list[str]:
    """Return the lines of stacks without the threads of Python's and Ray's own that only wait."""
    kept: list[str] = []
    thread: list[str] = []
    for line in [*stacks.splitlines(), ""]:
        if line.startswith(_FRAME) and thread:
            thread.append(line)
            continue
        if thread and (_MAIN in thread[0] or not all(map(_is_ordinary, thread[1:]))):
            kept += thread
        thread = [line] if line.startswith("Thread ") else []
        kept += [] if thread or not line.strip() else [line]
    return kept


def _is_ordinary(frame: str) -> bool:
    file = frame.rpartition("(")[2]
    return file.startswith(_ORDINARY)


def following(
    quiet: Quiet | None, attempt: int | None, now: float, *, lost_a_node: bool
) -> Quiet | None:
    """Return what is known of the attempt that runs now; None where none does."""
    if attempt is None:
        return None
    if quiet is not None and (quiet.attempt, quiet.lost_a_node) == (attempt, lost_a_node):
        return quiet
    return Quiet(attempt, now, lost_a_node=lost_a_node)
