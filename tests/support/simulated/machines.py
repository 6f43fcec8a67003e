"""Simulated machines: their processes, with or without an agent, and their disks."""

from __future__ import annotations

import asyncio
import contextvars
import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head import head_state as h
from agent.decisions.shared import ServiceGone, ServiceReady
from agent.decisions.worker import worker_state as w
from agent.job.torchrun_command import ShareEnd, ShareOver
from agent.plan.plan import RAY
from agent.record.node_record import NodeRecord, PidSpace, StartedProcess
from support.simulated.rays import HANGS
from support.simulated.virtual import HERE, Clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from agent.base.ends import Outcome
    from agent.job.services import PrepareStep
    from agent.run.restarts import Restarts
    from support.simulated.agents import Agent
    from support.simulated.rays import Cluster, Raylet
    from support.simulated.world import World

T = TypeVar("T")
_MOST_DEATHS = 3
RUN = "run.json"
_SETTLED_WITHIN = 0.5


class Machine:
    """One pod: its agent, and everything that outlasts an agent."""

    def __init__(self, world: World, number: int, clock: Clock, files: dict[str, str]) -> None:
        self.world, self.clock = world, clock
        self.label, self.ip = f"pod{number}", f"10.0.0.{number + 1}"
        self.name = self.label
        """The name that its agent uses; a platform may give it to another machine, too."""
        self.files = files
        """The run folders on its disk, by path; two machines may share a disk."""
        self.is_on = True
        self.boots = 1
        self.agent: Agent | None = None
        self.serves: Callable[[str], Awaitable[str]] | None = None
        """On a head: answers reports."""
        self.code: int | None = None
        """The outcome of its agent, once it has ended."""
        self.deaths = 0
        self.restarts: Restarts | None = None
        """The ends of its agents, as they record them."""
        self.cluster: Cluster | None = None
        self.raylet: Raylet | None = None
        self.share: Share | None = None
        self.services: dict[str, Service] = {}
        self.steps: set[Execution] = set()
        self.context = contextvars.copy_context()
        self.context.run(HERE.set, self)

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task on this machine."""
        return self.context.run(asyncio.get_running_loop().create_task, work)

    def listens(self, what: str) -> bool:
        """Return whether the agent's port accepts connections."""
        if what == "agent":
            return self.agent is not None
        if what == "gcs":
            return self.cluster is not None and self.cluster.has_gcs
        own = self.cluster is not None and self.cluster.is_up
        return own or (self.raylet is not None and self.raylet.is_up and self.raylet.lives)

    def tell(self, event: Any) -> None:  # noqa: ANN401 - of a head's or of a worker's
        """Send its agent an event, if there is an agent."""
        if self.agent is not None:
            self.agent.inbox.put(event)

    # --- its agent ------------------------------------------------------------------------------

    def boot(self, *, replaces: bool = False) -> None:
        """Start an agent, possibly in place of a killed one."""
        if self.is_on and self.agent is None and self.code is None:
            self.agent = self.world.new_agent(self, replaces=replaces)
            self.agent.start()

    def kill_agent(self) -> None:
        """Kill only the agent: its parent starts another, three times.

        This is not allowed for a former head: its next agent would take a later head's record on
        their disk for its own, and no rule covers that.
        """
        if self.agent is None or self in self.world.former_heads:
            return
        self._agent_gone()
        self.deaths += 1
        if self.deaths > _MOST_DEATHS:
            self.leave(70)
        else:
            pause = self.world.random.uniform(0.3, 3)
            self.world.later(pause, self._boot_again, self.boots)

    def _boot_again(self, boots: int) -> None:
        if boots == self.boots:
            self.boot(replaces=True)

    def _agent_gone(self) -> None:
        agent, self.agent, self.serves = self.agent, None, None
        if agent is not None:
            agent.kill()
        self.world.network.agent_is_gone(self)

    def die(self) -> None:
        """Remove the whole pod, with everything that runs on it."""
        self.is_on = False
        self.boots += 1
        self.world.network.notice_cuts()
        self._agent_gone()
        self.end_all(at_once=False)

    def come_back(self, *, keeps_disk: bool) -> None:
        """Start the pod again."""
        if not self.is_on and self.code is None:
            self.is_on = True
            if not keeps_disk:
                self.files = {}
            self.boot()

    def start_again(self, *, keeps_disk: bool = True) -> None:
        """Start the container again after its agent has ended."""
        if self.is_on and self.code is not None:
            self.code, self.boots, self.deaths = None, self.boots + 1, 0
            self.files = self.files if keeps_disk else {}
            self.boot()

    def recreate(self) -> None:
        """Take the pod away and start another in its place, with its volume."""
        self.die()
        self.code, self.deaths, self.is_on = None, 0, True
        self.boot()

    def leave(self, code: int, outcome: Outcome | None = None) -> None:
        """End in order, without leftovers; the platform may start the container again."""
        self.world.note(self.label, f"exits with {code}")
        self._agent_gone()
        self.end_all(at_once=True)
        end = outcome or ends.AGENT_KILLED.outcome(signal="SIGKILL", count=4)
        pause = self.context.run(self.world.platform.left, self, end)
        if pause is None:
            self.code = code
        else:
            self.boots, self.deaths = self.boots + 1, 0
            self.world.later(pause, self.boot)

    def end_all(self, *, at_once: bool) -> None:
        """End everything that runs here."""
        if self.cluster is not None and self.cluster is not self.world.given:
            self.cluster.end()
            self.cluster.end_drivers()
        if self.raylet is not None:
            self.raylet.end("ended", at_once=at_once)
        if self.share is not None:
            self.share.end(ShareEnd(137))
        for service in [*self.services.values()]:
            service.end("ended")
        self.steps.clear()

    # --- what it runs ---------------------------------------------------------------------------

    def ray_is_up(self, raylet: Raylet) -> None:
        """Report to the agent that its raylet listens."""
        if raylet is self.raylet and self.world.given is None:
            self.tell(w.RayUp())

    def ray_ended(self, raylet: Raylet, why: str) -> None:
        """Report to the agent that its raylet has ended."""
        if raylet is self.raylet:
            self.raylet = None
            if self.world.given is None:
                self.tell(w.RayExited(why))


