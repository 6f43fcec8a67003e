"""Events of a head whose job uses torchrun, for tests of its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.shared import SHARE, ItemReport, ItemsReported, Step
from agent.frameworks.recipe import NodeSize
from agent.job.share import ShareEnd
from agent.plan import waits as wait_keys
from support.heads import goal, reported

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

DONE = ShareEnd(0)
STOPPED = ShareEnd(1, by_stop=True)


def by_torchrun(workers: int = 1, **asked: int) -> HeadGoal:
    """Return the goal of a run without Ray."""
    of = goal(workers, **asked)  # type: ignore[arg-type]  # retries, by name
    limits = {key: limit for key, limit in of.limits.items() if key != wait_keys.HEAD}
    limits[wait_keys.JOB] = 8.0
    return replace(of, limits=limits, shares_by="torchrun", node="pod0", size=NodeSize(8))


def failed(code: int, local_rank: int | None = 0, ago: float = 0.0, words: str = "") -> ShareEnd:
    """Return the result of a node whose ranks failed by themselves."""
    return ShareEnd(code, local_rank, words, ago)


def own(end: ShareEnd, attempt: int = 1) -> ItemsReported:
    """Return the event that the head's own torchrun has ended."""
    return ItemsReported((over(end, attempt),))


def over(end: ShareEnd, attempt: int = 1) -> ItemReport:
    """Return the report of a share that has ended."""
    return ItemReport(SHARE, Step.LOST if end.code else Step.READY, end.words, attempt, share=end)


def share_of(  # noqa: PLR0913 - what a worker may say
    n: int,
    end: ShareEnd | None = None,
    at: float = 0.0,
    *,
    attempt: int = 1,
    has_left: bool = False,
    rank: int | None = None,
) -> h.WorkerReported:
    """Return the event of a worker's report, with its torchrun's result if it has ended."""
    said = reported(n, reported_at=at, has_left=has_left, rank=rank).worker
    items = () if end is None else (over(end, attempt),)
    return h.WorkerReported(replace(said, items=items, gpus=4))
