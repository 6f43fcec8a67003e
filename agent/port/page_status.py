"""The status as the page reads it every two seconds: small, whatever the number of nodes.

A node is one short row: those that differ are in the judgment's exceptions, with their figures. Of
a group's members the numbers by state are sent, and the first of those that do not serve.
"""

from __future__ import annotations

from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head.fleet import NodeState
from agent.decisions.head.member_states import MemberState
from agent.job.services import service_of
from agent.port.status_model import GpusStatus, PageStatus, extended

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.port.status_model import (
        Cell,
        GpuColumn,
        GpuColumns,
        GroupServiceStatus,
        GroupStatus,
        JudgedStatus,
        Values,
    )

_MOST_MEMBERS = 8
_MOST_SHORTAGES = 20


def page_status(status: JudgedStatus) -> PageStatus:
    """Return a head's status for the page."""
    page = extended(PageStatus, status, cells=tuple(_cells(status)), gpus=_gpus(status))
    services = {service.name for group in status.groups for service in group.services}
    return replace(
        page,
        groups=tuple(map(_group, status.groups)),
        shortages=status.shortages[-_MOST_SHORTAGES:],
        outages=tuple(
            outage for outage in status.outages if service_of(outage.service) not in services
        ),
    )


def _group(group: GroupStatus) -> GroupStatus:
    return replace(group, services=tuple(map(_group_service, group.services)))


def _group_service(service: GroupServiceStatus) -> GroupServiceStatus:
    away = (member for member in service.members if member.state != MemberState.SERVING.value)
    return replace(service, members=tuple(islice(away, _MOST_MEMBERS)))


def _cells(status: JudgedStatus) -> Iterator[Cell]:
    """Yield a row for each node, the head first."""
    for node, state in status.all_nodes():
        uses: Values = () if node.figures is None else node.figures.gpus.use
        yield node.name, state.value, uses, bool(node.slow)


def _gpus(status: JudgedStatus) -> GpusStatus | None:
    """Return what the GPUs of all present nodes do: medians, and the node with the lowest use."""
    present = [
        (node.name, node.figures.gpus)
        for node, state in status.all_nodes()
        if state is NodeState.JOINED and node.figures is not None and node.figures.gpus.index
    ]
    if not present:
        return None
    every = [gpus for _, gpus in present]
    uses = [(name, gpus.known("use")) for name, gpus in present]
    means = {name: sum(known) / len(known) for name, known in uses if known}
    lowest = min(means, key=means.__getitem__, default=None)
    return GpusStatus(
        use=_median(every, "use"),
        lowest=lowest,
        lowest_use=None if lowest is None else round(means[lowest], 1),
        power=_median(every, "power"),
        memory_used=_median(every, "memory_used"),
        memory_total=_median(every, "memory_total"),
    )


def _median(machines: Iterable[GpuColumns], column: GpuColumn) -> float | None:
    values = [value for gpus in machines for value in gpus.known(column)]
    return median(values) if values else None