class Service:
    """One service's process."""

    def __init__(self, machine: Machine, name: str, generation: int) -> None:
        self.machine, self.name, self.generation = machine, name, generation
        self.is_ready = False
        self.lives = True
        machine.services[name] = self
        machine.world.later(machine.world.random.uniform(0.3, 4), self._ready)

    def _ready(self) -> None:
        if self.lives:
            self.is_ready = True
            self.attended(self.generation)

    def attended(self, generation: int) -> None:
        """Report its state to the agent, which may not be the one that started it."""
        self.generation = generation
        if self.is_ready:
            self.machine.tell(ServiceReady(self.name, generation=generation))

    def end(self, why: str) -> None:
        """Stop it."""
        if self.lives:
            self.lives = False
            del self.machine.services[self.name]
            self.machine.tell(ServiceGone(self.name, why, generation=self.generation))


class Execution:
    """A prepare step that runs on a machine."""

    def __init__(self, machine: Machine, step: PrepareStep) -> None:
        self.machine, self.step = machine, step
        self.disk = machine.world.disk_of(machine)
        self.is_unasked = False
        """True if a worker runs it that has never received a reply from an agent."""
        machine.world.rules.step_begins(self)
        machine.steps.add(self)

    def succeeds(self) -> None:
        """Succeed, and write the marker file."""
        self.machine.steps.discard(self)
        if self.step.once is not None:
            self.machine.world.markers.add((self.disk, self.step.once))


class Group:
    """All nodes' torchrun processes of one attempt: all run, or all stop."""

    def __init__(self, world: World, id_: str, number: int, size: int) -> None:
        self.world, self.id, self.number, self.size = world, id_, number, size
        self.shares: list[Share] = []
        self.is_broken = False
        world.later(120.0, self._meet_in_time)

    @property
    def lives(self) -> bool:
        """Return whether any of them still runs."""
        return any(share.lives for share in self.shares)

    def joins(self, share: Share) -> None:
        """Add a node's torchrun."""
        self.shares.append(share)
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
        if not self.is_broken:
            for share in self.shares:
                share.end(ShareEnd(self.world.setup.job_code))

    def breaks(self, by: Share | None) -> None:
        """Lose one: the others fail after a while, or hang."""
        if self.is_broken:
            return
        self.is_broken = True
        for share in self.shares:
            if share is not by and self.world.setup.on_loss != HANGS:
                pause = self.world.random.uniform(1, self.world.setup.fails_within)
                self.world.later(pause, share.end, ShareEnd(1, 0, "connection closed"))


class Share:
    """One node's torchrun of such an attempt."""

    def __init__(self, machine: Machine, group: Group) -> None:
        self.machine, self.group, self.lives = machine, group, True
        machine.share = self
        group.joins(self)

    def end(self, end: ShareEnd) -> None:
        """End, and report the result to the agent."""
        if not self.lives:
            return
        self.lives = False
        self.machine.share = None
        if end.code:
            self.group.breaks(self)
        over = ShareOver(self.group.number, end)
        self.machine.tell(h.OwnShareOver(over) if self.machine is self.machine.world.head else over)

    def stop(self) -> None:
        """Stop after a request."""
        pause = self.machine.world.random.uniform(0, 3)
        self.machine.world.later(pause, self.end, ShareEnd(143, by_order=True))


# --- files on a disk ----------------------------------------------------------------------------


