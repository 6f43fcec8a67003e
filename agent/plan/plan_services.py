"""Plans services and prepare steps: of settings, the services file and the platform."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.base.errors import Problem
from agent.base.ports import DEFAULTS, conflicts_of
from agent.base.value import MOST_ITEMS
from agent.job import services as work
from agent.job.groups import group_of, place_groups
from agent.plan.listeners import ports_here
from agent.settings.jobs import runs_by_shares, services_source
from agent.settings.rules import JUDGE, TRAINER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.ports import Ports
    from agent.checks.finding import CheckedNode
    from agent.job.compile_caches import CompileCaches
    from agent.job.groups import NodeGroup
    from agent.job.services import PrepareStep, ServicesFile, ServiceSpec
    from agent.platforms.resolve import Topology
    from agent.settings.model import Settings

_JUDGE_TABLE = "[services.judge]"
MOST_ON_ONE_NODE = MOST_ITEMS - 14
"""Of services and prepare steps of a file: a report has as many items, some of them the agent's."""
_ONLY_HEAD = "head: no agent runs on the nodes of a platform's Ray"


def all_services(
    settings: Settings,
    command: tuple[str, ...] | None,
    file: ServicesFile,
    base: Ports = DEFAULTS,
) -> tuple[ServiceSpec, ...]:
    """Return the services of the whole run, in the order in which they are shown."""
    judge = _judge_request(settings, file)
    reward = work.reward_service(with_reward(settings, file), command, base, judge)
    if file.reward is not None and reward is not None:
        fields = file.reward_fields
        reward = replace(reward, **{**fields, "env": (*reward.env, *fields.get("env", ()))})
    return file.services if reward is None else (reward, *file.services)


def with_reward(settings: Settings, file: ServicesFile) -> Settings:
    """Replace AGENT_REWARD by `[services.reward]`, if the file has it."""
    return settings if file.reward is None else replace(settings, reward=file.reward)


def with_places(file: ServicesFile, topology: Topology, settings: Settings) -> ServicesFile:
    """Return the file with the ranks of each group, and the ports of services on this platform."""
    if not file.services and not file.groups:
        return file
    base = topology.platform.ports
    groups = place_groups(file.groups, topology.expected_workers + 1)
    by_name = {group.name: group for group in groups}
    specs = tuple(_with_given_port(spec, base) for spec in file.services)
    taken = _ports_on_head(settings, topology, specs)
    services: list[ServiceSpec] = []
    port = base.first_front
    for asked in specs:
        spec = _with_place(asked, by_name.get(asked.where.group))
        if spec.weights in work.FRONTED and spec.where.rank is not None:
            spec = _with_front(spec, port, taken)
            services.append(work.front_of(spec))
            port = work.control_port(spec) + 1
        services.append(spec)
    return replace(file, groups=groups, services=tuple(services))


def _with_given_port(spec: ServiceSpec, base: Ports) -> ServiceSpec:
    """Return a service with the port that the agent gives it on this platform."""
    if not spec.takes_port or spec.port is None:
        return spec
    port = spec.port - DEFAULTS.given + base.given
    ready = work.TcpProbe(port) if isinstance(spec.ready, work.TcpProbe) else spec.ready
    return replace(spec, port=port, ready=ready)


def _ports_on_head(
    settings: Settings, topology: Topology, specs: tuple[ServiceSpec, ...]
) -> frozenset[int]:
    """Return the ports on the head that no front can have."""
    base = topology.platform.ports
    single, _ = ports_here(settings, base, topology.given_ray)
    of_services = {spec.port for spec in specs if spec.port and spec.where.meets(work.ON_HEAD)}
    reward = settings.reward_port or base.reward
    return frozenset({*single.values(), *of_services, reward})


def _with_front(spec: ServiceSpec, first: int, taken: frozenset[int]) -> ServiceSpec:
    """Return a service whose front has the first ports from here on of which none is taken.

    A front has a port for each member that there may be, and one for the agent.
    """
    while True:
        spec = replace(spec, front=first)
        met = [port for port in taken if first <= port <= work.control_port(spec)]
        if not met:
            return spec
        first = max(met) + 1


