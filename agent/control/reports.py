"""What the head's port serves: one reply for all workers, and news as soon as there are any."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from agent.control.protocol import Reply, Report, disagreement
from agent.decisions.head.state import Worker, WorkerReported

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.outcome import Outcome


class Desk:
    """Takes reports in and hands the current reply out; a report may wait for the next one."""

    def __init__(
        self,
        reply: Reply,
        versions: tuple[str | None, str],
        tell: Callable[[WorkerReported], None],
        clock: Callable[[], float],
    ) -> None:
        self._reply = reply
        self._versions = versions
        self._tell = tell
        self._clock = clock
        self._news = anyio.Event()
        self._here: dict[str, str] = {}
        self._heard: set[str] = set()
        self._report = anyio.Event()

    def publish(self, phase: str, *, ray_ready: bool, verdict: Outcome | None) -> None:
        """Change the reply; everyone who waits for news is answered at once."""
        new = replace(self._reply, phase=phase, ray_ready=ray_ready, verdict=verdict)
        if new == self._reply:
            return
        self._reply = replace(new, news=self._reply.news + 1)
        self._news.set()
        self._news = anyio.Event()

    async def take(self, report: Report) -> Reply:
        """Take one report in; answer when there is news, or when its patience ends."""
        refusal = disagreement(self._versions, (report.ray, report.python))
        self._note(report, refusal)
        if refusal:
            return replace(self._reply, refusal=refusal)
        if report.news == self._reply.news and report.hold > 0:
            with anyio.move_on_after(report.hold):
                await self._news.wait()
        return self._reply

    def _note(self, report: Report, refusal: str) -> None:
        key = f"{report.name}@{report.ip}"
        self._heard.add(key)
        if report.leaving or refusal:
            self._here.pop(key, None)
        else:
            self._here[key] = report.name
        self._tell(WorkerReported(_worker(key, report, refusal, self._clock())))
        self._report.set()

    async def farewell(self, limit: float, unheard: int) -> tuple[list[str], int]:
        """Wait until every worker has heard the end and said goodbye.

        So many that were never heard of may be about to call: a head that ends within its first
        second must not leave them to wait for it until their own deadline. Return the names of
        those who said no goodbye, and how many never called.
        """
        awaited = len(self._heard) + unheard
        with anyio.move_on_after(limit):
            while self._here or len(self._heard) < awaited:
                self._report = anyio.Event()
                await self._report.wait()
        return list(self._here.values()), max(0, awaited - len(self._heard))


def _worker(key: str, report: Report, refusal: str, now: float) -> Worker:
    return Worker(
        key=key,
        name=report.name,
        ip=report.ip,
        rank=report.rank,
        phase=report.phase,
        detail=report.detail,
        heard=now,
        joined=report.joined,
        preparing=report.preparing,
        refused=refusal,
        gone=report.leaving,
        error=report.error,
    )
