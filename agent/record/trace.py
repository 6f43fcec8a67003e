"""`timeline.json`: a run as a trace, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Chrome's trace event format: a process is a node, a thread is what runs on it. Times are
microseconds from the start of the run's first head, as far as its records lie here.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.items import HERE
from agent.record.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.record.former_lives import FormerLife
    from agent.record.outcome_file import Outage
    from agent.record.run_record import Attempt
    from agent.record.timeline import Span, Timeline

FILE = "timeline.json"
MOST_EVENTS = 50_000
"""More are left out, and counted: a trace that no browser opens tells nobody anything."""
_ENDINGS = {"done", "failed", "left"}
"""Phases that tell of an end, and last no longer."""

Event = dict[str, object]
Slice = tuple[str, float, float, Event]
"""What it was, from when to when on the head's clock, and what else is to be told."""
Threads = dict[str, list[Slice]]


@dataclass(frozen=True)
class Told:
    """All that a trace is made of; times of attempts and outages are UTC, ISO 8601."""

    run_id: str
    head: str
    """The head's node, by name."""
    began: str
    """When the head's clock stood at 0."""
    seconds: float
    """What that clock shows now."""
    end: str
    """Why the run ended."""
    attempts: Sequence[Attempt] = ()
    outages: Sequence[Outage] = ()
    former: Sequence[FormerLife] = ()
    """Earlier agents of the head's node."""


def trace_of(timeline: Timeline, told: Told, clean: Callable[[str], str] = str) -> Event:
    """Return a run as a trace; `clean` masks the secrets in what others said."""
    pages = _Pages(timeline, told, clean)
    events = [*pages.of_the_head(), *pages.of_the_workers()]
    return {
        "traceEvents": events[:MOST_EVENTS],
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": told.run_id,
            "began": told.began,
            "left_out": max(0, len(events) - MOST_EVENTS),
        },
    }


def write_trace(folder: Path, trace: Mapping[str, object]) -> OSError | None:
    """Write it into a run's folder whole, or not at all; return why it could not be."""
    return write_atomically(folder / FILE, json.dumps(trace) + "\n", durable=False)


class _Pages:
    """The events of each node: its name, its threads, and what went on in them."""

    def __init__(self, timeline: Timeline, told: Told, clean: Callable[[str], str]) -> None:
        self._told = told
        self._clean = clean
        self._began = _moment(told.began)
        self._lives = [
            *((self._at(life.began), life.seconds, life.timeline) for life in told.former),
            (0.0, told.seconds, timeline),
        ]
        """When each head's agent began and how long it lived, the last one at 0."""
        starts = [self._at(attempt.start) for attempt in told.attempts]
        self._first = min([0.0, *starts, *(began for began, _, _ in self._lives)])
        """Where the trace begins: what earlier heads did lies before 0."""

    def of_the_head(self) -> Iterator[Event]:
        told = self._told
        threads: Threads = {"phases": [], "attempts": [*self._attempts()]}
        for began, seconds, timeline in self._lives:
            threads["phases"] += self._spans(timeline.phases, began, seconds)
            self._add_items(threads, timeline.items.get(HERE, {}), began, seconds)
        for outage in told.outages:
            until = told.seconds if outage.until is None else self._at(outage.until)
            title = f"outages of {outage.service}"
            threads.setdefault(title, []).append(
                (f"{outage.service} on {outage.node}", self._at(outage.since), until, {})
            )
        yield from self._node(1, f"{told.head} (head)", threads)
        end = {"name": self._clean(told.end), "ph": "i", "s": "g", "cat": "end", "pid": 1, "tid": 1}
        yield {**end, "ts": self._ts(told.seconds)}

    def of_the_workers(self) -> Iterator[Event]:
        """Tell of each node by its name, whichever of its agents and of the heads told of it."""
        places: dict[tuple[str, int], Threads] = {}
        ranks: dict[tuple[str, int], int | None] = {}
        for began, seconds, timeline in self._lives:
            namesakes: Counter[str] = Counter()  # machines may share one name
            for key, spans in timeline.nodes.items():
                name, rank = timeline.names.get(key, (key, None))
                place = (name, namesakes[name])
                namesakes[name] += 1
                threads = places.setdefault(place, {"phases": []})
                ranks[place] = ranks.get(place) if rank is None else rank
                earlier = timeline.former.get(name, ())
                threads["phases"] += self._spans([*earlier, *spans], began, seconds)
                self._add_items(threads, timeline.items.get(key, {}), began, seconds)
        ordered = sorted(places, key=lambda place: (ranks[place] is None, ranks[place] or 0, place))
        for number, place in enumerate(ordered, 2):
            rank = ranks[place]
            title = place[0] if rank is None else f"rank {rank} ({place[0]})"
            yield from self._node(number, title, places[place])

    def _add_items(
        self, threads: Threads, items: Mapping[str, list[Span]], began: float, seconds: float
    ) -> None:
        for name, spans in items.items():
            threads.setdefault(name, []).extend(self._spans(spans, began, seconds))

    def _spans(self, spans: Sequence[Span], began: float, seconds: float) -> Iterator[Slice]:
        ends = [*(span.start for span in spans[1:]), seconds]
        for span, end in zip(spans, ends, strict=False):  # of no span there is an end, too
            until = span.start if span.phase in _ENDINGS else end
            yield span.phase, began + span.start, began + until, {}

    def _attempts(self) -> Iterator[Slice]:
        for attempt in self._told.attempts:
            end = self._told.seconds if attempt.end is None else self._at(attempt.end)
            args: Event = {"exit_code": attempt.exit_code, "reason": self._clean(attempt.reason)}
            yield f"attempt {attempt.number}", self._at(attempt.start), end, args

    def _node(self, pid: int, name: str, threads: Mapping[str, list[Slice]]) -> Iterator[Event]:
        yield _named("process_name", pid, 0, {"name": self._clean(name)})
        yield _named("process_sort_index", pid, 0, {"sort_index": pid})
        for tid, (thread, slices) in enumerate(threads.items(), 1):
            if not slices:
                continue
            yield _named("thread_name", pid, tid, {"name": self._clean(thread)})
            yield _named("thread_sort_index", pid, tid, {"sort_index": tid})
            for title, start, end, args in _apart(slices):
                yield {
                    "name": self._clean(title),
                    "ph": "X",
                    "cat": "run",
                    "pid": pid,
                    "tid": tid,
                    "ts": self._ts(start),
                    "dur": self._ts(end) - self._ts(start),
                    "args": args,
                }

    def _ts(self, at: float) -> int:
        return round((at - self._first) * 1e6)

    def _at(self, time: str) -> float:
        """Return a time of a record on the head's clock."""
        return _moment(time) - self._began


def _apart(
    slices: list[Slice],
) -> list[Slice]:
    """Return slices of one thread in their order, none of which reaches into the next."""
    ordered = sorted(slices, key=lambda one: one[1])
    cut = [
        (title, start, max(start, min(end, following[1])), args)
        for (title, start, end, args), following in pairwise(ordered)
    ]
    return [*cut, *((t, start, max(start, end), args) for t, start, end, args in ordered[-1:])]


def _named(what: str, pid: int, tid: int, args: Event) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _moment(time: str) -> float:
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except ValueError:  # a record that somebody else wrote
        return 0.0
