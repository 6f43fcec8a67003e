"""The addresses of the nodes that run services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head.members import addresses_of, missing_ranks
from agent.decisions.shared import HERE
from agent.job.addresses import name_in_placeholder, with_addresses
from agent.job.services import service_of
from agent.settings.rules import JUDGE

if TYPE_CHECKING:
    from agent.decisions.head.head_state import HeadState
    from agent.job.services import Placeholders, PrepareStep, ServiceSpec


def addresses_by_rank(state: HeadState) -> dict[str, str]:
    """Return the known addresses of services on a rank, by the name in placeholders.

    That of the head is ''. Of several workers with one rank the last that reported has it.
    """
    places = (spec.where for spec in state.goal.services)
    ranks = {place.rank for place in places if place.kind == "rank"}
    if not ranks:
        return {}
    workers = [
        worker
        for worker in state.fleet.workers.values()
        if worker.effective_rank in ranks and worker.ip and not worker.refused
    ]
    workers.sort(key=lambda worker: (not worker.has_left, worker.last_report_at))
    ip_of = {worker.effective_rank: worker.ip for worker in workers}
    addresses = {}
    for spec in state.goal.services:
        rank = spec.where.rank
        if rank is None or spec.where.kind != "rank":
            continue
        if rank == state.goal.rank:
            addresses[name_in_placeholder(spec)] = ""
        elif rank in ip_of:
            addresses[name_in_placeholder(spec)] = ip_of[rank]
    return addresses


def members_by_service(state: HeadState, head_ip: str) -> dict[str, tuple[str, ...]]:
    """Return where the members of groups are reached, of services that something names so.

    All of a service's nodes must have reported: what gets the list may read it once only.
    """
    known = {}
    for spec in state.goal.services:
        is_complete = state.groups.goes_on or not missing_ranks(state, spec)
        if spec.name in state.goal.listed and is_complete:
            known[spec.name] = addresses_of(state, spec, head_ip)
    return known


def known_place(place: Placeholders, state: HeadState) -> Placeholders:
    """Return the head's placeholders with the addresses of services that are known now."""
    members = members_by_service(state, place.head_ip)
    known = with_addresses(place, state.goal.services, addresses_by_rank(state))
    return replace(known, members=members)


def judges_now(urls: str, place: Placeholders, state: HeadState) -> str:
    """Fill in the URLs of the judges as they are now; '' once all of them are given up."""
    return "" if _are_judges_given_up(state) else known_place(place, state).fill(urls)


def _are_judges_given_up(state: HeadState) -> bool:
    """Return whether no judge runs or may run again, on any node of their group."""
    services = state.services
    given_up = [node for node, name in services.abandoned if service_of(name) == JUDGE]
    if not given_up or any(service_of(name) == JUDGE for _, name in services.by_key):
        return False
    workers = (state.fleet.workers.get(node) for node in given_up)
    ranks = {worker.effective_rank for worker in workers if worker is not None}
    where = state.goal.service(JUDGE).where
    return where.kind != "group" or ranks.issuperset(where.ranks)


def unknown_nodes(state: HeadState, row: PrepareStep | ServiceSpec) -> tuple[str, ...]:
    """Return what a service or step waits for: addresses of nodes that have not reported."""
    waits_for: list[str] = []
    if not state.goal.addressed.isdisjoint(row.addressed):
        known = addresses_by_rank(state)
        needed = (name for name in row.addressed if name in state.goal.addressed)
        waits_for += [f"the address of {name}'s node" for name in needed if name not in known]
    if row.listed_members:
        members = members_by_service(state, "")
        unknown = (name for name in row.listed_members if name not in members)
        waits_for += [f"the nodes of {name}" for name in unknown]
    return tuple(waits_for)


def service_address(state: HeadState, name: str) -> str | None:
    """Return the address of the worker that runs a service; None for the head."""
    worker = state.fleet.workers.get(state.service_home(name) or HERE)
    return None if worker is None else worker.ip
