"""Groups of which nothing serves while the job runs: what the job then waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.decisions.head.members import (
    is_lost,
    nodes_of,
    services_of,
    shortage_sentence,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.head_state import HeadState

_MOST_NODES = 16


class Starved(Value):
    """A service of a group of which nothing serves."""

    group: str
    service: str
    sentence: str  # since when, why, and what waits
    suspected_nodes: tuple[str, ...]
    may_recover: bool  # its members are started again, or their nodes may be back

    @property
    def cause_key(self) -> str:
        """Return what is equal for the same cause: it has no node and no time."""
        return f"nothing of {self.service} serves"

    @property
    def evidence(self) -> tuple[str, ...]:
        """Return further sentences: none, since the job only waits."""
        return ()


def starved_services(state: HeadState, now: float) -> Iterator[Starved]:
    """Yield the services of groups of which nothing serves."""
    for group in state.goal.groups:
        for spec in services_of(state, group):
            short = state.durable.shortage_of(spec.name)
            if short is None or short.nothing_since is None:
                continue
            nodes = (worker.name for _, worker in sorted(nodes_of(state, group.ranks).items()))
            yield Starved(
                group.name,
                spec.name,
                shortage_sentence(state, group, spec),
                tuple(nodes)[:_MOST_NODES],
                may_recover=not is_lost(state, group, spec, now),
            )


def last_served_again(state: HeadState) -> float | None:
    """Return when a group of which nothing served has served again last; None if none has."""
    moments = (short.served_at for short in state.durable.shortages)
    return max((at for at in moments if at is not None), default=None)
