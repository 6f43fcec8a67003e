"""The agent's side of the bridge: start and restart it, send commands, emit its events.

`RayLink.run` keeps one bridge running. Commands that last (follow a job, stop one) are kept, and
sent again to each new bridge; questions are answered once or not at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import exit_sentence
from agent.base.typed import convert
from agent.base.value import Value
from agent.decisions.attempts import JobReport
from agent.decisions.head import head_state as h
from agent.decisions.shared import Answered
from agent.node.limits import ProcessLimitError
from agent.processes.process import Child
from agent.processes.waiting import NotYet, until
from agent.record.log import say
from agent.record.log_dir import log_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agent.processes.process import StartChild

_BRIDGE_PAUSE = 0.5  # Before the second start of a bridge; it doubles.


class JobNews(Value):
    """A line that the bridge writes about a job which it submits or follows."""

    event: Literal["submitted", "never-submitted", "submit-failed", "job"]
    id: str
    evidence: str = ""  # why it is not submitted yet
    final: bool = False  # Ray refuses it for good
    canceled: bool = False  # it was stopped, and Ray has no such job
    report: JobReport | None = None  # its status


Tell = Callable[[JobNews], None]


class Unplaced(Value):
    """What of the job waits for a node with enough resources."""

    groups: tuple[str, ...] = ()  # placement groups: nothing of the job goes on without them
    others: tuple[str, ...] = ()  # actors and tasks


class RayLink:
    """Sends commands to the bridge and emits events of Ray's nodes and the job."""

    def __init__(  # noqa: PLR0913 - the bridge's command, and callbacks
        self,
        argv: list[str],
        env: Mapping[str, str],
        log: Callable[[], Path],
        emit: Callable[[h.HeadEvent], None],
        on_child: Callable[[Child], None] = lambda _child: None,
        start: StartChild = Child.start,
    ) -> None:
        self._argv = argv
        self._env = env
        self._log = log
        self._emit = emit
        self._on_child = on_child
        self._start_child = start
        self._child: Child | None = None
        self._commands: list[dict[str, object]] = []
        self._restarted = False
        self._generation = 1  # of the head's Ray
        self._stops_accepted: dict[str, anyio.Event] = {}  # by job id, set once Ray has accepted it
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}  # by kind of question
        self._tell: dict[str, Tell] = {}  # by job id: what takes news of it

    async def run(self) -> None:
        """Keep a bridge running until canceled; a new one is sent all commands again."""
        try:
            while True:
                self._child = await self._start()
                generation = self._generation
                self._on_child(self._child)
                for command in self._commands:
                    await self._send(command)
                await self._read(self._child, generation)
                code = await self._child.wait()

                # It has ended. Was that a restart for another Ray cluster, or a failure?
                if self._restarted:
                    self._restarted = False
                    continue
                why = f"the ray bridge ended, {exit_sentence(code)}"
                self._emit_silence(why, self._child.tail())
                await anyio.sleep(_BRIDGE_PAUSE)  # no busy loop where it exits at once
        finally:
            if self._child is not None:
                with anyio.CancelScope(shield=True):
                    await self._child.stop(0.5)

    async def _start(self) -> Child:
        """Start a bridge; retry until a deadline of the head: a running job does not need it."""

        async def start() -> Child | NotYet:
            try:
                return await self._start_child(
                    "ray bridge", self._argv, self._env, self._log, piped=True
                )
            except ProcessLimitError as error:
                return NotYet(error.sentence())
            except OSError as error:
                return NotYet(f"the ray bridge could not be started: {error.strerror}")

        def report(why: str) -> None:
            say(f"{why}. It is tried again", "warning")
            self._emit_silence(why)

        pause = _BRIDGE_PAUSE
        longest = times.LONGEST_BRIDGE_PAUSE
        return await until(start, None, step=pause, longest=longest, on_evidence=report)

    async def submit(
        self,
        job_id: str,
        entrypoint: str,
        runtime_env: Mapping[str, object],
        mirror: Path | None,
        tell: Tell,
    ) -> None:
        """Submit and follow a job, as `follow` does."""
        self._tell[job_id] = tell
        job = {"entrypoint": entrypoint, "runtime_env": runtime_env}
        await self._add_command(do="submit", id=job_id, **_mirrored(mirror), **job)

    async def follow(self, job_id: str, mirror: Path | None, tell: Tell) -> None:
        """Follow a submitted job; write its output to `mirror` if given."""
        self._tell[job_id] = tell
        await self._add_command(do="follow", id=job_id, **_mirrored(mirror))

    async def list_jobs(self, prefix: str) -> None:
        """Ask for the jobs whose id is this one, or begins with it and a dash."""
        await self._add_command(do="list", id=prefix)

    async def stop_job(self, job_id: str) -> None:
        """Stop a job; return when Ray has accepted the stop."""
        accepted = self._stops_accepted.setdefault(job_id, anyio.Event())
        await self._add_command(do="stop", id=job_id)
        await accepted.wait()

    async def restart_bridge(self, generation: int) -> None:
        """Restart the bridge for another Ray, the head's of this generation."""
        self._generation = generation
        if self._child is not None and self._child.running:
            self._restarted = True
            await self._child.stop(0.5)

    async def last_finished(self, limit: float) -> float | None:
        """Return when a task finished last, in seconds since 1970; None if unknown."""
        answer = await self._ask(limit, do="tasks")
        return answer.get("finished")

    async def unplaced(self, limit: float) -> Unplaced:
        """Return what waits for resources; nothing if Ray does not answer."""
        return convert(await self._ask(limit, do="unplaced"), Unplaced)

    async def dead_actors(self, ids: Sequence[str], limit: float) -> list[dict[str, str]]:
        """Return why Ray believes that actors died, with the ends of their logs: id, ip, text."""
        answer = await self._ask(limit, do="actors", ids=[*ids])
        return list(answer.get("actors", ()))

    async def _ask(self, limit: float, **question: object) -> dict[str, Any]:
        """Return the bridge's answer; {} if it takes longer than `limit`."""
        answer = asyncio.get_running_loop().create_future()
        self._answers[str(question["do"])] = answer
        await self._send(question)
        await asyncio.wait([answer], timeout=limit)
        return answer.result() if answer.done() else {}

    def forget(self, job_id: str) -> None:
        """Drop the commands of a job that is over, or is not followed any more."""
        self._tell.pop(job_id, None)
        self._commands = [command for command in self._commands if command["id"] != job_id]

    async def _add_command(self, **command: object) -> None:
        self._commands.append(command)
        await self._send(command)

    async def _send(self, command: Mapping[str, object]) -> None:
        child = self._child
        if child is None or child.stdin is None or child.stdin.is_closing():
            return  # the next bridge is sent all commands
        child.stdin.write((json.dumps(command) + "\n").encode())
        with suppress(BrokenPipeError, ConnectionResetError):  # same
            await child.stdin.drain()

    def _emit_silence(self, evidence: str, output: str = "") -> None:
        self._emit(h.RaySeen(evidence=evidence, output=output, generation=self._generation))

    async def _read(self, child: Child, generation: int) -> None:
        async for line in child.stdout:
            if not line.endswith(b"\n"):  # the bridge was killed while it wrote
                return
            data = json.loads(line)
            kind = data["event"]
            if kind == "stop-taken":
                self._stops_accepted.setdefault(str(data["id"]), anyio.Event()).set()
            elif kind in {"actors", "tasks", "unplaced"}:
                answer = self._answers[kind]
                if not answer.done():
                    answer.set_result(data)
            elif kind in {"nodes", "silent"}:
                self._emit(replace(convert(data, h.RaySeen), generation=generation))
            elif kind == "jobs":
                self._emit(Answered(convert(data, h.JobsListed)))
            else:
                news = convert(data, JobNews)
                self._tell.get(news.id, _forget)(news)


def _forget(_news: JobNews) -> None:
    """Drop news of a job that is not followed any more."""


def _mirrored(mirror: Path | None) -> dict[str, object]:
    """Return the fields by which the bridge writes a job's output to a file of the run folder."""
    if mirror is None:
        return {}
    return {"mirror": str(mirror), "log_dir": log_dir.rules}
