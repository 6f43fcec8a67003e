"""The programs that agents start on simulated machines, and an agent's handle of one."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agent.base.ends import exit_sentence
from agent.base.text import with_output
from agent.job.torchrun_command import RANK_VARIABLE
from agent.plan.plan import ALL_REDUCE, BRIDGE, RAY
from agent.record.node_record import ProcessStat
from agent.settings.jobs import TORCHRUN
from support.simulated.rays import HANGS, Cluster, Raylet
from support.simulated.virtual import LIFE, here, is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from support.simulated.machines import Machine
    from support.simulated.world import World

_getpid = os.getpid
SERVICE_PORT = 8000
FIRST_GIVEN_PORT = 31_000
"""Services to which the agent gives a port have this one, or a later one."""
REDUCED = json.dumps(
    {
        "failed": [],
        "in_time": True,
        "at": [],
        "all_reduce": {"bytes": 1 << 20, "seconds": 0.1},
        "ways": [],
    }
)


class Process:
    """A process of a machine."""

    def __init__(
        self, machine: Machine, name: str, argv: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self.machine = machine
        self.name = name
        self.argv = argv
        self.env = env
        self.pid = machine.new_pid()
        self.code: int | None = None
        self.tail = ""
        self.on_output: Callable[[bytes], None] = lambda _data: None
        self._watchers: list[tuple[Any, Callable[[], None]]] = []
        machine.processes[self.pid] = self
        self.begin()

    @property
    def world(self) -> World:
        """Return its world."""
        return self.machine.world

    @property
    def runs(self) -> bool:
        """Return whether it has not ended."""
        return self.code is None

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call back at its end, in the context of the caller."""
        self._watchers.append((copy_context(), callback))

    def begin(self) -> None:
        """Start working."""

    def end(self, code: int, tail: str = "") -> None:
        """End, whatever the reason."""
        if not self.runs:
            return
        self.code = code
        self.tail = tail
        self.machine.processes.pop(self.pid, None)
        self.is_ended()
        for context, callback in self._watchers:
            asyncio.get_running_loop().call_soon(callback, context=context)

    def is_ended(self) -> None:
        """Note its end, before its watchers do."""

    def terminate(self) -> None:
        """End some time after SIGTERM."""
        self.world.later(self.world.random.uniform(0.0, 2.0), self.end, 143)

    def kill(self) -> None:
        """End by SIGKILL."""
        self.end(137)


class RayHead(Process):
    """`ray start --head --block`."""

    def begin(self) -> None:
        """Start a cluster; the former one has ended."""
        former = self.machine.cluster
        if former is not None and former.process is not None and former.process.runs:
            self.world.rules.breaks("one Ray at a time", f"{self.machine.name} starts another")
        self.cluster = Cluster(self.world, self.machine)
        self.cluster.process = self
        self.machine.cluster = self.cluster

    def is_ended(self) -> None:
        """End the cluster with it."""
        self.cluster.end()


class RayWorker(Process):
    """`ray start --address=…`."""

    raylet: Raylet | None = None

    def begin(self) -> None:
        """Join the cluster at the head's address, if there is one."""
        others = [one for one in self.machine.processes.values() if isinstance(one, RayWorker)]
        self.world.rules.ray_begins(self.machine, len(others) - 1)
        address = next(word for word in self.argv if word.startswith("--address="))
        ip = address.partition("=")[2].rpartition(":")[0]
        head = self.world.at(ip)
        if head is None or head.cluster is None or self.machine.raylet is not None:
            self.world.later(self.world.random.uniform(0.5, 3.0), self.end, 1, "no head there")
            return
        self.raylet = self.machine.raylet = Raylet(head.cluster, self.machine)
        self.raylet.process = self

    def is_ended(self) -> None:
        """End the raylet with it: GCS sees that."""
        if self.raylet is not None:
            self.raylet.end("stopped", at_once=True)


class Service(Process):
    """A service, which listens some time after its start."""

    is_ready = False
    ready_at = math.inf

    def begin(self) -> None:
        """Listen later."""
        self.began_at = self.world.now
        given = re.search(r"serve ([0-9]+)", " ".join(self.argv))
        self.port = SERVICE_PORT if given is None else int(given[1])
        self.world.later(self.world.random.uniform(0.3, 4), self._ready)

    def _ready(self) -> None:
        self.is_ready = self.runs
        self.ready_at = self.world.now

    def is_ended(self) -> None:
        """Note when it ended."""
        self.machine.service_ended_at = self.world.now


