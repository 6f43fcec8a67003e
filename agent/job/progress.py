"""The steps of a job: what its lines say of them, and what is known of the running attempt.

A `ProgressReader` reads lines of output; what it returns makes the next `Progress`. The output may
be hostile: a model's text stands on the same stream. A number is finite and bounded, a line costs
time by its length only, and a step that does not follow the former ones is none.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from agent.base.text import number_text, without_controls
from agent.base.value import Value
from agent.frameworks import all_frameworks
from agent.frameworks.step_format import (
    BAR,
    FILE,
    GENERAL,
    GENERAL_BAR,
    GENERAL_LINE,
    MEANINGS,
    NUMBER,
    Meaning,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agent.frameworks.step_format import LineFormat, StepFormat

LONGEST_LINE = 32_768  # characters that are read of a line
MOST_METRICS = 256  # of a line
LARGEST_STEP = 10**9
RECENT = 20  # steps whose durations are kept
_MOST_JUMP = 1_000
"""Steps by which the next line may be ahead: more are no step, unless the line before was, too."""
_JUMPS_AGAIN = 10  # times the usual distance of two lines with steps
_IN_A_ROW = 3
"""Lines that have to follow each other before a jump counts: a program began anew."""
_SOONER = 0.25
"""Of a usual step: lines of a jump that follow each other sooner are a model's text."""


class StepSeen(Value):
    """A step that the job completed."""

    step: int
    of: int | None
    metrics: Mapping[str, float]  # finite numbers, by the framework's own names
    at: float  # on the run's clock
    not_finite: tuple[str, ...] = ()  # names of metrics that are nan or infinite
    by_bar: bool = False  # it was shown by a progress bar that may be any program's


class ValuesSeen(Value):
    """Metrics of a step that was seen already; None: of the last one."""

    step: int | None
    metrics: Mapping[str, float]
    at: float
    not_finite: tuple[str, ...] = ()


class PauseSeen(Value):
    """A line that shows that an evaluation or a checkpoint began or ended."""

    kind: Literal["evaluation", "checkpoint"]
    at: float


Reading = StepSeen | ValuesSeen | PauseSeen


