"""When a node's host memory or disk will be full, by how it grew lately.

A leak grows steadily: in each quarter of a window. What jumps once, as a model that is loaded, or
goes up and down, as caches do, makes no forecast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from agent.base.text import duration_text, number_text
from agent.base.value import Value
from agent.node.figures import Forecast

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLE_SECONDS = 60  # between two samples that are kept
WINDOWS = (4 * 3600, 3600, 20 * 60)  # seconds; the longest in which it grew steadily counts
QUARTERS = 4
LEAST_SAMPLES = 3  # in a quarter
STEADY = 3  # each quarter grows by the mean growth, divided by this, at least
FULL = 95  # percent at which it counts as full: Ray kills workers and refuses to spill there
AHEAD = 8  # windows: further ahead says nothing
LONGEST = 12 * 3600  # seconds ahead
GB = 10**9
HOST_MEMORY = "host memory"


class Sample(Value):
    """What was used at a moment, and by which programs."""

    at: float
    used: int
    programs: Mapping[str, int] = {}


class Trend:
    """The samples of one memory or disk of the last hours."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._total = 0
        self._samples: deque[Sample] = deque(maxlen=WINDOWS[0] // SAMPLE_SECONDS + 1)

    def add(self, at: float, used: int, total: int, programs: Mapping[str, int]) -> None:
        """Add a reading; those between two samples are left out."""
        self._total = total
        if self._samples and at < self._samples[-1].at + SAMPLE_SECONDS:
            return
        self._samples.append(Sample(at, used, programs))

    def forecast(self) -> Forecast | None:
        """Return when it will be full; None where it does not grow steadily."""
        if not self._samples:
            return None
        end = self._samples[-1].at
        for window in WINDOWS:
            # one sample is as good as a minute
            recent = [sample for sample in self._samples if sample.at >= end - window]
            if end - recent[0].at < window - 2 * SAMPLE_SECONDS:
                continue
            growth = steady_growth(recent)
            if growth is None:
                continue
            a_second = growth / (window * (QUARTERS - 1) / QUARTERS)
            left = max(0.0, self._total * FULL / 100 - recent[-1].used)
            seconds = left / a_second
            if seconds > min(AHEAD * window, LONGEST):
                return None
            program = grown_program(recent)
            return Forecast(self.what, round(seconds), round(a_second * 3600), window, program)
        return None


def steady_growth(samples: Sequence[Sample]) -> float | None:
    """Return by how much the last quarter is above the first; None if a quarter did not grow."""
    begin = samples[0].at
    length = (samples[-1].at - begin) / QUARTERS
    parts: list[list[int]] = [[] for _ in range(QUARTERS)]
    for sample in samples:
        part = min(QUARTERS - 1, int((sample.at - begin) / length)) if length else 0
        parts[part].append(sample.used)
    if any(len(part) < LEAST_SAMPLES for part in parts):
        return None
    middles = [median(part) for part in parts]
    growth = middles[-1] - middles[0]
    steps = [after - before for before, after in pairwise(middles)]
    least = growth / len(steps) / STEADY
    if growth <= 0 or any(step < least for step in steps):
        return None
    return float(growth)


def grown_program(samples: Sequence[Sample]) -> str:
    """Return the program that grew by more than half of it; '' if none did."""
    grown = samples[-1].used - samples[0].used
    first = samples[0].programs
    more = {name: size - first.get(name, 0) for name, size in samples[-1].programs.items()}
    name, size = max(more.items(), key=lambda item: item[1], default=("", 0))
    return name if size > grown / 2 else ""


def sentence(forecast: Forecast, node: str, since: str = "") -> str:
    """Return a forecast as a sentence; `since` names the step since which it grows."""
    preposition = "of" if forecast.what == HOST_MEMORY else "on"
    subject = f"{forecast.what} {preposition} {node}"
    growth = f"{number_text(forecast.per_hour / GB, 2)} GB an hour"
    when = since or f"for {duration_text(forecast.since)}"
    where = f", most of it in `{forecast.program}`" if forecast.program else ""
    if forecast.seconds <= 0:
        return f"{subject} is above {FULL} % and grows by {growth} {when}{where}"
    full = duration_text(forecast.seconds)
    return f"{subject} reaches {FULL} % in {full}: +{growth} {when}{where}"
