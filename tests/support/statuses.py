"""Statuses of agents, and changes in them."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.decisions.worker.worker_state import WorkerPhase
from agent.port.status_model import (
    FindingsStatus,
    HeadAddress,
    HeadStatus,
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
