"""The job's output, read once: known error lines, the job's steps, and the last lines."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.base.text import escaped, without_controls
from agent.checks.finding import Finding, Level
from agent.decisions.shared import place
from agent.diagnosis.advice import RewardFailure, advise, failures_of
from agent.diagnosis.node_split import advise_split
from agent.diagnosis.searched_log import Log
from agent.job.progress import LONGEST_LINE, Progress, ProgressReader
from agent.job.series import Series
from agent.record.log import say
from agent.record.series_file import SavedLine, add_reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.decisions.shared import Known, Outage
    from agent.diagnosis.advice import Advice
    from agent.diagnosis.live_errors import LiveErrors
    from agent.diagnosis.rows import Row
    from agent.frameworks.recipe import NodeSplit
    from agent.job.progress import Reading
    from agent.job.series import SeriesPart
    from agent.record.series_file import SavedSteps

_STEPS_STOPPED = 300.0  # Without a step for so long: an error before has stopped the steps.


class KnownLines:
    """Logs known lines of an attempt's output: each cause once, before as seen once.

    One thread scans this node's output, another adds what the other nodes found.
    """

    def __init__(self, clean: Callable[[str], str], clock: Callable[[], float] = time.time) -> None:
        self._clean = clean
        self._clock = clock
        self._began = clock()
        self._errors: LiveErrors | None = None  # made at the first line: its rules take 0.15 s
        self._found: dict[str, Known] = {}  # this node's, by key
        self._of_nodes: dict[str, tuple[str, Known]] = {}  # the others', by key, with the node
        self._lines: dict[str, dict[str, Known]] = {}  # their lines, by node and key
        self._ahead: dict[str, float] = {}  # seconds that their clocks are ahead
        self._first: Known | None = None

    def scan(self, lines: Sequence[str], *, has_stopped: bool = False) -> None:
        """Scan whole lines without control characters."""
        if self._errors is None:
            from agent.diagnosis.live_errors import LiveErrors  # noqa: PLC0415 - see above

            self._errors = LiveErrors(self._began)
        self._add(self._errors.read(lines, has_stopped=has_stopped), self._errors.first)

    def close(self) -> None:
        """Look at what the end of the output has left open."""
        if self._errors is not None:
            self._add(self._errors.close(), self._errors.first)

    def _add(self, new: Sequence[Known], first: Known | None) -> None:
        """Say what is new, and keep the cause if the job ends now: others compare its time."""
        for known in new:
            _, there = self._of_nodes.get(known.key, ("", known))
            is_reported = known.key in self._of_nodes and not there.is_seen
            self._found[known.key] = self._cleaned(known) if is_reported else self._say("", known)
        if first is None:  # the one before was survived
            self._first = None
        elif self._first is None or first.line != self._first.line:
            self._first = self._cleaned(first)

    def add_from_node(self, node: str, lines_there: Sequence[Known], ahead: float = 0.0) -> None:
        """Add what another node, whose clock is ahead, found in its output of the attempt.

        It reports all that it knows each time: what is no longer among it was survived there.
        """
        self._ahead[node] = ahead
        former = self._lines.get(node, {})
        lines: dict[str, Known] = {}
        self._lines[node] = lines
        for known in lines_there:
            at = None if known.at is None else known.at - ahead
            before = former.get(known.key)
            if before is not None and before.line == known.line:
                lines.setdefault(known.key, before)  # with the time of its first report
            lines.setdefault(known.key, replace(known, at=at))
            row = _row(known.key)
            here = self._found.get(known.key)
            _, there = self._of_nodes.get(known.key, ("", here))
            is_new = there is None or (there.is_seen and not known.is_seen)
            is_live = row is not None and row.is_live
            if is_new and (is_live or not known.is_seen):
                self._of_nodes[known.key] = node, self._say(node, known)

    def logs_of_nodes(self, first: str = "") -> tuple[Log, ...]:
        """Return the lines that other nodes reported, those of one node first."""
        nodes = sorted(self._lines, key=lambda name: name != first)
        logs = []
        for node in nodes:
            lines = [f"{known.prefix}{known.line}" for known in self._lines[node].values()]
            moments = [known.at for known in self._lines[node].values() if known.at is not None]
            log = Log(node, "the job's output", "\n".join(lines), clock_ahead=self._ahead[node])
            logs.append(replace(log, at=min(moments, default=None)))
        return tuple(logs)

    @property
    def first_at(self) -> float | None:
        """Return when the present first cause in this node's output arrived, by its clock."""
        return None if self._first is None else self._first.at

    def _cleaned(self, known: Known) -> Known:
        """Mask secrets before the line is shortened, since that could cut a secret in two."""
        line = self._clean(known.line)
        cause = self._clean(known.cause)
        remedy = self._clean(known.what_to_do)
        prefix = self._clean(known.prefix)[:_LONGEST_PREFIX]
        cleaned = replace(known, line=line, cause=cause, what_to_do=remedy, prefix=prefix).cut()
        return replace(cleaned, at=self._clock() if known.at is None else known.at)

    def _say(self, node: str, known: Known) -> Known:
        cleaned = self._cleaned(known)
        say(cleaned.sentence(node), "info" if known.is_noise or known.is_seen else "warning")
        return cleaned

    @property
    def named(self) -> tuple[Known, ...]:
        """Return the causes in this node's output that no steps have followed since.

        The one that counts first so far is among them, known or not.
        """
        errors = self._errors
        keys = frozenset[str]() if errors is None else errors.named_keys
        named = tuple(known for known in self.causes if known.key in keys)
        first = self._first
        is_among = first is None or any(known.line == first.line for known in named)
        return named if first is None or is_among else (*named, first)

    @property
    def causes(self) -> tuple[Known, ...]:
        """Return the causes and symptoms in this node's output, without what was only seen."""
        every = [*self._found.values()]
        return tuple(known for known in every if not known.is_noise and not known.is_seen)

    @property
    def errors(self) -> tuple[Known, ...]:
        """Return all errors in this node's output, also those that the job has survived."""
        return tuple(known for known in [*self._found.values()] if not known.is_noise)

    @property
    def for_head(self) -> tuple[Known, ...]:
        """Return what a head compares with other nodes' errors: the first one, known or not.

        The head does not see what followed a line: one that its process survived is left out.
        """
        open_keys = frozenset[str]() if self._errors is None else self._errors.open_keys
        unsurvived = tuple(
            known
            for known in self.errors
            if _row(known.key) is not None and (not known.is_seen or known.key in open_keys)
        )
        first = self._first
        if first is None or any(known.key == first.key for known in unsurvived):
            return unsurvived
        said = self._found.get(first.key)
        is_said = said is not None and said.line == first.line
        return (said if said is not None and is_said else first, *unsurvived)

    def warnings(self) -> list[Finding]:
        """Return what the output shows as findings."""
        warnings = []
        of_nodes = {key: entry for key, entry in [*self._of_nodes.items()] if not entry[1].is_seen}
        own = [("", known) for key, known in [*self._found.items()] if key not in of_nodes]
        everything = [*of_nodes.values(), *own]
        for node, known in everything:
            if known.is_noise or known.is_seen:
                continue
            cause = f"{node}: {known.cause}" if node else known.cause
            what = f"{cause}{place('', known.rank)} ({known.shown})"
            warnings.append(Finding("job output", Level.WARN, what, known.what_to_do))
        return warnings


