"""The workers as the head knows them: which count as there, and what is known of the others.

At thousands of workers a report must not cost a look at all of them: what decisions need is
counted as reports come, and only sentences, which are told rarely, look at everybody.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from agent.base.value import dataclass
from agent.base.words import listed
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.checks.finding import Finding
    from agent.decisions.items import ItemWord
    from agent.decisions.probing import Answer
    from agent.node.facts import Facts
    from agent.work.torchrun import PartOver

T = TypeVar("T")

SILENT_AFTER = 15.0
"""A worker's agent that lives reports more often than this; where no Ray runs, only that tells."""
_UNHEARD = f"no word of it for {SILENT_AFTER:g} s"
_MOST_NAMED = 8
"""So many missing workers are named one by one; the rest are counted."""


class NodeState(str, Enum):
    """How a node stands, in a word."""

    BOOTING = "booting"
    JOINED = "joined"
    SILENT = "silent"  # its agent does not answer; its Ray does, or is not known to be gone
    LOST = "lost"  # it was part of the cluster, and is no more
    LEFT = "left"  # it said goodbye


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
    answers: tuple[Answer, ...] = ()
    """How what it was to try went, told once."""
    given_rank: int | None = None
    """The one that the head gave it, where the platform has none."""
    alone: bool = False
    """True where it is there for a service only, joins no Ray, and does not count."""
    part: PartOver | None = None
    """How its share of a job that torchrun starts ended, once it has."""
    gpus: int = 0
    """Those that its share of such a job has."""
    memory: str = ""
    """What the kernel did there a moment before for want of memory, or ''."""
    silent: str = ""
    """Why it is not heard of any more, where that is known."""
    silent_since: float = 0.0
    """When that was noticed."""
    lost: bool = False
    """True where its Ray does not answer either, whatever GCS says still."""
    runs: int = 0
    """The attempt of which something may run there; 0 where nothing does."""

    @property
    def number(self) -> int | None:
        """Return its rank, whoever gave it."""
        return self.given_rank if self.rank is None else self.rank

    @property
    def away_since(self) -> float | None:
        """Return since when it is not heard of; None for one that is."""
        if self.silent:
            return self.silent_since
        return self.heard if self.gone else None

    def state(self, *, counts: bool) -> NodeState:
        """Return how its node stands; `counts` where it is one of those that count as there."""
        if self.gone:
            return NodeState.LEFT
        if self.joined and not counts:
            return NodeState.LOST
        if self.silent:
            return NodeState.SILENT
        return NodeState.JOINED if counts else NodeState.BOOTING

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
    cpus: float = 0.0
    memory: float = 0.0
    """In bytes, as far as Ray may use it."""
    port: int = 0
    """Its raylet's."""

    @property
    def size(self) -> NodeSize:
        """Return what it brings."""
        return NodeSize(int(self.gpus), int(self.cpus), int(self.memory) or None)


