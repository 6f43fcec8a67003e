"""Whether a service that was ready still answers, asked again and again while the job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import psutil

from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.work.services import Alive

_REFUSED = "connection refused"
_BUSY = ("no answer within", "it answered 503", "it answered 429")
"""What a service that is only busy may say, or leave unsaid."""
_USED = 0.02
"""A service that used more than this share of a core has worked; one that hangs uses none."""


class Pulse:
    """Counts what is amiss in a row."""

    def __init__(self, misses: int) -> None:
        self._most = misses
        self._misses = 0

    def beat(self, evidence: str, *, has_worked: bool) -> str:
        """Take in one answer ('' for a proper one); return why the service is dead, or ''."""
        if not evidence or (evidence.startswith(_BUSY) and has_worked):
            self._misses = 0 if not evidence else self._misses
            return ""
        if _REFUSED in evidence:
            return evidence
        self._misses += 1
        return f"{evidence}, {self._misses} times in a row" if self._misses >= self._most else ""


async def until_dead(
    ask: Callable[[float], Awaitable[str]], alive: Alive, cpu: Callable[[], float]
) -> str:
    """Ask every so often until it is dead; return why.

    `cpu` tells the CPU seconds that it has used so far.
    """
    pulse = Pulse(alive.misses)

    async def look() -> str | NotYet:
        before, began = cpu(), anyio.current_time()
        evidence = await ask(alive.within)
        elapsed = anyio.current_time() - began
        has_worked = cpu() - before > _USED * elapsed
        return pulse.beat(evidence, has_worked=has_worked) or NotYet()

    return await until(look, None, step=alive.every, longest=alive.every)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process and all below it have used."""
    total = 0.0
    try:
        leader = psutil.Process(pid)
        everyone = [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return total
    for process in everyone:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