def _row(key: str) -> Row | None:
    """Return a row of known errors; few runs need one."""
    from agent.diagnosis.rows import table  # noqa: PLC0415 - see above

    return table().get(key)


MOST_LINES = 40
_LONGEST_SHOWN = 400
_LONGEST_PREFIX = 160
_SPARE = 4_096  # characters behind a line's end in which a secret may go on
_MOST_UNSAVED = 200
_STEPS_MISSED = 3  # An error has stopped the steps after so many times the usual one


class JobLines:
    """Collects the job's output; threads write, others read.

    Each line is decoded, freed of control characters, masked and cut once. What is left is read by
    three: the known lines, the progress, and the last lines for the page.
    """

    def __init__(
        self, clean: Callable[[str], str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._clean = clean
        self._now = now
        self.known = KnownLines(self._clean)
        self.last_output: float | None = None  # time of the last output on the monotonic clock
        self.is_at_end = False  # whether all output of the attempt was read
        self._rest = b""
        self._is_too_long = False  # whether the rest of the current line is skipped
        self._last: deque[str] = deque(maxlen=MOST_LINES)
        self._has_failed = False

        # Two threads write: that of the output, and that of AGENT_PROGRESS_FILE.
        self._lock = threading.Lock()
        self._reader = ProgressReader()
        self._progress: Progress | None = None
        self._series = Series()
        self._advice: tuple[Advice, ...] = ()
        self._advice_of: object = None  # what it is made of

        # What was read, for the agent that continues after this one; and what one before has read.
        self._number = 0
        self._unsaved: deque[SavedLine] = deque(maxlen=_MOST_UNSAVED)
        self._position = 0  # bytes of the attempt's output so far
        self._file_read = 0  # the same of AGENT_PROGRESS_FILE
        self._known_up_to = 0
        self._repeats = False  # whether an earlier agent has read what is read now

    def write(self, data: bytes, _may_try_again: Callable[[float], bool]) -> bool:
        """Add a piece of output; a failure in a line is logged once and ends nothing."""
        self.last_output = time.monotonic()
        known = max(0, self._known_up_to - self._position)
        for part in (data[:known], data[known:]):
            if part:
                self._position += len(part)
                self._repeats = self._position <= self._known_up_to
                self._add(part)
        if self._repeats and self._progress is not None:
            self._reader.resume(self._progress)
        self._repeats = False
        return True

    def _add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if self._is_too_long and lines:
            del lines[0]
            self._is_too_long = False

        # A line without an end counts as one when it is too long; the rest of it is skipped. What
        # a return overwrites counts at once: a bar may never end its line.
        if self._is_too_long:
            rest = b""
        elif len(rest) > LONGEST_LINE + _SPARE:
            lines.append(rest)
            self._is_too_long = True
            rest = b""
        overwritten = rest.rfind(b"\r", 0, len(rest) - 1)
        self._rest = rest[overwritten + 1 :]
        self._read(lines, rest[: overwritten + 1])

    def close(self) -> None:
        """Add the last line, which has no line end."""
        if self._rest:
            self._read([self._rest])
        self._rest = b""
        self._try(lambda known: known.close(), self.known)
        self.is_at_end = True

    def begin_attempt(self, number: int) -> None:
        """Begin the next attempt: its known lines are logged again, its steps count anew."""
        self.known = KnownLines(self._clean)
        with self._lock:
            now = self._now()
            former = self._progress
            self.is_at_end = False
            self._reader = ProgressReader(() if former is None else former.durations)
            self._position = 0
            self._file_read = 0
            self._known_up_to = 0
            self._progress = Progress(number, now)
            if former is not None:
                self._progress = former.next_attempt(number, now)
            self._keep(None, number, now)

    def restore(self, saved: SavedSteps) -> None:
        """Go on with what an earlier agent saved, whose times are on this one's clock."""
        with self._lock:
            self._progress = saved.progress
            self._series = saved.series
            self._number = saved.number
            self._known_up_to = saved.read
            self._file_read = saved.file_read

    def follow_attempt(self, number: int) -> int:
        """Follow an attempt that an earlier agent began; return where its file is to be read on.

        Its output is read again: what that agent has read changes neither progress nor series.
        """
        if self._progress is None or self._progress.attempt != number:
            self.begin_attempt(number)
        elif self._file_read:
            self._reader.resume_file(self._progress)
        return self._file_read

    def read_file(self, lines: Iterable[bytes], position: int) -> None:
        """Read new lines of AGENT_PROGRESS_FILE, which end at this offset."""
        at = self._now()
        with self._lock:
            self._file_read = position
            for line in lines:
                self._try(lambda raw: self._count(self._reader.read_file(raw, at)), line)

    def take_unsaved(self) -> list[SavedLine]:
        """Return what was read since the last call, at most the last of it."""
        with self._lock:
            unsaved = [*self._unsaved]
            self._unsaved.clear()
        return unsaved

    def everything(self) -> SavedLine:
        """Return all that is known of the run's steps as one line."""
        with self._lock:
            progress = self._progress
            attempt = 0 if progress is None else progress.attempt
            line = SavedLine(self._number, "all", 0.0, attempt)
            line = replace(line, read=self._position, file_read=self._file_read)
            return replace(line, progress=progress, series=self._series.state)

    @property
    def progress(self) -> Progress | None:
        """Return the progress of the running attempt; None before the first one."""
        return self._progress

    @property
    def total(self) -> int | None:
        """Return how many steps the job is to make, as its output says, if it does."""
        with self._lock:
            return self._reader.total

    def advice(self, outages: Sequence[Outage] = ()) -> tuple[Advice, ...]:
        """Return advice on the job's metrics, with what failed beside the policy meanwhile."""
        known = self._progress
        if known is None:
            return ()

        # Errors in the output have times since 1970.
        zero = time.time() - self._now()
        failures = [*failures_of(outages)]
        for error in self.known.errors:
            if error.at is not None:
                at = error.at - zero
                what = f"the job's output says: {error.cause}"
                failures.append(RewardFailure(what, at, at, "the job's output has an error"))

        # It is the same until a line shows something new.
        with self._lock:
            basis = (self._number, known.attempt, len(failures), outages)
            if self._advice_of != basis:
                self._advice_of = basis
                self._advice = advise(known, self._series.points, failures)
            return self._advice

    def split_advice(self, split: NodeSplit) -> Advice | None:
        """Return advice on how the run divides its nodes, if there is any."""
        known = self._progress
        if known is None:
            return None
        with self._lock:
            return advise_split(known, self._series.points, split)

    def series(self, since: int | None = None) -> SeriesPart:
        """Return the metrics by step, as `/series` has them."""
        with self._lock:
            return self._series.part(since)

    def newest(self) -> dict[str, float]:
        """Return the newest value of each metric that is kept."""
        with self._lock:
            names = self._series.names
        metrics = {} if self._progress is None else self._progress.metrics
        return {name: metrics[name] for name in names if name in metrics}

    def seconds_since_step(self) -> float:
        """Return the seconds since the last step."""
        last_at = None if self._progress is None else self._progress.last_at
        return 0.0 if last_at is None else round(max(0.0, self._now() - last_at), 1)

    def reward_trend(self) -> float | None:
        """Return by how much the reward rose over the last steps; None for too few."""
        with self._lock:
            return self._series.trend("reward")

    def rewards(self) -> list[tuple[int, float]]:
        """Return the rewards by step."""
        with self._lock:
            return self._series.points("reward")

    def curves(self) -> SeriesPart:
        """Return a few points of each curve that people look at, as `/status` has them."""
        with self._lock:
            return self._series.curves()

    def tail(self) -> list[str]:
        """Return the last lines, masked and without control characters."""
        return [escaped(line) for line in [*self._last]]

    def _read(self, lines: list[bytes], overwritten: bytes = b"") -> None:
        """Read whole lines, and what a return has overwritten in the one that is not whole."""
        whole = [text.rstrip("\r") for text in self._texts(lines)]
        shown = [text.rpartition("\r")[2] for text in whole]  # as a terminal shows it
        if shown:
            self._try(self._scan, shown)
        self._last.extend(text[:_LONGEST_SHOWN] for text in shown)

        # Each state of a bar may be a step.
        pieces = [piece for text in whole for piece in text.split("\r")]
        for text in self._texts([overwritten]) if overwritten else ():
            pieces += text.split("\r")
        at = self._now()
        repeats = self._repeats

        def read(text: str) -> None:
            seen = self._reader.read(text, at)
            if not repeats:
                self._count(seen)

        with self._lock:
            for piece in pieces:
                self._try(read, piece)

    def _scan(self, shown: list[str]) -> None:
        self.known.scan(shown, has_stopped=self._have_steps_stopped())

    def _have_steps_stopped(self) -> bool:
        """Return whether steps were usual, and none came for much longer than one takes."""
        known = self._progress
        each = None if known is None else known.seconds_per_step
        if known is None or each is None or known.last_at is None:
            return False
        return self._now() - known.last_at > max(_STEPS_STOPPED, _STEPS_MISSED * each)

    def _texts(self, lines: list[bytes]) -> list[str]:
        """Return lines as text, masked before they are cut: a part of a secret is none."""
        if not lines:
            return []
        text = without_controls(b"\n".join(lines).decode(errors="replace"))
        try:
            texts = self._clean(text).split("\n")
        except Exception as error:  # noqa: BLE001 - a bug must not end what follows the progress
            self._report(error)
            texts = []
            for line in text.split("\n"):
                self._try(lambda line: texts.append(self._clean(line)), line)
        return [text[:LONGEST_LINE] for text in texts]

    def _count(self, readings: Iterable[Reading]) -> None:
        """Add what a line shows to the progress and the series, and keep it to be saved."""
        for seen in readings:
            progress = self._progress or Progress(1, seen.at)
            self._progress = add_reading(progress, self._series, seen)
            self._keep(seen, progress.attempt, seen.at)

    def _keep(self, seen: Reading | None, attempt: int, at: float) -> None:
        line = SavedLine.of_reading(seen, attempt, at)
        self._number += 1
        read = self._position - len(self._rest)
        self._unsaved.append(
            replace(line, number=self._number, read=read, file_read=self._file_read)
        )

    def _try(self, read: Callable[[Any], None], data: object) -> None:
        """Read something: a defect here must not end what follows the job's progress."""
        try:
            read(data)
        except Exception as error:  # noqa: BLE001 - whatever an expression or a number raises
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            why = escaped(f"{type(error).__name__}: {error}"[:_LONGEST_SHOWN])
            say(f"a bug: a line of the job's output cannot be read ({why})", "warning")
