"""What a worker tells beside its word: for those who look at a run, and for no decision."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.latency import Latency
    from agent.base.ranges import Attempt, Shown
    from agent.decisions.items import Step
    from agent.decisions.known_line import Known


@dataclass(frozen=True)
class Aside:
    """How its services answer, its prepare steps stand, and what its share of the job says."""

    latencies: Mapping[str, Latency] = field(default_factory=dict)
    """By service."""
    steps: Mapping[str, Step] = field(default_factory=dict)
    progress: Mapping[str, Shown] = field(default_factory=dict)
    """The last line of each step that runs, without a secret: text of a log."""
    known: tuple[Known, ...] = ()
    """Lines of its share of the job whose cause is known, each cause once."""
    attempt: Attempt = 0
    """The attempt that this share is of; 0 where it has none."""

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire."""
        return {
            "latencies": {name: asdict(one) for name, one in self.latencies.items()},
            "steps": {name: step.value for name, step in self.steps.items()},
            "progress": dict(self.progress),
            "known": [asdict(one) for one in self.known],
            "attempt": self.attempt,
        }
