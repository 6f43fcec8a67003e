"""Answer the head's questions on this node: logs and probes.

`Questions` keeps each answer until a report that contains it was replied to. `Prober` runs the
probes, on the head for itself, too: a score of the reward server, a connection to another node's
raylet, a sample of the bandwidth to another node.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
from msgspec.structs import replace

from agent import load
from agent.base import times
from agent.base.value import LONGEST_TAIL, LONGEST_TEXT
from agent.decisions.shared import (
    PROBES,
    REACH,
    SAMPLE,
    SCORE,
    Answer,
    NodeWanted,
    QuestionKind,
)
from agent.frameworks.recipe import SLOW_LINK
from agent.job.services import REWARD, ScoringProbe, reward_url
from agent.plan.plan import AGENT_LOG
from agent.port.protocol import BUSY, MAX_ANSWERS, STACKS
from agent.processes.probing import reward_answers
from agent.processes.process import tail_of
from agent.processes.waiting import Failure, NotYet, TimedOutError, until
from agent.record.background import in_thread
from agent.record.bundle import last_lines
from agent.record.log import say
from agent.run.diagnose import ray_log_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.ends import Outcome
    from agent.decisions.shared import Question
    from agent.job.services import Placeholders
    from agent.run.node_run import NodeRun
    from agent.run.stall import Diagnostics

# A node whose time is over reports before the head's limit.
_SAMPLE_TRIES = times.BANDWIDTH_SAMPLE - 3.0


_TRIES = 3
_AT_ONCE = 64
_SAMPLES = 3
_STEADY = 1.25  # a slow link is equally slow each time; samples that differ more: a busy machine


class Prober:
    """Runs the probes that the head asks for, at most some of them at once."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._plan = run.plan
        self._network = run.effects.network
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._one_sample = asyncio.Lock()

    async def probe(self, probe: str, at: str, place: Placeholders) -> Answer:
        """Run a probe; `at` is the other node's address, '' for the head."""
        ways = {SAMPLE: self._sample, SCORE: self._score}
        run = partial(ways.get(probe, self._reach), at, place)
        async with self._slots:
            answer = await self._run.best_effort(f"the probe {probe!r}", run)
        if isinstance(answer, Failure):
            answer = Answer(probe, at, answer.reason)
        return replace(answer, evidence=self._run.redactor.clean(answer.evidence))

    async def _score(self, at: str, place: Placeholders) -> Answer:
        """Request a score from the reward server of this node's plan, as the job would."""
        services = self._plan.all_services
        url = reward_url(services, replace(place, node_ip=at or place.head_ip))
        spec = next((spec for spec in services if spec.name == REWARD), None)
        if not url or spec is None:
            return Answer(SCORE, at, "this node's settings name no reward server")

        began = time.monotonic()
        if isinstance(spec.ready, ScoringProbe):
            token = self._plan.secret("AGENT_REWARD_TOKEN")
            evidence = await reward_answers(url, times.NODE_PROBE - 1, token)
        else:  # its request format is not known
            split = urlsplit(url)
            evidence = await self._network.port_answers(split.hostname or "", split.port or 80)
        return Answer(SCORE, at, str(evidence), time.monotonic() - began)

    async def _reach(self, at: str, _place: Placeholders) -> Answer:
        """Connect to another node's raylet and object manager; return the shortest time."""
        ports = self._plan.ports
        best = times.RAYLET_REACHED

        async def check() -> bool | NotYet:
            nonlocal best
            for port in (ports.object_manager, *[ports.node_manager] * _TRIES):
                began = time.monotonic()
                evidence = await self._network.port_answers(at, port, times.REACH_TRY)
                if evidence:
                    return NotYet(evidence)
                best = min(best, time.monotonic() - began)
            return True

        try:
            await until(check, times.RAYLET_REACHED)
        except TimedOutError as error:
            return Answer(REACH, at, str(error))
        return Answer(REACH, at, "", best)

    async def _sample(self, at: str, place: Placeholders) -> Answer:
        """Download some MB from another node's agent; repeat while the link looks slow."""
        ip = at or place.head_ip
        deadline = anyio.current_time() + _SAMPLE_TRIES
        best = (0, 0.0)
        former_rate = 0.0
        for number in range(_SAMPLES):
            if number:
                await anyio.sleep(times.SAMPLE_PAUSE)

            # One sample at once: two would halve each other's rate.
            async with self._one_sample:
                seconds_left = deadline - anyio.current_time()
                if seconds_left <= 0:
                    break
                sample = await self._run.effects.late().download_sample(
                    ip,
                    self._plan.ports.agent,
                    self._plan.secret(),
                    self._run.run_id,
                    seconds_left,
                )
            if isinstance(sample, str):
                return Answer(SAMPLE, at, sample)
            best = max(best, sample, key=_rate)

            # Is the link fast, or equally slow twice? Then no further sample shows more.
            rate = _rate(sample)
            if rate >= SLOW_LINK:
                break
            if max(former_rate, rate) < _STEADY * min(former_rate, rate):
                break
            former_rate = rate

        size, seconds = best
        return Answer(SAMPLE, at, "" if size else "no time was left for it", seconds, size)


