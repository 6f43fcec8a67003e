"""The setup that a seed draws for a world: its settings and its faults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from random import Random

from msgspec import field
from msgspec.structs import replace

from agent.base.value import Value
from agent.job.groups import NodeGroup
from agent.settings.rules import TRAINER
from support.simulated import harms
from support.simulated.harms import TORCHRUN
from support.simulated.platforms import NEVER
from support.simulated.rays import FALLS, GOES_ON, HANGS
from support.worlds import SECRET

LAST_FAULT = 600.0
_STOPPED_AT = 700.0
"""When a cluster without a job is stopped."""
LONGEST_ATTEMPT = 1000.0
"""The sum of all timeouts of one attempt and of the pause before it."""
RAY, GIVEN = "ray", "given Ray"


class Trigger(Value):
    """A fault that follows a decision: at the nth action of a kind on a machine, or after it."""

    label: str
    action: str
    number: int
    fault: str
    after: float | None = None
    """Seconds after the decision; None for before the action, so before what it records."""


class Setup(Value):
    """Everything that a seed decides before the world begins."""

    kind: str
    workers: int
    spares: int
    retries: int
    is_sized: bool
    job_seconds: float
    job_code: int
    on_loss: str
    """The job's reaction to the loss of a needed node: it fails, hangs, or continues."""
    fails_within: float
    step_seconds: float
    environ: Mapping[str, str]
    services: str
    shared_data: bool
    head_is_apart: bool
    """The workers share their data with each other, and not with the head, which keeps its disk."""
    fixed_run_id: bool
    clocks: tuple[tuple[float, float], ...]
    faults: tuple[tuple[float, str, int], ...]
    kills: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    """Agents to kill before an action, numbered from the beginning."""
    lost_writes: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    """Agents to kill during a write of run.json, numbered from the beginning."""
    triggers: tuple[Trigger, ...] = ()
    power_fails: bool = False
    """A pod that is gone leaves torn what it has just written without a sync."""
    token: str | None = None
    platform: str = NEVER
    """Which containers are started again."""
    group: NodeGroup | None = None
    """The group of nodes beside the trainer; `workers` counts its nodes."""
    names_groups: bool = False
    """Each node names its group (AGENT_GROUP); else the head places nodes as they report."""
    lists_members: bool = False
    """The job's command has the addresses of the group's members."""

    @property
    def notices(self) -> int:
        """Return how many attempts announced losses of nodes may cost beside the retries."""
        is_allowed = self.retries or "AGENT_NOTICE_SIGNAL" in self.environ
        return sum(name == "stop_worker" for _, name, _ in self.faults) if is_allowed else 0

    @property
    def has_job(self) -> bool:
        """Return whether the run has a job: without one it lasts until it is stopped."""
        return self.environ.get("AGENT_JOB") != "none"

    def group_of(self, number: int) -> str:
        """Return the group that a machine names: the first workers are the group's."""
        if self.group is None or not self.names_groups:
            return ""
        return self.group.name if 1 <= number <= self.group.nodes else TRAINER


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
        *("kill_head_agent", "kill_head_agent", "kill_head_agent", "node_dies", "node_dies"),
        *("node_blinks", "node_blinks", "head_restarts", "mute_ray", "job_fails"),
        *("head_loses_its_disk", "head_loses_its_disk"),
        *("slow_disks", "stop_head"),
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
AFTER = '= 8000\nafter = ["data"]'


GROUP_FILE = """
[groups.pool]
nodes = {nodes}
{rows}
"""
POOL_FILE = """
[services.pool-server]
command = "serve {port}"
ready.tcp = "{port}"
where = "pool"
"""
GPUS_OF_NODE = 4