class Progress(Value):
    """The steps of the running attempt, and what earlier attempts of the run left."""

    attempt: int
    began_at: float
    first: int | None = None  # steps of this attempt
    last: int | None = None
    of: int | None = None
    last_at: float | None = None
    durations: tuple[float, ...] = ()
    """Seconds between the last lines with steps, oldest first; of earlier attempts, too."""
    strides: tuple[int, ...] = ()  # how many steps each of those lines was ahead
    longest: float = 0.0  # the longest of all durations of the run so far
    pause_at: float | None = None  # the last PauseSeen since the last step
    highest: int | None = None  # step of all attempts of the run
    only_bar: bool = False
    """Whether all steps of the run so far come from progress bars that may be any program's."""
    metrics: Mapping[str, float] = {}  # the newest values
    not_finite: tuple[str, ...] = ()  # names of metrics whose newest value is nan or infinite
    not_finite_since: int | None = None  # the step since which there always are some

    def next_attempt(self, attempt: int, now: float) -> Progress:
        """Return the progress of the attempt that begins now."""
        return Progress(
            attempt,
            now,
            of=self.of,
            durations=self.durations,
            strides=self.strides,
            longest=self.longest,
            highest=self.highest,
            only_bar=self.only_bar,
        )

    def with_reading(self, seen: Reading) -> Progress:
        """Return the progress after a line."""
        if isinstance(seen, StepSeen):
            return self.with_step(seen)
        if isinstance(seen, PauseSeen):
            return replace(self, pause_at=seen.at)
        return replace(self._with_values(seen), only_bar=False)  # a framework's line

    def with_step(self, seen: StepSeen) -> Progress:
        """Return the progress after a step; a step that was seen already adds its metrics."""
        only_bar = seen.by_bar and (self.only_bar or self.highest is None)
        if self.last is not None and seen.step == self.last:
            return replace(self._with_values(seen), of=seen.of or self.of, only_bar=only_bar)

        # How long did it take? The first one of an attempt includes its start, and one that goes
        # back began anew. Of several lines that were read at once only the first has a time.
        durations = self.durations
        strides = self.strides
        longest = self.longest
        if self.last is not None and self.last_at is not None and seen.step > self.last:
            duration = max(0.0, seen.at - self.last_at)
            stride = seen.step - self.last
            if duration:
                durations = (*durations, duration)[-RECENT:]
                strides = (*strides, stride)[-RECENT:]
            elif strides and self.last != self.first:
                strides = (*strides[:-1], strides[-1] + stride)
            longest = max(longest, duration)

        known = self._with_values(seen)
        return replace(
            known,
            first=seen.step if self.first is None else min(self.first, seen.step),
            last=seen.step,
            of=seen.of or self.of,
            last_at=seen.at,
            durations=durations,
            strides=strides,
            longest=longest,
            pause_at=None,
            highest=seen.step if self.highest is None else max(self.highest, seen.step),
            only_bar=only_bar,
        )

    def _with_values(self, seen: StepSeen | ValuesSeen) -> Progress:
        if not seen.metrics and not seen.not_finite:
            return self
        metrics = {**self.metrics, **seen.metrics}
        kept = dict(islice(metrics.items(), MOST_METRICS))
        others = (name for name in self.not_finite if name not in seen.metrics)
        broken = dict.fromkeys((*others, *seen.not_finite))
        since = None
        if broken:
            since = self.last if seen.step is None else seen.step
            since = since if self.not_finite_since is None else self.not_finite_since
        return replace(
            self,
            metrics=kept,
            not_finite=tuple(islice(broken, MOST_METRICS)),
            not_finite_since=since,
        )

    @property
    def usual(self) -> float | None:
        """Return the usual seconds between two lines with steps: the median of the last ones."""
        return median(self.durations) if self.durations else None

    @property
    def seconds_per_step(self) -> float | None:
        """Return the mean seconds of the last steps, with what stood between them.

        Several lines may be read at once: single durations would mean little.
        """
        return sum(self.durations) / sum(self.strides) if self.durations else None

    @property
    def ends_at(self) -> float | None:
        """Return when the last step is expected, on the run's clock."""
        each = self.seconds_per_step
        if self.of is None or self.last is None or self.last_at is None or each is None:
            return None
        return self.last_at + max(0, self.of - self.last) * each

    def value(self, meaning: Meaning) -> float | None:
        """Return the newest value with a meaning; None without one."""
        return meant(meaning, self.metrics)


@cache
def all_formats() -> tuple[StepFormat, ...]:
    """Return the formats of all frameworks: a command may use any, whatever its name is."""
    formats = [framework.steps for framework in all_frameworks()]
    return tuple(dict.fromkeys(known for known in (*formats, GENERAL) if known is not None))


@cache
def names_of(meaning: Meaning) -> tuple[str, ...]:
    """Return the names that any framework gives to a metric with a meaning."""
    names = [name for known in all_formats() for name in known.meaning.names(meaning)]
    return tuple(dict.fromkeys(names))


def meant(meaning: Meaning, metrics: Mapping[str, float]) -> float | None:
    """Return the value with a meaning among the metrics of any framework; None without one."""
    return next((metrics[name] for name in names_of(meaning) if name in metrics), None)


@cache
def _shown() -> tuple[str, ...]:
    shown = [name for known in all_formats() for name in known.shown]
    with_meaning = [name for meaning in MEANINGS for name in names_of(meaning)]
    return tuple(dict.fromkeys((*with_meaning, *shown)))


@lru_cache(maxsize=1_024)  # a job may invent names without end
def place_of(name: str) -> int:
    """Return the place of a metric among those with a meaning, and others that people look at."""
    for place, shown in enumerate(_shown()):
        if name == shown or ("*" in shown and fnmatchcase(name, shown)):
            return place
    return len(_shown())


@cache
def of_evaluation() -> tuple[str, ...]:
    """Return the beginnings of names that only metrics of an evaluation have."""
    begins = [name for known in all_formats() for name in known.of_evaluation]
    return tuple(dict.fromkeys(begins))


