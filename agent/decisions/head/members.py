"""The members of groups: which of them serve, and the end of those that are lost.

A member is one process of a service on a node of a group. One that was dead never serves before it
has the current weights: behind a front it is stale until the front has sent it the trainer's newest
ones; where only the trainer can send them (NCCL), until the next attempt. A group is short while
fewer than its `min` members of a service serve. It is lost once so many cannot serve again: they
were given up, or their nodes are gone for longer than AGENT_NODE_GRACE.
"""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import duration_text, first_names, in_url
from agent.decisions.head.member_states import GroupMember, MemberState, reasons_text
from agent.decisions.shared import HERE, Shortage, Step, Wait
from agent.job.front_protocol import Slot
from agent.job.groups import nodes_in_ray
from agent.job.services import FRONTED, front_port, member_index, service_of
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_state import HeadState, Key, SeenMember, Turn
    from agent.decisions.shared import Item
    from agent.job.groups import NodeGroup
    from agent.job.services import ServiceSpec

_MOST_NAMED = 8


# --- which members there are ---------------------------------------------------------------------


def services_of(state: HeadState, group: NodeGroup) -> tuple[ServiceSpec, ...]:
    """Return the services that run on the nodes of a group."""
    return tuple(spec for spec in state.goal.services if spec.where.group == group.name)


def nodes_of(state: HeadState, ranks: range) -> Mapping[int, Worker]:
    """Return the worker of each of these ranks, where one has reported.

    Of several that is the one that is there, and of these the first: its members run.
    """
    known = _nodes.get(ranks)
    if known is not None and known.workers is state.fleet.workers:
        return known.by_rank
    _nodes[ranks] = found = _Nodes(state.fleet.workers, _find_nodes(state, ranks))
    return found.by_rank


def _find_nodes(state: HeadState, ranks: range) -> Mapping[int, Worker]:
    workers = [
        worker
        for worker in reversed([*state.fleet.workers.values()])
        if worker.effective_rank in ranks and not worker.refused
    ]
    workers.sort(key=lambda worker: (not worker.has_left, not worker.lost, not worker.silent))
    return {worker.effective_rank or 0: worker for worker in workers}


def members_of(state: HeadState, spec: ServiceSpec) -> tuple[GroupMember, ...]:
    """Return the members of a service whose nodes have reported, by rank and number."""
    services = state.services
    seen = state.groups.fronts.get(spec.name, ())
    shared = (spec, state.goal, services.abandoned, services.blocked, seen, state.attempt.engines)
    basis = (*shared, state.fleet.workers, services.by_key)
    known = _members.get(spec.name)
    if known is not None and all(map(is_, basis, known.basis)):
        return known.members

    # Without a change of what all depend on, only those are others whose node or item is.
    own: Mapping[Key, _Known] = {}
    if known is not None and all(map(is_, shared, known.basis)):
        own = known.by_key
    nodes = nodes_of(state, spec.where.ranks)
    by_port = {one.port: one for one in seen}
    by_key: dict[Key, _Known] = {}
    for rank in sorted(nodes):
        worker = nodes[rank]
        for index, name in enumerate(spec.names(worker.members.get(spec.name, 1))):
            key = (worker.key, name)
            item = services.by_key.get(key)
            one = own.get(key)
            if one is None or one.worker is not worker or one.item is not item:
                of_front = by_port.get(front_port(spec, rank, index))
                member = _member(state, spec, worker, key, index, of_front)
                one = _Known(worker, item, member)
            by_key[key] = one
    members = tuple(one.member for one in by_key.values())
    _members[spec.name] = _Members(basis, by_key, members)
    return members


class _Nodes(NamedTuple):
    """The nodes of some ranks, as they follow from these workers."""

    workers: Mapping[str, Worker]
    by_rank: Mapping[int, Worker]


class _Known(NamedTuple):
    """A member, as it follows from its node and its item."""

    worker: Worker
    item: Item | None
    member: GroupMember


class _Members(NamedTuple):
    """The members of a service, as they follow from these parts of a state."""

    basis: tuple[object, ...]
    by_key: Mapping[Key, _Known]
    members: tuple[GroupMember, ...]


_nodes: dict[range, _Nodes] = {}
_members: dict[str, _Members] = {}
"""What was found last: of a thousand nodes an event changes one, and a decision asks often.

The parts are compared by identity: what is found is the same as without these.
"""


