"""Simulated machines: what outlasts an agent, its disk and the processes that it started."""

from __future__ import annotations

import math
import os
import shutil
from typing import TYPE_CHECKING, Any

from agent.base import ends, times
from agent.record.memory import RecordMemory
from agent.record.node_record import PidSpace
from support.simulated.agents import Agent
from support.simulated.disks import tear
from support.simulated.programs import program_of
from support.simulated.virtual import HERE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.run.restarts import Restarts
    from support.simulated.network import Request, Response
    from support.simulated.programs import Execution, Process, Service, Share
    from support.simulated.rays import Cluster, Raylet
    from support.simulated.virtual import Clock
    from support.simulated.world import World

_MOST_DEATHS = 3
_FIRST_PID = 10_000_000
"""Above every pid of this machine: what asks the kernel about one finds no process."""


class Machine:
    """One pod: its agent, and everything that outlasts an agent."""

    def __init__(  # noqa: PLR0915 - all that a machine has
        self, world: World, number: int, clock: Clock, disk: Path
    ) -> None:
        self.world = world
        self.clock = clock
        self.label = f"pod{number}"
        self.ip = f"10.0.0.{number + 1}"
        self.name = self.label
        """The name that its agent uses; a platform may give it to another machine, too."""
        self.group = ""
        """The group that it names (AGENT_GROUP), or ''."""
        self.disk = disk
        """The folder of its disk; two machines may share a disk."""
        self.failing_writes = 0
        """How many of the next writes its disk does not take."""
        self.torn_writes = 0
        """How many of the next writes break off amid a file."""
        self.full_until = 0.0
        """Until then its disk has no room."""
        self.stalled_until = 0.0
        """Until then no write of a record ends."""
        self.failed_at = -math.inf
        """When its disk last did not take a write."""
        self.unsynced: dict[Path, tuple[str, float]] = {}
        """What was written without a sync: the texts of files that a power failure may tear."""
        self.severed_at = -math.inf
        """When it was last cut off, paused, or gone."""
        self.is_on = True
        self.returns = False
        """Whether it comes back, while it is off."""
        self.boots = 1
        self.context = world.context.copy()
        """The context of what runs here beside an agent."""
        self.context.run(HERE.set, self)

        # Its agent.
        self.agent: Agent | None = None
        self.agent_since = 0.0
        self.killed: tuple[int, ...] = ()
        """The pids of the agents that were killed in this container, the last first."""
        self.stops: list[int] = []
        """Signals that its next agent gets: they came while there was none."""
        self.memory = os.memfd_create("records")
        self.records = RecordMemory()
        self.serves: Callable[[Request], Awaitable[Response]] | None = None
        """The agent's port, while it is open: it answers requests."""
        self.code: int | None = None
        """The exit code of its agent, once it has ended."""
        self.deaths = 0
        self.restarts: Restarts | None = None
        """The ends of its agents, as they record them."""

        # Its processes.
        self.service_ended_at = -math.inf
        self.processes: dict[int, Process] = {}
        self._pids = _FIRST_PID + 100_000 * number
        self.cluster: Cluster | None = None
        self.raylet: Raylet | None = None
        self.hung_helper = ""
        """Which part of its Ray is stopped, though the job does not need it."""
        self.when_helpers_change: list[Callable[[], None]] = []

    @property
    def is_paused(self) -> bool:
        """Return whether its agent takes no steps."""
        return self.agent is not None and self.agent.life.is_paused

    @property
    def takes_records(self) -> bool:
        """Return whether its disk has taken all writes for so long that each was tried again."""
        now = self.world.now
        fails = self.failing_writes or self.torn_writes or self.world.disks_are_full
        failed_at = max(self.failed_at, self.full_until, self.stalled_until)
        return not fails and now > failed_at + 1.5 * times.WRITE_RETRY

    @property
    def logs(self) -> Path:
        """Return the folder of all runs on its disk."""
        return self.disk / "logs"

    @property
    def place(self) -> PidSpace:
        """Return the scope of its pids: each start of its container has its own."""
        return PidSpace(f"{self.label}-{self.boots}", "pids", self.name)

    def listens(self, what: str) -> bool:
        """Return whether a port accepts connections."""
        if what == "agent":
            return self.agent is not None
        if what == "gcs":
            return self.cluster is not None and self.cluster.has_gcs
        if what.startswith("service"):
            ready = (one for one in self.services if one.is_ready)
            return any(one.port == int(what.split()[1]) for one in ready)
        own = self.cluster is not None and self.cluster.is_up
        return own or (self.raylet is not None and self.raylet.is_up and self.raylet.lives)

    def signal(self, signum: int) -> None:
        """Send its agent a signal that asks for a stop; between two agents the next one gets it."""
        if self.agent is not None:
            self.agent.signal(signum)
        elif self.is_on and self.code is None and self.killed:
            self.stops.append(signum)

    # --- its agent ------------------------------------------------------------------------------

    def boot(self, *, replaces: bool = False) -> None:
        """Start an agent, possibly in place of a killed one."""
        if self.is_on and self.agent is None and self.code is None:
            if not replaces:
                self.killed = ()
                self.stops = []
            self.agent = Agent(self)
            for signum in self.stops:
                self.agent.signal(signum)
            self.stops = []
            self.agent_since = self.world.now
            self.agent.start()

    def kill_agent(self) -> None:
        """Kill only the agent: its parent starts another, three times.

        This is not allowed for a former head: its next agent would take a later head's record on
        their disk for its own, and no rule covers that.
        """
        if self.agent is None or self in self.world.former_heads:
            return
        self.killed = (self.agent.pid, *self.killed)
        self._agent_gone()
        self.deaths += 1
        self.world.disturbed[self.label] = self.world.now
        self.world.harms.kill(self)
        if self.deaths > _MOST_DEATHS:
            self.world.harms.add("an agent is killed once too often")
            self.severed_at = self.world.now
            self.leave(70)
        else:
            pause = self.world.random.uniform(0.3, 3)
            self.world.later(pause, self._boot_again, self.boots)

    def _boot_again(self, boots: int) -> None:
        if boots == self.boots:
            self.boot(replaces=True)

    def _agent_gone(self) -> None:
        agent = self.agent
        self.agent = None
        self.serves = None
        if agent is not None:
            agent.end()
        self.world.network.agent_is_gone(self)

    def _forget_records(self) -> None:
        """Drop what was kept in memory for the agents of this container."""
        os.close(self.memory)
        self.memory = os.memfd_create("records")

    def die(self) -> None:
        """Remove the whole pod, with everything that runs on it."""
        self.is_on = False
        self.severed_at = self.world.now
        self.boots += 1
        self.world.network.notice_cuts()
        self._agent_gone()
        self._forget_records()
        self.end_all(at_once=False)
        if self.world.setup.power_fails:
            tear(self.unsynced, self.world.now, self.world.random)
        self.unsynced.clear()

    def come_back(self, *, keeps_disk: bool, ip: str = "") -> None:
        """Start the pod again, possibly with another address."""
        self.ip = ip or self.ip
        self.returns = False
        if not self.is_on and self.code is None:
            self.is_on = True
            if not keeps_disk:
                self.disk = self.world.new_disk()
            self.boot()

    def start_again(self, *, keeps_disk: bool = True) -> None:
        """Start the container again after its agent has ended."""
        if self.is_on and self.code is not None:
            self.code = None
            self.boots += 1
            self.deaths = 0
            if not keeps_disk:
                self.disk = self.world.new_disk()
            self.boot()

    def recreate(self) -> None:
        """Take the pod away and start another in its place, with its volume."""
        self.die()
        self.code = None
        self.deaths = 0
        self.is_on = True
        self.boot()

    def leave(self, code: int, outcome: Outcome | None = None) -> None:
        """End in order, without leftovers; the platform may start the container again."""
        self.world.note(self.label, f"exits with {code}")
        self._agent_gone()
        self._forget_records()
        self.end_all(at_once=True)
        end = outcome or ends.AGENT_KILLED.outcome(signal="SIGKILL", count=4)
        pause = self.context.run(self.world.platform.left, self, end)
        if pause is None:
            self.code = code
        else:
            self.boots += 1
            self.deaths = 0
            self.world.later(pause, self.boot)

    def end_all(self, *, at_once: bool) -> None:
        """End everything that runs here; `at_once` if GCS sees the end of its Ray."""
        if self.raylet is not None:
            self.raylet.end("ended", at_once=at_once)
        for process in [*self.processes.values()]:
            process.kill()
        if self.cluster is not None and self.cluster is not self.world.given:
            self.cluster.end_drivers()

    def clear(self) -> None:
        """Close what this machine holds of the real one."""
        os.close(self.memory)
        shutil.rmtree(self.disk, ignore_errors=True)

    # --- its processes --------------------------------------------------------------------------

    def new_pid(self) -> int:
        """Return the pid of the next process."""
        self._pids += 1
        return self._pids

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], *, piped: bool) -> Any:  # noqa: ANN401 - a program of any kind
        """Start a process."""
        return program_of(name, piped=piped)(self, name, argv, env)

    def _running(self, kind: str) -> list[Any]:
        return [one for one in self.processes.values() if type(one).__name__ == kind]

    @property
    def services(self) -> list[Service]:
        """Return the services that run here."""
        return self._running("Service")

    @property
    def steps(self) -> list[Execution]:
        """Return the prepare steps that run here."""
        return self._running("Execution")

    @property
    def share(self) -> Share | None:
        """Return its torchrun, if one runs."""
        return next(iter(self._running("Share")), None)

    def hang(self, helper: str) -> None:
        """Stop a part of its Ray that a running job does not need; '' lets it go on."""
        self.hung_helper = helper
        for look in [*self.when_helpers_change]:
            look()