class Execution(Process):
    """A prepare step."""

    is_unasked = False
    """True if a worker runs it that has never received a reply from an agent."""

    def begin(self) -> None:
        """Take some time."""
        self.disk = self.world.disk_of(self.machine)
        self.world.rules.step_begins(self)
        seconds = self.world.random.uniform(0.5, self.world.setup.step_seconds)
        self.world.later(seconds, self.end, 0)


class AllReduce(Process):
    """The all-reduce before the job: the head's has the result."""

    def begin(self) -> None:
        """Measure for five seconds."""
        self.world.later(5.0, self._succeeds)

    def _succeeds(self) -> None:
        if self.runs:
            if "--host" in self.argv:
                out = self.argv[self.argv.index("--out") + 1]
                Path(out).write_text(REDUCED, encoding="utf-8")
            self.end(0)


class Share(Process):
    """One node's torchrun of an attempt."""

    def begin(self) -> None:
        """Meet the other nodes'."""
        self.id = self.argv[self.argv.index("--rdzv_id") + 1]
        self.rank = int(self.argv[self.argv.index("--node_rank") + 1])
        size = int(self.argv[self.argv.index("--nnodes") + 1])
        self.group = self.world.group_of(self, size)
        self.group.joins(self)

    @property
    def lives(self) -> bool:
        """Return whether it runs."""
        return self.runs

    def fails(self, code: int) -> None:
        """End since a rank of this node failed, which torchrun reports."""
        if self.runs:
            text = f"failed (exitcode: {code}) local_rank: 0 (pid: 7) of binary: python\n"
            self.on_output(text.encode())
            self.end(1, text)

    def is_ended(self) -> None:
        """Break the group by a failure."""
        if self.code:
            self.group.breaks(self)


class Group:
    """All nodes' torchrun processes of one attempt: all run, or all stop."""

    def __init__(self, world: World, id_: str, size: int) -> None:
        self.world = world
        self.id = id_
        self.number = int(id_.rpartition("-")[2])
        self.size = size
        self.shares: list[Share] = []
        self.is_broken = False
        world.later(120.0, self._meet_in_time)

    @property
    def lives(self) -> bool:
        """Return whether any of them still runs."""
        return any(share.lives for share in self.shares)

    def joins(self, share: Share) -> None:
        """Add a node's torchrun; without the head's none of them gets beyond the rendezvous."""
        self.shares.append(share)
        if not self.shares[0].rank:
            self.world.rules.begins(self)
        if len(self.shares) == self.size:
            self.world.later(self.world.setup.job_seconds, self._all_end)

    @property
    def is_stuck(self) -> bool:
        """Return whether it can no longer make progress."""
        return self.is_broken and self.world.setup.on_loss == HANGS

    def _meet_in_time(self) -> None:
        if len(self.shares) < self.size:
            self.breaks(None)

    def _all_end(self) -> None:
        if self.is_broken:
            return
        for share in self.shares:
            if self.world.setup.job_code:
                share.fails(self.world.setup.job_code)
            else:
                share.end(0)

    def breaks(self, by: Share | None) -> None:
        """Lose one: the others fail after a while, or hang."""
        if self.is_broken:
            return
        self.is_broken = True
        for share in self.shares:
            if share is not by and self.world.setup.on_loss != HANGS:
                pause = self.world.random.uniform(1, self.world.setup.fails_within)
                self.world.later(pause, share.fails, 1)


def program_of(name: str, *, piped: bool) -> type[Process]:
    """Return the program that a planned process runs."""
    from support.simulated.bridges import Bridge  # noqa: PLC0415 - a program, too

    if name == BRIDGE:
        return Bridge
    if name == RAY:
        return _ray_program()
    if name == ALL_REDUCE:
        return AllReduce
    if name == TORCHRUN:
        return Share
    assert not piped, name
    agent = here().agent
    assert agent is not None
    is_step = any(step.name == name for step in agent.plan.steps)
    return Execution if is_step else Service


def _ray_program() -> type[Process]:
    machine = here()
    return RayHead if machine.world.is_head(machine) else RayWorker


# --- an agent's handle ----------------------------------------------------------------------------