def _member(  # noqa: PLR0913 - all that it depends on
    state: HeadState,
    spec: ServiceSpec,
    worker: Worker,
    key: Key,
    index: int,
    seen: SeenMember | None,
) -> GroupMember:
    one = spec.member(index) if spec.has_members else spec
    item = state.services.by_key.get(key)
    rank = worker.effective_rank or 0
    if seen is not None and (item is None or seen.generation != item.generation):
        seen = None
    member_state, evidence = _state_of(state, spec, worker, key, item, seen)
    return GroupMember(
        key=key,
        title=f"{one.name} on {worker.name}",
        node=worker.name,
        rank=rank,
        index=index,
        state=member_state,
        address=f"{in_url(worker.ip)}:{one.port}" if worker.ip and one.port else "",
        generation=1 if item is None else item.generation,
        answers=item is not None and _answers(item) and not worker.silent,
        is_cut_off=bool(worker.silent) or worker.has_left,
        evidence=evidence,
        output=item.output if item is not None and evidence == item.evidence else "",
        last_end="" if item is None else item.last_end,
        seen=seen,
    )


def _answers(item: Item) -> bool:
    """Return whether it answers its probe, as what an earlier agent has left is taken to do."""
    is_kept = item.step is Step.PENDING and item.was_ready and item.restarted_at is None
    return item.step is Step.READY or (is_kept and not item.evidence)


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
        return MemberState.RETIRED, "its node has left"
    if key in state.services.abandoned:
        return MemberState.RETIRED, "given up"
    if worker.silent:
        return MemberState.DEAD, f"its node is silent, {worker.silent}"
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
            version = state.groups.versions.get(spec.name)
            needs = f"version {version}" if version else "an update of this attempt"
            why = "" if seen is None else seen.why
            return MemberState.STALE, why or f"needs {needs}"
    elif lacks_weights(state, key, item):
        return MemberState.STALE, "restarted: only the trainer can send it the weights, by NCCL"
    return MemberState.SERVING, ""


def group_sizes_of(state: HeadState) -> dict[str, tuple[int, int]]:
    """Return the nodes and the GPUs of each group, for the job's command."""
    sizes = {}
    for group in state.goal.groups:
        gpus = 0
        for worker in nodes_of(state, group.ranks).values():
            gpus += state.gpus_for_job(worker)
            for spec in services_of(state, group):
                gpus += spec.gpus * len(spec.names(worker.members.get(spec.name, 1)))
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
            is_cut_off=member.is_cut_off,
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
            loading = (member for member in members if member.state is MemberState.LOADING)
            last = max(
                (deadlines.get(member.key[1], {}).get(member.key[0], until) for member in loading),
                default=until,
            )
            yield Wait(
                key=wait_keys.MEMBERS if short else wait_keys.GROUP_NODES,
                what=f"{spec.name} on {spec.where.sentence()}",
                deadline=max(last, until) if short else until,
                source=partial(shortage, state, group, spec),
                remedy=f"See the logs of {spec.name} on its nodes, or lower min of {group.name}",
            )


def shortage(
    state: HeadState, group: NodeGroup, spec: ServiceSpec, *, in_full: bool = False
) -> str:
    """Describe how many members serve, and why the others do not; in full for the log."""
    members = members_of(state, spec)
    missing = missing_ranks(state, spec)
    need = needed(group, members, missing)
    serving = sum(member.serves for member in members)
    reasons = _reasons(members, missing, in_full=in_full)
    return f"{serving} of {len(members)} serve, {need} needed{reasons and f'; {reasons}'}"


def shortage_sentence(
    state: HeadState, group: NodeGroup, spec: ServiceSpec, *, in_full: bool = False
) -> str:
    """Return what is to be said of a service of which too few members serve; '' while enough do.

    If none serves, it says since when, why, and what waits for it.
    """
    known = state.durable.shortage_of(spec.name)
    if known is None:
        return ""
    if known.nothing_since is None:
        return f"{spec.name}: {shortage(state, group, spec, in_full=in_full)}"
    since = state.utc(known.nothing_since)[11:16]
    reasons = _reasons(members_of(state, spec), missing_ranks(state, spec), in_full=in_full)
    waits = "what needs it waits" if spec.weights is None else "the trainer waits for samples"
    return f"no {spec.name} serves since {since} UTC: {reasons}; {waits}"


def _reasons(
    members: tuple[GroupMember, ...], missing: tuple[int, ...], *, in_full: bool = False
) -> str:
    """Return why the members that do not serve do not, and which ranks have not reported."""
    parts = [reasons_text(members, in_full=in_full)]
    if missing:
        parts.append(f"no report from rank {first_names(map(str, missing), _MOST_NAMED)}")
    return "; ".join(filter(None, parts))


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


