"""The members of groups: which of them serve, and the end of those that are lost.

A member is one process of a service on a node of a group. One that was dead never serves before it
has the current weights: behind a front it is stale until the front has sent it the trainer's newest
ones; where only the trainer can send them (NCCL), until the next attempt. A group is short while
fewer than its `min` members of a service serve. It is lost once so many cannot serve again: they
were given up, or their nodes are gone for longer than AGENT_NODE_GRACE.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import first_names, in_url, with_output
from agent.base.value import Value
from agent.decisions.head.head_state import Key, SeenMember, Shortage
from agent.decisions.shared import Step, Wait
from agent.job.front_protocol import Slot
from agent.job.services import FRONTED, front_port, service_of
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_state import HeadState, Turn
    from agent.decisions.shared import Item
    from agent.job.groups import NodeGroup
    from agent.job.services import ServiceSpec

_MOST_NAMED = 8
_CONSUMER_WAITS = "what needs it waits"


class MemberState(str, Enum):
    """The state of a member, as status and page show it."""

    PENDING = "pending"  # not started: something else comes first
    LOADING = "loading"  # started, and does not answer yet
    STALE = "stale"  # answers, with older weights than the trainer's
    SERVING = "serving"
    DEAD = "dead"  # ended or silent; it is started again
    RETIRED = "retired"  # given up, or its node has left


class GroupMember(Value):
    """One process of a group's service."""

    key: Key
    title: str  # `engine.0 on n5`
    rank: int
    index: int  # on its node
    state: MemberState
    address: str = ""  # its own `HOST:PORT`
    generation: int = 1
    answers: bool = False
    evidence: str = ""
    output: str = ""  # what it printed last, if the evidence is its end
    seen: SeenMember | None = None  # by its front

    @property
    def in_full(self) -> str:
        """Return the evidence with what it printed last."""
        return with_output(self.evidence, self.output)

    @property
    def may_serve(self) -> bool:
        """Return whether it is not given up."""
        return self.state is not MemberState.RETIRED


# --- which members there are ---------------------------------------------------------------------


def services_of(state: HeadState, group: NodeGroup) -> tuple[ServiceSpec, ...]:
    """Return the services that run on the nodes of a group."""
    return tuple(spec for spec in state.goal.services if spec.where.group == group.name)


def nodes_of(state: HeadState, ranks: range) -> Mapping[int, Worker]:
    """Return the worker of each of these ranks, where one has reported: the one that is there."""
    workers = [
        worker
        for worker in state.fleet.workers.values()
        if worker.effective_rank in ranks and not worker.refused
    ]
    workers.sort(key=lambda worker: (not worker.has_left, not worker.lost, worker.last_report_at))
    return {worker.effective_rank or 0: worker for worker in workers}


def members_of(state: HeadState, spec: ServiceSpec) -> tuple[GroupMember, ...]:
    """Return the members of a service whose nodes have reported, by rank and number."""
    nodes = nodes_of(state, spec.where.ranks)
    return tuple(
        _member(state, spec, nodes[rank], index)
        for rank in sorted(nodes)
        for index in range(nodes[rank].members.get(spec.name, 1))
    )


def _member(state: HeadState, spec: ServiceSpec, worker: Worker, index: int) -> GroupMember:
    one = spec.member(index) if spec.has_members else spec
    key = (worker.key, one.name)
    item = state.services.by_key.get(key)
    rank = worker.effective_rank or 0
    seen = state.groups.seen(spec.name, front_port(spec, rank, index))
    if seen is not None and (item is None or seen.generation != item.generation):
        seen = None
    member_state, evidence = _state_of(state, spec, worker, key, item, seen)
    return GroupMember(
        key=key,
        title=f"{one.name} on {worker.name}",
        rank=rank,
        index=index,
        state=member_state,
        address=f"{in_url(worker.ip)}:{one.port}" if worker.ip and one.port else "",
        generation=1 if item is None else item.generation,
        answers=item is not None and item.step is Step.READY and not worker.silent,
        evidence=evidence,
        output=item.output if item is not None and evidence == item.evidence else "",
        seen=seen,
    )


