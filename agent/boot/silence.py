"""Workers that fall silent: a connection that broke, one probe, and what is known then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base.addresses import in_url
from agent.decisions.head.state import WorkerSilent
from agent.runtime.probes import first_answer, port_answers
from agent.runtime.readiness import reply_evidence
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.ports import Ports
    from agent.control.reports import Reports

_RETURNS_WITHIN = 0.5
"""An agent that has something to say breaks its connection off, too, and calls at once again."""
_PROBE = 2.2
"""Longest that silence is listened to: a lost SYN is sent again after 1 s, and on a line that loses
30 % and delays the rest by 200 ms, each way, an answer takes 0.4 s at best, and half of all tries
are lost. With the time to call again it stays below the 3 s within which who is dead is named; that
takes less, since where a machine lives, but not its agent, the connection is refused at once."""
_BEYOND = 1.0
"""What ends at its own limit has no answer: that limit lies beyond ours."""
_EVERY = 5.0
_AT_ONCE = 128
"""Where a head is cut off, all its workers fall silent together."""


class SilenceWatch:
    """Asks who does not call any more, once, and tells what came of it."""

    def __init__(
        self, reports: Reports, ports: Ports, tell: Callable[[WorkerSilent], None]
    ) -> None:
        self._reports = reports
        self._ports = ports
        self._tell = tell
        self._room = anyio.CapacityLimiter(_AT_ONCE)

    async def run(self) -> None:
        """Ask those whose connection broke, and now and then those that are overdue."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_overdue)
            async for key in self._reports.broken_off():
                tasks.start_soon(self._on_broken_off, key)

    async def _on_broken_off(self, key: str) -> None:
        if not await self._reports.calls_again(key, _RETURNS_WITHIN):
            await self._ask(key)

    async def _watch_overdue(self) -> None:
        async def look() -> NotYet:
            async with anyio.create_task_group() as tasks:
                for key in self._reports.overdue():
                    tasks.start_soon(self._ask, key)
            return NotYet()

        await until(look, None, step=_EVERY, longest=_EVERY)

    async def _ask(self, key: str) -> None:
        """Probe an agent, and the Ray beside it, and tell where the agent does not answer."""
        ip = self._reports.address_of(key)
        if ip is None:
            return
        found = {"agent": "", "ray": ""}

        async def agent() -> None:
            url = f"http://{in_url(ip)}:{self._ports.agent}/livez"
            asked = partial(reply_evidence, url, None, "", _PROBE + _BEYOND)
            found["agent"] = await first_answer(asked, _PROBE)

        async def ray() -> None:
            asked = partial(port_answers, ip, self._ports.node_manager, _PROBE + _BEYOND)
            found["ray"] = await first_answer(asked, _PROBE)

        async with self._room, anyio.create_task_group() as tasks:
            tasks.start_soon(agent)
            tasks.start_soon(ray)
        if found["agent"] and self._reports.fell_silent(key):
            self._tell(WorkerSilent(key, found["agent"], ray_answers=not found["ray"]))