def are_in_ray(state: HeadState) -> bool:
    """Return whether Ray has the nodes of groups that join it: they are all needed."""
    groups = [group for group in state.goal.groups if group.ray]
    if not groups:
        return True
    there = sum(state.is_in_group(ip) for ip in state.fleet.alive)
    return there >= nodes_in_ray(groups)


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


def next_generation(state: HeadState, spec: ServiceSpec, key: Key) -> int | None:
    """Return the generation with which a member starts on a node that reports none.

    A pod that is replaced has lost its records: its member counts on from the former one, for which
    it would be taken otherwise, with its weights. None: only its front has that one's number,
    and has not reported to this agent yet.
    """
    former = state.attempt.engines.get(_engine(state, key), 0)
    if spec.weights not in FRONTED:
        return former + 1
    seen = state.groups.fronts.get(spec.name)
    if seen is None and state.has_resumed:
        return None
    node, name = key
    port = front_port(spec, state.fleet.workers[node].effective_rank or 0, member_index(name))
    of_port = (one.generation for one in seen or () if one.port == port)
    return max(of_port, default=former) + 1


def lacks_weights(state: HeadState, key: Key, item: Item) -> bool:
    """Return whether only the trainer can send a member its weights, and has not.

    It sends them to those that are there when an attempt begins; before it, all may be.
    """
    known = state.attempt.engines
    if not known or state.goal.service(key[1]).weights != "nccl":
        return False
    return known.get(_engine(state, key)) != item.generation


def lost_engine(state: HeadState, ended_at: float) -> str:
    """Return through which loss of engines a job that ended then may have failed, or ''.

    Either a member had the attempt's weights by NCCL: no other process can take its place in the
    group of ranks. Or a front does not run, or has just been started again: the job's requests
    broke with it.
    """
    for spec in (spec for spec in state.goal.services if spec.is_front):
        item = state.services.by_key.get((HERE, spec.name))
        is_up = item is not None and item.step is Step.READY
        came_back = [outage.until for outage in state.durable.outages_of(spec.name, HERE)]
        after = ended_at - times.RECENT_LOSS
        if not is_up or any(until is not None and until > after for until in came_back):
            return f"{spec.name} was lost with the requests of the job"

    had_weights = state.attempt.engines
    for group in state.goal.groups if had_weights else ():
        for spec in services_of(state, group):
            for member in members_of(state, spec):
                if _engine(state, member.key) in had_weights and not member.serves:
                    why = f" ({member.last_end or member.evidence})"
                    return f"{member.title} was lost{why}, and by NCCL no other takes its place"
    return ""


def _engine(state: HeadState, key: Key) -> str:
    node, name = key
    worker = state.fleet.workers.get(node)
    return f"{node if worker is None else worker.name}/{name}"


def watch_groups(state: HeadState, now: float) -> tuple[HeadState, Outcome | None]:
    """Log which groups are short, and since when; return the end that follows of a lost one."""
    for group in state.goal.groups:
        for spec in services_of(state, group):
            state = _follow_shortage(state, group, spec, now)
            if group.lost != "wait" and is_lost(state, group, spec, now):
                return state, _end(state, group, spec)
    return state, None


def _follow_shortage(
    state: HeadState, group: NodeGroup, spec: ServiceSpec, now: float
) -> HeadState:
    """Record and log a shortage: its begin, that nothing serves, its end."""
    members = members_of(state, spec)
    serving = _count_serving(state, spec, members)
    known = state.durable.shortage_of(spec.name)
    is_unknown = spec.weights in FRONTED and spec.name not in state.groups.fronts
    if is_unknown and state.has_resumed:
        return state  # its front has not reported to this agent yet
    if _may_report(state, spec, now):
        return state

    # Do enough serve, or again?
    if serving >= needed(group, members, missing_ranks(state, spec)):
        if known is None:
            return state
        state = replace(state, durable=state.durable.with_shortage(known.over(now)))
        took = duration_text(round(known.seconds(now)))
        return state.log(f"{spec.name}: {serving} of {len(members)} serve again, after {took}")

    # Is it news that it is short, or that nothing serves?
    is_news = known is None or (known.nothing_since is None and serving == 0)
    short = known or Shortage(group.name, spec.name, now)
    short = short.with_serving(now, any_serves=serving > 0)
    if is_news:
        short = replace(short, why=shortage(state, group, spec))
    if short == known:
        return state
    state = replace(state, durable=state.durable.with_shortage(short))
    if not is_news:
        return state
    return state.log(shortage_sentence(state, group, spec, in_full=True), "warning")


