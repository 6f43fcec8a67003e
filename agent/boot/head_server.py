"""The head's port: replies to workers and their goodbyes, status, logs of all nodes."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import listed
from agent.control.protocol import Reply
from agent.control.reports import Expected
from agent.control.server import AgentServer, Control, LogPart
from agent.decisions.head.state import HeadPhase
from agent.decisions.values import OrderKind
from agent.plan.plan import versions
from agent.record import run_folder
from agent.record.log import say
from agent.runtime.waiting import NotYet, TimedOutError, in_thread, until
from agent.work.services import digest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from agent.boot.head_status import RunStatus
    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.control.reports import Reports
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import HeadState
    from agent.plan.plan import Plan


async def first_reply(keeper: RunKeeper, attempt: int, gcs_port: int) -> Reply:
    """Return the reply to workers before the first decision, once its epoch is on disk."""
    await keeper.flush()
    return Reply(
        *(keeper.epoch, keeper.run_id),
        phase=HeadPhase.BOOTING.value,
        ray_ready=False,
        gcs_port=gcs_port,
        news=0,
        attempt=attempt,
        fingerprint=keeper.proof(attempt - 1),
    )


def make_expected(plan: Plan, keeper: RunKeeper) -> Expected:
    """Return what workers must agree on: versions, services, and torchrun's command."""
    job = "" if plan.torchrun is None else keeper.record.fingerprint
    return Expected(*versions(plan), digest(plan.all_services, plan.steps), job)


def count_possible_callers(plan: Plan, sockets: Sequence[socket.socket], state: HeadState) -> int:
    """Return how many workers that never reported may still do so."""
    given = plan.topology.given_ray is not None  # its workers run no agent
    return 0 if given or not sockets else state.fleet.never_reported_count(state.required)


async def wait_for_goodbyes(reports: Reports, limit: float, may_call: int) -> None:
    """Wait until the workers have the verdict; log those that did not confirm it."""
    silent, unreported = await reports.wait_for_goodbyes(limit, may_call)
    for name in silent:
        say(f"{name} did not confirm the verdict; it leaves once the head is out of reach")
    if unreported:
        say(f"{unreported} never called; a later worker waits AGENT_WAIT_HEAD for a head")


_PART = 256 << 10
"""Most bytes of a log in one reply."""
HEAD = "head"
"""Another name for the head's own node."""


class HeadLogs:
    """Serves the logs of all nodes."""

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

    async def read(self, node: str, name: str, after: int | None) -> LogPart | str:
        """Return a log's tail, or what follows an offset; or a sentence why it cannot."""
        plan = self._run.plan
        if node in {HEAD, plan.topology.node_name}:
            known = plan.logs()
            if name not in known:
                return f"{node} has no log {name!r}: it has {listed(known)}"
            return await self._read_local(self._run.folder.file(known[name]), after)
        here = [worker for worker in self._workers() if worker.name == node and not worker.has_left]
        if not here:
            names = [worker.name for worker in self._workers() if not worker.has_left]
            return f"no node {node!r} is here: {listed([plan.topology.node_name, *names])} are"
        others = {spec.name for spec in plan.all_services} | {step.name for step in plan.steps}
        if name not in others | {"agent", "ray", "job"}:
            return f"no log is called {name!r}: {listed(['agent', 'ray', 'job', *sorted(others)])}"
        return await self._read_remote(here[-1], name)

    async def _read_local(self, path: Path, after: int | None) -> LogPart | str:
        """Read a local log; wait briefly for new lines or the run's end."""
        was_over = self._is_over()

        async def more() -> tuple[bytes, int] | NotYet:
            found = await in_thread(partial(_read_lines, path, after), times.LOG_DISK)
            if found is None:
                return NotYet()
            is_new = found[0] or after is None or self._is_over() != was_over
            return found if is_new else NotYet()

        try:
            data, offset = await until(more, times.LOG_LINES_AWAITED, longest=times.LOG_POLL)
        except TimedOutError:
            return LogPart("", after or 0, self._is_over())
        text = self._run.redactor.clean(data.decode(errors="replace"))
        return LogPart(text, offset, self._is_over())

    async def _read_remote(self, worker: Worker, name: str) -> LogPart | str:
        """Request a log's tail from a worker."""
        text = await request_log(self._reports, worker.key, name, times.LOG_LINES_AWAITED)
        if text is None:
            limit = f"{times.LOG_LINES_AWAITED:g} s"
            return f"{worker.name} sent no log {name!r} within {limit}: it may have none"
        return LogPart(self._run.redactor.clean(f"{text.rstrip()}\n"), None)


async def request_log(reports: Reports, key: str, name: str, limit: float) -> str | None:
    """Request a log from a worker and wait for it; None if it does not arrive."""
    reports.logs.pop((key, name), None)
    reports.order(key, OrderKind.SEND_LOG, name)

    async def sent() -> str | NotYet:
        return reports.logs.get((key, name), NotYet())

    try:
        return await until(sent, limit)
    except TimedOutError:
        return None


def _read_lines(path: Path, after: int | None) -> tuple[bytes, int]:
    """Read whole lines from an offset, or the last ones; return them and the next offset."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            is_end = after is None or after > size  # the log was started over
            start = max(0, size - _PART) if is_end else after or 0
            file.seek(start)
            data = file.read(_PART)
    except OSError:
        return b"", 0
    if is_end and start:
        cut = data.find(b"\n") + 1
        data, start = data[cut:], start + cut
    whole = data[: data.rfind(b"\n") + 1]  # a secret that is cut in two would not be masked
    if not whole and len(data) == _PART:
        whole = data
    return whole, start + len(whole)


def make_site(
    run: NodeRun,
    reports: Reports,
    stop: Callable[[], None],
    status: RunStatus,
    workers: Callable[[], Iterable[Worker]],
) -> AgentServer:
    """Return the head's site; without a token, a key file grants access to this node's users."""
    plan = run.plan
    key = run_folder.make_key(run.folder.path) if plan.token is None else None
    logs = HeadLogs(run, reports, workers, status.is_over)
    return AgentServer(
        token=plan.token,
        ready=lambda: True,
        status=status.status,
        reports=reports,
        run_id=lambda: run.run_id,
        names=(plan.topology.node_name, plan.topology.head_host, *plan.topology.platform.own_names),
        control=Control(
            *(
                stop,
                plan.settings.stop_grace,
                key,
                status.findings,
                logs.read,
                status.private_details,
            )
        ),
    )
