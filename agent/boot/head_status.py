"""The head's state as /status, findings, metrics and trace show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import to_builtins

from agent.checks.finding import Level, group_findings
from agent.decisions import head
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.state import HeadPhase, WorkerReported
from agent.decisions.head.waits import service_title
from agent.decisions.values import HERE
from agent.record.explain import Timeline
from agent.record.job_lines import JobLines
from agent.record.run_folder import OutageRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.checks.finding import Finding
    from agent.control.protocol import WorkerStats
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import HeadEvent, HeadState, Key
    from agent.decisions.values import Item
    from agent.record.explain import Span


def _finding(one: Finding, clean: Callable[[str], str]) -> dict[str, object]:
    return {
        "check": one.check,
        "level": one.level.value,
        "what": clean(one.what),
        "remedy": clean(one.remedy),
    }


def _spans(spans: Sequence[Span]) -> list[list[object]]:
    return [[span.phase, round(span.start, 1)] for span in spans]


class RunStatus:
    """The status of one run; `get_state` returns the head's current state."""

    def __init__(self, run: NodeRun, keeper: RunKeeper, get_state: Callable[[], HeadState]) -> None:
        self._run = run
        self._keeper = keeper
        self._get_state = get_state
        self.timeline = Timeline()
        self._alive: Mapping[str, str] = {}
        self.job_lines = JobLines(run.redactor.clean)
        self.stalls: tuple[Finding, ...] = ()
        """Findings about attempts that showed no sign of work."""
        self.worker_stats: Mapping[str, WorkerStats] = {}
        """Statistics from workers' reports, by agent."""

    def apply_event(self, event: HeadEvent) -> None:
        """Update timeline, run record and job lines with an event that was decided on."""
        alive = self._get_state().fleet.alive
        if alive is not self._alive:
            self._alive = alive
            self._keeper.record_nodes(alive.values())
        self.timeline.add(event, self._get_state(), self._run.now())
        if isinstance(event, WorkerReported):
            stats = self.worker_stats.get(event.worker.key)
            if stats is not None and stats.attempt == self._get_state().attempt.number:
                # a report of an earlier attempt is skipped
                self.job_lines.known.add_from_node(event.worker.name, stats.attempt, stats.known)

    def is_over(self) -> bool:
        """Return whether the run has its verdict."""
        return self._get_state().phase is HeadPhase.LEAVING

    def first_failure_cause(self) -> str:
        """Return the known cause in the output of the node share that failed first, or ''."""
        state = self._get_state()
        failed, known = state.shares.first_failed, self.job_lines.known
        return known.last_from_node(failed.node, state.attempt.number) if failed else ""

    def status(self) -> dict[str, object]:
        """Return the status that needs no token."""
        state, plan, keeper, now = self._get_state(), self._run.plan, self._keeper, self._run.now()
        job, report = None, state.attempt.report
        if plan.job is not None:
            job_status = report.status.lower() if report else "not submitted"
            job = {"name": plan.job.name, "status": job_status, "attempt": state.attempt.number}
        return {
            "run_id": keeper.run_id,
            "epoch": keeper.epoch,
            "role": "head",
            "platform": plan.topology.platform.name,
            "name": plan.topology.node_name,
            "phase": state.phase.value,
            "seconds": round(now, 1),
            "seconds_in_phase": round(now - state.phase_since, 1),
            "phases": _spans(self.timeline.phases),
            "waits": [wait.to_dict(now) for wait in head.pending_waits(state)],
            "ray": {"state": state.ray.step.value, "detail": state.ray.evidence},
            "nodes": self._nodes(state, now),
            "services": [
                self._service(state, key, item, now) for key, item in state.services.items.items()
            ],
            "prepare": [
                {"name": name, "state": item.step.value, "detail": item.evidence}
                for (_, name), item in state.steps.items()
            ],
            "outages": [outage.to_outcome() for outage in self.outages()],
            "job": job,
            "verdict": None if state.verdict is None else state.verdict.to_dict(),
            "attempts": [attempt.to_outcome() for attempt in keeper.attempts],
            "curve": self.job_lines.curve(),
        }

    def _nodes(self, state: HeadState, now: float) -> list[dict[str, object]]:
        alive, workers = state.fleet.alive, state.fleet.workers.values()
        ordered = sorted(workers, key=lambda worker: (worker.rank or 0, worker.name))
        known = {worker.ip for worker in workers}
        without_agent: dict[str, object] = {
            "rank": None,
            "state": NodeState.JOINED.value,
            "phase": "in Ray, without an agent",
            "detail": "",
            "last_error": "",
            "heard_seconds_ago": None,
            "joined": True,
            "phases": [],
            "steps": [],
        }
        return [
            *(self._node(one, now, joined=one.ip in alive) for one in ordered),
            *({"name": ip, "ip": ip, **without_agent} for ip in alive if ip not in known),
        ]

    def _node(self, worker: Worker, now: float, *, joined: bool) -> dict[str, object]:
        stats = self.worker_stats.get(worker.key)
        steps = {} if stats is None else stats.steps
        return {
            "name": worker.name,
            "ip": worker.ip,
            "rank": worker.effective_rank,
            "state": worker.state(counts=joined).value,
            "phase": worker.phase,
            "detail": worker.refused or worker.detail,
            "last_error": worker.refused or worker.error,
            "heard_seconds_ago": round(now - worker.last_report_at, 1),
            "joined": joined,
            "phases": _spans(self.timeline.nodes.get(worker.key, ())),
            "steps": [{"name": name, "state": step.value} for name, step in steps.items()],
        }

    def _service(self, state: HeadState, key: Key, item: Item, now: float) -> dict[str, object]:
        node, name = key
        worker = state.fleet.workers.get(node)
        where = HERE if worker is None else worker.name
        outages = [one for one in state.outages if (one.service, one.node) == (name, where)]
        since = next((one.since for one in outages if one.until is None), None)
        seconds = sum((now if one.until is None else one.until) - one.since for one in outages)
        stats = self._run.stats.snapshot({}) if node == HERE else self.worker_stats.get(node)
        latency = None if stats is None else stats.latencies.get(name)
        return {
            "name": service_title(state, key),
            "state": item.step.value,
            "detail": item.evidence,
            "restarts": item.generation - 1,
            "outages": len(outages),
            "outage_seconds": round(seconds, 1),
            "outage_since": None if since is None else round(since, 1),
            "latency": None if latency is None else to_builtins(latency),
        }

    def private_details(self) -> dict[str, object]:
        """Return log and finding texts, which only callers with a token may read."""
        clean = self._run.redactor.clean
        state = self._get_state()
        found = [*self._run.plan.findings, *state.differences, *state.probes.findings, *self.stalls]
        warnings = [
            {"check": one.check, "what": clean(one.what), "remedy": clean(one.remedy)}
            for one in found
            if one.level is not Level.OK
        ]
        warnings += self.job_lines.known.warnings()
        progress = {HERE: dict(self._run.stats.snapshot({}).progress)}
        workers = state.fleet.workers
        for key, stats in self.worker_stats.items():
            if stats.progress and key in workers:
                progress[workers[key].name] = dict(stats.progress)
        return {"warnings": warnings, "job_tail": self.job_lines.tail(), "progress": progress}

    def findings(self) -> dict[str, object]:
        """Return the findings of all nodes' checks: each node's own, and those between nodes."""
        state, plan, clean = self._get_state(), self._run.plan, self._run.redactor.clean
        fleet = state.fleet
        workers = sorted(
            (
                worker
                for worker in fleet.workers.values()
                if not worker.has_left and worker.key in fleet.findings
            ),
            key=lambda worker: (worker.effective_rank or 0, worker.name),
        )
        found = [
            (plan.topology.node_name, plan.findings),
            *((worker.name, fleet.findings[worker.key]) for worker in workers),
        ]
        known = {worker.ip for worker in workers}
        rows = group_findings(found)
        return {
            "nodes": [name for name, _ in found],
            "unknown": [name for ip, name in fleet.alive.items() if ip not in known],
            "findings": [{**_finding(row.finding, clean), "nodes": [*row.nodes]} for row in rows],
            "between": [
                _finding(one, clean) for one in (*state.differences, *state.probes.findings)
            ],
        }

    def outages(self) -> tuple[OutageRecord, ...]:
        """Return the services' outages as records."""
        head_name, utc = self._run.plan.topology.node_name, self._run.utc
        return tuple(
            OutageRecord(
                one.service,
                head_name if one.node == HERE else one.node,
                utc(one.since),
                None if one.until is None else utc(one.until),
            )
            for one in self._get_state().outages
        )
