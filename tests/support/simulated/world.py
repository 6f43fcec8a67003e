"""One random world: machines, agents, Ray, a job, the network, and the faults."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
from msgspec.structs import asdict, replace

from agent.base.value import Value
from agent.decisions.shared import LogLine, Tick
from agent.job.services import NO_FILE
from agent.job.services_file import parse
from agent.plan.make import make_plan
from agent.platforms.resolve import resolve
from agent.record.run_record import RUN_FILE
from agent.settings import load
from support.simulated.faults import Faults
from support.simulated.head_agent import HeadAgent
from support.simulated.machines import Group, Machine, Share
from support.simulated.network import Network
from support.simulated.platforms import NEVER, Platform
from support.simulated.rays import Cluster
from support.simulated.rules import Rules
from support.simulated.setups import GIVEN, LAST_FAULT, LONGEST_ATTEMPT, TORCHRUN, Setup
from support.simulated.virtual import Clock, VirtualLoop
from support.simulated.worker_agent import WorkerAgent
from support.worlds import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.plan.plan import Plan
    from support.simulated.agents import Agent


class World:
    """A simulated cluster on one virtual clock."""

    def __init__(self, seed: int, setup: Setup, loop: VirtualLoop) -> None:
        self.seed, self.setup = seed, setup
        self.random = Random(seed ^ 0x5EED)  # noqa: S311 - delays, no secret
        self._loop = loop
        self.over = asyncio.Event()
        self._count = 0
        self._runs = 0
        self.history: list[tuple[float, str, object, tuple[object, ...]]] = []
        self.errors: list[BaseException] = []
        self.network = Network(self)
        self.rules = Rules(self)
        self.platform = Platform(self, setup.platform)
        self.faults = Faults(self)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.markers: set[tuple[str, str]] = set()
        self.disks_are_slow = self.disks_are_full = self.has_two_heads = False
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
        self._loop.call_later(seconds, lambda: do(*args, **kwargs))

    def note(self, who: str, what: object, actions: Iterable[object] = ()) -> None:
        """Add an entry to the history."""
        self.history.append((self.now, who, what, tuple(actions)))

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

    def add_machine(self, files: dict[str, str] | None = None) -> Machine:
        """Add a machine, with its own disk or with another machine's."""
        number = len(self.machines)
        clock = Clock(*self.setup.clocks[number % len(self.setup.clocks)])
        machine = Machine(self, number, clock, {} if files is None else files)
        self.machines.append(machine)
        return machine

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

    def run_ids(self, files: Mapping[str, str], left: Any) -> list[str]:  # noqa: ANN401 - what a killed agent left
        """Return the run to continue: a killed agent's, else the one written last."""
        if left is not None and left.record.run_id:
            return [left.record.run_id]
        known = [path.split("/")[-2] for path in files if path.endswith(f"/{RUN_FILE}")]
        return known[-1:]

    def is_former_gone(self, machine: Machine) -> bool:
        """Return whether the processes of a disk's former heads have ended or are visible."""
        return all(
            one.files is not machine.files or one.code is not None for one in self.former_heads
        )

    def new_run_id(self) -> str:
        """Make a run ID."""
        self._runs += 1
        if self.setup.kind == GIVEN:
            return "rayjob"
        return "run" if self.setup.fixed_run_id else f"run{self._runs}"

    def new_agent(self, machine: Machine, *, replaces: bool) -> Agent:
        """Make the agent of a machine."""
        if self.is_head(machine):
            return HeadAgent(machine, replaces=replaces)
        return WorkerAgent(machine, replaces=replaces)

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
        if setup.kind == TORCHRUN:
            environ["AGENT_LAUNCHER"] = "torchrun"
        command = ["train.py", *(["{nodes}"] if setup.is_sized else [])]
        facts = replace(
            MACHINE,
            hostname=machine.name,
            interfaces={"eth0": (machine.ip,)},
            default_source=machine.ip,
            disks={"/data/.done": self.disk_of(machine)},
        )
        if setup.services:
            environ["AGENT_SERVICES"] = "services.toml"
        loaded = load(environ, command)
        file = NO_FILE
        if setup.services:
            file, _ = parse(setup.services, "services.toml", loaded.settings)
        topology = resolve(environ, loaded.settings, facts)
        return make_plan(loaded, topology, facts, environ, {}, file)

    def start_share(self, machine: Machine, number: int, size: int) -> None:
        """Start a node's torchrun of an attempt; an earlier one is stopped first."""
        if machine.share is not None:
            machine.share.lives, machine.share = False, None
        groups = [one for one in self.groups if one.number == number and not one.is_broken]
        fits = groups[-1] if groups and not self.is_head(machine) else None
        if fits is None:
            fits = Group(self, f"torchrun-{number}", number, size)
            self.groups.append(fits)
        Share(machine, fits)

    def quiet_for(self, machine: Machine) -> float:
        """Return the time since the last fault of a machine, or of the head."""
        names = ("", machine.label, self.head.label)
        return self.now - max(self.disturbed.get(name, 0.0) for name in names)

    # --- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until all agents have ended."""
        setup = self.setup
        if setup.kind == GIVEN:
            ray_head = Machine(self, 256, self.head.clock, {})
            ray_head.label, ray_head.ip = "ray-head", "10.0.1.1"
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
                if self.now > 10.0 and all(one.code is not None for one in self._awaited()):
                    break
        if not self.rules.broken:
            self.rules.at_the_end()
        for machine in self.machines:
            if machine.agent is not None:
                machine.agent.kill()

    def _awaited(self) -> list[Machine]:
        return [one for one in self.machines if one.is_on and self.has_agent(one)]

    # --- output ---------------------------------------------------------------------------------

    def story(self) -> str:
        """Return the history, line by line."""
        setup = asdict(self.setup)
        lines = [f"seed {self.seed}", *(f"  {name} = {value!r}" for name, value in setup.items())]
        last: dict[tuple[str, str], str] = {}
        for at, who, what, actions in self.history:
            if isinstance(what, Tick) and not actions:
                continue
            line = what if isinstance(what, str) else shown(what)
            kind = (who, line[:40])  # repeated lines are printed only if they differ
            gist = re.sub(r"(heard|seconds)=[0-9.]+", "", line)
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
