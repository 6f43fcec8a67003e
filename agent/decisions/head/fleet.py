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
from agent.base.text import first_names
from agent.base.value import Value
from agent.checks.finding import Finding
from agent.decisions.shared import Answer, ItemReport
from agent.frameworks.recipe import NodeSize
from agent.node.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


_NO_REPORT = f"no report for {times.SILENT_WITHOUT_RAY:g} s"
_MOST_NAMED = 8  # how many missing workers are named; the rest are counted
_LONGEST_NAME = 80  # Characters of what a refused agent, which may be anyone's, calls itself
_LONGEST_REFUSAL = 300


class NodeState(str, Enum):
    """The state of a worker's node, as status and metrics show it."""

    BOOTING = "booting"
    JOINED = "joined"
    SILENT = "silent"  # its agent does not answer; its Ray may
    LOST = "lost"  # it was part of the cluster and does not count any more
    LEFT = "left"  # its agent reported that it leaves


class Worker(Value):
    """A worker's agent, from its last report."""

    key: str  # the agent's id: a restarted agent has a new one at the same address
    name: str
    ip: str = ""
    rank: int | None = None
    phase: str = ""
    detail: str = ""
    last_report_at: float = 0.0
    refused: str = ""
    has_left: bool = False
    items: tuple[ItemReport, ...] = ()  # what runs on it, or did
    answers: tuple[Answer, ...] = ()  # the results of probes since the last report
    given_rank: int | None = None  # the rank that the head assigned, if the platform has none
    group: str = ""  # its group, where its node names it
    gpus: int = 0  # the GPUs of its node
    members: Mapping[str, int] = field(default_factory=dict)
    """By service of a group: how many members its node has, where it is of the group."""
    left: Mapping[str, int] = field(default_factory=dict)
    """The generations of services that a killed agent of its node has left running."""
    memory: str = ""  # what the kernel's OOM killer did there last, or ''
    silent: str = ""  # why it stopped reporting; '' while it reports
    silent_since: float = 0.0  # when it was found to be silent
    lost: bool = False  # true if its Ray does not answer either, even if GCS still lists it
    notice: float | None = None  # seconds until its platform takes it away; None if not announced

    # What follows from its items, by the head's state.
    joined: bool = False  # its Ray belongs to the head's, or no Ray runs and its steps are done
    preparing: bool = False  # a prepare step is not done
    service_only: bool = False  # it only runs a service: it does not join Ray and does not count
    ray_end: ItemReport | None = None  # its Ray as it last ended, until it joined

    @property
    def effective_rank(self) -> int | None:
        """Return the platform's rank, or else the one that the head assigned."""
        return self.given_rank if self.rank is None else self.rank

    def item(self, name: str) -> ItemReport | None:
        """Return what it last reported of a thing on its node."""
        return next((item for item in self.items if item.name == name), None)

    def state(self, *, counts: bool) -> NodeState:
        """Return the state of its node; `counts` if it counts as present."""
        if self.has_left:
            return NodeState.LEFT
        if self.joined and not counts:
            return NodeState.LOST
        if self.silent:
            return NodeState.SILENT
        # A node that joins no Ray is part of the run once its steps are done.
        is_beside = self.service_only and not (self.preparing or self.refused)
        return NodeState.JOINED if counts or is_beside else NodeState.BOOTING

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
    ray_nodes: Mapping[str, tuple[RayNode, ...]] = field(default_factory=dict)
    """The live nodes in GCS's list by address, without the head."""
    agent_at: Mapping[str, str] = field(default_factory=dict)  # by address: who reported last
    alive: Mapping[str, str] = field(default_factory=dict)
    """The workers that count as present, address to name.

    GCS must list them, and the agent, except on nodes joined by hand, must report that it joined.
    """
    left_ips: frozenset[str] = frozenset()
    """Addresses that an agent has left: they do not count, though GCS lists them a while longer."""
    dead_node_ids: frozenset[str] = frozenset()  # of silent nodes: a new Ray there has a new id
    by_report: bool = False  # no Ray runs: a worker counts while it reports that it joined
    last_rank: int = 0  # then without those of a higher rank by their platform
    silence_check_at: float | None = None  # when to look for silent ones, where no Ray runs
    last_preparing_at: float = -math.inf  # when a worker last reported that it prepares

    def with_report(self, worker: Worker) -> Fleet:
        """Apply a worker's report; a refused one is only known."""
        before = self.workers.get(worker.key)
        new = replace(self, workers={**self.workers, worker.key: worker})
        if worker.refused:
            return new

        # Where no Ray runs, its silence counts from now on.
        if self.by_report and self.silence_check_at is None:
            new = replace(new, silence_check_at=worker.last_report_at + times.SILENT_WITHOUT_RAY)
        if before is not None and _membership(before) == _membership(worker):
            return new

        # Is it back after it was cut off, and its Ray with it?
        is_back = worker.joined if before is None else before.lost
        if is_back:
            new = replace(new, dead_node_ids=new.dead_node_ids - new.ids_at(worker.ip))

        # Its address: which agent counts there, and does the node?
        if before is not None and before.ip != worker.ip:
            new = new.release_address(before)
        if worker.ip:
            new = replace(new, agent_at={**new.agent_at, worker.ip: worker.key})
        return new.recount(worker.ip)

    def expire_silent_without_ray(self, now: float) -> Fleet:
        """Mark the workers as lost that are silent for too long where no Ray runs."""
        if self.silence_check_at is None or now < self.silence_check_at:
            return self
        reporting = [w for w in self.workers.values() if not w.has_left and not w.lost]
        until = {w.key: w.last_report_at + times.SILENT_WITHOUT_RAY for w in reporting}
        next_end = min((end for end in until.values() if now < end), default=None)
        new = replace(self, silence_check_at=next_end)
        return new.mark_lost([key for key, end in until.items() if now >= end], now)

    def mark_lost(self, keys: Iterable[str], now: float) -> Fleet:
        """Count these agents as lost until they report again."""
        for key in keys:
            self = self.mark_silent(key, _NO_REPORT, now, is_lost=True)  # noqa: PLW0642 - a value
        return self

    def mark_silent(self, key: str, evidence: str, now: float, *, is_lost: bool) -> Fleet:
        """Mark an agent as silent until its next report."""
        worker = self.workers.get(key)
        if worker is None or worker.has_left:
            return self
        since = worker.silent_since if worker.silent else now
        silent = replace(worker, silent=evidence, silent_since=since, lost=is_lost)
        new = replace(self, workers={**self.workers, key: silent})
        if is_lost and self.agent_at.get(worker.ip) == key:
            new = replace(new, dead_node_ids=new.dead_node_ids | new.ids_at(worker.ip))
        return new.recount(worker.ip)

    def with_ray_nodes(self, nodes: tuple[RayNode, ...]) -> Fleet:
        """Apply GCS's list of nodes."""
        by_ip: dict[str, tuple[RayNode, ...]] = {}
        for node in nodes:
            if node.alive and not node.is_head:
                by_ip[node.ip] = (*by_ip.get(node.ip, ()), node)
        ids = {node.node_id for node in nodes if node.alive}
        new = replace(self, ray_nodes=by_ip, dead_node_ids=self.dead_node_ids & ids)

        # Which nodes count now? The mapping stays the same object while none changes.
        names = ((ip, new.name_at(ip)) for ip in by_ip)
        alive: Mapping[str, str] = {ip: name for ip, name in names if name is not None}
        if alive == self.alive:
            alive = self.alive
        left_ips = frozenset(filter(new.is_in_ray, self.left_ips))
        return replace(new, alive=alive, left_ips=left_ips)

    def ids_at(self, ip: str) -> frozenset[str]:
        """Return the ids of the nodes that GCS lists at an address."""
        return frozenset(node.node_id for node in self.ray_nodes.get(ip, ()))

    def is_in_ray(self, ip: str) -> bool:
        """Return whether GCS lists a node at an address that is not known to be dead."""
        return not self.ids_at(ip) <= self.dead_node_ids

    def uncounted(self) -> Iterator[RayNode]:
        """Yield the nodes that GCS lists and that do not count: they are dead, or are leaving.

        An agent runs one Ray: of two at its address one is dead, too.
        """
        if self.by_report:
            return
        for ip, nodes in self.ray_nodes.items():
            is_former = ip in self.agent_at and len(nodes) > 1
            for node in nodes:
                if ip not in self.alive or node.node_id in self.dead_node_ids or is_former:
                    yield node

    def has_nodes_of(self, other: Fleet) -> bool:
        """Return whether `uncounted` is the same for another state of the fleet."""
        is_same = self.ray_nodes is other.ray_nodes and self.alive is other.alive
        is_same = is_same and self.dead_node_ids is other.dead_node_ids
        return is_same and self.agent_at is other.agent_at

    def label_at(self, ip: str) -> str:
        """Return the name of the agent at an address, or else the address."""
        worker = self.workers.get(self.agent_at.get(ip, ""))
        return ip if worker is None else worker.name

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
        agent_at = {ip: key for ip, key in self.agent_at.items() if ip != worker.ip}
        left_ips = self.left_ips
        if self.is_in_ray(worker.ip):
            left_ips |= {worker.ip}
        return replace(self, agent_at=agent_at, left_ips=left_ips).recount(worker.ip)

    def recount(self, ip: str) -> Fleet:
        """Recompute whether the node at an address counts."""
        name = self.name_at(ip)
        if self.alive.get(ip) == name:
            return self
        if name is not None:
            return replace(self, alive={**self.alive, ip: name})
        return replace(self, alive={i: n for i, n in self.alive.items() if i != ip})

    def name_at(self, ip: str) -> str | None:
        """Return the name under which the node at an address counts; None if it does not."""
        if not self.by_report and not self.is_in_ray(ip):
            return None

        # Without an agent: joined by hand, or its agent left.
        worker = self.workers.get(self.agent_at.get(ip, ""))
        if worker is None:
            return None if self.by_report or ip in self.left_ips else ip

        counts = worker.joined and not worker.has_left and not worker.lost
        if self.by_report and (worker.rank or 0) > self.last_rank:
            return None
        return worker.name if counts else None

    def addresses(self) -> frozenset[str]:
        """Return the addresses of the nodes in Ray and of the agents that were not refused."""
        agents = {worker.ip for worker in self.workers.values() if not worker.refused}
        return frozenset({*self.ray_nodes, *agents} - {""})

    def counts(self, worker: Worker) -> bool:
        """Return whether an agent is the one that counts at its address."""
        return worker.ip in self.alive and self.agent_at.get(worker.ip) == worker.key

    def present(self) -> list[Worker]:
        """Return the agents that count, by rank; those without follow by their first report."""
        present = [worker for worker in self.workers.values() if self.counts(worker)]
        return sorted(present, key=lambda w: (w.effective_rank is None, w.effective_rank or 0))

    def ending_before_head(self, held: Collection[str]) -> list[Worker]:
        """Return the agents that must no longer answer before the head's pod ends.

        `held` have left, and answer until the head deletes the cluster of all pods.
        """
        return [
            worker
            for worker in self.workers.values()
            if worker.ip and not worker.silent and not worker.refused and worker.key not in held
        ]

    def never_reported_count(self, required: int) -> int:
        """Return how many required workers neither reported nor joined by hand."""
        return max(0, required - len(self.alive) - len(self._absent()))

    def describe_missing(self, required: int) -> str:
        """Describe how many workers joined, which did not, and the last report of each."""
        parts = [f"{len(self.alive)} of {required} joined"]

        # Those that never reported: by rank, where the platform sets ranks.
        workers = self.workers.values()
        ranks = {worker.rank for worker in workers if worker.rank is not None}
        last = required + sum(worker.service_only for worker in workers)
        never = [str(rank) for rank in range(1, last + 1) if rank not in ranks]
        never_reported = self.never_reported_count(required)
        if ranks and never:
            parts.append(f"no report from rank {first_names(never, _MOST_NAMED)}")
        elif never_reported:
            parts.append(f"{never_reported} never reported")
        parts += self.wrong_ranks()

        # Those that reported and have not joined; of those that were refused one stands for all.
        absent = self._absent()
        waiting = [worker for worker in absent if not worker.refused]
        parts += map(_last_report, waiting[:_MOST_NAMED])
        more = len(waiting) - _MOST_NAMED
        if more > 0:
            parts.append(f"{more} more")
        refused = [worker for worker in absent if worker.refused]
        parts += map(_last_report, refused[:1])
        if len(refused) > 1:
            parts.append(f"{len(refused) - 1} more were refused")
        return "; ".join(parts)

    def wrong_ranks(self) -> list[str]:
        """Name ranks that this run lacks or has twice, as where nodes of two clusters meet."""
        holders: dict[int, list[str]] = {}
        for worker in self.workers.values():
            is_newest = self.agent_at.get(worker.ip) == worker.key
            is_gone = worker.refused or worker.has_left or worker.lost or worker.silent
            if worker.rank is not None and is_newest and not is_gone:
                holders.setdefault(worker.rank, []).append(f"{worker.name} ({worker.ip})")

        texts = []
        for rank, names in sorted(holders.items()):
            if len(names) > 1:
                texts.append(f"rank {rank} is reported by {first_names(names, _MOST_NAMED)}")
            elif rank > self.last_rank:
                texts.append(f"{names[0]} reports rank {rank}, beyond the last, {self.last_rank}")
        if not texts:
            return []
        why = "a node of another cluster has this head's address, or a rank variable is wrong"
        return [f"{first_names(texts, _MOST_NAMED)}: {why}"]

    def _absent(self) -> list[Worker]:
        workers = self.workers.values()
        absent = [w for w in workers if w.ip not in self.alive and not w.service_only]
        return sorted(absent, key=lambda w: (w.rank is None, w.rank or 0, w.name))


_membership = attrgetter("ip", "name", "joined", "has_left", "lost")


def _last_report(worker: Worker) -> str:
    if worker.refused:
        return f"{worker.label[:_LONGEST_NAME]} was refused: {worker.refused[:_LONGEST_REFUSAL]}"
    detail = f", {worker.detail}" if worker.detail else ""
    silent = f", and is silent since: {worker.silent}" if worker.silent else ""
    return f"{worker.label} last reported: {worker.phase}{detail}{silent}"