def _with_place(spec: ServiceSpec, group: NodeGroup | None) -> ServiceSpec:
    """Return a service with the ranks of its group; what follows from its loss is the group's."""
    if group is None:
        return spec
    where = replace(spec.where, rank=group.first_rank, nodes=group.nodes)
    return replace(spec, where=where, alone=not group.ray, essential=False)


def plan_steps(
    node: CheckedNode,
    file: ServicesFile,
    alone: tuple[ServiceSpec, ...],
    caches: CompileCaches | None = None,
) -> tuple[PrepareStep, ...]:
    """Return the prepare steps; `alone` are the services here with which this node joins no Ray."""
    settings = node.settings
    topology = node.topology
    facts = node.facts
    if topology.is_idle:
        return ()

    # Is the model fetched? A node that only runs services needs it if one of them depends on it.
    words = (word for spec in alone for word in (*(spec.argv or ()), *spec.after))
    is_wanted = not alone or any(work.MODEL in word for word in words)
    has_ray = topology.given_ray is None or topology.given_ray.session is not None
    fetch: tuple[PrepareStep, ...] = ()
    if is_wanted and has_ray:
        fetch = work.model_fetch(settings, facts.ray, is_here=facts.model_is_here)
    seeding = () if caches is None else (caches.seeding(settings),)
    return work.prepare_steps(settings, (*fetch, *seeding, *file.steps))


def service_problems(
    settings: Settings, command: tuple[str, ...] | None, topology: Topology, file: ServicesFile
) -> Iterator[Problem]:
    """Yield problems of the services file on this platform."""
    table = services_source(settings)
    yield from _judge_problems(settings, file)
    yield from _group_problems(settings, topology, file)
    services = all_services(settings, command, file, topology.platform.ports)
    nodes = _known_nodes(settings, topology, services)
    on_one_node = _most_on_one_node(services) + len(file.steps)
    if on_one_node > MOST_ON_ONE_NODE:
        what = f"{on_one_node} services and prepare steps on one node"
        yield Problem(table, what, f"at most {MOST_ON_ONE_NODE}")
    for at, spec in enumerate(services):
        if spec.name == work.REWARD and file.reward is None:
            continue  # AGENT_REWARD is checked with the other variables
        name = "reward" if spec.name == work.REWARD else spec.name
        where = f"{table} [services.{name}]"
        yield from _place_problems(spec, topology, nodes, where)
        if spec.front and work.control_port(spec) > topology.platform.ports.last_front:
            got = f"members on {spec.where.nodes} node(s), each with a port of its front"
            yield Problem(f"{where} weights", got, "fewer nodes in the groups with `weights`")
        if spec.port is not None:
            beside = [other for other in services[:at] if other.where.meets(spec.where)]
            for conflict in _port_conflicts(settings, topology, spec, spec.port, beside):
                yield Problem(f"{where} ready", conflict, "a free port")

    for step in file.steps:
        if topology.given_ray is not None and step.where.kind != "head":
            where = f"{table} [prepare.{step.name}] where"
            yield Problem(where, step.where.kind, _ONLY_HEAD)


