"""What the head asked this node to tell, until it has it: ends of logs, and how probes went."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio

from agent.base.ranges import LONGEST_TAIL, TEXT
from agent.boot.explained import logs_of_ray
from agent.boot.looks import LOOKS, STACKS, Looks
from agent.boot.probing import Prober
from agent.control.protocol import MOST_ANSWERS
from agent.decisions.probing import ALL_REDUCE
from agent.plan.plan import AGENT_LOG
from agent.record.log import say
from agent.runtime.last_words import in_thread
from agent.runtime.process import tail_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun
    from agent.decisions.probing import Answer
    from agent.work.torchrun import Seat
    from agent.work.where import Place

_TAIL_LINES = 20
_MOST_OF_ALL = 64 << 10
"""Bytes of all logs that a goodbye tells of, as JSON: a hello beside it may take as much."""
_OF_RAY = ("raylet.out", "raylet.err", "dashboard_agent.log")


def prober_of(run: NodeRun) -> Prober:
    """Return what tries on this node what the head's decisions want tried."""

    async def all_reduce(seat: Seat, place: Place) -> Answer:
        from agent.boot.all_reduce import share  # noqa: PLC0415 - most runs need none of it

        return await share(run, seat, place)

    clean, best_effort = run.redactor.clean, run.best_effort
    return Prober(run.plan, clean, lambda: run.run_id, all_reduce, best_effort)


class Asked:
    """Finds out what the head asked for, and keeps it until a report with it was answered."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._prober = prober_of(run)
        self._looks = Looks(run)
        self._sharing: tuple[anyio.CancelScope, anyio.Event] | None = None
        self._logs: dict[str, str] = {}
        self._answers: list[Answer] = []
        self._sent: tuple[dict[str, str], list[Answer]] = ({}, [])

    def to_send(self) -> tuple[dict[str, str] | None, tuple[Answer, ...]]:
        """Return what a report is to tell."""
        self._sent = (dict(self._logs), self._answers[:MOST_ANSWERS])
        return self._sent[0] or None, tuple(self._sent[1])

    def arrived(self) -> None:
        """Forget what the last report told, since it was answered."""
        logs, answers = self._sent
        for name, text in logs.items():
            if self._logs.get(name) == text:
                del self._logs[name]
        self._answers = [one for one in self._answers if one not in answers]

    async def probe(
        self,
        probe: str,
        at: str,
        place: Place,
        tell: Callable[[], None],
        seat: Seat | None = None,
    ) -> None:
        """Try what the head wants tried."""
        if probe == ALL_REDUCE:
            answer = await self._share_alone(place, seat)
        else:
            answer = await self._prober.probe(probe, at, place, seat)
        if answer is None:
            return
        self._answers.append(answer)  # to the list of now: others arrived in the meantime
        tell()

    async def _share_alone(self, place: Place, seat: Seat | None) -> Answer | None:
        """Take part in the all-reduce; an earlier share of this node's, whose head is gone, ends.

        It tells nothing then: what it could tell would be taken for the word of this one.
        """
        before, now = self._sharing, (anyio.CancelScope(), anyio.Event())
        self._sharing = now
        if before is not None:
            before[0].cancel()
            await before[1].wait()
        self._answers = [one for one in self._answers if one.probe != ALL_REDUCE]
        try:
            with now[0]:
                return await self._prober.probe(ALL_REDUCE, "", place, seat)
            return None
        finally:
            now[1].set()

    async def log(self, name: str, tell: Callable[[], None]) -> None:
        """Get ready for a report what the head wants to see: the end of a log, or a look."""
        self._logs.pop(name, None)  # it was asked for before: now is what is wanted
        if name in LOOKS:
            text = await self._looks.tell(name)
            if name == STACKS:
                self._looks.say_stacks(text)
            self._logs[name] = text[:LONGEST_TAIL]
        else:
            await self._end_of(name)
        tell()

    async def _end_of(self, name: str) -> None:
        known = self._run.plan.logs()
        if name not in known:
            say(f"an order of the head's is refused: this node has no log {name!r}", "warning")
            return
        from agent.record.bundle import last_lines  # noqa: PLC0415 - few are ever asked

        path, clean = self._run.folder.file(known[name]), self._run.redactor.clean
        text = await in_thread(lambda: last_lines(path, LONGEST_TAIL, clean) or "")
        self._logs[name] = fitted(text, LONGEST_TAIL)

    async def last_words(self, outcome: Outcome) -> str:
        """Return the end of this node's log, for its goodbye; a failure has all logs told."""
        path, clean = self._run.folder.file(AGENT_LOG), self._run.redactor.clean
        tails: dict[str, str] = {}

        def read() -> str:
            words = clean(tail_of(path, _TAIL_LINES, TEXT.longest))
            if outcome.is_failure:
                _read_all(self._run, tails)
            return words

        words = await in_thread(read)
        self._logs |= {**tails}
        return words


def _read_all(run: NodeRun, found: dict[str, str]) -> None:
    """Read the ends of all logs of this node, as many as fit into one report."""
    from agent.record.bundle import last_lines  # noqa: PLC0415 - only where a run has failed

    files = {name: run.folder.file(file) for name, file in run.plan.logs().items()}
    logs = logs_of_ray(run)
    files |= {} if logs is None else {name: logs / name for name in _OF_RAY}
    left = _MOST_OF_ALL
    for name, path in files.items():
        text = last_lines(path, LONGEST_TAIL, run.redactor.clean) or ""
        text = fitted(text, min(left, LONGEST_TAIL))
        if text:
            found[name] = text
            left -= len(json.dumps(text))


def fitted(text: str, most: int) -> str:
    """Return a text's end that takes no more than so many bytes as JSON."""
    while text and len(json.dumps(text)) > most:
        text = text[len(text) // 4 + 1 :]
    return text
