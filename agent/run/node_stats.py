"""Per-node statistics for reports: service latencies, step progress, job output, figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.job.services import Latency
from agent.port.protocol import WorkerStats
from agent.record.job_lines import JobLines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.shared import Item
    from agent.node.figures import Figures


class NodeStats:
    """Service latencies, step progress, share output and figures of this node, in memory."""

    def __init__(
        self,
        clean: Callable[[str], str],
        newest_figures: Callable[[], Figures | None] = lambda: None,
    ) -> None:
        self._clean = clean
        self._newest_figures = newest_figures
        self._figures_due = 0.0  # when they were read that are sent next, on the run's clock
        self._latencies: dict[str, Latency] = {}
        self.progress: dict[str, str] = {}  # the last output line of each running step
        self._share: JobLines | None = None
        self._attempt = 0

    def record_latency(self, service: str, seconds: float) -> None:
        """Record the time of a service's successful answer."""
        self._latencies[service] = self._latencies.get(service, Latency()).with_answer(seconds)

    def share_lines(self, attempt: int) -> JobLines:
        """Return the scanner for the output of this node's share of an attempt."""
        if self._share is None or attempt != self._attempt:
            self._share = JobLines(self._clean)
            self._attempt = attempt
        return self._share

    @property
    def last_share_output(self) -> float | None:
        """Return when that share wrote output last, on the monotonic clock."""
        return None if self._share is None else self._share.last_output

    def snapshot(self, steps: Mapping[str, Item]) -> WorkerStats:
        """Return all statistics, with the state of each step."""
        states = {name: item.step for name, item in steps.items()}
        progress = {step: self._clean(line) for step, line in self.progress.items()}
        causes = () if self._share is None else self._share.known.causes
        figures = self._newest_figures()
        return WorkerStats(dict(self._latencies), states, progress, causes, self._attempt, figures)

    def for_report(self, steps: Mapping[str, Item]) -> WorkerStats | None:
        """Return the statistics for a report; None if there are none. Figures are sent rarely."""
        stats = self.snapshot(steps)
        if stats.figures is not None and stats.figures.at < self._figures_due:
            stats = replace(stats, figures=None)
        elif stats.figures is not None:
            self._figures_due = stats.figures.at + times.FIGURES_SENT
        has_any = stats.latencies or stats.steps or stats.known or stats.figures
        return stats if has_any else None
