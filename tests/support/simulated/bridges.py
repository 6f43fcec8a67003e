"""A simulated bridge: commands and events as those of bridge/child.py, on a simulated Ray.

As the real one, it imports Ray before it answers.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from support.simulated.programs import Process
from support.simulated.rays import gpus_in

if TYPE_CHECKING:
    from support.simulated.rays import Cluster

_HEARTBEAT = 5.0
_IMPORT = (1.0, 2.0)
"""Seconds that it takes to import Ray."""
_TERMINAL = {"SUCCEEDED", "FAILED", "STOPPED"}
RAYLET_PORT = 8267


class Pipe:
    """The bridge's stdin, on the agent's side."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def is_closing(self) -> bool:
        """Return whether the bridge has ended."""
        return not self._bridge.runs

    def write(self, data: bytes) -> None:
        """Send commands, a line each."""
        for line in data.splitlines():
            self._bridge.receive(json.loads(line))

    async def drain(self) -> None:
        """Return: the pipe has room."""


class Bridge(Process):
    """The process that imports Ray."""

    def begin(self) -> None:
        """Import Ray, then watch it."""
        self.stdin = Pipe(self)
        self.stdout = asyncio.StreamReader()
        self._nodes: object = None
        self._jobs: set[str] = set()
        self._canceled: set[str] = set()
        self._reported: dict[str, object] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._imported = asyncio.Event()
        self._changed = asyncio.Event()
        pause = self.world.random.uniform(*_IMPORT)
        self.world.later(pause, self._imported.set)
        self._go(self._watch())

    def _go(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        self._tasks.append(self.world.go(work))

    def is_ended(self) -> None:
        """Close its stdout."""
        self.stdout.feed_eof()
        for task in self._tasks:
            task.cancel()

    def receive(self, command: dict[str, Any]) -> None:
        """Receive a command."""
        if self.runs:
            self._go(self._obey(command))

    def _send(self, **event: object) -> None:
        if self.runs:
            self.stdout.feed_data((json.dumps(event) + "\n").encode())

    @property
    def _cluster(self) -> Cluster | None:
        return self.world.given or self.machine.cluster

    # --- what it watches ------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Read Ray's state after each change, and at intervals."""
        await self._imported.wait()
        last_word = 0.0
        while True:
            cluster = self._cluster
            if cluster is not None:
                cluster.on_change.append(self._changed.set)
                is_due = self.world.now >= last_word + _HEARTBEAT
                last_word = self.world.now if is_due else last_word
                self._look(cluster, is_due=is_due)
            try:
                await asyncio.wait_for(self._changed.wait(), 0.5 if cluster is None else _HEARTBEAT)
            except asyncio.TimeoutError:
                pass
            finally:
                if cluster is not None:
                    cluster.on_change.remove(self._changed.set)
            self._changed.clear()
            await asyncio.sleep(self.world.random.uniform(0.05, 0.5))

    def _look(self, cluster: Cluster, *, is_due: bool) -> None:
        if cluster.has_gcs and cluster.lives:
            alive = cluster.listed.values()
            nodes = [
                *([_head_of(cluster)] if cluster.is_up else []),
                *(_node(one.id, one.machine.ip, port=RAYLET_PORT, gpus=one.gpus) for one in alive),
                *(_node(one.id, one.machine.ip, alive=False) for one in cluster.dead.values()),
            ]
            if nodes != self._nodes:
                self._nodes = nodes
                self._send(event="nodes", nodes=nodes)
        if not self._answers(cluster):
            return
        for id_ in [*self._jobs]:
            job = cluster.jobs.get(id_)
            if job is None:
                continue
            report = {
                "status": job.status,
                "message": "",
                "driver_exit_code": job.code,
                "error_type": "",
                "ended": job.status in _TERMINAL,
                "ended_ago": 0.0,
            }
            if is_due or report != self._reported.get(id_):
                self._reported[id_] = report
                self._send(event="job", id=id_, report=report)

    def _answers(self, cluster: Cluster | None) -> bool:
        return cluster is not None and cluster.is_up and self.world.now >= cluster.mute_until

    # --- what it is asked for -------------------------------------------------------------------

    async def _obey(self, command: dict[str, Any]) -> None:
        await self._imported.wait()
        kind = command["do"]
        if kind in {"tasks", "actors", "unplaced"}:
            self._send(event=kind, finished=None, actors=[])
            return
        await asyncio.sleep(self.world.random.uniform(0.05, 1.5))
        id_ = str(command["id"])
        if kind == "stop":
            await self._stop(id_)
            return
        cluster = await self._answering(id_ if kind == "submit" else "")
        if kind == "list":
            self._send(event="jobs", ids=[*cluster.jobs])
        elif kind == "submit":
            await self._submit(id_, cluster)
        else:
            self._follow(id_, cluster)

    async def _answering(self, submits: str) -> Cluster:
        while True:
            cluster = self._cluster
            if cluster is not None and self._answers(cluster):
                return cluster
            if submits:
                self._send(
                    event="submit-failed",
                    id=submits,
                    evidence="no answer",
                    final=False,
                    canceled=False,
                )
            else:
                self._send(event="silent", evidence="no answer")
            await asyncio.sleep(1.0)

    async def _submit(self, id_: str, cluster: Cluster) -> None:
        if id_ in self._canceled and id_ not in cluster.jobs:
            self._send(event="stop-taken", id=id_)
            self._send(
                event="submit-failed",
                id=id_,
                evidence="stopped before Ray took it",
                final=False,
                canceled=True,
            )
            return
        self.world.submit(self.machine, cluster, id_)
        await asyncio.sleep(self.world.random.uniform(0.01, 0.5))
        self._found(id_, cluster)

    def _follow(self, id_: str, cluster: Cluster) -> None:
        if id_ not in cluster.jobs:
            if id_ in self._canceled:
                self._send(event="stop-taken", id=id_)
            self._send(event="never-submitted", id=id_)
            return
        self._found(id_, cluster)

    def _found(self, id_: str, cluster: Cluster) -> None:
        self._send(event="submitted", id=id_)
        self._jobs.add(id_)
        if id_ in self._canceled:
            cluster.jobs[id_].stop()
            self._send(event="stop-taken", id=id_)
        self._changed.set()

    async def _stop(self, id_: str) -> None:
        """Stop a job; one that Ray has not accepted yet is stopped by its submission."""
        self._canceled.add(id_)
        if id_ not in self._jobs:
            return
        cluster = await self._answering("")
        if id_ in cluster.jobs:
            cluster.jobs[id_].stop()
        self._send(event="stop-taken", id=id_)


def _head_of(cluster: Cluster) -> dict[str, object]:
    """Return a cluster's head as the bridge sends it."""
    return _node("head", cluster.machine.ip, is_head=True, gpus=gpus_in(cluster.process))


def _node(  # noqa: PLR0913 - what differs between nodes
    node_id: str,
    ip: str,
    *,
    port: int = 0,
    alive: bool = True,
    is_head: bool = False,
    gpus: float = 0.0,
) -> dict[str, object]:
    """Return a node as the bridge sends it."""
    return {
        "node_id": node_id,
        "ip": ip,
        "port": port,
        "alive": alive,
        "is_head": is_head,
        "gpus": gpus,
        "cpus": 0.0,
        "memory": 0.0,
    }
