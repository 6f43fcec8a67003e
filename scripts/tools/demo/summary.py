"""The figures of a demo of groups, read from the files of its trainer and engines."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_STEP = re.compile(r"step (\d+)/(\d+) mean reward (\S+)")


class Summary(NamedTuple):
    """The figures of one run."""

    steps: int
    of: int
    first_reward: float
    last_reward: float
    samples: int
    stale: int
    starts: int
    engines: int

    def sentence(self, kills: int, code: int) -> str:
        """Return all figures."""
        rewards = f"mean reward {self.first_reward:.2f} → {self.last_reward:.2f}"
        restarts = self.starts - self.engines
        return (
            f"{self.steps} of {self.of} steps, {rewards}; engines: {self.engines}, killed {kills}, "
            f"restarted {restarts}; stale samples {self.stale} of {self.samples}; exit code {code}"
        )


def read_summary(output: str, samples: Path, engine_logs: Iterable[Path]) -> Summary:
    """Return the figures of a run by its output, its samples and the logs of its engines."""
    steps = _STEP.findall(output)
    first = float(steps[0][2]) if steps else 0.0
    last = float(steps[-1][2]) if steps else 0.0
    drawn = [line["stale"] is True for line in _lines(samples)]
    logs = [_lines(log) for log in engine_logs]
    starts = sum(line["what"] == "start" for log in logs for line in log)
    numbers = {int(number) for number, _, _ in steps}
    of = int(steps[-1][1]) if steps else 0
    return Summary(len(numbers), of, first, last, len(drawn), sum(drawn), starts, len(logs))


def _lines(file: Path) -> list[dict[str, object]]:
    """Return the complete lines of a file; the last one of a killed process may be cut short."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