@dataclass(frozen=True)
class Fleet:
    """All workers: their agents' words and GCS's, and what follows from both, kept counted."""

    workers: Mapping[str, Worker] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """What each agent said of its machine."""
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    """What its checks found."""
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
    ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The nodes that GCS lists as alive at each address, by its own ids."""
    ports: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The ports of their raylets."""
    dead: frozenset[str] = frozenset()
    """Those that did not answer any more when last tried: a new Ray at their address has another.
    """
    preparing: int = 0
    """How many are busy with a prepare step."""
    prepared_heard: float | None = None
    """When one that prepares was heard of last."""
    by_report: bool = False
    """True where no Ray runs: a worker counts by its own agent's word, for as long as that comes.
    """
    look_at: float | None = None
    """When to look next for workers that have fallen silent, where only they tell."""

    # --- what happens ---------------------------------------------------------------------------

    def with_report(self, worker: Worker) -> Fleet:
        """Take in a worker's report."""
        before = self.workers.get(worker.key)
        workers = _with(self.workers, worker.key, worker)
        preparing = self.preparing + worker.preparing - (before is not None and before.preparing)
        heard = worker.heard if worker.preparing else self.prepared_heard
        new = replace(self, workers=workers, preparing=preparing, prepared_heard=heard)
        if self.by_report and self.look_at is None:
            new = replace(new, look_at=worker.heard + SILENT_AFTER)
        if before is not None and _counts_alike(before, worker):
            return new
        is_back = worker.joined if before is None else before.lost
        if is_back and self.dead:  # it was cut off, and its Ray with it
            new = new.listing(new.ids, new.dead - new.ids.get(worker.ip, frozenset()))
        if before is not None and before.ip != worker.ip:
            new = new.left_by(before)
        if worker.ip:
            new = replace(new, by_ip=_with(new.by_ip, worker.ip, worker.key))
        return new.recounted(worker.ip)

    def looked(self, now: float) -> Fleet:
        """Take those out of the count that have fallen silent; it is rarely time to look."""
        if self.look_at is None or now < self.look_at:
            return self
        speak = [w for w in self.workers.values() if not w.gone and not w.lost]
        silent = [w.key for w in speak if now >= w.heard + SILENT_AFTER]
        others = [w.heard for w in speak if now < w.heard + SILENT_AFTER]
        look_at = min(others) + SILENT_AFTER if others else None
        return replace(self.silenced(silent, now), look_at=look_at)

    def silenced(self, keys: Iterable[str], now: float) -> Fleet:
        """Count agents out until they speak again."""
        changed = {
            key: replace(self.workers[key], silent=_UNHEARD, silent_since=now, lost=True)
            for key in keys
        }
        new = replace(self, workers={**self.workers, **changed})
        for worker in changed.values():
            new = new.recounted(worker.ip)
        return new

    def fell_silent(self, key: str, evidence: str, now: float, *, is_lost: bool) -> Fleet:
        """Take in that an agent is not heard of any more; its next report takes that back."""
        worker = self.workers.get(key)
        if worker is None or worker.gone:
            return self
        since = worker.silent_since if worker.silent else now
        silent = replace(worker, silent=evidence, silent_since=since, lost=is_lost)
        new = replace(self, workers=_with(self.workers, key, silent))
        if is_lost and self.by_ip.get(worker.ip) == key:
            new = new.listing(new.ids, new.dead | new.ids.get(worker.ip, frozenset()))
        return new.recounted(worker.ip)

    def with_facts(self, key: str, facts: Facts, findings: tuple[Finding, ...] = ()) -> Fleet:
        """Take in what an agent said of its machine."""
        found = _with(self.findings, key, findings)
        return replace(self, facts=_with(self.facts, key, facts), findings=found)

    def with_nodes(self, nodes: Iterable[RayNode]) -> Fleet:
        """Take in GCS's list."""
        ids: dict[str, frozenset[str]] = {}
        ports: dict[str, frozenset[int]] = {}
        for node in nodes:
            if node.alive and not node.is_head:
                ids[node.ip] = ids.get(node.ip, frozenset()) | {node.node_id}
                ports[node.ip] = ports.get(node.ip, frozenset()) | {node.port}
        listed_now = frozenset[str]().union(*ids.values())
        new = self.listing(ids, self.dead & listed_now)
        named = ((ip, self._name_at(ip)) for ip in ids if ip in new.in_ray)
        alive = {ip: name for ip, name in named if name is not None}
        return replace(new, alive=alive, ghosts=self.ghosts & new.in_ray, ports=ports)

    def listing(self, ids: Mapping[str, frozenset[str]], dead: frozenset[str]) -> Fleet:
        """Take in which nodes GCS lists, and which of them are dead all the same."""
        in_ray = frozenset(ids) if not dead else frozenset(ip for ip in ids if ids[ip] - dead)
        return replace(self, ids=ids, dead=dead, in_ray=in_ray)

    def without(self, key: str) -> Fleet:
        """Forget an agent that is no more."""
        worker = self.workers.get(key)
        if worker is None:
            return self
        workers = {k: w for k, w in self.workers.items() if k != key}
        facts = {k: f for k, f in self.facts.items() if k != key}
        findings = {k: f for k, f in self.findings.items() if k != key}
        preparing = self.preparing - worker.preparing
        return replace(
            self, workers=workers, facts=facts, findings=findings, preparing=preparing
        ).left_by(worker)

    def without_memory(self) -> Fleet:
        """Forget what the kernel did so far for want of memory."""
        workers = {k: replace(w, memory="") if w.memory else w for k, w in self.workers.items()}
        return replace(self, workers=workers)

    def left_by(self, worker: Worker) -> Fleet:
        """Take an agent away from its address."""
        if self.by_ip.get(worker.ip) != worker.key:
            return self
        by_ip = {ip: key for ip, key in self.by_ip.items() if ip != worker.ip}
        ghosts = self.ghosts | ({worker.ip} & self.in_ray)
        return replace(self, by_ip=by_ip, ghosts=ghosts).recounted(worker.ip)

    def recounted(self, ip: str) -> Fleet:
        """Count anew who is at an address."""
        name = self._name_at(ip) if self.by_report or ip in self.in_ray else None
        if self.alive.get(ip) == name:
            return self
        if name is not None:
            return replace(self, alive=_with(self.alive, ip, name))
        return replace(self, alive={i: n for i, n in self.alive.items() if i != ip})

    def _name_at(self, ip: str) -> str | None:
        """Return the name under which a node counts; None where it does not."""
        worker = self.workers.get(self.by_ip.get(ip, ""))
        if worker is None:  # a node of Ray's that was joined by hand, or one that its agent left
            return None if self.by_report or ip in self.ghosts else ip
        counts = worker.joined and not worker.gone and not worker.lost
        return worker.name if counts else None

    def counts(self, worker: Worker) -> bool:
        """Say whether an agent is the one that counts at its address."""
        return worker.ip in self.alive and self.by_ip.get(worker.ip) == worker.key

    # --- what is known --------------------------------------------------------------------------

    def never_heard(self, required: int) -> int:
        """Return how many needed workers neither reported nor joined by hand."""
        return max(0, required - len(self.alive) - len(self._absent()))

    def describe_missing(self, required: int, now: float | None) -> str:
        """Say how many workers are there, which are not, and the last that was heard of each."""
        absent = self._absent()
        parts = [f"{len(self.alive)} of {required} joined"]
        known = self.workers.values()
        ranks = {w.rank for w in known if w.rank is not None}
        last = required + sum(w.alone for w in known)
        never = [str(rank) for rank in range(1, last + 1) if rank not in ranks]
        unheard = self.never_heard(required)
        if ranks and never:
            parts.append(f"never heard of rank {listed(_shortened(never))}")
        elif unheard:
            parts.append(f"{unheard} never heard of")
        parts += _shortened([_last_word(worker, now) for worker in absent])
        return "; ".join(parts)

    def _absent(self) -> list[Worker]:
        """Return the workers whose agents spoke but which do not count, in their order."""
        found = [w for w in self.workers.values() if w.ip not in self.alive and not w.alone]
        return sorted(found, key=lambda w: (w.rank is None, w.rank or 0, w.name))


def _with(old: Mapping[str, T], key: str, value: T) -> dict[str, T]:
    new = dict(old)
    new[key] = value
    return new


def _counts_alike(one: Worker, other: Worker) -> bool:
    return (one.ip, one.name, one.joined, one.gone, one.lost) == (
        other.ip,
        other.name,
        other.joined,
        other.gone,
        other.lost,
    )


def _shortened(texts: list[str]) -> list[str]:
    more = len(texts) - _MOST_NAMED
    return texts if more <= 0 else [*texts[:_MOST_NAMED], f"{more} more"]


def _last_word(worker: Worker, now: float | None) -> str:
    if worker.refused:
        return f"{worker.place} was refused: {worker.refused}"
    age = "" if now is None else f" {max(0, round(now - worker.heard))} s ago"
    detail = f", {worker.detail}" if worker.detail else ""
    silent = f", and is silent since: {worker.silent}" if worker.silent else ""
    return f"{worker.place} last said{age}: {worker.phase}{detail}{silent}"
