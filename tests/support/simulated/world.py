"""One random world: machines, agents, Ray, a job, the network, and the faults."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
from msgspec.structs import asdict, replace

from agent.base.value import Value
from agent.decisions.shared import LogLine, Tick
from agent.job.services import NO_FILE
from agent.job.services_file import parse
from agent.node.facts import TorchPython
from agent.plan.make import make_plan
from agent.plan.plan_services import with_places
from agent.platforms.resolve import resolve
from agent.record.run_record import RUN_FILE
from agent.settings import load
from support.simulated.disks import no_space
from support.simulated.faults import Faults
from support.simulated.group_judges import GroupJudges
from support.simulated.harms import TORCHRUN, Harms
from support.simulated.judges import Judges
from support.simulated.machines import Machine
from support.simulated.network import Network
from support.simulated.platforms import NEVER, Platform
from support.simulated.programs import Group
from support.simulated.rays import Cluster
from support.simulated.rules import Rules
from support.simulated.setups import GIVEN, LAST_FAULT, LONGEST_ATTEMPT, Setup
from support.simulated.virtual import Clock, VirtualLoop
from support.worlds import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from agent.plan.plan import Plan
    from support.simulated.programs import Share
    from support.simulated.virtual import Life

FAST_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None


class World:
    """A simulated cluster on one virtual clock."""

    def __init__(self, seed: int, setup: Setup, loop: VirtualLoop) -> None:
        self.seed, self.setup = seed, setup
        self.random = Random(seed ^ 0x5EED)  # noqa: S311 - delays, no secret
        self._loop = loop
        self.context: Context = copy_context()
        """The context of what belongs to no machine."""
        self.folder = Path(tempfile.mkdtemp(prefix="world-", dir=FAST_DISK))
        self.over = asyncio.Event()
        self.is_over = False
        """True once agents are only cleared away."""
        self.lives: list[Life] = []
        self._count = 0
        self._moves = 0
        self._disks = 0
        self.history: list[tuple[float, str, object, tuple[object, ...]]] = []
        self.errors: list[BaseException] = []
        self.network = Network(self)
        self.rules = Rules(self)
        self.platform = Platform(self, setup.platform)
        self.faults = Faults(self)
        self.harms = Harms(self)
        self.judges = Judges(self)
        self.group_judges = GroupJudges(self)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.disks_are_slow = False
        self.disks_are_full = False
        self.has_two_heads = False
        self.gcs_port = 6379
        self.given: Cluster | None = None
        self.groups: list[Group] = []
        self.disturbed: dict[str, float] = {}
        self.machines: list[Machine] = []
        self.head = self.add_machine()
        self.head_ip = self.head.ip

    # --- time and history -----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return the true time."""
        return self._loop.time()

    def later(self, seconds: float, do: Callable[..., None], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        """Call a function after this many seconds."""
        self._loop.call_later(seconds, partial(do, *args, **kwargs), context=self.context.copy())

    def go(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task that belongs to no agent."""
        return self.context.copy().run(self._loop.create_task, work)

    def note(self, who: str, what: object, actions: Iterable[object] = ()) -> None:
        """Add an entry to the history."""
        self.history.append((self.now, who, what, tuple(actions)))

    def said(self, machine: Machine, sentence: str, level: str) -> None:
        """Add a line of an agent's log to the history; a failed optional task is a bug."""
        if level != "info":
            self.note(machine.label, f"{level}: {sentence}")
        if "the run continues without it" in sentence or "a bug in the agent" in sentence:
            self.fail(AssertionError(sentence))

    def fail(self, error: BaseException | None) -> None:
        """End the world with an exception of product code."""
        if error is not None:
            self.errors.append(error)
            self.rules.breaks("no exception", repr(error))

    def count(self) -> int:
        """Return the next number."""
        self._count += 1
        return self._count

    def counted(self, label: str, what: str) -> tuple[str, int]:
        """Count an event of a machine; return the machine and the count."""
        self._counts[label, what] += 1
        return label, self._counts[label, what]

    # --- machines -------------------------------------------------------------------------------

    def new_disk(self) -> Path:
        """Make the folder of a disk."""
        self._disks += 1
        disk = self.folder / f"disk{self._disks}"
        disk.mkdir()
        return disk

    def add_machine(self, disk: Path | None = None) -> Machine:
        """Add a machine, with its own disk or with another machine's."""
        number = len(self.machines)
        clock = Clock(self._loop, *self.setup.clocks[number % len(self.setup.clocks)])
        machine = Machine(self, number, clock, disk or self.new_disk())
        machine.group = self.setup.group_of(number)
        self.machines.append(machine)
        return machine

    def new_ip(self) -> str:
        """Return an address that no machine has had."""
        self._moves += 1
        return f"10.0.2.{self._moves}"

    @property
    def workers(self) -> list[Machine]:
        """Return all machines except heads."""
        return [one for one in self.machines if not self.is_head(one)]

    def is_head(self, machine: Machine) -> bool:
        """Return whether a machine is a head."""
        return machine in self.heads

    @property
    def heads(self) -> list[Machine]:
        """Return the head, and the former head if another took its place."""
        return [self.head, *self.former_heads]

    former_heads: tuple[Machine, ...] = ()

    def has_agent(self, machine: Machine) -> bool:
        """Return whether an agent runs there: nodes of a given Ray have none."""
        return self.given is None or self.is_head(machine)

    def at(self, ip: str) -> Machine | None:
        """Return the machine with an address."""
        if self.given is not None and ip == self.given.machine.ip:
            return self.given.machine
        return next((one for one in self.machines if one.ip == ip), None)

    def disk_of(self, machine: Machine) -> str:
        """Return the name of the disk with a machine's data."""
        is_head = machine in {self.head, *self.former_heads}
        is_apart = is_head and self.setup.head_is_apart
        return "shared" if self.setup.shared_data and not is_apart else machine.name

    def data_of(self, machine: Machine) -> Path:
        """Return the folder of the disk with a machine's data."""
        return self.folder / f"data-{self.disk_of(machine)}"

    def disk_fault(self, machine: Machine, path: Path) -> OSError | None:
        """Return the error of a write to a machine's disk, if there is one."""
        fault = None
        if machine.failing_writes > 0:
            machine.failing_writes -= 1
            fault = OSError(errno.EIO, os.strerror(errno.EIO))
        elif self.disk_is_full(machine) or (self.disks_are_full and path.name == RUN_FILE):
            fault = no_space()
        if fault is not None:
            machine.failed_at = self.now
        return fault

    def disk_is_full(self, machine: Machine) -> bool:
        """Return whether a machine's disk takes nothing now."""
        return self.now < machine.full_until

    def plan(self, machine: Machine) -> Plan:
        """Return the real plan of a node."""
        setup = self.setup
        environ = {**setup.environ}
        if setup.kind == GIVEN:
            environ |= {"RAY_DASHBOARD_ADDRESS": "10.0.1.1:8265", "RAY_JOB_SUBMISSION_ID": "rayjob"}
        elif self.is_head(machine):
            environ |= {"RAY_WORKER": "0"}
        else:
            environ |= {"RAY_WORKER": "1", "AGENT_HEAD": "head.test"}
        environ["EXPECTED_WORKERS"] = str(setup.workers)
        environ["AGENT_LOG_DIR"] = str(machine.logs)
        if setup.token is not None:
            environ["RAY_AUTH_TOKEN"] = setup.token
        if setup.kind == TORCHRUN:
            environ["AGENT_LAUNCHER"] = "torchrun"
        if machine.group:
            environ["AGENT_GROUP"] = machine.group
        words = ["train.py"]
        words += ["{nodes}"] if setup.is_sized else []
        words += ["{addresses:pool-server}"] if setup.lists_members else []
        command = words if setup.has_job else None
        facts = replace(
            MACHINE,
            hostname=machine.name,
            interfaces={"eth0": (machine.ip,)},
            default_source=machine.ip,
            torch=TorchPython(sys.executable, "2.8.0"),
            disks={"/data/.done": self.disk_of(machine)},
        )
        if setup.services:
            environ["AGENT_SERVICES"] = "services.toml"
        loaded = load(environ, command)
        file = NO_FILE
        if setup.services:
            file, _ = parse(setup.services, "services.toml", loaded.settings)
        topology = resolve(environ, loaded.settings, facts)
        if setup.fixed_run_id and setup.kind != GIVEN:
            topology = replace(topology, platform=replace(topology.platform, run_id="run"))
        return make_plan(
            loaded, topology, facts, environ, {}, with_places(file, topology, loaded.settings)
        )

    def group_of(self, share: Share, size: int) -> Group:
        """Return the group that a node's torchrun joins; the head's begins one."""
        same = [one for one in self.groups if one.id == share.id and not one.is_broken]
        if same and share.rank:
            return same[-1]
        group = Group(self, share.id, size)
        self.groups.append(group)
        return group

    def submit(self, machine: Machine, cluster: Cluster, id_: str) -> None:
        """Let a cluster accept the job that a head's agent submits."""
        state = None if machine.agent is None else machine.agent.state
        if state is not None:
            needed = None if self.setup.is_sized else state.required
            cluster.submit(id_, state.attempt.number, needed)

    def quiet_for(self, machine: Machine) -> float:
        """Return the time since the last fault of a machine, or of the head."""
        if machine.is_paused or self.head.is_paused:
            return 0.0
        names = ("", machine.label, self.head.label)
        return self.now - max(self.disturbed.get(name, 0.0) for name in names)

    # --- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until all agents have ended."""
        setup = self.setup
        if setup.kind == GIVEN:
            ray_head = Machine(self, 256, self.head.clock, self.new_disk())
            ray_head.label = "ray-head"
            ray_head.ip = "10.0.1.1"
            self.given = ray_head.cluster = Cluster(self, ray_head)
        for _ in range(setup.workers + setup.spares):
            self.add_machine()
        for number, machine in enumerate(self.machines):
            is_spare = number > setup.workers
            pause = self.random.uniform(0, 5) + (self.random.choice((0, 0, 30)) if is_spare else 0)
            start = machine.boot if self.has_agent(machine) else self.faults.starts_ray
            self.later(pause, start, *(() if self.has_agent(machine) else (machine,)))
        for at, fault, index in setup.faults:
            self.later(at, self.faults.happens, fault, index)
        longest = LAST_FAULT + LONGEST_ATTEMPT * (setup.retries + setup.notices + 2)
        longest += 0.0 if setup.platform == NEVER else 5 * LONGEST_ATTEMPT
        with anyio.move_on_after(longest):
            while not self.over.is_set():
                with anyio.move_on_after(5.0):
                    await self.over.wait()
                if self.now > 10.0 and self._all_have_ended():
                    break
        if not self.rules.broken:
            self.rules.at_the_end()

    def clear(self) -> None:
        """Let all agents end without any effect, and release what they hold."""
        self.is_over = True
        for machine in self.machines:
            if machine.agent is not None:
                machine.agent.end()
        for life in self.lives:
            life.release()

    def remove(self) -> None:
        """Remove all disks."""
        for machine in self.machines:
            machine.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _all_have_ended(self) -> bool:
        """Return whether all agents have ended, also of the machines that come back."""
        awaited = [one for one in self.machines if self.has_agent(one)]
        returns = [one for one in awaited if not one.is_on and one.returns]
        return not returns and all(one.code is not None for one in awaited if one.is_on)

    # --- output ---------------------------------------------------------------------------------

    def transcript(self) -> str:
        """Return the history, line by line."""
        setup = asdict(self.setup)
        lines = [f"seed {self.seed}", *(f"  {name} = {value!r}" for name, value in setup.items())]
        last: dict[tuple[str, str], str] = {}
        for at, who, what, actions in self.history:
            if isinstance(what, Tick) and not actions:
                continue
            line = what if isinstance(what, str) else shown(what)
            kind = (who, line[:40])  # repeated lines are printed only if they differ
            gist = re.sub(r"(last_report_at|seconds)=[0-9.]+", "", line)
            is_known, last[kind] = last.get(kind) == gist, gist
            if not is_known or actions or isinstance(what, str):
                lines.append(f"{at:9.3f} {who:8} {line}")
            for action in actions:
                said = f'"{action.sentence}"' if isinstance(action, LogLine) else shown(action)
                lines.append(f"{'':20}-> {said}")
        lines += [f"BROKEN {rule}" for rule in self.rules.broken]
        return "\n".join(lines)


def shown(value: object) -> str:
    """Render a value without its default and long fields."""
    if not isinstance(value, Value):
        return repr(value)
    parts = []
    optional = value.__struct_fields__[-len(value.__struct_defaults__) :]
    defaults = dict(zip(optional, value.__struct_defaults__, strict=False))
    long = {"facts", "findings", "answers", "share"}
    for name, found in asdict(value).items():
        if found != defaults.get(name, ...) and name not in long:
            parts.append(f"{name}={shown(found) if isinstance(found, Value) else repr(found)}")
    return f"{type(value).__name__}({', '.join(parts)})"[:400]