class _Kind(NamedTuple):
    """A kind of line, and the search for it from some place of a line on."""

    format: LineFormat
    find: Callable[[str, int], re.Match[str] | None]


@cache
def _kinds() -> tuple[tuple[str, tuple[_Kind, ...]], ...]:
    """Return the kinds of lines by their signs, those of frameworks first."""
    by_sign: dict[str, list[_Kind]] = {}
    for line in dict.fromkeys(line for known in all_formats() for line in known.lines):
        pattern = re.compile(line.pattern, re.DOTALL)
        kind = _Kind(line, pattern.match if line.begins else pattern.search)
        by_sign.setdefault(line.sign, []).append(kind)
    return tuple((sign, tuple(kinds)) for sign, kinds in by_sign.items())


_LOGGED = re.compile(
    r"\s{0,40}(?:\([^)]{1,120}\)|\[[^\]]{1,80}\]:?|\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}Z?"
    r"|\d\d-\d\d \d\d:\d\d:\d\d|(?:INFO|DEBUG|WARNING|ERROR)\b:?|[\w.-]{1,40}\.py:\d{1,6}\]?:?"
    r"|[-|:>*])\s{0,40}|\s{1,40}"
)
"""What a launcher, Ray or a logger writes before a program's own line."""
_NAME = r"[A-Za-z][\w./@+-]{0,99}"
_WRAPPED = rf"(?:(?:np\.\w{{1,12}}|tensor)\()?(?P<number>{NUMBER})(?![\w.])"
_VALUE = re.compile(rf"[\"']?{_WRAPPED}")
_IN_DICT = re.compile(rf"[\"'](?P<name>{_NAME})[\"']: ?[\"']?{_WRAPPED}")
_EQUALS = re.compile(rf"(?<![\w./@+-])(?P<name>{_NAME})[=:] {{0,2}}[\"']?{_WRAPPED}")
_ONE_NAME = re.compile(_NAME)
_COUNTS = {"step", "of", "epoch", "epochs"}
_LARGEST = 1e300
_NO_RATE = "?it/s"  # in a bar of tqdm whose program has made no step since it began
_MOST_PREFIXES = 6
_BEHIND_STEP = 8  # characters behind a step, or a bar's rate, in which an object may begin