_OF_ANY = (
    *("pause_agent", "pause_agent", "pause_all_agents", "failing_writes", "torn_writes"),
    *("full_disk", "stalled_disk", "kill_head_agent_twice", "head_moves", "torn_record"),
)
_OF_WORKERS = (
    *("dns_fails", "link_blinks", "one_way_blinks", "reorders", "workers_disks_fail"),
    *("worker_moves", "addresses_swap"),
)
FURTHER = {
    RAY: (*_OF_ANY, *_OF_WORKERS, "one_way", "one_way"),
    TORCHRUN: (*_OF_ANY, *_OF_WORKERS),
    GIVEN: _OF_ANY,
}
"""Faults of single agents, of their disks and links; `harms.py` has which of them are harmless."""
HARMLESS = {
    kind: tuple(sorted({*FAULTS[kind], *FURTHER[kind]} & (harms.HARMLESS - {"heal"})))
    for kind in (RAY, TORCHRUN, GIVEN)
}
_DELAYS = (None, None, 0.0, 0.02, 0.3, 1.0, 3.0)
_HEAD_ACTIONS = (
    *("Persist", "SubmitJob", "FollowJob", "StopJob", "AskProgress", "EndRun"),
    *("Publish", "Publish", "Ask", "Publish"),
)
_WORKER_ACTIONS = (
    *("Publish", "Publish", "EndWorker", "Publish", "Publish"),
    "Publish",
)


def _random(seed: int) -> Random:
    """Return draws beside those of `setup_of`, which further kinds of draws must not move."""
    return Random(seed)  # noqa: S311 - worlds, no secret


def _further_faults(draw: Random, kind: str) -> list[tuple[float, str, int]]:
    """Draw faults of single agents, in some worlds."""
    if draw.random() < 0.6:
        return []
    count = draw.choice((1, 1, 2))
    times = (draw.uniform(1.0, 150.0) for _ in range(count))
    return [(round(at, 2), draw.choice(FURTHER[kind]), draw.randint(0, 3)) for at in times]


def _triggers(draw: Random, kind: str, *, harmless: bool) -> tuple[Trigger, ...]:
    """Draw faults that follow a decision, in some worlds."""
    if draw.random() < 0.6:
        return ()
    triggers = []
    for _ in range(draw.choice((1, 1, 2))):
        is_head = kind == GIVEN or draw.random() < 0.6
        action = draw.choice(_HEAD_ACTIONS if is_head else _WORKER_ACTIONS)
        mild = ["kill_head_agent", "kill_head_agent", "pause_agent", "torn_writes"]
        hard = ["head_restarts", "mute_ray"]
        if not is_head:
            mild[:2] = ["kill_worker_agent", "kill_worker_agent"]
            hard = ["worker_blinks", "worker_blinks", "cut_worker"]
        if kind != GIVEN:
            mild += ["link_blinks", "one_way_blinks"]
        fault = draw.choice(mild if harmless or draw.random() < 0.6 else hard)
        label = "pod0" if is_head else "pod1"
        number = draw.choice((1, 1, 1, 2, 3))
        triggers.append(Trigger(label, action, number, fault, draw.choice(_DELAYS)))
    return tuple(triggers)


def _kills(draw: Random) -> frozenset[tuple[str, int]]:
    """Draw late and repeated kills of agents before an action, in some worlds."""
    if draw.random() < 0.85:
        return frozenset()
    label = draw.choice(("pod0", "pod0", "pod1"))
    first = draw.choice((draw.randint(1, 30), draw.randint(30, 150)))
    again = (first + draw.choice((1, 2, 4, 9)) * time for time in range(draw.choice((1, 2, 2, 3))))
    return frozenset((label, number) for number in again)


def _with_group(setup: Setup, draw: Random) -> Setup:
    """Return a setup with a group of nodes, beside as many workers of the trainer as before."""
    is_ray = setup.kind == RAY and draw.random() < 0.15
    has_service = not is_ray or draw.random() < 0.5
    group = NodeGroup(
        name="pool",
        nodes=draw.choice((1, 2, 2)),
        ray=is_ray,
        min=draw.choice((1, None)),
        lost=draw.choice(("wait", "wait", "retry", "end")),
    )
    rows = [f'lost = "{group.lost}"', f"ray = {str(is_ray).lower()}"]
    rows += [] if group.min is None else [f"min = {group.min}"]
    services = setup.services + GROUP_FILE.format(nodes=group.nodes, rows="\n".join(rows))

    # Its service: one member a node, or two by GPUs; it may need the data of a step.
    environ = {**setup.environ}
    keys = []
    if has_service and draw.random() < 0.4:
        keys.append("gpus = 2")
        environ["AGENT_NUM_GPUS"] = str(GPUS_OF_NODE)
    if draw.random() < 0.5:
        keys.append('weights = "nccl"')
    if "[prepare.data]" in services and draw.random() < 0.4:
        keys.append('after = ["data"]')
    if has_service:
        services += POOL_FILE + "\n".join(keys)
    return replace(
        setup,
        workers=setup.workers + group.nodes,
        environ=environ,
        services=services,
        group=group,
        names_groups=draw.random() < 0.5,
        lists_members=has_service and draw.random() < 0.5,
    )


