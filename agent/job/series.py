"""The job's metrics by step, bounded: what a curve shows.

A key with more than MOST_POINTS points keeps every second one, then every fourth, and so on; its
newest value is always its last point. Of more than MOST_KEYS keys those stay that people look at.
An attempt that resumes from a checkpoint replaces the steps that it makes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice, pairwise
from statistics import fmean

from agent.base.value import Value
from agent.frameworks.step_format import MEANINGS, Meaning
from agent.job.progress import names_of, of_evaluation, place_of

MOST_POINTS = 4_096
MOST_KEYS = 48
FEW_POINTS = 240  # of a curve that is sent with each status
CURVES: tuple[Meaning, ...] = (
    *("reward", "kl", "response_length", "clipped", "entropy", "gradient_norm"),
    *("step_seconds", "throughput", "validation"),
)
"""What is sent with each status; rules look at all others, too."""
TREND = 20  # steps over which a trend is
MOST_ATTEMPTS = 256  # marks of attempts; the last ones are kept


# --- as the port serves it ------------------------------------------------------------------------


class AttemptMark(Value):
    """Where an attempt began: its first step, and the last one of the attempt before."""

    number: int
    first: int
    after: int | None = None


class PointsPart(Value):
    """Points of one key."""

    steps: list[int]
    values: list[float]


class SeriesPart(Value):
    """Curves, and the marks beside them, as the port serves them."""

    keys: Mapping[str, PointsPart]
    meanings: Mapping[str, str]
    """The key of what people look at."""
    attempts: tuple[AttemptMark, ...]
    of: int | None  # the number of the job's steps, if known
    checkpoints: tuple[tuple[int, str | None], ...] = ()
    """The step and the time of each."""


# --- as it is saved -------------------------------------------------------------------------------


class PointsState(Value):
    """The points of one key, as they are saved."""

    steps: list[int]
    values: list[float]
    every: int = 1  # every so many-th point is kept for good
    behind: int = 0  # how many points the last one is behind one that is kept for good


class SeriesState(Value):
    """A series, as it is saved."""

    keys: Mapping[str, PointsState] = {}
    attempts: tuple[AttemptMark, ...] = ()
    of: int | None = None
    last: int | None = None  # the last step


# --- the points of one key ------------------------------------------------------------------------


class Points:
    """The points of one key, with rising steps.

    Of more points than are kept every second one stays, then every fourth, and so on. The newest
    point is there in any case: one that is not kept for good goes as the next one comes.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []
        self._every = 1  # as in PointsState
        self._behind = 0

    def add(self, step: int, value: float) -> None:
        """Add a point; it replaces those of this step and of later ones."""
        self.forget_from(step)

        # Was the newest one there only until this one?
        if self._behind:
            self.steps.pop()
            self.values.pop()
        if self.steps:
            self._behind = (self._behind + 1) % self._every
        self.steps.append(step)
        self.values.append(value)

        if len(self.steps) > MOST_POINTS:
            self._thin_out()

    def _thin_out(self) -> None:
        """Keep every second point, and the newest one."""
        kept = len(self.steps)
        if self._behind:
            kept -= 1
            self._behind += self._every * ((kept - 1) % 2)
        self.steps = [*self.steps[:kept:2], *self.steps[kept:]]
        self.values = [*self.values[:kept:2], *self.values[kept:]]
        self._every *= 2

    def forget_from(self, step: int) -> None:
        """Remove the points of a step and of later ones."""
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self.values.pop()
            self._behind = 0

    @property
    def state(self) -> PointsState:
        """Return what `from_state` needs."""
        return PointsState([*self.steps], [*self.values], self._every, self._behind)

    @classmethod
    def from_state(cls, state: PointsState) -> Points:
        """Return the points that were saved; raises ValueError if they are none."""
        points = cls()
        points.steps = state.steps[:MOST_POINTS]
        points.values = [*map(float, state.values[:MOST_POINTS])]
        points._every = max(1, state.every)
        points._behind = max(0, state.behind)
        rises = all(before < after for before, after in pairwise(points.steps))
        if not rises or len(points.steps) != len(points.values):
            raise ValueError("steps do not rise, or have no values")
        return points

    def since(self, step: int | None) -> PointsPart:
        """Return the points after a step; None: all."""
        first = 0
        if step is not None:
            first = next((n for n, known in enumerate(self.steps) if known > step), len(self.steps))
        return PointsPart(self.steps[first:], self.values[first:])

    def thinned(self, most: int) -> PointsPart:
        """Return about so many points, with the newest one."""
        every = 1 + len(self.steps) // most
        return PointsPart(
            [*self.steps[:-1:every], *self.steps[-1:]],
            [*self.values[:-1:every], *self.values[-1:]],
        )


