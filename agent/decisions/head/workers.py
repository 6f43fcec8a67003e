"""The workers as the head knows them: which count as there, and what is known of the others.

At thousands of workers a report must not cost a look at all of them: what decisions need is
counted as reports come, and only sentences, which are told rarely, look at everybody.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from agent.base.value import dataclass
from agent.decisions.shared import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.decisions.items import ItemWord
    from agent.node.facts import Facts

T = TypeVar("T")

_MOST_NAMED = 8
"""So many missing workers are named one by one; the rest are counted."""


@dataclass(frozen=True)
class Worker:
    """A worker's agent, as it last reported."""

    key: str
    """Its agent's own id: a restarted one has another, whatever its address."""
    name: str
    ip: str = ""
    rank: int | None = None
    phase: str = ""
    detail: str = ""
    heard: float = 0.0
    joined: bool = False
    preparing: bool = False
    refused: str = ""
    gone: bool = False
    error: str = ""
    items: tuple[ItemWord, ...] = ()
    """What it runs by the head's orders."""

    @property
    def place(self) -> str:
        """Name it by rank and name, as far as it has a rank."""
        return self.name if self.rank is None else f"rank {self.rank} ({self.name})"


@dataclass(frozen=True)
class RayNode:
    """A node as Ray's GCS knows it."""

    node_id: str
    ip: str
    is_head: bool = False
    gpus: float = 0.0
    alive: bool = True


@dataclass(frozen=True)
class Fleet:
    """All workers: their agents' words and GCS's, and what follows from both, kept counted."""

    workers: Mapping[str, Worker] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """What each agent said of its machine."""
    in_ray: frozenset[str] = frozenset()
    """Addresses of the nodes that are alive in GCS, the head's apart."""
    by_ip: Mapping[str, str] = field(default_factory=dict)
    """From an address to the agent that reported it last."""
    alive: Mapping[str, str] = field(default_factory=dict)
    """The workers that count, address to name.

    Alive in GCS, once per address; one whose agent ever reported must also have said that it
    joined. A node joined by hand has no agent, and counts by GCS's word alone.
    """
    ghosts: frozenset[str] = frozenset()
    """Addresses that an agent has left and that GCS still lists: they count for nobody.

    GCS takes a while to miss a node; what it says of this one is older than the agent's leaving.
    """
    preparing: int = 0
    """How many are busy with a prepare step."""
    prepared_heard: float | None = None
    """When one that prepares was heard of last."""

    # --- what happens ---------------------------------------------------------------------------

    def with_report(self, worker: Worker) -> Fleet:
        """Take in a worker's report."""
        before = self.workers.get(worker.key)
        workers = _with(self.workers, worker.key, worker)
        preparing = self.preparing + worker.preparing - (before is not None and before.preparing)
        heard = worker.heard if worker.preparing else self.prepared_heard
        new = replace(self, workers=workers, preparing=preparing, prepared_heard=heard)
        if before is not None and _counts_alike(before, worker):
            return new
        if before is not None and before.ip != worker.ip:
            new = new.left_by(before)
        if worker.ip:
            new = replace(new, by_ip=_with(new.by_ip, worker.ip, worker.key))
        return new.recounted(worker.ip)

    def with_facts(self, key: str, facts: Facts) -> Fleet:
        """Take in what an agent said of its machine."""
        return replace(self, facts=_with(self.facts, key, facts))

    def with_nodes(self, nodes: Iterable[RayNode]) -> Fleet:
        """Take in GCS's list."""
        there = [node.ip for node in nodes if node.alive and not node.is_head]
        named = ((ip, self._name_at(ip)) for ip in dict.fromkeys(there))
        alive = {ip: name for ip, name in named if name is not None}
        listed_now = frozenset(there)
        return replace(self, in_ray=listed_now, alive=alive, ghosts=self.ghosts & listed_now)

    def without(self, key: str) -> Fleet:
        """Forget an agent that is no more."""
        worker = self.workers.get(key)
        if worker is None:
            return self
        workers = {k: w for k, w in self.workers.items() if k != key}
        facts = {k: f for k, f in self.facts.items() if k != key}
        preparing = self.preparing - worker.preparing
        return replace(self, workers=workers, facts=facts, preparing=preparing).left_by(worker)

    def left_by(self, worker: Worker) -> Fleet:
        """Take an agent away from its address."""
        if self.by_ip.get(worker.ip) != worker.key:
            return self
        by_ip = {ip: key for ip, key in self.by_ip.items() if ip != worker.ip}
        ghosts = self.ghosts | ({worker.ip} & self.in_ray)
        return replace(self, by_ip=by_ip, ghosts=ghosts).recounted(worker.ip)

    def recounted(self, ip: str) -> Fleet:
        """Count anew who is at an address."""
        name = self._name_at(ip) if ip in self.in_ray else None
        if self.alive.get(ip) == name:
            return self
        if name is not None:
            return replace(self, alive=_with(self.alive, ip, name))
        return replace(self, alive={i: n for i, n in self.alive.items() if i != ip})

    def _name_at(self, ip: str) -> str | None:
        """Return the name under which a node of GCS's counts; None where it does not."""
        worker = self.workers.get(self.by_ip.get(ip, ""))
        if worker is None:
            return None if ip in self.ghosts else ip
        return worker.name if worker.joined and not worker.gone else None

    # --- what is known --------------------------------------------------------------------------

    def never_heard(self, required: int) -> int:
        """Return how many needed workers neither reported nor joined by hand."""
        return max(0, required - len(self.alive) - len(self._absent()))

    def describe_missing(self, required: int, now: float | None) -> str:
        """Say how many workers are there, which are not, and the last that was heard of each."""
        absent = self._absent()
        parts = [f"{len(self.alive)} of {required} joined"]
        ranks = {w.rank for w in self.workers.values() if w.rank is not None}
        never = [str(rank) for rank in range(1, required + 1) if rank not in ranks]
        unheard = self.never_heard(required)
        if ranks and never:
            parts.append(f"never heard of rank {listed(_shortened(never))}")
        elif unheard:
            parts.append(f"{unheard} never heard of")
        parts += _shortened([_last_word(worker, now) for worker in absent])
        return "; ".join(parts)

    def _absent(self) -> list[Worker]:
        """Return the workers whose agents spoke but which do not count, in their order."""
        found = [w for w in self.workers.values() if w.ip not in self.alive]
        return sorted(found, key=lambda w: (w.rank is None, w.rank or 0, w.name))


def _with(old: Mapping[str, T], key: str, value: T) -> dict[str, T]:
    new = dict(old)
    new[key] = value
    return new


def _counts_alike(one: Worker, other: Worker) -> bool:
    return (one.ip, one.name, one.joined, one.gone) == (
        other.ip,
        other.name,
        other.joined,
        other.gone,
    )


def _shortened(texts: list[str]) -> list[str]:
    more = len(texts) - _MOST_NAMED
    return texts if more <= 0 else [*texts[:_MOST_NAMED], f"{more} more"]


def _last_word(worker: Worker, now: float | None) -> str:
    if worker.refused:
        return f"{worker.place} was refused: {worker.refused}"
    age = "" if now is None else f" {max(0, round(now - worker.heard))} s ago"
    detail = f", {worker.detail}" if worker.detail else ""
    return f"{worker.place} last said{age}: {worker.phase}{detail}"