def setup_of_group(seed: int) -> Setup:
    """Draw a setup with a group of nodes, from the worlds that may have one."""
    worlds = map(_setup_of, count(seed, 10_000))
    of = next(one for one in worlds if one.kind != GIVEN)
    return _with_group(of, _random(seed * 31 + 7))


def setup_of(seed: int) -> Setup:
    """Draw a setup, in some worlds with a group."""
    setup = _setup_of(seed)
    draw = _random(seed * 43)
    has_group = setup.kind != GIVEN and draw.random() < 0.15
    return _with_group(setup, draw) if has_group else setup


def harmless_setup_of(seed: int) -> Setup:
    """Draw a setup whose faults must cost nothing: one attempt, and the job's own code."""
    draw = _random(seed * 13 + 1)
    of = setup_of(seed)
    environ = {name: text for name, text in of.environ.items() if name != "AGENT_MAX_HOURS"}
    faults = [] if of.has_job else [(_STOPPED_AT, "stop_heads", 0)]
    now = 1.0
    for _ in range(draw.choice((0, 1, 2, 3, 4, 6))):
        now = min(250.0, now + draw.choice(PAUSES) * draw.uniform(0.5, 1.2))
        faults.append((round(now, 2), draw.choice(HARMLESS[of.kind]), draw.randint(0, 3)))
    return replace(
        of,
        environ=environ,
        faults=tuple(faults),
        triggers=_triggers(draw, of.kind, harmless=True),
        job_seconds=draw.choice((80.0, 150.0, 300.0)),
        spares=draw.choice((0, 0, 1)),
    )


def _setup_of(seed: int) -> Setup:
    """Draw a setup without a group."""
    draw = Random(seed)  # noqa: S311 - worlds, no secret
    kind = draw.choice((RAY, RAY, RAY, RAY, RAY, TORCHRUN, GIVEN, GIVEN))
    workers = draw.choice((1, 1, 2, 2, 3))
    retries = draw.choice((0, 1, 1, 2, 3))
    environ = {
        "AGENT_JOB_RETRIES": str(retries),
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
    if draw.random() < 0.35:
        faults.append((0.0, "slow_disks", 0))
    skews = draw.choice(((0.0, 0.0), (0.0, 0.0), SKEWS, (-5.0, 5.0)))
    clocks = [(draw.uniform(*skews), draw.uniform(-1e-4, 1e-4)) for _ in range(12)]
    if kind != GIVEN and _random(~seed).random() < 0.4:
        environ["AGENT_NOTICE_SIGNAL"] = "SIGUSR1"
    faults += _further_faults(_random(seed * 7 + 3), kind)
    if _random(seed * 11 + 5).random() < 0.06:
        environ["AGENT_MAX_HOURS"] = "0.05"
    elif kind == RAY and _random(seed * 11 + 6).random() < 0.06:
        environ["AGENT_JOB"] = "none"
        faults.append((_STOPPED_AT, "stop_heads", 0))
    if services and _random(seed * 17 + 2).random() < 0.2:
        rank = _random(seed * 17 + 3).randint(1, workers)
        services = re.sub('where = "[a-z]+"', f'where = "rank {rank}"', services, count=1)
    is_apart = _random(-seed).random() < 0.3
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
        shared_data=draw.random() < 0.6,
        head_is_apart=is_apart and not any(name == "head_loses_its_disk" for _, name, _ in faults),
        fixed_run_id=draw.random() < 0.5,
        clocks=tuple(clocks),
        faults=tuple(faults),
        kills=frozenset(kills) | _kills(_random(seed * 19 + 4)),
        triggers=_triggers(_random(seed * 23 + 1), kind, harmless=False),
        power_fails=_random(seed * 29 + 8).random() < 0.3,
        lost_writes=frozenset({("pod0", draw.randint(1, 8))} if draw.random() < 0.15 else ()),
        services=services.replace("= 8000", AFTER) if draw.random() < 0.4 else services,
        token=SECRET if draw.random() < 0.5 else None,
    )