def _group_problems(
    settings: Settings, topology: Topology, file: ServicesFile
) -> Iterator[Problem]:
    """Yield problems of the groups on this platform, and of this node's own."""
    groups = file.groups
    nodes = topology.expected_workers + 1
    is_known = settings.expected_workers is not None or topology.platform.nodes is not None
    in_groups = sum(group.nodes for group in groups)
    if groups and topology.given_ray is not None:
        table = f"{services_source(settings)} [groups.{groups[0].name}]"
        yield Problem(table, "a group", _ONLY_HEAD)
    elif groups and not is_known and not topology.is_head:
        got = "nothing, on a worker of a run with groups"
        expected = "the head's value: the ranks of groups follow from it on every node"
        yield Problem("EXPECTED_WORKERS", got, expected)
    elif runs_by_shares(settings) and any(group.ray for group in groups):
        with_ray = next(group.name for group in groups if group.ray)
        table = f"{services_source(settings)} [groups.{with_ray}] ray"
        yield Problem(table, "true", "false: no Ray runs where a launcher starts the job")
    elif groups and in_groups >= nodes:
        tables = f"{services_source(settings)} [groups] + EXPECTED_WORKERS"
        got = f"{in_groups} node(s) in groups, of {nodes} in all"
        yield Problem(tables, got, "a node for the trainer: EXPECTED_WORKERS counts all workers")
    elif topology.is_head and (of_head := group_of(groups, topology.own_rank)) is not None:
        got = f"the head, rank {topology.own_rank}, as a node of {of_head.name}"
        table = f"{services_source(settings)} [groups.{of_head.name}]"
        yield Problem(table, got, "a head among the first ranks, which are the trainer's")
    yield from _min_problems(settings, file)
    least = settings.min_workers
    of_trainer = nodes - in_groups - 1
    if groups and is_known and least is not None and least > of_trainer >= 0:
        got = f"{least}, of {of_trainer} worker(s) in no group"
        yield Problem("AGENT_MIN_WORKERS", got, f"at most {of_trainer}: groups have their own min")

    # Is this node's own group one of them, and the one of its rank?
    own = settings.group or topology.platform.group or None
    variable = "AGENT_GROUP" if settings.group else f"{topology.platform.name}'s task"
    rank = topology.own_rank
    names = [TRAINER, *(group.name for group in groups)]
    if own is not None and own not in names:
        expected = f"one of {', '.join(names)}" if groups else "unset: the run has no groups"
        yield Problem(variable, own, expected)
    elif own is not None and rank is not None and in_groups < nodes:
        group = group_of(groups, rank)
        by_rank = TRAINER if group is None else group.name
        if own != by_rank:
            got = f"{own} on rank {rank}, which is of {by_rank}"
            yield Problem(variable, got, f"{by_rank}, or the groups in the order of the ranks")

    # Are they as large as the platform's?
    sizes = topology.platform.group_sizes
    asked = (nodes - in_groups, *(group.nodes for group in groups))
    if groups and len(sizes) > 1 and sizes != asked and in_groups < nodes:
        table = f"AGENT_SERVICES={settings.services} [groups]"
        got = f"{' + '.join(map(str, asked))} nodes, the trainer's first"
        expected = f"those of the job's components: {' + '.join(map(str, sizes))}"
        yield Problem(table, got, expected)


def _min_problems(settings: Settings, file: ServicesFile) -> Iterator[Problem]:
    """Yield a problem for each group whose `min` is above the members that a service can have."""
    for group in file.groups:
        for spec in file.services:
            most = group.nodes * (work.MOST_MEMBERS if spec.has_members else 1)
            if group.min is None or spec.where.group != group.name or group.min <= most:
                continue
            got = f"{group.min}, though {spec.name} has at most {most} member(s)"
            expected = f"at most {most}: it counts for each service of the group"
            yield Problem(f"{services_source(settings)} [groups.{group.name}] min", got, expected)


def _most_on_one_node(services: tuple[ServiceSpec, ...]) -> int:
    """Return how many services may run on one node: those of one rank, and those of no rank."""
    ranks = Counter[int]()
    for spec in services:
        for rank in spec.where.ranks[:1]:
            ranks[rank] += work.MOST_MEMBERS if spec.has_members else 1
    of_no_rank = sum(not spec.where.is_by_rank for spec in services)
    return of_no_rank + max(ranks.values(), default=0)


def _known_nodes(
    settings: Settings, topology: Topology, services: tuple[ServiceSpec, ...]
) -> int | None:
    """Return how many nodes the run has at most, with those that join no Ray; None if unknown."""
    if topology.platform.nodes:
        return topology.platform.nodes
    knows_nodes = topology.platform.nodes is not None or (
        topology.given_ray is None and topology.is_head
    )
    if not knows_nodes:
        return None
    workers = topology.expected_workers
    alone = tuple(spec for spec in services if spec.where.kind == "rank")
    service_only = len(work.service_only_ranks(alone))  # the nodes of a group are expected ones
    if settings.expected_workers is None:  # some of the expected nodes may only run a service
        return 1 + max(workers, service_only)
    return 1 + workers + service_only