def _state_of(  # noqa: PLR0911, PLR0913 - one state, one return; all that it depends on
    state: HeadState,
    spec: ServiceSpec,
    worker: Worker,
    key: Key,
    item: Item | None,
    seen: SeenMember | None,
) -> tuple[MemberState, str]:
    """Return the state of a member, and why it is not the one that serves."""
    if worker.has_left:
        return MemberState.RETIRED, f"{worker.name} has left"
    if key in state.services.abandoned:
        return MemberState.RETIRED, "given up"
    if worker.silent:
        return MemberState.DEAD, f"{worker.name} is silent, {worker.silent}"
    if item is None:
        return MemberState.PENDING, "not started"
    if item.step is Step.LOST:
        return MemberState.DEAD, item.evidence
    if item.step is Step.PENDING and key in state.services.blocked:
        return MemberState.PENDING, item.evidence
    if item.step is Step.PENDING:
        return MemberState.LOADING, item.evidence
    if spec.weights in FRONTED:
        if seen is None or seen.state != "serving":
            return MemberState.STALE, "" if seen is None else seen.why
    elif spec.weights == "nccl" and not _was_sent_weights(state, worker, key[1], item):
        return MemberState.STALE, "restarted: only the trainer can send it the weights, by NCCL"
    return MemberState.SERVING, ""


def group_sizes_of(state: HeadState) -> dict[str, tuple[int, int]]:
    """Return the nodes and the GPUs of each group, for the job's command."""
    sizes = {}
    for group in state.goal.groups:
        nodes = nodes_of(state, group.ranks)
        facts = (state.fleet.facts.get(worker.key) for worker in nodes.values())
        gpus = sum(known.gpus for known in facts if known is not None)
        sizes[group.name] = (group.nodes, gpus)
    return sizes


# --- where they are reached ----------------------------------------------------------------------


def slots_of(state: HeadState, spec: ServiceSpec) -> tuple[Slot, ...]:
    """Return the slots of a service's front: one port for each member, whatever becomes of it."""
    return tuple(
        Slot(
            port=front_port(spec, member.rank, member.index),
            name=member.title,
            address=member.address,
            generation=member.generation,
            answers=member.answers,
        )
        for member in members_of(state, spec)
    )


def addresses_of(state: HeadState, spec: ServiceSpec, head_ip: str) -> tuple[str, ...]:
    """Return where a service's members are reached: by its front, where it has one."""
    members = members_of(state, spec)
    if spec.weights in FRONTED:
        ports = (front_port(spec, member.rank, member.index) for member in members)
        return tuple(f"{in_url(head_ip)}:{port}" for port in ports)
    return tuple(member.address for member in members if member.address)


def missing_ranks(state: HeadState, spec: ServiceSpec) -> tuple[int, ...]:
    """Return the ranks of a service's nodes of which none has reported."""
    nodes = nodes_of(state, spec.where.ranks)
    return tuple(rank for rank in spec.where.ranks if rank not in nodes)


# --- whether enough of them serve ----------------------------------------------------------------


def needed(group: NodeGroup, members: tuple[GroupMember, ...], missing: tuple[int, ...]) -> int:
    """Return how many members of a service must serve: by default all."""
    return group.min or len(members) + len(missing)


def is_short(state: HeadState, group: NodeGroup, spec: ServiceSpec) -> bool:
    """Return whether too few members of a service can serve for the job to begin.

    Before an attempt begins a member needs no weights of its own: the trainer sends them first.
    """
    members = members_of(state, spec)
    able = {MemberState.SERVING, MemberState.STALE}
    ready = sum(member.state in able for member in members)
    return ready < needed(group, members, missing_ranks(state, spec))


