"""How a node carries out a probe: a request for a score, connections, a sample."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from agent.checks.links import SLOW
from agent.control.sample import draw
from agent.decisions.probing import ALL_REDUCE, REACH, SAMPLE, SCORE, Answer, Answered
from agent.plan.waits import PROBE_LIMIT, SAMPLE_LIMIT
from agent.runtime.best_effort import BestEffort, Failure
from agent.runtime.probes import port_answers, reward_answers
from agent.runtime.waiting import NotYet, TimedOutError, until
from agent.work.services import REWARD, Scores, reward_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.plan.plan import Plan
    from agent.work.torchrun import Seat
    from agent.work.where import Place

_REACH_LIMIT = 3.0
"""A raylet that is up takes connections; on a busy machine a moment later."""
_TRIES = 3
_PER_TRY = 2.0
_AT_ONCE = 64
_LOOKS = 3
_PAUSE = 2.0
"""Between two looks at a way: cores that were busy with Ray's start may have time by then."""
_STEADY = 1.25
"""A slow way takes as long each time; looks that differ by more tell of a machine that is busy."""
_SAMPLES_WITHIN = SAMPLE_LIMIT - 3.0
"""A node that had no time says so before the head stops listening."""


class Prober:
    """Tries what a node is to try, not too much of it at once."""

    def __init__(
        self,
        plan: Plan,
        clean: Callable[[str], str],
        run_id: Callable[[], str] = str,
        all_reduce: Callable[[Seat, Place], Awaitable[Answer]] | None = None,
        best_effort: BestEffort | None = None,
    ) -> None:
        self._plan = plan
        self._clean = clean
        self._run_id = run_id
        self._all_reduce = all_reduce
        self._best_effort = best_effort or BestEffort()
        self._room: anyio.CapacityLimiter | None = None
        self._one_sample = asyncio.Lock()

    async def probe(self, probe: str, at: str, place: Place, seat: Seat | None = None) -> Answer:
        """Try it; `at` is the address of the fellow node, '' for the head's."""
        self._room = self._room or anyio.CapacityLimiter(_AT_ONCE)
        async with self._room:
            made = await self._best_effort(
                f"the probe {probe!r}", self._try, probe, at, place, seat
            )
        made = Answer(probe, at, made.reason) if isinstance(made, Failure) else made
        return replace(made, evidence=self._clean(made.evidence))

    async def _try(self, probe: str, at: str, place: Place, seat: Seat | None) -> Answer:
        if probe == ALL_REDUCE and seat is not None and self._all_reduce is not None:
            return await self._all_reduce(seat, place)
        if probe == SAMPLE:
            return await self._sample(at, place)
        return await (self._score(at, place) if probe == SCORE else self._reach(at))

    async def here(
        self,
        probe: str,
        at: str,
        place: Place,
        tell: Callable[[Answered], None],
        seat: Seat | None = None,
    ) -> None:
        """Try it on the head, whose own decisions wanted it."""
        tell(Answered(await self.probe(probe, at, place, seat)))

    async def _score(self, at: str, place: Place) -> Answer:
        """Ask the reward server of this node's own plan, wherever it lives, as a job would."""
        services = self._plan.all_services
        url = reward_url(services, replace(place, node_ip=at or place.head_ip))
        spec = next((one for one in services if one.name == REWARD), None)
        began = time.monotonic()
        if not url or spec is None:
            return Answer(SCORE, at, "this node's settings name no reward server")
        if isinstance(spec.ready, Scores):
            evidence = await reward_answers(url, PROBE_LIMIT - 1)
        else:  # in what words it scores, only its own readiness knows
            split = urlsplit(url)
            evidence = await port_answers(split.hostname or "", split.port or 80)
        return Answer(SCORE, at, evidence, time.monotonic() - began)

    async def _reach(self, at: str) -> Answer:
        """Connect to a fellow's raylet and its object manager; tell the shortest time."""
        ports, best = self._plan.ports, _REACH_LIMIT

        async def check() -> bool | NotYet:
            nonlocal best
            for port in (ports.object_manager, *[ports.node_manager] * _TRIES):
                began = time.monotonic()
                evidence = await port_answers(at, port, _PER_TRY)
                if evidence:
                    return NotYet(evidence)
                best = min(best, time.monotonic() - began)
            return True

        try:
            await until(check, _REACH_LIMIT)
        except TimedOutError as error:
            return Answer(REACH, at, error.evidence)
        return Answer(REACH, at, "", best)

    async def _sample(self, at: str, place: Place) -> Answer:
        """Draw some MB from a fellow's agent; what looks slow is looked at again until it is so."""
        ip, until, best = at or place.head_ip, anyio.current_time() + _SAMPLES_WITHIN, (0, 0.0)
        before = 0.0
        for look in range(_LOOKS):
            if look:
                await anyio.sleep(_PAUSE)
            async with self._one_sample:
                left, port = until - anyio.current_time(), self._plan.ports.agent
                if left <= 0:
                    break
                drawn = await draw(ip, port, self._plan.token, self._run_id(), left)
            if isinstance(drawn, str):
                return Answer(SAMPLE, at, drawn)
            best, rate = max(best, drawn, key=_rate), _rate(drawn)
            if rate >= SLOW or max(before, rate) < _STEADY * min(before, rate):
                break
            before = rate
        size, seconds = best
        return Answer(SAMPLE, at, "" if size else "no time was left for it", seconds, size)


def _rate(drawn: tuple[int, float]) -> float:
    size, seconds = drawn
    return size * 8 / seconds if seconds > 0 else 0.0
