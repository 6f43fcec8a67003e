"""Statuses of agents, and changes in them."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.decisions.worker.worker_state import WorkerPhase
from agent.port.status_model import (
    FindingsStatus,
    GroupServiceStatus,
    GroupStatus,
    HeadAddress,
    HeadStatus,
    MemberStatus,
    WaitStatus,
    WorkerStatus,
)
from tools.page.runs import status, without_private

S = TypeVar("S", bound=Struct)
NOTHING_FOUND = FindingsStatus((), (), (), ())
A_WORKER = WorkerStatus(
    platform="plain",
    name="pod1",
    rank=1,
    phase=WorkerPhase.JOINING,
    seconds=1.0,
    waits=(),
    head=HeadAddress("10.0.0.1", 8266),
    head_phase="booting",
    services=(),
    last_error="",
    verdict=None,
)
A_HEAD: HeadStatus = without_private(status(1))


def a_wait(what: str = "workers", evidence: str = "", left: float = 90.0) -> WaitStatus:
    """Return a wait."""
    return WaitStatus(what, evidence, left, following=False)


def altered(whole: S, field: str, number: int = 0, **changes: Any) -> S:  # noqa: ANN401 - any field
    """Return a status with changes in the object of a field, or in one of its items."""
    part = getattr(whole, field)
    if isinstance(part, tuple):
        items = [*part]
        items[number] = replace(items[number], **changes)
        return replace(whole, **{field: tuple(items)})
    return replace(whole, **{field: replace(part, **changes)})


def a_member(number: int, state: str = "serving", detail: str = "", **more: Any) -> MemberStatus:  # noqa: ANN401 - any field
    """Return a member of a service of two members a node."""
    name = f"engine.{number % 2}"
    fields: dict[str, Any] = {"restarts": 0, **more}
    return MemberStatus(name, f"pod{4 + number // 2}", state, detail, **fields)


def a_group(*members: MemberStatus, **more: Any) -> GroupStatus:  # noqa: ANN401 - any field of its service
    """Return a group with one service of these members, of which two are needed."""
    states = Counter(member.state for member in members)
    fields: dict[str, Any] = {"requests_per_second": 12.5, "version": "7", **more}
    service = GroupServiceStatus(
        "engine",
        states["serving"],
        2,
        states=states,
        names=("engine.0", "engine.1"),
        members=members,
        **fields,
    )
    nodes = (len(members) + 1) // 2
    return GroupStatus("rollout", nodes, nodes, ray=False, lost="wait", services=(service,))
