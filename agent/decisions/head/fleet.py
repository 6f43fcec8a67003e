"""All workers of the head: which of them count as present, and why others do not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from agent.base import times
from agent.base.text import listed
from agent.base.value import Value
from agent.checks.finding import Finding
from agent.decisions.values import Answer, ItemReport
from agent.node.facts import Facts
from agent.work.recipes.recipe import NodeSize
from agent.work.torchrun import ShareOver

if TYPE_CHECKING:
    from collections.abc import Iterable


_NO_REPORT = f"no report for {times.SILENT_WITHOUT_RAY:g} s"
_MOST_NAMED = 8  # how many missing workers are named; the rest are counted


class NodeState(str, Enum):
    """The state of a worker's node, as status and metrics show it."""

    BOOTING = "booting"
    JOINED = "joined"
    SILENT = "silent"  # its agent does not answer; its Ray may
    LOST = "lost"  # it was part of the cluster and does not count any more
    LEFT = "left"  # its agent reported that it leaves


_RECORDED_AS = {
    "last_report_at": "heard",
    "has_left": "gone",
    "running_attempt": "runs",
    "share": "part",
    "service_only": "alone",
}
"""Names in recorded events of fields that are named differently in the code."""


class Worker(Value, rename=_RECORDED_AS):
    """A worker's agent, from its last report."""

    key: str  # the agent's id: a restarted agent has a new one at the same address
    name: str
    ip: str = ""
    rank: int | None = None
    phase: str = ""
    detail: str = ""
    last_report_at: float = 0.0
    joined: bool = False
    preparing: bool = False
    refused: str = ""
    has_left: bool = False
    error: str = ""
    items: tuple[ItemReport, ...] = ()  # the services and steps that it runs by order
    answers: tuple[Answer, ...] = ()  # the results of probes since the last report
    given_rank: int | None = None  # the rank that the head assigned, if the platform has none
    service_only: bool = False  # it only runs a service: it does not join Ray and does not count
    share: ShareOver | None = None  # the end of its share of a torchrun job, once it has ended
    gpus: int = 0  # the GPUs of its node
    memory: str = ""  # what the kernel's OOM killer did there last, or ''
    silent: str = ""  # why it stopped reporting; '' while it reports
    silent_since: float = 0.0  # when it was found to be silent
    lost: bool = False  # true if its Ray does not answer either, even if GCS still lists it
    running_attempt: int = 0  # the attempt of which processes may run there; 0 for none
    notice: float | None = None  # seconds until its platform takes it away; None if not announced

    @property
    def effective_rank(self) -> int | None:
        """Return the platform's rank, or else the one that the head assigned."""
        return self.given_rank if self.rank is None else self.rank

    def state(self, *, counts: bool) -> NodeState:
        """Return the state of its node; `counts` if it counts as present."""
        if self.has_left:
            return NodeState.LEFT
        if self.joined and not counts:
            return NodeState.LOST
        if self.silent:
            return NodeState.SILENT
        return NodeState.JOINED if counts else NodeState.BOOTING

    @property
    def label(self) -> str:
        """Return its rank and name for messages."""
        return self.name if self.rank is None else f"rank {self.rank} ({self.name})"


class RayNode(Value):
    """A node in GCS's list."""

    node_id: str
    ip: str
    is_head: bool = False
    gpus: float = 0.0
    alive: bool = True
    cpus: float = 0.0
    memory: float = 0.0  # bytes that Ray may use
    port: int = 0  # the raylet's port

    @property
    def size(self) -> NodeSize:
        """Return its GPUs, CPUs and memory."""
        return NodeSize(int(self.gpus), int(self.cpus), int(self.memory) or None)