def group_waits(state: HeadState) -> Iterator[Wait]:
    """Yield a wait for each service of a group that has too few members, or whose nodes lack.

    A job's list of members is fixed when it begins: so all nodes of the group are awaited.
    """
    until = state.deadline_of(wait_keys.WORKERS) if state.goal.groups else 0.0
    for group in state.goal.groups:
        for spec in services_of(state, group):
            members = members_of(state, spec)
            missing = missing_ranks(state, spec)
            short = is_short(state, group, spec)
            if not short and (not missing or state.groups.goes_on):
                continue
            deadlines = state.services.pending
            last = max(
                (deadlines.get(member.key[1], {}).get(member.key[0], until) for member in members),
                default=until,
            )
            yield Wait(
                key=wait_keys.MEMBERS if short else wait_keys.GROUP_NODES,
                what=f"{spec.name} on {spec.where.sentence()}",
                deadline=max(last, until) if short else until,
                source=shortage(state, group, spec),
                remedy=f"See the logs of {spec.name} on its nodes, or lower min of {group.name}",
            )


def shortage(
    state: HeadState, group: NodeGroup, spec: ServiceSpec, *, in_full: bool = False
) -> str:
    """Describe how many members serve, and why the others do not; in full for the log."""
    members = members_of(state, spec)
    missing = missing_ranks(state, spec)
    serving = sum(member.state is MemberState.SERVING for member in members)
    parts = [f"{serving} of {len(members)} serve, {needed(group, members, missing)} needed"]
    others = [member for member in members if member.state is not MemberState.SERVING]
    parts += [_others_sentence(member, in_full=in_full) for member in others[:_MOST_NAMED]]
    if len(others) > _MOST_NAMED:
        parts.append(f"{len(others) - _MOST_NAMED} more")
    if missing:
        parts.append(f"no report from rank {first_names(map(str, missing), _MOST_NAMED)}")
    return "; ".join(parts)


def _others_sentence(member: GroupMember, *, in_full: bool) -> str:
    evidence = member.in_full if in_full else member.evidence
    why = f" ({evidence})" if evidence else ""
    return f"{member.title} is {member.state.value}{why}"


def go_on_without(state: HeadState, now: float) -> HeadState:
    """Begin without the nodes of groups that have not reported by AGENT_WAIT_WORKERS."""
    if not state.goal.groups or state.groups.goes_on:
        return state
    if now < state.deadline_of(wait_keys.WORKERS):
        return state
    state = state.with_groups(goes_on=True)
    for group in state.goal.groups:
        nodes = nodes_of(state, group.ranks)
        missing = [str(rank) for rank in group.ranks if rank not in nodes]
        if missing:
            ranks = first_names(missing, _MOST_NAMED)
            state = state.log(f"going on without rank {ranks} of {group.name}", "warning")
    return state


def note_weights(state: HeadState) -> HeadState:
    """Note the members that answer as an attempt begins: the trainer sends them its weights."""
    if not any(spec.weights == "nccl" for spec in state.goal.services):
        return state
    ready = {
        _engine(state, key): item.generation
        for key, item in state.services.by_key.items()
        if item.step is Step.READY and state.goal.service(key[1]).weights == "nccl"
    }
    return state.with_attempt(engines=ready)


def _was_sent_weights(state: HeadState, worker: Worker, name: str, item: Item) -> bool:
    """Return whether a member was there when the attempt began; before it, all may be."""
    known = state.attempt.engines
    return not known or known.get(f"{worker.name}/{name}") == item.generation


def _engine(state: HeadState, key: Key) -> str:
    node, name = key
    worker = state.fleet.workers.get(node)
    return f"{node if worker is None else worker.name}/{name}"


def watch_groups(state: HeadState, now: float) -> tuple[HeadState, Outcome | None]:
    """Log which groups are short, and since when; return the end that follows of a lost one."""
    for group in state.goal.groups:
        for spec in services_of(state, group):
            state = _log_shortage(state, group, spec, now)
            if group.lost != "wait" and _is_lost(state, group, spec, now):
                return state, _end(state, group, spec)
    return state, None