def _pairs(notation: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and numbers in a text."""
    if notation == "dashes":
        for part in text.split(" - ", MOST_METRICS)[:MOST_METRICS]:
            name, _, written = part.rpartition(":")
            number = _VALUE.match(written)
            if number is not None and _ONE_NAME.fullmatch(name):
                yield name, number["number"]
        return
    is_dict = notation == "dict" or "{" in text[:_BEHIND_STEP]
    pattern = _IN_DICT if is_dict else _EQUALS
    for pair in islice(pattern.finditer(text), MOST_METRICS):
        yield pair["name"], pair["number"]


def _numbers(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the finite numbers by name, and the names of the others."""
    metrics = {}
    broken = dict[str, None]()
    for name, text in pairs:
        number = float(text)
        if math.isfinite(number):
            metrics[name] = number
        else:
            broken[name] = None
    return metrics, tuple(name for name in broken if name not in metrics)


class ProgressReader:
    """Reads the lines of one attempt."""

    def __init__(self, durations: Sequence[float] = ()) -> None:
        """Begin an attempt; `durations` are those of the last steps before it."""
        self._durations = deque(durations, RECENT)
        self._rank = 0  # of the lines whose steps count: the best that were seen
        self._last: int | None = None
        self._last_at = 0.0
        self._stride = 1
        self._total: int | None = None  # in the lines whose steps count
        self._of: int | None = None  # in any line
        self._of_is_general = False  # whether that line is any program's bar
        self._epochs: int | None = None
        self._first_epoch: int | None = None
        self._ahead: list[_Counted] = []  # lines with steps that do not follow the last one

    def resume(self, known: Progress) -> None:
        """Go on after lines that another reader has read before, at other times."""
        self._durations = deque(known.durations, RECENT)
        if known.last == self._last and known.last_at is not None:
            self._last_at = known.last_at

    def resume_file(self, known: Progress) -> None:
        """Go on with steps that come from AGENT_PROGRESS_FILE."""
        self._rank = FILE
        self._last = known.last
        self._total = known.of
        self.resume(known)

    @property
    def total(self) -> int | None:
        """Return how many steps there are, if a line showed that."""
        return self._total or self._of

    def read(self, text: str, at: float) -> tuple[Reading, ...]:
        """Return what a line shows, its step first; most lines show nothing."""
        text = text[:LONGEST_LINE]
        readings = list[Reading]()
        done = set[str]()
        line = ""
        start = 0
        for sign, kinds in _kinds():
            if sign not in text:
                continue
            if not line:
                line = without_controls(text)
                start = _body_start(line)
            for kind in kinds:
                if kind.format.shows in done:
                    continue  # the line fits several kinds, the first one best
                match = kind.find(line, start if kind.format.begins else 0)
                if match is not None:
                    readings += self._show(kind.format, line, match, at)
                    done |= {kind.format.shows} if readings else set()
                    break
        return tuple(sorted(readings, key=lambda seen: isinstance(seen, ValuesSeen)))

    def read_file(self, line: bytes, at: float) -> tuple[Reading, ...]:
        """Return what a line of AGENT_PROGRESS_FILE shows: JSON with a step and metrics."""
        try:
            data = json.loads(line[:LONGEST_LINE])
        except (ValueError, RecursionError):  # not JSON, a number without end, or nested too deeply
            return ()
        step = _whole(data.get("step")) if isinstance(data, dict) else None
        if step is None:
            return ()
        seen = self._step(_Counted(step, _whole(data.get("of")), FILE, at))
        if seen is None:
            return ()

        metrics = {}
        broken = []
        for name, number in islice(data.items(), MOST_METRICS):
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if name in _COUNTS or not is_number or not _ONE_NAME.fullmatch(name):
                continue
            if abs(number) <= _LARGEST:  # False for nan
                metrics[name] = float(number)
            else:
                broken.append(name)
        return (replace(seen, metrics=metrics, not_finite=tuple(broken)),)

    def _show(
        self, kind: LineFormat, line: str, match: re.Match[str], at: float
    ) -> tuple[Reading, ...]:
        """Return what a line of a known kind shows."""
        if kind.shows in {"evaluation", "checkpoint"}:
            # Beside a framework's own lines the words of any program may be a model's text.
            if kind.rank == GENERAL_LINE and self._rank > GENERAL_LINE:
                return ()
            return (PauseSeen("evaluation" if kind.shows == "evaluation" else "checkpoint", at),)

        # Which step is it? A bar that has no rate yet shows no step, only their number.
        numbers = {name: text for name, text in match.groupdict().items() if text is not None}
        step, of = self._numbered(numbers)
        if kind.shows == "total" or _NO_RATE in match[0]:
            self._note_total(of, is_general=kind.rank == GENERAL_BAR)
            return ()
        if kind.shows == "values" and step is None and self._rank == GENERAL_BAR:
            self._rank = BAR  # metrics beside a bar: it shows the job's steps

        # Does it count? Only then its metrics are read.
        seen: StepSeen | ValuesSeen | None
        if kind.shows == "values":
            seen = ValuesSeen(step if step == self._last else None, {}, at)
        elif step is None:
            return ()
        else:
            is_jobs_bar = self._rank == BAR and kind.rank == GENERAL_BAR and of == self._total
            seen = self._step(_Counted(step, of, BAR if is_jobs_bar else kind.rank, at))
        if seen is None:
            is_other_bar = kind.rank == GENERAL_BAR and of != self._total and "epoch" not in numbers
            return (PauseSeen("evaluation", at),) if is_other_bar and self._is_bar else ()
        named = [(name, text) for name, text in numbers.items() if name not in _COUNTS]
        behind = _pairs(kind.notation, line[match.end() :]) if kind.notation else ()
        metrics, broken = _numbers((*named, *behind))

        # A line that has only metrics of an evaluation is no step.
        names = (*metrics, *broken)
        if names and all(name.startswith(of_evaluation()) for name in names):
            return PauseSeen("evaluation", at), ValuesSeen(seen.step, metrics, at, broken)
        return (replace(seen, metrics=metrics, not_finite=broken),)

    def _note_total(self, of: int | None, *, is_general: bool) -> None:
        """Note the number of steps; a bar of any program has none of those that better lines show.

        That may be the bar of an evaluation.
        """
        if of is None or (is_general and self._rank > GENERAL_BAR):
            return
        self._of = of
        self._of_is_general = is_general

    @property
    def _is_bar(self) -> bool:
        return self._rank in {GENERAL_BAR, BAR}

    def _numbered(self, numbers: Mapping[str, str]) -> tuple[int | None, int | None]:
        """Return the step and the number of steps in a line; steps of an epoch are added up."""
        step = int(numbers["step"]) if "step" in numbers else None
        of = int(numbers["of"]) if "of" in numbers else None
        if "epochs" in numbers:
            self._epochs = int(numbers["epochs"])
        if "epoch" not in numbers or step is None or of is None:
            return step, of
        epoch = int(numbers["epoch"])
        if self._first_epoch is None:
            self._first_epoch = epoch
        total = None if self._epochs is None else (self._first_epoch + self._epochs) * of
        return epoch * of + step, total

    def _step(self, seen: _Counted) -> StepSeen | None:
        """Return the step of a line; None if it does not follow those before."""
        is_sane = 0 <= seen.step <= (LARGEST_STEP if seen.of is None else seen.of) <= LARGEST_STEP
        if not is_sane or seen.rank < self._rank:
            return None

        # A better source replaces all that worse ones showed.
        if seen.rank > self._rank:
            self._rank = seen.rank
            self._last = None
            self._total = None
            if self._of_is_general:
                self._of = None
        if not self._follows(seen) and not self._is_new_beginning(seen):
            return None

        if self._last is not None and seen.step > self._last:
            self._durations.append(seen.at - self._last_at)
            self._stride = seen.step - self._last
        if seen.step != self._last:
            self._last_at = seen.at
        self._last = seen.step
        self._ahead = []
        self._total = seen.of or self._total
        by_bar = seen.rank == GENERAL_BAR
        return StepSeen(seen.step, self._total or self._of, {}, seen.at, by_bar=by_bar)

    def _follows(self, seen: _Counted) -> bool:
        """Return whether a step is the last one again, or a little ahead of it."""
        if self._last is None:
            return True
        if seen.of is not None and self._total is not None and seen.of != self._total:
            return False
        return self._last <= seen.step <= self._last + max(_MOST_JUMP, _JUMPS_AGAIN * self._stride)

    def _is_new_beginning(self, seen: _Counted) -> bool:
        """Return whether several lines follow each other, though not the last step.

        A program that began anew prints them as slowly as it makes steps; a model's text does not.
        """
        ahead = self._ahead
        if ahead:
            before = ahead[-1]
            soonest = _SOONER * median(self._durations) if self._durations else 0.0
            is_next = before.step < seen.step <= before.step + _MOST_JUMP
            if not is_next or seen.of != before.of or seen.at - before.at < soonest:
                ahead = []
        self._ahead = [*ahead, seen]
        return len(self._ahead) >= _IN_A_ROW


class _Counted(NamedTuple):
    """A line with a step, before it is known whether it counts."""

    step: int
    of: int | None
    rank: int
    at: float


def _body_start(line: str) -> int:
    """Return where a program's own words begin in a line."""
    start = 0
    for _ in range(_MOST_PREFIXES):
        match = _LOGGED.match(line, start)
        if match is None or match.end() == start:
            break
        start = match.end()
    return start


def _whole(number: object) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def reward_text(reward: float, trend: float | None) -> str:
    """Return the mean reward of the last step, and how it moved if known."""
    text = f"mean reward {number_text(reward)}"
    if trend is None:
        return text
    return f"{text} ({number_text(trend, 2, signed=True)} over the last 20 steps)"