class Fleet(Value):
    """All workers by agent reports and by GCS, with the counts that follow from both."""

    workers: Mapping[str, Worker] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)  # of each machine, by agent id
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)  # of its checks
    in_ray: frozenset[str] = frozenset()  # addresses of nodes that GCS lists, without the head
    agent_at: Mapping[str, str] = field(default_factory=dict)  # by address: who reported last
    alive: Mapping[str, str] = field(default_factory=dict)
    """The workers that count as present, address to name.

    GCS must list them, and the agent, except on nodes joined by hand, must report that it joined.
    """
    left_ips: frozenset[str] = frozenset()
    """Addresses that an agent has left: they do not count, though GCS lists them a while longer."""
    node_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by address, in GCS
    raylet_ports: Mapping[str, frozenset[int]] = field(default_factory=dict)  # by address
    dead_node_ids: frozenset[str] = frozenset()  # of silent nodes: a new Ray there has a new id
    by_report: bool = False  # no Ray runs: a worker counts while it reports that it joined
    silence_check_at: float | None = None  # when to look for silent ones, where no Ray runs
    last_preparing_at: float = -math.inf  # when a worker last reported that it prepares

    def with_report(self, worker: Worker) -> Fleet:
        """Apply a worker's report."""
        before = self.workers.get(worker.key)
        new = replace(self, workers={**self.workers, worker.key: worker})
        if worker.preparing:
            new = replace(new, last_preparing_at=worker.last_report_at)
        if self.by_report and self.silence_check_at is None:
            new = replace(new, silence_check_at=worker.last_report_at + times.SILENT_WITHOUT_RAY)
        if before is not None and _membership(before) == _membership(worker):
            return new
        is_back = worker.joined if before is None else before.lost
        if is_back and self.dead_node_ids:  # it was cut off, and its Ray with it
            listed_here = new.node_ids.get(worker.ip, frozenset())
            new = new.with_listed_nodes(new.node_ids, new.dead_node_ids - listed_here)
        if before is not None and before.ip != worker.ip:
            new = new.release_address(before)
        if worker.ip:
            new = replace(new, agent_at={**new.agent_at, worker.ip: worker.key})
        return new.recount(worker.ip)

    def expire_silent(self, now: float) -> Fleet:
        """Mark the workers as lost that are silent for too long where no Ray runs."""
        if self.silence_check_at is None or now < self.silence_check_at:
            return self
        reporting = [w for w in self.workers.values() if not w.has_left and not w.lost]
        until = {w.key: w.last_report_at + times.SILENT_WITHOUT_RAY for w in reporting}
        silent = [key for key, end in until.items() if now >= end]
        next_end = min((end for end in until.values() if now < end), default=None)
        return replace(self.mark_lost(silent, now), silence_check_at=next_end)

    def mark_lost(self, keys: Iterable[str], now: float) -> Fleet:
        """Count these agents as lost until they report again."""
        changed = {
            key: replace(self.workers[key], silent=_NO_REPORT, silent_since=now, lost=True)
            for key in keys
        }
        new = replace(self, workers={**self.workers, **changed})
        for worker in changed.values():
            new = new.recount(worker.ip)
        return new

    def mark_silent(self, key: str, evidence: str, now: float, *, is_lost: bool) -> Fleet:
        """Mark an agent as silent until its next report."""
        worker = self.workers.get(key)
        if worker is None or worker.has_left:
            return self
        since = worker.silent_since if worker.silent else now
        silent = replace(worker, silent=evidence, silent_since=since, lost=is_lost)
        new = replace(self, workers={**self.workers, key: silent})
        if is_lost and self.agent_at.get(worker.ip) == key:
            listed_here = new.node_ids.get(worker.ip, frozenset())
            new = new.with_listed_nodes(new.node_ids, new.dead_node_ids | listed_here)
        return new.recount(worker.ip)

    def with_ray_nodes(self, nodes: Iterable[RayNode]) -> Fleet:
        """Apply GCS's list of nodes."""
        ids: dict[str, frozenset[str]] = {}
        ports: dict[str, frozenset[int]] = {}
        for node in nodes:
            if node.alive and not node.is_head:
                ids[node.ip] = ids.get(node.ip, frozenset()) | {node.node_id}
                ports[node.ip] = ports.get(node.ip, frozenset()) | {node.port}
        listed_now = frozenset[str]().union(*ids.values())
        new = self.with_listed_nodes(ids, self.dead_node_ids & listed_now)
        named = ((ip, self._name_at(ip)) for ip in ids if ip in new.in_ray)
        there = {ip: name for ip, name in named if name is not None}
        alive = self.alive if there == self.alive else there
        return replace(new, alive=alive, left_ips=self.left_ips & new.in_ray, raylet_ports=ports)

    def with_listed_nodes(self, ids: Mapping[str, frozenset[str]], dead: frozenset[str]) -> Fleet:
        """Set which nodes GCS lists, and which of these are dead."""
        in_ray = frozenset(ids) if not dead else frozenset(ip for ip in ids if ids[ip] - dead)
        return replace(self, node_ids=ids, dead_node_ids=dead, in_ray=in_ray)

    def without_agent(self, key: str) -> Fleet:
        """Remove an agent that ended."""
        worker = self.workers.get(key)
        if worker is None:
            return self
        workers = {k: w for k, w in self.workers.items() if k != key}
        facts = {k: f for k, f in self.facts.items() if k != key}
        findings = {k: f for k, f in self.findings.items() if k != key}
        new = replace(self, workers=workers, facts=facts, findings=findings)
        return new.release_address(worker)

    def release_address(self, worker: Worker) -> Fleet:
        """Remove an agent from its address."""
        if self.agent_at.get(worker.ip) != worker.key:
            return self
        by_ip = {ip: key for ip, key in self.agent_at.items() if ip != worker.ip}
        ghosts = self.left_ips | ({worker.ip} & self.in_ray)
        return replace(self, agent_at=by_ip, left_ips=ghosts).recount(worker.ip)

    def recount(self, ip: str) -> Fleet:
        """Recompute whether the node at an address counts."""
        name = self._name_at(ip) if self.by_report or ip in self.in_ray else None
        if self.alive.get(ip) == name:
            return self
        if name is not None:
            return replace(self, alive={**self.alive, ip: name})
        return replace(self, alive={i: n for i, n in self.alive.items() if i != ip})

    def _name_at(self, ip: str) -> str | None:
        """Return the name under which the node at an address counts; None if it does not."""
        worker = self.workers.get(self.agent_at.get(ip, ""))
        if worker is None:  # joined by hand, or its agent left
            return None if self.by_report or ip in self.left_ips else ip
        counts = worker.joined and not worker.has_left and not worker.lost
        return worker.name if counts else None

    def counts(self, worker: Worker) -> bool:
        """Return whether an agent is the one that counts at its address."""
        return worker.ip in self.alive and self.agent_at.get(worker.ip) == worker.key

    def present(self) -> list[Worker]:
        """Return the agents that count, by rank; those without follow by their first report."""
        found = [worker for worker in self.workers.values() if self.counts(worker)]
        return sorted(found, key=lambda one: (one.effective_rank is None, one.effective_rank or 0))

    def never_reported_count(self, required: int) -> int:
        """Return how many required workers neither reported nor joined by hand."""
        return max(0, required - len(self.alive) - len(self._absent()))

    def describe_missing(self, required: int, now: float | None) -> str:
        """Describe how many workers joined, which did not, and the last report of each."""
        absent = self._absent()
        parts = [f"{len(self.alive)} of {required} joined"]
        known = self.workers.values()
        ranks = {w.rank for w in known if w.rank is not None}
        last = required + sum(w.service_only for w in known)
        never = [str(rank) for rank in range(1, last + 1) if rank not in ranks]
        never_reported = self.never_reported_count(required)
        if ranks and never:
            parts.append(f"no report from rank {listed(_shorten(never))}")
        elif never_reported:
            parts.append(f"{never_reported} never reported")
        parts += _shorten([_last_report(worker, now) for worker in absent])
        return "; ".join(parts)

    def _absent(self) -> list[Worker]:
        """Return the workers that reported but do not count, by rank and name."""
        found = [w for w in self.workers.values() if w.ip not in self.alive and not w.service_only]
        return sorted(found, key=lambda w: (w.rank is None, w.rank or 0, w.name))


_membership = attrgetter("ip", "name", "joined", "has_left", "lost")


def _shorten(texts: list[str]) -> list[str]:
    more = len(texts) - _MOST_NAMED
    return texts if more <= 0 else [*texts[:_MOST_NAMED], f"{more} more"]


def _last_report(worker: Worker, now: float | None) -> str:
    if worker.refused:
        return f"{worker.label} was refused: {worker.refused}"
    age = "" if now is None else f" {max(0, round(now - worker.last_report_at))} s ago"
    detail = f", {worker.detail}" if worker.detail else ""
    silent = f", and is silent since: {worker.silent}" if worker.silent else ""
    return f"{worker.label} last reported{age}: {worker.phase}{detail}{silent}"


def contradiction(fleet: Fleet, worker: Worker) -> str:
    """Return how a node's agent, its Ray and GCS contradict each other, or ''.

    No single source decides: GCS lists a node for some time after its end.
    """
    is_listed = worker.ip in fleet.node_ids
    if not worker.silent and not worker.has_left:
        return "" if is_listed else "its agent answers: Ray does not know it any more"
    if not worker.lost:
        return "its Ray answers still"
    return "nor does its Ray answer, though GCS lists it still" if is_listed else ""