def _count_serving(state: HeadState, spec: ServiceSpec, members: tuple[GroupMember, ...]) -> int:
    """Return how many members serve, or will with the trainer's first update of this attempt."""
    await_trainer = spec.weights in FRONTED and not state.groups.versions.get(spec.name)
    return sum(
        member.serves or (await_trainer and member.state is MemberState.STALE) for member in members
    )


def is_lost(state: HeadState, group: NodeGroup, spec: ServiceSpec, now: float) -> bool:
    """Return whether too few members are left that serve or may serve again."""
    if _may_report(state, spec, now):
        return False
    members = members_of(state, spec)
    left = _count_left(state, spec, members, now)
    return left < needed(group, members, missing_ranks(state, spec))


def _may_report(state: HeadState, spec: ServiceSpec, now: float) -> bool:
    """Return whether nodes that a killed agent knew may not have reported to this one yet."""
    is_in_time = state.has_resumed and now < state.goal.limits[wait_keys.NODE]
    return is_in_time and bool(missing_ranks(state, spec))


def _count_left(
    state: HeadState, spec: ServiceSpec, members: tuple[GroupMember, ...], now: float
) -> int:
    """Return how many members serve or may serve again."""
    grace = state.goal.limits[wait_keys.NODE]
    left = 0
    for member in members:
        worker = state.fleet.workers[member.key[0]]
        is_away = bool(worker.silent) and now >= worker.silent_since + grace
        left += member.may_serve and not is_away and not _needs_attempt(state, spec, member)
    return left


def _needs_attempt(state: HeadState, spec: ServiceSpec, member: GroupMember) -> bool:
    """Return whether a member serves again in another attempt alone: by NCCL it got no weights.

    Its process has ended, or came after the trainer had formed the group of ranks.
    """
    if spec.weights != "nccl" or not state.runs_attempt:
        return False
    item = state.services.by_key.get(member.key)
    if item is None:
        return False  # its node has not reported it yet
    return item.step is Step.LOST or lacks_weights(state, member.key, item)


def end_of_boot(state: HeadState) -> Outcome | None:
    """Return the end of a boot in which too many members were given up; None without one.

    Nodes that have left or are silent may be back until AGENT_WAIT_WORKERS, as the trainer's.
    """
    abandoned = state.services.abandoned
    if not abandoned:
        return None
    for group in state.goal.groups:
        for spec in services_of(state, group):
            members = members_of(state, spec)
            given_up = sum(_is_given_up(state, member) for member in members)
            missing = missing_ranks(state, spec)
            if given_up and not missing and len(members) - given_up < needed(group, members, ()):
                return _end(state, group, spec)
    return None


def _is_given_up(state: HeadState, member: GroupMember) -> bool:
    """Return whether a member was given up on a node that has not left."""
    has_left = state.fleet.workers[member.key[0]].has_left
    return member.key in state.services.abandoned and not has_left


def _end(state: HeadState, group: NodeGroup, spec: ServiceSpec) -> Outcome:
    row = ends.GROUP_LOST if group.lost == "retry" else ends.SERVICE_LOST
    return row.outcome(
        service=f"too few members of {spec.name} are left in the group {group.name}",
        evidence=shortage(state, group, spec, in_full=True),
        name=spec.name,
        remedy=f"See the logs of {spec.name} on its nodes",
    )


def group_deadline(state: HeadState) -> float | None:
    """Return when the first group will be lost if its silent nodes stay away; None if none will."""
    grace = state.goal.limits[wait_keys.NODE]
    ends_at = []
    for group in state.goal.groups:
        if group.lost == "wait":
            continue
        workers = nodes_of(state, group.ranks).values()
        moments = {worker.silent_since + grace for worker in workers if worker.silent}
        if state.has_resumed and len(workers) < group.nodes:
            moments.add(grace)  # until then they may report
        for spec in services_of(state, group):
            lost_at = (at for at in sorted(moments) if is_lost(state, group, spec, at))
            ends_at += [*lost_at][:1]
    return min(ends_at, default=None)


def renew_members(state: HeadState) -> HeadState:
    """Give the members that were given up another chance, as the next attempt begins."""
    groups = {spec.name for spec in state.goal.services if spec.where.kind == "group"}
    kept = frozenset(key for key in state.services.abandoned if service_of(key[1]) not in groups)
    return state.with_services(abandoned=kept).with_groups(goes_on=False)


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