class Child:
    """What `Child` of processes/process.py is, for a simulated process."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self.name = process.name
        self.is_stopping = False
        self.stdin = getattr(process, "stdin", None)
        self.stdout = getattr(process, "stdout", None)
        self._process = process
        self._ended = anyio.Event()
        if process.runs:
            process.when_over(self._ended.set)
        else:
            self._ended.set()

    @property
    def running(self) -> bool:
        """Return whether no end was noticed."""
        return not self._ended.is_set()

    async def wait(self) -> int:
        """Wait for its end; return the exit code."""
        await self._ended.wait()
        assert self._process.code is not None
        return self._process.code

    async def stop(self, grace: float, *, leader_ends_group: bool = False) -> None:
        """Stop it: SIGTERM, `grace` seconds, SIGKILL."""
        del leader_ends_group
        if is_over():
            return
        self.is_stopping = True
        if self._process.runs:
            self._process.terminate()
        with anyio.move_on_after(grace):
            await self._ended.wait()
        if is_over():
            return
        self._process.kill()
        with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
            await self._ended.wait()

    def end_sentence(self, code: int) -> str:
        """Return a sentence with its exit code and the end of its output, as logs have it."""
        return with_output(exit_sentence(code), self.tail())

    @property
    def last_output(self) -> str:
        """The end of its output, without a known cause in it: a search would take real time."""
        return ""

    def tail(self, lines: int = 3, longest: int = 300) -> str:
        """Return the end of its output."""
        del lines
        return self._process.tail.strip()[-longest:]


async def start_child(  # noqa: PLR0913 - as `Child.start`
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    log: Callable[[], Path],
    *,
    keep_group: bool = False,
    piped: bool = False,
    on_output: Callable[[bytes], None] = lambda _data: None,
) -> Child:
    """Start a process on this machine."""
    del log, keep_group
    if is_over():
        await anyio.sleep_forever()
    process = here().start(name, argv, env, piped=piped)
    process.on_output = on_output
    return Child(process)


def adopt(name: str, pid: int, started: int, log: Callable[[], Path]) -> Child | None:
    """Adopt a process of a killed agent."""
    del name, started, log
    process = here().processes.get(pid)
    return None if process is None else Child(process)


# --- what the kernel knows of processes -----------------------------------------------------------


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process on this machine."""
    machine = here()
    process = machine.processes.get(pid)
    if process is not None:
        return ProcessStat(process.name, "S", 1)
    if machine.agent is not None and pid == machine.agent.pid:
        return ProcessStat("agent", "S", 1)
    return None


def kill_tree(pid: int) -> None:
    """Kill a process on this machine."""
    process = here().processes.get(pid)
    if process is not None:
        process.kill()


class Descendant:
    """What psutil's `Process` is, for a simulated one."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    def name(self) -> str:
        """Return its name."""
        return self._process.name

    def environ(self) -> dict[str, str]:
        """Return its environment, which torchrun gives to its ranks."""
        process = self._process
        mark = {RANK_VARIABLE: process.id} if isinstance(process, Share) else {}
        return {**process.env, **mark}

    def is_running(self) -> bool:
        """Return whether it runs."""
        return self._process.runs

    def status(self) -> str:
        """Return its state."""
        return "sleeping"

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code: what is killed ends at once."""
        del timeout
        return self._process.code

    def send_signal(self, signum: int) -> None:
        """Send a signal."""
        if self._process.runs:
            if signum == 9:
                self._process.kill()
            else:
                self._process.terminate()


def list_descendants() -> list[Descendant]:
    """Return all processes of this machine."""
    return [Descendant(process) for process in here().processes.values()]


def kill_leftovers() -> list[str]:
    """Kill what jobs of this machine's Ray left."""
    machine = here()
    if machine.cluster is not None and machine.cluster is not machine.world.given:
        machine.cluster.end_drivers()
    return []


def find_driver(_job_id: str) -> None:
    """Find no driver that can be signaled."""


def terminate_driver(job_id: str) -> str:
    """Send SIGTERM to a job's driver on this machine."""
    machine = here()
    job = None if machine.cluster is None else machine.cluster.jobs.get(job_id)
    if job is None or not job.has_driver:
        return ""
    job.stop()
    return "pid 7, driver"


async def watch_helpers(child: Child, emit: Callable[[str, bool], None], _best_effort: Any) -> None:  # noqa: ANN401 - unused
    """Emit which part of a Ray is stopped, and whether a job runs, as they change."""
    machine = here()
    changed = anyio.Event()
    emitted = ("", False)

    def look() -> None:
        changed.set()

    machine.when_helpers_change.append(look)
    try:
        while True:
            cluster = machine.cluster
            jobs = () if cluster is None else cluster.jobs.values()
            stopped = "" if child.is_stopping else machine.hung_helper
            runs = stopped != "" and any(job.has_driver for job in jobs)
            if (stopped, runs) != emitted:
                emitted = (stopped, runs)
                emit(*emitted)
            await changed.wait()
            changed = anyio.Event()
    finally:
        machine.when_helpers_change.remove(look)


async def watch_parts(_parts: object) -> None:
    """Watch the processes of one `ray start`: a simulated Ray has one."""
    await anyio.sleep_forever()


def own_pid() -> int:
    """Return the pid of the agent that runs this code; outside of worlds the real one."""
    life = LIFE.get()
    return _getpid() if life is None else life.agent.pid
