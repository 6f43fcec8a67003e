"""What a node sees of its services, steps and share of the job beside what is decided on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.control.aside import Aside
    from agent.decisions.items import Item
    from agent.record.job_lines import JobLines


class Seen:
    """Kept in memory, by name; there are no more names than the plan has."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._latencies: dict[str, Latency] = {}
        self._progress: dict[str, str] = {}
        self._share: JobLines | None = None
        self._attempt = 0

    def answered(self, service: str, seconds: float) -> None:
        """Note that a service answered as it should, and how long that took."""
        self._latencies[service] = self._latencies.get(service, Latency()).with_answer(seconds)

    def said(self, step: str, line: str) -> None:
        """Note the last line of a step that runs."""
        self._progress[step] = self._clean(line)

    def over(self, step: str) -> None:
        """Forget what a step said: it has ended."""
        self._progress.pop(step, None)

    def share(self, attempt: int) -> JobLines:
        """Return what looks at the output of this node's share of an attempt at the job."""
        from agent.record.job_lines import JobLines  # noqa: PLC0415 - where torchrun starts it

        if self._share is None or attempt != self._attempt:
            self._share, self._attempt = JobLines(self._clean), attempt
        return self._share

    @property
    def share_heard(self) -> float | None:
        """Return when that wrote something last, on the monotonic clock."""
        return None if self._share is None else self._share.heard

    def aside(self, steps: Mapping[str, Item]) -> Aside:
        """Return all of it, with how the steps stand."""
        from agent.control.aside import Aside  # noqa: PLC0415 - while Ray boots

        known = {name: item.step for name, item in steps.items()}
        causes = () if self._share is None else self._share.known.causes
        told = (dict(self._latencies), known, dict(self._progress))
        return Aside(*told, causes, self._attempt)

    def to_tell(self, steps: Mapping[str, Item]) -> Aside | None:
        """Return it for a report; None where there is nothing of it."""
        aside = self.aside(steps)
        return aside if aside.latencies or aside.steps or aside.known else None