def _place_problems(
    spec: ServiceSpec, topology: Topology, nodes: int | None, where: str
) -> Iterator[Problem]:
    """Yield a problem where no node of the run can have the service."""
    rank = spec.where.rank
    if topology.given_ray is not None and spec.where.kind != "head":
        yield Problem(f"{where} where", spec.where.sentence(), _ONLY_HEAD)
    if topology.given_ray is not None and spec.gpus:
        expected = f"0: {topology.given_ray.owner}'s Ray counts all GPUs of its pods as its own"
        yield Problem(f"{where} gpus", str(spec.gpus), expected)
    if rank is not None and nodes is not None and rank >= nodes:
        expected = f"a rank from 0 to {nodes - 1}, or a larger EXPECTED_WORKERS"
        yield Problem(f"{where} where", f"rank {rank} of {nodes} node(s)", expected)
    is_of_rank = spec.where.kind == "rank"
    if is_of_rank and spec.alone and topology.is_head and topology.own_rank == rank:
        expected = "the rank of another node: the head runs Ray"
        yield Problem(f"{where} alone", "true on the head's own rank", expected)


def _port_conflicts(
    settings: Settings,
    topology: Topology,
    spec: ServiceSpec,
    port: int,
    beside: list[ServiceSpec],
) -> Iterator[str]:
    """Yield the conflicts of a service's port on its node, with services `beside` it."""
    base = topology.platform.ports
    others, of_workers = ports_here(settings, base, topology.given_ray, joins_ray=not spec.alone)
    others |= {f"service {other.name}": other.port for other in beside if other.port}
    yield from conflicts_of(spec.name, port, others, of_workers)


# --- the judge of AGENT_REWARD=judge -------------------------------------------------------------


def _judge_request(settings: Settings, file: ServicesFile) -> Mapping[str, Any] | None:
    """Return what the reward server asks the judge, for its --judge; None without one."""
    if settings.reward != JUDGE:
        return None
    spec = _judge_of(file)
    url = settings.judge_url
    if url is None and spec is not None and spec.where.kind == "group":
        url = f"{{addresses:{JUDGE}|url}}"
    elif url is None:
        port = 0 if spec is None else spec.port
        url = f"http://{{address:{JUDGE}}}:{port}"
    asked = {"url": url, **file.ask}
    if settings.judge_model is not None:
        asked["model"] = settings.judge_model
    return asked


def _judge_problems(settings: Settings, file: ServicesFile) -> Iterator[Problem]:
    """Yield why there is no judge, or more than one."""
    table = f"{services_source(settings)} {_JUDGE_TABLE}"
    spec = _judge_of(file)
    if settings.reward != JUDGE:
        if file.ask:
            got = f"keys of a judge, though AGENT_REWARD is {settings.reward or 'unset'}"
            yield Problem(f"{table} ask", got, f"AGENT_REWARD={JUDGE} beside them")
        return

    # Where is it?
    if settings.judge_url is not None and spec is not None:
        yield Problem(f"AGENT_JUDGE_URL + {table}", "a judge in each", "one of the two")
    elif settings.judge_url is None and spec is None:
        expected = "AGENT_JUDGE_URL, or [services.judge] with a command"
        yield Problem("AGENT_REWARD", f"{JUDGE!r} without a judge", expected)
    elif settings.judge_url is None and spec is not None:
        if spec.port is None:
            expected = "ready.http or ready.tcp, which has the port that the reward server asks"
            yield Problem(f"{table} ready", "a judge without a port", expected)
        if spec.where.kind == "workers":
            expected = "the head, a rank, a group or every node"
            yield Problem(f"{table} where", "workers", expected)
    if settings.judge_model is not None and "model" in file.ask:
        both = f"AGENT_JUDGE_MODEL + {table} ask.model"
        yield Problem(both, "a model in each", "one of the two")


def _judge_of(file: ServicesFile) -> ServiceSpec | None:
    return next((spec for spec in file.services if spec.name == JUDGE), None)
