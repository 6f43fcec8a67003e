"""One random world: machines, their agents, Ray, a job, the network, and what happens to them."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import anyio

from agent.decisions.head import state as h
from agent.decisions.shared import Said, StopAsked, Tick
from agent.plan.make_plan import make_plan
from agent.settings import load
from agent.topology.resolve import resolve
from agent.work.services_asked import NO_FILE
from agent.work.services_file import parse
from unit.simulated import network as net
from unit.simulated.head_agent import RUNS, HeadAgent
from unit.simulated.machines import Group, LateFile, Machine, Share, in_thread
from unit.simulated.network import Network
from unit.simulated.rays import FALLS, GOES_ON, HANGS, Cluster, Raylet
from unit.simulated.rules import Rules, said_by
from unit.simulated.virtual import HERE, Clock, LocalTime, VirtualLoop
from unit.simulated.worker_agent import WorkerAgent
from unit.worlds import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.plan.plan import Plan
    from unit.simulated.agents import Agent

LAST_FAULT = 600.0
LONGEST_ATTEMPT = 1000.0
"""The sum of all deadlines of one attempt and of the pause before it."""
RAY, GIVEN, TORCHRUN = "ray", "given Ray", "torchrun"


@dataclass(frozen=True)
class Setup:
    """What is asked for, and what happens: all that a seed decides before the world begins."""

    kind: str
    workers: int
    spares: int
    retries: int
    is_sized: bool
    job_seconds: float
    job_code: int
    on_loss: str
    """What the job does where it loses a node that it needs: it falls, hangs, or goes on."""
    fails_within: float
    step_seconds: float
    environ: Mapping[str, str]
    services: str
    shared_data: bool
    fixed_run_id: bool
    clocks: tuple[tuple[float, float], ...]
    faults: tuple[tuple[float, str, int], ...]
    kills: frozenset[tuple[str, int]] = field(default_factory=frozenset)


SKEWS = (-300.0, 300.0)
FAULTS = {
    RAY: (
        *("kill_head_agent", "kill_head_agent", "kill_worker_agent", "kill_worker_agent"),
        *("cut_worker", "cut_worker", "heal", "heal", "cut_head"),
        *("worker_dies", "worker_blinks", "worker_is_replaced", "raylet_dies", "raylet_dies"),
        *("heads_ray_dies", "head_restarts", "head_loses_its_disk"),
        *("mute_ray", "ray_hangs", "job_fails", "bad_network", "good_network", "doubles"),
        *("service_dies", "service_dies", "slow_disks", "clock_jumps", "second_head"),
        *("stop_worker", "stop_head"),
    ),
    TORCHRUN: (
        *("kill_head_agent", "kill_worker_agent", "cut_worker", "heal", "heal", "cut_head"),
        *("worker_dies", "worker_blinks", "share_fails", "head_restarts", "bad_network"),
        *("good_network", "doubles", "service_dies", "slow_disks", "clock_jumps"),
        *("stop_worker", "stop_head"),
    ),
    GIVEN: (
        *("kill_head_agent", "kill_head_agent", "node_dies", "node_dies", "node_blinks"),
        *("head_restarts", "mute_ray", "job_fails", "slow_disks", "stop_head"),
    ),
}
PAUSES = (0.0, 0.5, 2.0, 5.0, 12.0, 40.0, 55.0, 61.0, 100.0)
FILE = """
[services.finder]
command = "serve"
ready.tcp = 8000
where = "{where}"
essential = {essential}
[prepare.data]
command = "make"
where = "{step}"
once = "/data/.done"
"""


def setup_of(seed: int) -> Setup:
    """Draw a world."""
    draw = Random(seed)  # noqa: S311 - worlds, no secret
    kind = draw.choice((RAY, RAY, RAY, RAY, TORCHRUN, GIVEN))
    workers = draw.choice((1, 1, 2, 2, 3))
    retries = draw.choice((0, 1, 1, 2, 3))
    environ = {
        "AGENT_JOB_RETRIES": str(retries),
        "AGENT_LOG_DIR": "/logs",
        "AGENT_WAIT_HEAD": "200s",
        "AGENT_WAIT_WORKERS": "200s",
        "AGENT_WAIT_PREPARE": "200s",
        "AGENT_HEAD_GRACE": "150s",
        "AGENT_STALL": "90s",
    }
    if draw.random() < 0.2:
        environ |= {"AGENT_PARTIAL": "proceed", "AGENT_MIN_WORKERS": str(draw.randint(0, workers))}
    if kind != GIVEN and draw.random() < 0.3:
        environ["AGENT_PREFLIGHT"] = "nccl"
    services = ""
    if kind != GIVEN and draw.random() < 0.6:
        services = FILE.format(
            where=draw.choice(("head", "every", "workers")),
            essential=draw.choice(("true", "true", "false")),
            step=draw.choice(("head", "every", "every")),
        )
    now, faults = draw.choice((1.0, 3.0, 8.0, 12.0, 30.0)), []
    for _ in range(draw.choice((0, 1, 2, 2, 3, 3, 4, 5, 7))):
        now = min(LAST_FAULT, now + draw.choice(PAUSES) * draw.uniform(0.7, 1.3))
        faults.append((round(now, 2), draw.choice(FAULTS[kind]), draw.randint(0, 3)))
    kills = set()
    if draw.random() < 0.3:
        kills.add(("pod0", draw.randint(1, 30)))
    if draw.random() < 0.15:
        kills.add(("pod1", draw.randint(1, 20)))
    if draw.random() < 0.2:
        faults.append((0.0, "slow_disks", 0))
    skews = draw.choice(((0.0, 0.0), (0.0, 0.0), SKEWS, (-5.0, 5.0)))
    clocks = [(draw.uniform(*skews), draw.uniform(-1e-4, 1e-4)) for _ in range(12)]
    return Setup(
        kind=kind,
        workers=workers,
        spares=draw.choice((0, 0, 1, 1, 2)),
        retries=retries,
        is_sized=kind == TORCHRUN or draw.random() < 0.4,
        job_seconds=draw.choice((20.0, 80.0, 150.0, 300.0)),
        job_code=draw.choice((0, 0, 0, 7)),
        on_loss=draw.choice((FALLS, FALLS, HANGS, HANGS, GOES_ON)),
        fails_within=draw.choice((1.5, 10.0, 30.0)),
        step_seconds=draw.choice((1.0, 10.0, 30.0)),
        environ=environ,
        services=services,
        shared_data=draw.random() < 0.6,
        fixed_run_id=draw.random() < 0.5,
        clocks=tuple(clocks),
        faults=tuple(faults),
        kills=frozenset(kills),
    )


class World:
    """All of it, on one virtual clock."""

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
        self.performed: dict[str, int] = {}
        self.markers: set[tuple[str, str]] = set()
        self.disks_are_slow = self.has_two_heads = False
        self.gcs_port = 6379
        self.given: Cluster | None = None
        self.groups: list[Group] = []
        self._disturbed: dict[str, float] = {}
        self.shared_files: dict[str, str] = {}
        self.machines: list[Machine] = []
        self.head = self._machine()
        self.head_ip = self.head.ip

    # --- time and history -----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return the true time."""
        return self._loop.time()

    def later(self, seconds: float, do: Callable[..., None], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        """Do something in so many seconds."""
        self._loop.call_later(seconds, lambda: do(*args, **kwargs))

    def note(self, who: str, what: object, actions: Iterable[object] = ()) -> None:
        """Keep something for the history."""
        self.history.append((self.now, who, what, tuple(actions)))

    def fail(self, error: BaseException | None) -> None:
        """End the world by an exception in product code."""
        if error is not None:
            self.errors.append(error)
            self.rules.breaks("no exception", repr(error))

    def count(self) -> int:
        """Return another number."""
        self._count += 1
        return self._count

    # --- machines -------------------------------------------------------------------------------

    def _machine(self, files: dict[str, str] | None = None) -> Machine:
        number = len(self.machines)
        clock = Clock(*self.setup.clocks[number % len(self.setup.clocks)])
        machine = Machine(self, number, clock, {} if files is None else files)
        self.machines.append(machine)
        return machine

    @property
    def workers(self) -> list[Machine]:
        """Return all machines but heads."""
        return [one for one in self.machines if not self.is_head(one)]

    def is_head(self, machine: Machine) -> bool:
        """Say whether a machine is a head."""
        return machine in self.heads

    @property
    def heads(self) -> list[Machine]:
        """Return the head, and the one before where another took its place."""
        return [self.head, *self.former_heads]

    former_heads: tuple[Machine, ...] = ()

    def has_agent(self, machine: Machine) -> bool:
        """Say whether an agent belongs there: a Ray of others has none on its nodes."""
        return self.given is None or self.is_head(machine)

    def at(self, ip: str) -> Machine | None:
        """Return the machine with an address."""
        if self.given is not None and ip == self.given.machine.ip:
            return self.given.machine
        return next((one for one in self.machines if one.ip == ip), None)

    def disk_of(self, machine: Machine) -> str:
        """Name the disk on which a machine's data lie."""
        return "shared" if self.setup.shared_data else machine.name

    def run_ids(self, files: Mapping[str, str], left: Any) -> list[str]:  # noqa: ANN401 - what a killed agent left
        """Return the run to go on with: a killed agent's, else the one written last."""
        if left is not None and left.record.run_id:
            return [left.record.run_id]
        known = [path.split("/")[-2] for path in files if path.startswith(f"{RUNS}/")]
        return known[-1:]

    def new_run_id(self) -> str:
        """Name a run."""
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
        """Start a node's share of an attempt; an earlier one is stopped first."""
        if machine.share is not None:
            machine.share.lives, machine.share = False, None
        groups = [one for one in self.groups if one.number == number and not one.is_broken]
        fits = groups[-1] if groups and not self.is_head(machine) else None
        if fits is None:
            fits = Group(self, f"torchrun-{number}", number, size)
            self.groups.append(fits)
        Share(machine, fits)

    def quiet_for(self, machine: Machine) -> float:
        """Return how long nothing has happened to a machine, or to the head."""
        names = ("", machine.label, self.head.label)
        return self.now - max(self._disturbed.get(name, 0.0) for name in names)

    # --- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let all happen, until all have left."""
        setup = self.setup
        if setup.kind == GIVEN:
            ray_head = Machine(self, 256, self.head.clock, {})
            ray_head.label, ray_head.ip = "ray-head", "10.0.1.1"
            self.given = ray_head.cluster = Cluster(self, ray_head)
        for _ in range(setup.workers + setup.spares):
            self._machine()
        for number, machine in enumerate(self.machines):
            is_spare = number > setup.workers
            pause = self.random.uniform(0, 5) + (self.random.choice((0, 0, 30)) if is_spare else 0)
            start = machine.boot if self.has_agent(machine) else self._starts_ray
            self.later(pause, start, *(() if self.has_agent(machine) else (machine,)))
        for at, fault, index in setup.faults:
            self.later(at, self._fault, fault, index)
        longest = LAST_FAULT + LONGEST_ATTEMPT * (setup.retries + 2)
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

    def _fault(self, name: str, index: int) -> None:
        self.note("FAULT", f"{name} {index}")
        getattr(self, f"_{name}")(index)

    def _disturb(self, *machines: Machine) -> None:
        for one in machines:
            self._disturbed[one.label] = self.now

    def _worker(self, index: int) -> Machine:
        workers = self.workers
        return workers[index % len(workers)]

    # --- faults ---------------------------------------------------------------------------------

    def _kill_head_agent(self, _index: int) -> None:
        self._disturb(self.head)
        self.head.kill_agent()

    def _kill_worker_agent(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).kill_agent()

    def _cut(self, machine: Machine) -> None:
        self._disturb(machine)
        self.network.cut_off.add(machine.label)
        self.network.notice_cuts()
        for one in self.machines:
            raylet = one.raylet
            if raylet is not None and machine in {one, raylet.cluster.machine}:
                raylet.cluster.missed(raylet, 17.0)
            if one.share is not None and machine is one:
                self.later(self.random.uniform(15, 25), self._share_is_cut, one.share)

    def _share_is_cut(self, share: Share) -> None:
        if share.lives and share.machine.label in self.network.cut_off:
            share.group.breaks(share)

    def _cut_worker(self, index: int) -> None:
        self._cut(self._worker(index))

    def _cut_head(self, _index: int) -> None:
        self._cut(self.head)

    def _heal(self, _index: int) -> None:
        self._disturb(*self.machines)
        self.network.cut_off.clear()
        for one in self.machines:
            raylet = one.raylet
            if raylet is not None and raylet.is_dead_for_gcs:
                self.later(1.0, raylet.end, "it was marked dead", at_once=True)

    def _worker_dies(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).die()

    def _worker_blinks(self, index: int) -> None:
        machine = self._worker(index)
        self._worker_dies(index)
        pause = self.random.choice((3.0, 20.0, 50.0))
        self.later(pause, machine.come_back, keeps_disk=self.random.random() < 0.5)

    def _worker_is_replaced(self, index: int) -> None:
        self._worker_dies(index)
        self.later(self.random.choice((5.0, 30.0)), self._machine_comes)

    def _machine_comes(self) -> None:
        machine = self._machine()
        self._disturb(machine)
        machine.boot()

    def _raylet_dies(self, index: int) -> None:
        raylet = self._worker(index).raylet
        if raylet is not None:
            raylet.end("exit code 1", at_once=False)

    def _heads_ray_dies(self, _index: int) -> None:
        if self.head.cluster is not None:
            self._disturb(*self.machines)
            self.head.cluster.end()

    def _head_restarts(self, _index: int) -> None:
        self._back_after(keeps_disk=True)

    def _head_loses_its_disk(self, _index: int) -> None:
        self._back_after(keeps_disk=False)

    def _back_after(self, *, keeps_disk: bool) -> None:
        if self.head.code is None and self.head.is_on:
            self._disturb(*self.machines)
            self.head.die()
            pause = self.random.uniform(2, 20)
            self.later(pause, self._head_is_back, self.head, keeps_disk=keeps_disk)

    def _head_is_back(self, machine: Machine, *, keeps_disk: bool) -> None:
        self._disturb(*self.machines)
        if not keeps_disk:  # another host, with its own clock
            machine.clock.skew = self.random.uniform(*SKEWS)
        machine.come_back(keeps_disk=keeps_disk)

    def _mute_ray(self, index: int) -> None:
        cluster = self.given or self.head.cluster
        if cluster is not None:
            cluster.mute_until = self.now + (15.0, 60.0, 130.0, 200.0)[index]

    def _ray_hangs(self, index: int) -> None:
        """Have a part of the head's Ray stopped that a running job does not need."""
        cluster = self.head.cluster
        if cluster is not None and cluster.lives:
            busy = any(job.has_driver for job in cluster.jobs.values())
            self.head.tell(h.RayHangs("its dashboard is stopped", beside_job=busy))
            self.later((5.0, 20.0, 50.0, 50.0)[index], self.head.tell, h.RayHangs())

    def _job_fails(self, _index: int) -> None:
        cluster = self.given or self.head.cluster
        for job in [] if cluster is None else [*cluster.jobs.values()]:
            job.finish("FAILED", 9)

    def _share_fails(self, index: int) -> None:
        from agent.work.torchrun import PartEnd  # noqa: PLC0415 - of one fault

        shares = [one.share for one in self.machines if one.share is not None]
        if shares:
            shares[index % len(shares)].end(PartEnd(9, 0, "it failed"))

    def _bad_network(self, _index: int) -> None:
        self._disturbed[""] = self.now + 100.0
        self.network.is_bad = True
        self.later(40.0, self._good_network, 0)

    def _good_network(self, _index: int) -> None:
        self.network.is_bad = False

    def _doubles(self, _index: int) -> None:
        self.network.doubles = not self.network.doubles

    def _service_dies(self, index: int) -> None:
        found = [one for machine in self.machines for one in machine.services.values()]
        if found:
            found[index % len(found)].end("exit code 1")

    def _slow_disks(self, _index: int) -> None:
        self.disks_are_slow = not self.disks_are_slow

    def _clock_jumps(self, index: int) -> None:
        machine = self.machines[index % len(self.machines)]
        machine.clock.skew += self.random.choice((-3600.0, -30.0, 30.0, 3600.0))

    def _second_head(self, index: int) -> None:
        """Have the platform start another head, which takes one for lost that is there still."""
        if self.former_heads or self.head.code is not None or not self.head.is_on:
            return
        self._disturb(*self.machines)
        self.has_two_heads = True
        shared = index % 2 == 0
        if index < 2:
            self._cut(self.head)
        files = self.head.files if shared else {}
        former, self.former_heads = self.head, (self.head,)
        self.head = self._machine(files)
        self.head.name = former.name
        self.head_ip = self.head.ip
        self.later(self.random.uniform(2, 20), self.head.boot)

    def _node_dies(self, index: int) -> None:
        raylet = self._worker(index).raylet
        if raylet is not None:
            raylet.machine.is_on = False
            raylet.end("its node is gone", at_once=False)

    def _node_blinks(self, index: int) -> None:
        self._node_dies(index)
        self.later(self.random.choice((20.0, 50.0)), self._starts_ray, self._worker(index))

    def _starts_ray(self, machine: Machine) -> None:
        machine.is_on = True
        if self.given is not None and machine.raylet is None:
            machine.raylet = Raylet(self.given, machine)

    def _stop_worker(self, index: int) -> None:
        self._disturb(self._worker(index))
        self._worker(index).tell(StopAsked(15))

    def _stop_head(self, index: int) -> None:
        if index == 0:
            self.head.tell(StopAsked(15))

    # --- for a person ---------------------------------------------------------------------------

    def story(self) -> str:
        """Return what happened, line by line."""
        setup = {one.name: getattr(self.setup, one.name) for one in fields(self.setup)}
        lines = [f"seed {self.seed}", *(f"  {name} = {value!r}" for name, value in setup.items())]
        last: dict[tuple[str, str], str] = {}
        for at, who, what, actions in self.history:
            if isinstance(what, Tick) and not actions:
                continue
            line = what if isinstance(what, str) else shown(what)
            kind = (who, line[:40])  # of what is told again and again only what is new
            gist = re.sub(r"(heard|seconds)=[0-9.]+", "", line)
            is_known, last[kind] = last.get(kind) == gist, gist
            if not is_known or actions or isinstance(what, str):
                lines.append(f"{at:9.3f} {who:8} {line}")
            for action in actions:
                said = f'"{action.sentence}"' if isinstance(action, Said) else shown(action)
                lines.append(f"{'':20}-> {said}")
        lines += [f"BROKEN {rule}" for rule in self.rules.broken]
        return "\n".join(lines)


def shown(value: object) -> str:
    """Show a value with what differs from its defaults, and without what is long."""
    if not is_dataclass(value):
        return repr(value)
    parts = []
    for one in fields(value):
        found = getattr(value, one.name)
        if found != one.default and one.name not in {"facts", "findings", "answers", "seat"}:
            parts.append(f"{one.name}={shown(found) if is_dataclass(found) else repr(found)}")
    return f"{type(value).__name__}({', '.join(parts)})"[:400]


# --- product code in a world ---------------------------------------------------------------------


def _read(path: object) -> str:
    files = HERE.get().files
    if str(path) not in files:
        raise FileNotFoundError(str(path))
    return files[str(path)]


def _write(path: object, text: str) -> None:
    HERE.get().files[str(path)] = text


class _Boot:
    """Stands for the place in which a moment's seconds have their meaning."""

    @property
    def boot_id(self) -> str:
        """Name this boot of this machine."""
        machine = HERE.get()
        return f"{machine.name}-{machine.boots}"


SEAMS: dict[str, object] = {
    "aiohttp.ClientSession": net.Session,
    "anyio.to_thread.run_sync": in_thread,
    "agent.control.kept.KeptConnector": lambda: None,
    "agent.control.client.resolve": net.resolve,
    "agent.control.client.port_answers": net.port_answers,
    "agent.control.client.source_towards": net.source_towards,
    "agent.boot.silence.port_answers": net.port_answers,
    "agent.boot.silence.reply_evidence": net.reply_evidence,
    "agent.boot.lost_nodes.port_answers": net.port_answers,
    "agent.boot.run_keeper.Latest": LateFile,
    "agent.record.run_record.read_small": _read,
    "agent.record.run_record.write_atomically": _write,
    "agent.record.moments.read_place": _Boot,
    **{
        f"agent.{name}.time": LocalTime()
        for name in (
            *("boot.run_keeper", "record.moments", "control.reports", "boot.hello"),
            *("control.client",),
        )
    },
}
"""Where product code meets the machine: time, disk and network, and nothing else."""


@contextmanager
def in_a_world() -> Iterator[None]:
    """Have product code meet a world instead of this machine."""
    patches = [patch(name, new) for name, new in SEAMS.items()]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def play(seed: int, setup: Setup | None = None) -> World:
    """Let a world happen, and return it."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_played(seed, setup or setup_of(seed), loop))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()


async def _played(seed: int, setup: Setup, loop: VirtualLoop) -> World:
    world = World(seed, setup, loop)
    await world.run()
    return world


__all__ = ["in_a_world", "play", "said_by"]
