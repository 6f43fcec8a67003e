"""`timeline.json`: a run as a trace, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Chrome's trace event format: a process is a node, a thread is what runs on it. Times are
microseconds from the head's start, or from the first attempt's where an earlier head made that.
"""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.items import HERE
from agent.record.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.record.outcome_file import Outage
    from agent.record.run_record import Attempt
    from agent.record.timeline import Span, Timeline

FILE = "timeline.json"
MOST_EVENTS = 50_000
"""More are left out, and counted: a trace that no browser opens tells nobody anything."""
_ENDINGS = {"done", "failed", "left"}
"""Phases that tell of an end, and last no longer."""

Event = dict[str, object]


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


def trace_of(timeline: Timeline, told: Told, clean: Callable[[str], str] = str) -> Event:
    """Return a run as a trace; `clean` masks the secrets in what others said."""
    pages = _Pages(told, clean)
    events = [*pages.of_the_head(timeline), *pages.of_the_workers(timeline)]
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

    def __init__(self, told: Told, clean: Callable[[str], str]) -> None:
        self._told = told
        self._clean = clean
        self._began = _moment(told.began)
        starts = [self._at(attempt.start) for attempt in told.attempts]
        self._first = min([0.0, *starts])
        """Where the trace begins: an earlier head's attempts lie before 0."""

    def of_the_head(self, timeline: Timeline) -> Iterator[Event]:
        told = self._told
        threads = {"phases": [*self._spans(timeline.phases)], "attempts": [*self._attempts()]}
        for name, spans in timeline.items.get(HERE, {}).items():
            threads[name] = [*self._spans(spans)]
        for outage in told.outages:
            until = told.seconds if outage.until is None else self._at(outage.until)
            title = f"outages of {outage.service}"
            threads.setdefault(title, []).append(
                (f"{outage.service} on {outage.node}", self._at(outage.since), until, {})
            )
        yield from self._node(1, f"{told.head} (head)", threads)
        end = {"name": self._clean(told.end), "ph": "i", "s": "g", "cat": "end", "pid": 1, "tid": 1}
        yield {**end, "ts": self._ts(told.seconds)}

    def of_the_workers(self, timeline: Timeline) -> Iterator[Event]:
        def order(key: str) -> tuple[bool, int, str]:
            name, rank = timeline.names.get(key, (key, None))
            return rank is None, rank or 0, name

        for number, key in enumerate(sorted(timeline.nodes, key=order), 2):
            name, rank = timeline.names.get(key, (key, None))
            spans = [*timeline.former.get(name, ()), *timeline.nodes[key]]
            threads = {"phases": [*self._spans(spans)]}
            for item, its in timeline.items.get(key, {}).items():
                threads[item] = [*self._spans(its)]
            yield from self._node(
                number, name if rank is None else f"rank {rank} ({name})", threads
            )

    def _spans(self, spans: Sequence[Span]) -> Iterator[tuple[str, float, float, Event]]:
        ends = [*(span.start for span in spans[1:]), self._told.seconds]
        for span, end in zip(spans, ends, strict=False):  # of no span there is an end, too
            until = span.start if span.phase in _ENDINGS else end
            yield span.phase, span.start, until, {}

    def _attempts(self) -> Iterator[tuple[str, float, float, Event]]:
        for attempt in self._told.attempts:
            end = self._told.seconds if attempt.end is None else self._at(attempt.end)
            args: Event = {"exit_code": attempt.exit_code, "reason": self._clean(attempt.reason)}
            yield f"attempt {attempt.number}", self._at(attempt.start), end, args

    def _node(
        self, pid: int, name: str, threads: Mapping[str, list[tuple[str, float, float, Event]]]
    ) -> Iterator[Event]:
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
    slices: list[tuple[str, float, float, Event]],
) -> list[tuple[str, float, float, Event]]:
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
