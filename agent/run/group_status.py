"""The status of groups: their members' states, weights, requests and errors, and their part."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.decisions.head import members
from agent.job.services import front_port
from agent.port.status_model import GroupServiceStatus, GroupStatus, MemberStatus, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.head.head_state import HeadState
    from agent.job.groups import NodeGroup
    from agent.job.services import ServiceSpec
    from agent.port.protocol import WorkerStats
    from agent.run.front_link import FrontLink

    StatsOf = Callable[[str], WorkerStats | None]
    """Returns what a node, by its agent's id, reports of itself."""


def groups_status(
    state: HeadState,
    fronts: Mapping[str, FrontLink],
    stats_of: StatsOf,
    reader: Reader,
    now: float,
) -> tuple[GroupStatus, ...]:
    """Return the status of each group; `fronts` are those of services, by name."""
    return tuple(
        GroupStatus(
            name=group.name,
            nodes=group.nodes,
            joined=sum(
                not (worker.has_left or worker.silent)
                for worker in members.nodes_of(state, group.ranks).values()
            ),
            ray=group.ray,
            lost=group.lost,
            services=tuple(
                _service_status(state, group, spec, fronts.get(spec.name), stats_of, reader, now)
                for spec in members.services_of(state, group)
            ),
        )
        for group in state.goal.groups
    )


def _service_status(  # noqa: PLR0913 - what it is read from
    state: HeadState,
    group: NodeGroup,
    spec: ServiceSpec,
    front: FrontLink | None,
    stats_of: StatsOf,
    reader: Reader,
    now: float,
) -> GroupServiceStatus:
    own = members.members_of(state, spec)
    missing = members.missing_ranks(state, spec)
    seen = None if front is None else front.status
    by_port = {} if seen is None else {one.port: one for one in seen.members}
    rates = {} if front is None else front.rates.by_port()

    rows = []
    for member in own:
        port = front_port(spec, member.rank, member.index)
        outages = state.durable.outages_of(member.key[1], member.node)
        stats = stats_of(member.key[0])
        traffic = by_port.get(port)
        rows.append(
            MemberStatus(
                name=member.key[1],
                node=member.node,
                state=member.state.value,
                detail=reader.evidence_of(member),
                restarts=member.generation - 1,
                version="" if member.seen is None else member.seen.version,
                requests=0 if traffic is None else traffic.requests,
                errors=0 if traffic is None else traffic.errors,
                requests_per_second=round(rates.get(port, 0.0), 1),
                outages=len(outages),
                outage_seconds=round(sum(outage.seconds(now) for outage in outages), 1),
                latency=None if stats is None else stats.latencies.get(member.key[1]),
            )
        )

    short = state.durable.shortage_of(spec.name)
    is_all = reader is not Reader.ANYONE
    return GroupServiceStatus(
        name=spec.name,
        serving=sum(member.serves for member in own),
        needed=members.needed(group, own, missing),
        states=Counter(member.state.value for member in own),
        names=tuple(dict.fromkeys(row.name for row in rows)),
        members=tuple(rows),
        short=members.shortage_sentence(state, group, spec, in_full=is_all),
        short_since=None if short is None else _rounded(short.since),
        nothing_since=None if short is None else _rounded(short.nothing_since),
        may_recover=not members.is_lost(state, group, spec, now),
        version=state.groups.versions.get(spec.name, ""),
        held=0 if seen is None else seen.held,
        requests_per_second=None if front is None else round(sum(rates.values()), 1),
        errors=sum(one.errors for one in by_port.values()),
    )


def _rounded(moment: float | None) -> float | None:
    return None if moment is None else round(moment, 1)