# --- all keys -------------------------------------------------------------------------------------


class Series:
    """The metrics of a run by step."""

    def __init__(self) -> None:
        self.of: int | None = None
        self.attempts: list[AttemptMark] = []
        self._keys: dict[str, Points] = {}
        self._last_step: int | None = None

    @property
    def state(self) -> SeriesState:
        """Return what `from_state` needs."""
        keys = {name: points.state for name, points in self._keys.items()}
        return SeriesState(keys, tuple(self.attempts), self.of, self._last_step)

    @classmethod
    def from_state(cls, state: SeriesState) -> Series:
        """Return the series that was saved, without keys that are broken."""
        series = cls()
        series.of = state.of
        series.attempts = [*state.attempts][-MOST_ATTEMPTS:]
        series._last_step = state.last
        for name, points in islice(state.keys.items(), MOST_KEYS):
            with suppress(ValueError):
                series._keys[name] = Points.from_state(points)
        return series

    # --- what is added ----------------------------------------------------------------------------

    def add(self, attempt: int, step: int, metrics: Mapping[str, float], of: int | None) -> None:
        """Add the metrics of a step."""
        self.of = of or self.of
        if not self.attempts or self.attempts[-1].number != attempt:
            mark = AttemptMark(attempt, step, self._last_step)
            self.attempts = [*self.attempts, mark][-MOST_ATTEMPTS:]
        if self._last_step is not None and step < self._last_step:
            self._forget_from(step)
        self._last_step = step

        self.add_values(step, metrics)

    def add_values(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add further metrics of a step; a key that has later ones keeps those instead."""
        # Important ones first: they find room where others do not.
        new = metrics.keys() - self._keys.keys()
        for name in sorted(new, key=place_of) if new else ():
            self._make_room(name)
        for name, value in metrics.items():
            points = self._keys.get(name)
            if points is not None and (not points.steps or points.steps[-1] <= step):
                points.add(step, value)

    def _make_room(self, name: str) -> None:
        """Add a key, in place of one that matters less where there are too many."""
        if len(self._keys) >= MOST_KEYS:
            least = max(self._keys, key=place_of)
            if place_of(name) >= place_of(least):
                return
            del self._keys[least]
        self._keys[name] = Points()

    def _forget_from(self, step: int) -> None:
        for points in self._keys.values():
            points.forget_from(step)

    # --- what it shows ----------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Return the keys, those that people look at first."""
        return tuple(sorted(self._keys, key=place_of))

    def meanings(self) -> dict[str, str]:
        """Return the key that shows each thing that people look at, where the job has one."""
        key_of = {}
        for meaning in MEANINGS:
            name = self._key_of(meaning)
            if name is not None:
                key_of[str(meaning)] = name
        evaluated = next((name for name in self.names if name.startswith(of_evaluation())), None)
        if evaluated is not None:
            key_of.setdefault("validation", evaluated)
        return key_of

    def _key_of(self, meaning: Meaning) -> str | None:
        """Return the first key with a meaning, if there is one."""
        for name in names_of(meaning):
            if name in self._keys:
                return name
            matching = [key for key in self._keys if fnmatchcase(key, name)] if "*" in name else []
            if matching:
                return min(matching)
        return None

    def points(self, meaning: Meaning, most: int | None = None) -> list[tuple[int, float]]:
        """Return the points of the first key with a meaning, at most so many of the last."""
        name = self._key_of(meaning)
        if name is None:
            return []
        points = self._keys[name]
        first = 0 if most is None else max(0, len(points.steps) - most)
        return [*zip(points.steps[first:], points.values[first:], strict=True)]

    def trend(self, meaning: Meaning) -> float | None:
        """Return by how much the mean of a value rose over the last steps; None for too few."""
        values = [value for _, value in self.points(meaning, TREND)]
        half = len(values) // 2
        if half < 2:
            return None
        return fmean(values[-half:]) - fmean(values[:half])

    def part(self, since: int | None = None) -> SeriesPart:
        """Return the series as `/series` has them; `since` leaves out that step and all before."""
        keys = {name: self._keys[name].since(since) for name in self.names}
        known = {name: points for name, points in keys.items() if points.steps}
        return SeriesPart(known, self.meanings(), tuple(self.attempts), self.of)

    def curves(self) -> SeriesPart:
        """Return a few points of each curve with a meaning, under that name instead of the job's.

        The job's own names are text of its output, which not every reader may have.
        """
        every = self.meanings()
        meanings = {str(name): every[name] for name in CURVES if name in every}
        keys = {name: self._keys[key].thinned(FEW_POINTS) for name, key in meanings.items()}
        own = {name: name for name in meanings}
        return SeriesPart(keys, own, tuple(self.attempts), self.of)
