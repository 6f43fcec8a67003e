"""The agent's end of the bridge: starts it, restarts it, turns its lines into events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from agent.decisions.head import state as h
from agent.decisions.verdict import JobReport
from agent.node.process_limits import NoRoomError
from agent.record.log import say
from agent.runtime.process import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LONGEST_LINE = 1 << 22
_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Between two starts of a bridge."""


class RayLink:
    """Asks the bridge to submit and stop, and passes on what it hears of nodes and job."""

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        log: Callable[[], Path],
        tell: Callable[[h.HeadEvent], None],
        note_child: Callable[[Child], None] = lambda _child: None,
    ) -> None:
        self._note_child = note_child
        self._argv = argv
        self._env = env
        self._log = log
        self._tell = tell
        self._child: Child | None = None
        self._standing: list[dict[str, object]] = []
        self._renewed = False
        self._taken: dict[str, anyio.Event] = {}
        """By the ids of jobs that are to be stopped: whether Ray has taken that."""
        self._finished: float | None = None
        self._told_tasks = anyio.Event()

    async def run(self) -> None:
        """Keep a bridge up until cancelled; a new one is told what the old one knew."""
        try:
            while True:
                self._child = await self._start()
                self._note_child(self._child)
                for order in self._standing:
                    await self._send(order)
                await self._read(self._child)
                code = await self._child.wait()
                if self._renewed:
                    self._renewed = False
                    continue
                self._tell(
                    h.RaySilent(f"the ray bridge ended, {await self._child.end_sentence(code)}")
                )
                await anyio.sleep(_PAUSE)  # one that ends at once must not be restarted in a spin
        finally:
            if self._child is not None:
                with anyio.CancelScope(shield=True):
                    await self._child.stop(0.5)

    async def _start(self) -> Child:
        """Start a bridge, and try again where that fails: a running job does not need it.

        The deadlines of the head's waits end this.
        """
        pause = _PAUSE
        while True:
            try:
                return await Child.start_piped("ray bridge", self._argv, self._env, self._log)
            except NoRoomError as error:
                why = error.sentence()
            except OSError as error:
                why = f"the ray bridge could not be started: {error.strerror}"
            if pause == _PAUSE:
                say(f"{why}. It is tried again", "warning")
            self._tell(h.RaySilent(why))
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def submit(
        self,
        job_id: str,
        entrypoint: str,
        runtime_env: Mapping[str, object],
        mirror: Path | None = None,
        upload: Mapping[str, object] | None = None,
    ) -> None:
        """Have the job submitted and followed, and its output written to `mirror` if given.

        `upload` is what is known of the folder that it brings.
        """
        self.forget(job_id)  # it may have been looked for, in vain
        await self._order(
            do="submit",
            id=job_id,
            entrypoint=entrypoint,
            runtime_env=runtime_env,
            mirror=None if mirror is None else str(mirror),
            upload=upload,
        )

    async def follow(self, job_id: str, mirror: Path | None = None) -> None:
        """Have a job followed that Ray has already, and its output written to `mirror` if given."""
        await self._order(do="follow", id=job_id, mirror=None if mirror is None else str(mirror))

    async def stop_job(self, job_id: str) -> None:
        """Have the job stopped; return when Ray has taken that."""
        taken = self._taken.setdefault(job_id, anyio.Event())
        await self._order(do="stop", id=job_id)
        await taken.wait()

    async def renew(self) -> None:
        """Have another bridge begin, which knows nothing of the Ray before."""
        if self._child is not None and self._child.running:
            self._renewed = True
            await self._child.stop(0.5)

    async def last_finished(self, limit: float) -> float | None:
        """Return when a task finished last, in seconds since 1970; None where Ray knows of none."""
        self._finished, self._told_tasks = None, anyio.Event()
        await self._send({"do": "tasks"})
        with anyio.move_on_after(limit):
            await self._told_tasks.wait()
        return self._finished

    def forget(self, job_id: str) -> None:
        """Ask no later bridge about a job that is over."""
        self._standing = [order for order in self._standing if order["id"] != job_id]

    async def _order(self, **order: object) -> None:
        self._standing.append(order)
        await self._send(order)

    async def _send(self, order: Mapping[str, object]) -> None:
        child = self._child
        if child is None or child.process.stdin is None:
            return  # the next bridge is told
        try:
            await child.process.stdin.send((json.dumps(order) + "\n").encode())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # same

    async def _read(self, child: Child) -> None:
        assert child.process.stdout is not None  # noqa: S101 - started with pipes
        stream = BufferedByteReceiveStream(child.process.stdout)
        while True:
            try:
                line = await stream.receive_until(b"\n", _LONGEST_LINE)
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
                return
            data = json.loads(line)
            if data["event"] == "stop-taken":
                self._taken.setdefault(str(data["id"]), anyio.Event()).set()
            elif data["event"] == "tasks":
                self._finished = data["finished"]
                self._told_tasks.set()
            else:
                self._tell(to_event(data))


def to_event(data: Mapping[str, Any]) -> h.HeadEvent:  # noqa: PLR0911 - one case, one return
    """Turn one line of the bridge's into an event of the head's story."""
    match data["event"]:
        case "nodes":
            return h.RayNodes(
                tuple(
                    h.RayNode(
                        *(n["id"], n["ip"], n["head"], n["gpus"], n["alive"]),
                        cpus=n["cpus"],
                        memory=n["memory"],
                        port=n["port"],
                    )
                    for n in data["nodes"]
                )
            )
        case "submitted":
            return h.Submitted(str(data["id"]))
        case "never-submitted":
            return h.NeverSubmitted(str(data["id"]))
        case "upload":
            told = {key: value for key, value in data.items() if key != "event"}
            return h.Uploading(**told)
        case "submit-failed":
            return h.SubmitWaits(
                str(data["id"]), data["evidence"], data["final"], data["cancelled"]
            )
        case "job":
            report = JobReport(
                data["status"], data["message"], data["driver_exit_code"], data["error_type"]
            )
            return h.JobHeard(str(data["id"]), report)
        case _:
            return h.RaySilent(str(data["evidence"]))
