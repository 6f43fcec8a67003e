"""Logs as the head's port gives them: its own from any place on, a worker's as its last lines."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base.words import listed
from agent.control.server import LogPart
from agent.decisions.shared import OrderKind
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from agent.boot.node_run import NodeRun
    from agent.control.reports import Reports
    from agent.decisions.head.workers import Worker

_MOST = 256 << 10
"""Bytes of one part."""
_PATIENCE = 3.0
"""Seconds that one who follows waits for more, below what a caller waits for an answer."""
_STEP = 0.1
"""Seconds between two looks for more: an agent that leaves waits for its answers for twice that."""
_DISK = 2.0
HEAD = "head"
"""Names the head's own node, whatever it is called."""


class HeadLogs:
    """What of all nodes' logs the head can give."""

    def __init__(
        self,
        run: NodeRun,
        reports: Reports,
        workers: Callable[[], Iterable[Worker]],
        is_over: Callable[[], bool],
    ) -> None:
        self._run = run
        self._is_over = is_over
        self._reports = reports
        self._workers = workers

    async def part(self, node: str, name: str, after: int | None) -> LogPart | str:
        """Return the end of a log, or what came after a place in it; or why there is none."""
        plan = self._run.plan
        if node in {HEAD, plan.topology.node_name}:
            known = plan.logs()
            if name not in known:
                return f"{node} has no log {name!r}: it has {listed(known)}"
            return await self._own(self._run.folder.file(known[name]), after)
        here = [worker for worker in self._workers() if worker.name == node and not worker.gone]
        if not here:
            names = [worker.name for worker in self._workers() if not worker.gone]
            return f"no node {node!r} is here: {listed([plan.topology.node_name, *names])} are"
        others = {spec.name for spec in plan.all_services} | {step.name for step in plan.steps}
        if name not in others | {"agent", "ray", "job"}:
            return f"no log is called {name!r}: {listed(['agent', 'ray', 'job', *sorted(others)])}"
        return await self._of(here[-1], name)

    async def _own(self, path: Path, after: int | None) -> LogPart | str:
        """Read our own; who follows and has all of it waits a little for more, or for the end."""
        was_over = self._is_over()

        async def more() -> tuple[bytes, int] | NotYet:
            with anyio.move_on_after(_DISK):
                read = partial(_read, path, after)
                found = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
                is_news = found[0] or after is None or self._is_over() != was_over
                return found if is_news else NotYet()
            return NotYet()

        try:
            data, place = await until(more, _PATIENCE, longest=_STEP)
        except TimedOutError:
            return LogPart("", after or 0, self._is_over())
        text = self._run.redactor.clean(data.decode(errors="replace"))
        return LogPart(text, place, self._is_over())

    async def _of(self, worker: Worker, name: str) -> LogPart | str:
        """Have a worker send the end of a log with its next report."""
        text = await sent_by(self._reports, worker.key, name, _PATIENCE)
        if text is None:
            return f"{worker.name} sent no log {name!r} within {_PATIENCE:g} s: it may have none"
        return LogPart(self._run.redactor.clean(f"{text.rstrip()}\n"), None)


async def sent_by(reports: Reports, key: str, name: str, limit: float) -> str | None:
    """Have a worker send something with its next report, and wait for it; None: it came not."""
    reports.logs.pop((key, name), None)
    reports.order(key, OrderKind.SEND_LOG, name)

    async def sent() -> str | NotYet:
        return reports.logs.get((key, name), NotYet())

    try:
        return await until(sent, limit)
    except TimedOutError:
        return None


def _read(path: Path, after: int | None) -> tuple[bytes, int]:
    """Read whole lines from a place on, or the last of them; and where the next part begins."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            is_end = after is None or after > size  # it was begun anew
            start = max(0, size - _MOST) if is_end else after or 0
            file.seek(start)
            data = file.read(_MOST)
    except OSError:
        return b"", 0
    if is_end and start:
        cut = data.find(b"\n") + 1
        data, start = data[cut:], start + cut
    whole = data[: data.rfind(b"\n") + 1]  # a secret is not cut in two, and so is masked
    if not whole and len(data) == _MOST:
        whole = data
    return whole, start + len(whole)
