"""Reports of workers, and a head that counts their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.head_state import LaterHead, WorkerIntroduced, WorkerReplaced
from agent.port.protocol import Bye, Hello, Reply, Report
from agent.port.reports import Expected, Reports

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Worker
    from agent.node.facts import Facts
    from agent.port.reports import ReportEvent

FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
HELLO = Hello("pod1", 1, ray="2.60.0", python="3.11.7", services="abc")
POD1 = Report("agent1", "10.0.0.2", "joining Ray", hello=HELLO)
BYE = Bye("asked to stop by SIGTERM", "the last line")
LATE = 20.0


class CountingHead:
    """A head's reports, and their events."""

    def __init__(self, *, has_token: bool = False, torch: str = "") -> None:
        self.received: list[Worker] = []
        self.replaced: list[str] = []
        self.later: list[int] = []
        self.introduced: list[tuple[str, Facts]] = []
        self.byes: list[tuple[str, Bye]] = []
        self.now = 12.5
        expected = Expected("2.60.0", "3.11.7", torch, "abc")
        self.reports = Reports(
            *(FIRST, expected, self._tell, lambda: self.now, self._on_bye), has_token=has_token
        )

    def _tell(self, event: ReportEvent) -> None:
        if isinstance(event, LaterHead):
            self.later.append(event.epoch)
        elif isinstance(event, WorkerReplaced):
            self.replaced.append(event.key)
        elif isinstance(event, WorkerIntroduced):
            self.introduced.append((event.name, event.facts))
        else:
            self.received.append(event.worker)

    def _on_bye(self, name: str, bye: Bye) -> None:
        self.byes.append((name, bye))

    def take(self, report: Report) -> Reply:
        """Accept a report that is answered at once."""
        return anyio.run(self.reports.handle, report)
