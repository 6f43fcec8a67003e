"""The services of a run as the head knows them: how each stands, and what is awaited, kept counted.

At thousands of workers, each with a service, a report must not cost a look at all of them.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.items import Item, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Key = tuple[str, str]
"""Names an item: the node on which it is (HERE, or a worker's agent by its id), and its name."""


@dataclass(frozen=True)
class Roster:
    """All services wherever they live, by node and name."""

    items: Mapping[Key, Item] = field(default_factory=dict)
    awaited: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By a service's name: the nodes on which it is to become ready, and until when."""
    first: Mapping[str, float] = field(default_factory=dict)
    """By a service's name: the earliest of these."""
    dead: Mapping[Key, Item] = field(default_factory=dict)
    """Those that ended and wait for a decision or for their next start."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """By a service's name: the last node that was to run it."""

    def get(self, key: Key) -> Item | None:
        """Return how one stands."""
        return self.items.get(key)

    def with_item(self, key: Key, item: Item, until: float) -> Roster:
        """Note how one stands; `until` is by when it must be ready."""
        node, name = key
        items = {**self.items}
        items[key] = item
        before = self.awaited.get(name, {})
        awaited, first = self.awaited, self.first
        if item.step is Step.PENDING:
            if before.get(node) != until:
                awaited = {**awaited, name: {**before, node: until}}
                first = _first(first, name, before, awaited[name], node)
        elif node in before:
            left = {at: then for at, then in before.items() if at != node}
            awaited = {**awaited, name: left}
            first = _first(first, name, before, left, node)
        dead = self.dead
        if item.step is Step.LOST:
            dead = {**dead, key: item}
        elif key in dead:
            dead = {at: one for at, one in dead.items() if at != key}
        homes = self.homes if self.homes.get(name) == node else {**self.homes, name: node}
        return Roster(items, awaited, first, dead, homes)

    def without(self, key: Key) -> Roster:
        """Forget one."""
        if key not in self.items:
            return self
        node, name = key
        before = self.awaited.get(name, {})
        left = {at: then for at, then in before.items() if at != node}
        return Roster(
            {at: item for at, item in self.items.items() if at != key},
            {**self.awaited, name: left},
            _first(self.first, name, before, left, node),
            {at: item for at, item in self.dead.items() if at != key},
            {what: at for what, at in self.homes.items() if (at, what) != key},
        )

    def pending(self) -> Iterator[tuple[str, Mapping[str, float], float]]:
        """Name each service that is awaited, with its nodes and the earliest deadline."""
        for name, nodes in self.awaited.items():
            if nodes:
                yield name, nodes, self.first[name]

    def late(self, now: float) -> Iterator[Key]:
        """Name those whose deadline has passed."""
        for name, then in self.first.items():
            if now >= then:
                yield from ((at, name) for at, t in self.awaited[name].items() if now >= t)


def _first(
    first: Mapping[str, float],
    name: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    changed: str,
) -> Mapping[str, float]:
    """Return the earliest deadlines anew, with a look at all only where the earliest went."""
    if not after:
        return {what: then for what, then in first.items() if what != name}
    was, new = before.get(changed), after.get(changed)
    if was is not None and was == first[name]:
        return {**first, name: min(after.values())}
    if new is not None:
        return {**first, name: min(first.get(name, new), new)}
    return first
