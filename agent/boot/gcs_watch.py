"""The head's eye on GCS while Ray boots: open, and perhaps closed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import state as h
from agent.runtime.probes import port_answers
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable


async def watch_gcs(
    host: str,
    port: int,
    step: float,
    tell: Callable[[h.HeadEvent], None],
    is_awaited: Callable[[], bool],
) -> None:
    """Tell when GCS takes connections, and of one that does no more while Ray is awaited.

    The bridge, busy importing Ray, would tell the first later; and of a GCS that dies while it
    boots `ray start` itself tells only after a minute.
    """

    async def opened() -> bool | NotYet:
        evidence = await port_answers(host, port)
        return NotYet(evidence) if evidence else True

    async def closed() -> str | NotYet:
        if not is_awaited():
            return ""
        return await port_answers(host, port) or NotYet()

    def tell_why(evidence: str) -> None:
        tell(h.RaySilent(evidence))

    await until(opened, None, longest=step, on_evidence=tell_why)
    tell(h.GcsOpen())
    evidence = await until(closed, None, step=1.0)
    if evidence:
        tell_why(f"GCS answered once: {evidence}")