def _rate(sample: tuple[int, float]) -> float:
    size, seconds = sample
    return size * 8 / seconds if seconds > 0 else 0.0


def _refuse(what: str) -> None:
    say(f"a question of the head's is refused: this node has no {what}", "warning")


_TAIL_LINES = 20
_MOST_OF_ALL = 64 << 10  # bytes of logs in a goodbye: a hello beside it may take as much
_OF_RAY = ("raylet.out", "raylet.err", "dashboard_agent.log")


class Questions:
    """Answers the head's questions; keeps each answer until a report with it was replied to."""

    def __init__(
        self, run: NodeRun, place: Callable[[], Placeholders], report_now: Callable[[], None]
    ) -> None:
        self._run = run
        self._place = place
        self._report_now = report_now
        self._latest = NodeWanted("", 0)  # the last message that was read for questions
        self._prober = Prober(run)
        self._diagnostics: Diagnostics | None = None
        self._logs: dict[str, str] = {}
        self._answers: list[Answer] = []
        self._sent: tuple[dict[str, str], list[Answer]] = ({}, [])

    def for_report(self) -> tuple[dict[str, str] | None, tuple[Answer, ...]]:
        """Return the logs and answers for the next report."""
        self._sent = (dict(self._logs), self._answers[:MAX_ANSWERS])
        return self._sent[0] or None, tuple(self._sent[1])

    def clear_sent(self) -> None:
        """Drop what the last report contained, since it was answered."""
        logs, answers = self._sent
        for name, text in logs.items():
            if self._logs.get(name) == text:
                del self._logs[name]
        self._answers = [answer for answer in self._answers if answer not in answers]

    def take(self, wanted: NodeWanted, tasks: anyio.abc.TaskGroup) -> None:
        """Begin to answer what was not asked before, by this agent of the head."""
        known = self._latest.revision if wanted.by == self._latest.by else 0
        self._latest = wanted
        for question in wanted.questions:
            if question.number <= known:
                continue
            if question.kind is QuestionKind.LOG:
                tasks.start_soon(self.fetch_log, question.name)
            elif question.name in PROBES:
                tasks.start_soon(self.probe, question)
            else:
                _refuse(f"probe {question.name!r}")

    async def probe(self, question: Question) -> None:
        """Run a probe."""
        answer = await self._prober.probe(question.name, question.at, self._place())
        self._answers.append(answer)  # to the current list: others may have been added
        self._report_now()

    async def fetch_log(self, name: str) -> None:
        """Prepare a log's tail or a diagnostic for the next report."""
        run = self._run
        known = run.plan.logs()
        self._logs.pop(name, None)  # an earlier result is outdated
        if name in (BUSY, STACKS):
            if self._diagnostics is None:  # loaded for a stall: 10 ms that Ray's start needs
                self._diagnostics = load("run.stall:Diagnostics")(run)
            text = await self._diagnostics.collect(name)
            self._logs[name] = text[:LONGEST_TAIL]
        elif name in known:
            path = run.folder.file(known[name])
            tail = await in_thread(partial(last_lines, path, LONGEST_TAIL, run.redactor.clean))
            self._logs[name] = tail or ""
        else:
            _refuse(f"log {name!r}")
        self._report_now()

    async def read_log_tails(self, outcome: Outcome) -> str:
        """Return the tail of the agent's log for the goodbye; after a failure, read all logs."""
        run = self._run
        clean = run.redactor.clean
        tails = dict[str, str]()

        def read_all() -> None:
            files = {name: run.folder.file(file) for name, file in run.plan.logs().items()}
            ray_logs = ray_log_folder(run)
            if ray_logs is not None:
                files |= {name: ray_logs / name for name in _OF_RAY}

            # Each log counts, also one that no longer fits.
            bytes_left = _MOST_OF_ALL
            for name, path in files.items():
                text = last_lines(path, LONGEST_TAIL, clean)
                bytes_left -= len(text.encode())
                if text and bytes_left > 0:
                    tails[name] = text

        def read() -> str:
            tail = tail_of(run.folder.file(AGENT_LOG), _TAIL_LINES, LONGEST_TEXT, clean)
            if outcome.is_failure:
                read_all()
            return tail

        # A disk that hangs costs what it has not returned in time.
        tail = await in_thread(read) or ""
        self._logs |= {**tails}
        return tail
