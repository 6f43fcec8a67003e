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
        MachineStatus,
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
    yield status.name, NodeState.JOINED.value, _uses(status.figures), bool(status.slow)
    for node in status.nodes:
        yield node.name, node.state.value, _uses(node.figures), bool(node.slow)


def _uses(figures: MachineStatus | None) -> Values:
    return () if figures is None else figures.gpus.use


def _gpus(status: JudgedStatus) -> GpusStatus | None:
    """Return what the GPUs of all present nodes do: medians, and the node with the lowest use."""
    machines = [(status.name, status.figures)]
    machines += [
        (node.name, node.figures) for node in status.nodes if node.state is NodeState.JOINED
    ]
    present = [(name, one.gpus) for name, one in machines if one is not None and one.gpus.index]
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