class LateFile(Generic[T]):
    """Writes values with a delay; if the agent is killed, the last value is not written.

    It models the thread that writes `run.json`.
    """

    def __init__(self, name: str, write: Callable[[T], object], _disk: object) -> None:
        self._name, self._write = name, write
        self._machine = HERE.get()
        self._agent = self._machine.agent
        self._value: T | None = None
        self._slow = self._machine.world.random.uniform(0.05, 0.9 * _SETTLED_WITHIN)
        assert self._agent is not None
        self._agent.files.append(self)

    def start(self) -> None:
        """Start writing."""

    def put(self, value: T) -> None:
        """Queue a value in place of the last one."""
        is_first, self._value = self._value is None, value
        world, label = self._machine.world, self._machine.label
        is_lost = self._name == RUN and world.counted(label, RUN) in world.setup.lost_writes
        if is_lost:
            world.later(self._slow * world.random.random(), self._kill)
        if is_first:
            pause = self._slow if world.disks_are_slow or is_lost else 0.01
            asyncio.get_running_loop().call_later(pause, self.flush)

    def flush(self) -> None:
        """Write the queued value, if the agent still runs and the disk has room."""
        if self._name == RUN and self._machine.world.disks_are_full:
            return
        value, self._value = self._value, None
        if value is not None and self._machine.agent is self._agent:
            self._write(value)

    def _kill(self) -> None:
        """Kill the agent during this write."""
        if self._machine.agent is self._agent:
            self._machine.world.note(self._machine.label, f"agent is killed as it writes {RUN}")
            self._machine.kill_agent()

    def settle(self) -> None:
        """Wait until everything is written; `in_thread` models the thread that waits."""
        raise NotImplementedError

    async def settled(self) -> None:
        """Wait until everything is written, up to a limit."""
        until = self._machine.world.now + _SETTLED_WITHIN
        while self._value is not None and self._machine.world.now < until:  # noqa: ASYNC110 - a disk has no event
            await asyncio.sleep(0.01)

    def finish(self) -> None:
        """Write the queued value."""
        self.flush()


async def in_thread(work: Callable[[], T], **_options: object) -> T | None:
    """Model a thread: waiting for a file takes virtual time, other calls take none."""
    if getattr(work, "__func__", None) is LateFile.settle:
        await work.__self__.settled()  # type: ignore[attr-defined]  # a bound method
        return None
    return work()


class NodeLife:
    """The agent's node.json, and the record that a killed agent left there."""

    def __init__(self, machine: Machine, *, replaces: bool) -> None:
        self.machine = machine
        self.started = machine.clock.monotonic()
        self.run_id = ""
        self.surviving: Left | None = None
        self.node = self
        place = PidSpace(f"boot{machine.boots}", "pids", machine.name)
        agent = StartedProcess("agent", machine.world.count(), 1)
        self.record = NodeRecord(machine.name, "", place, agent)
        text = machine.files.get(self._path)
        former = NodeRecord.from_dict(json.loads(text)) if text and replaces else ""
        if isinstance(former, NodeRecord) and not former.ended:
            self.surviving = Left(machine, former)
            self.run_id = former.run_id
            self.record = self.record.continuing(former)
        machine.steps.clear()  # leftovers of a killed agent's steps are stopped first
        if machine.share is not None:
            machine.share.end(ShareEnd(137))
        if self.surviving is None:
            self.end_ray()
            for service in [*machine.services.values()]:
                service.end("ended")
        self._file: LateFile[NodeRecord] = LateFile("node.json", self._write, None)
        self._file.put(self.record)

    @property
    def _path(self) -> str:
        return f"{self.machine.label}/node.json"

    def _write(self, record: NodeRecord) -> None:
        self.machine.files[self._path] = json.dumps(record.to_dict())

    def update(self, **changed: Any) -> None:  # noqa: ANN401 - fields of the record
        """Change the record."""
        self.record = replace(self.record, **changed)
        self._file.put(self.record)

    @property
    def settle(self) -> Callable[[], None]:
        """Return what waits until the record is written."""
        return self._file.settle

    def record_epoch(self, epoch: int) -> None:
        """Write the epoch at once, before run.json has it."""
        self.update(epoch=epoch)
        self._write(self.record)

    def started_ray(self) -> None:
        """Record that Ray was started here."""
        others = tuple(one for one in self.record.started if one.name != RAY)
        self.update(started=(*others, StartedProcess(RAY, self.machine.world.count(), 1)))

    @property
    def finished_steps(self) -> tuple[str, ...]:
        """Return the prepare steps that a killed agent has finished here."""
        return () if self.surviving is None else self.surviving.record.done

    def now(self) -> float:
        """Return the run's clock."""
        return self.machine.clock.monotonic() - self.started

    def run_time(self, moment: float | None) -> float | None:
        """Convert a monotonic time to the run's clock."""
        return None if moment is None else moment - self.started

    def end_ray(self) -> None:
        """Stop a Ray that runs here, and its leftovers."""
        machine = self.machine
        if machine.raylet is not None:
            machine.raylet.end("ended", at_once=True)
        if machine.cluster is not None and machine.cluster is not machine.world.given:
            machine.cluster.end()
            machine.cluster.end_drivers()
            machine.cluster = None


class Left:
    """The processes that a killed agent left, by its record."""

    def __init__(self, machine: Machine, record: NodeRecord) -> None:
        self.record = record
        cluster, raylet = machine.cluster, machine.raylet
        lives = raylet is not None or (cluster is not None and cluster.lives)
        is_known = any(one.name == RAY for one in record.started)
        self.has_ray = lives and is_known