def _log_shortage(state: HeadState, group: NodeGroup, spec: ServiceSpec, now: float) -> HeadState:
    """Log that a group becomes short, that nothing of it serves, or that enough serve again."""
    members = members_of(state, spec)
    missing = missing_ranks(state, spec)
    serving = sum(member.state is MemberState.SERVING for member in members)
    need = needed(group, members, missing)
    known = state.groups.short.get(spec.name)
    if serving >= need:
        if known is None:
            return state
        others = {name: short for name, short in state.groups.short.items() if name != spec.name}
        took = round(now - known.since)
        what = f"{spec.name}: {serving} of {len(members)} serve again, after {took} s"
        return state.with_groups(short=others).log(what)

    # Is it news that it is short, or that nothing serves?
    nothing = serving == 0
    if known is not None and (known.nothing_serves or not nothing):
        if known.nothing_serves == nothing:
            return state
        short = {**state.groups.short, spec.name: replace(known, nothing_serves=False)}
        return state.with_groups(short=short)
    since = now if known is None else known.since
    short = {**state.groups.short, spec.name: Shortage(since, nothing)}
    why = shortage(state, group, spec, in_full=True)
    what = f"{spec.name}: {why}"
    if nothing:
        what = f"no {spec.name} serves since {state.utc(now)}: {why}; {_CONSUMER_WAITS}"
    return state.with_groups(short=short).log(what, "warning")


def _is_lost(state: HeadState, group: NodeGroup, spec: ServiceSpec, now: float) -> bool:
    """Return whether too few members are left that serve or may serve again."""
    grace = state.goal.limits[wait_keys.NODE]
    members = members_of(state, spec)
    workers = state.fleet.workers
    left = 0
    for member in members:
        worker = workers[member.key[0]]
        is_away = bool(worker.silent) and now >= worker.silent_since + grace
        left += member.may_serve and not is_away
    return left < needed(group, members, missing_ranks(state, spec))


def end_of_boot(state: HeadState, now: float) -> Outcome | None:
    """Return the end of a boot in which a group has too few members left; None without one.

    What an earlier attempt had is lost; a group that never came up is unavailable.
    """
    for group in state.goal.groups:
        for spec in services_of(state, group):
            if not missing_ranks(state, spec) and _is_lost(state, group, spec, now):
                return _end(state, group, spec)
    return None


def _end(state: HeadState, group: NodeGroup, spec: ServiceSpec) -> Outcome:
    row = ends.GROUP_LOST if group.lost == "retry" else ends.SERVICE_LOST
    return row.outcome(
        service=f"too few members of {spec.name} are left in the group {group.name}",
        evidence=shortage(state, group, spec, in_full=True),
        name=spec.name,
        remedy=f"See the logs of {spec.name} on its nodes",
    )


def group_deadline(state: HeadState) -> float | None:
    """Return when a silent node of a group may be lost; None if none is awaited."""
    if all(group.lost == "wait" for group in state.goal.groups):
        return None
    grace = state.goal.limits[wait_keys.NODE]
    ends_at = [
        worker.silent_since + grace
        for group in state.goal.groups
        for worker in nodes_of(state, group.ranks).values()
        if worker.silent
    ]
    return min(ends_at, default=None)


def renew_members(state: HeadState) -> HeadState:
    """Give the members that were given up another chance, as the next attempt begins."""
    groups = {spec.name for spec in state.goal.services if spec.where.kind == "group"}
    kept = frozenset(key for key in state.services.abandoned if service_of(key[1]) not in groups)
    state = state.with_services(abandoned=kept)
    return state.with_groups(short={}, goes_on=False)


# --- what its front has seen of a member ---------------------------------------------------------


def restart_wedged(state: HeadState, turn: Turn) -> HeadState:
    """Take members for ended that answer their probe and no request, as their front reports."""
    for name, seen in state.groups.fronts.items():
        if turn.before.groups.fronts.get(name) is seen or not any(one.is_wedged for one in seen):
            continue
        spec = state.goal.service(name)
        for member in members_of(state, spec):
            if member.seen is None or not member.seen.is_wedged or not member.answers:
                continue
            item = state.services.by_key[member.key].lost(member.seen.why)
            state = state.with_item(member.key, replace(item, restart_at=turn.now))
    return state
