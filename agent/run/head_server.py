"""What the head serves: replies to workers, status, findings, and the logs of all nodes."""

from __future__ import annotations

import os
from functools import partial
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from agent.base import times
from agent.base.text import listed, map_texts
from agent.checks.finding import Level, group_findings
from agent.decisions.head import head_decide as head
from agent.decisions.head import shares
from agent.decisions.head.boot_waits import service_title
from agent.decisions.head.fleet import NodeState, Worker
from agent.decisions.head.head_decide import is_in_ray, is_worker_needed
from agent.decisions.head.head_state import HeadPhase, WorkerReported
from agent.decisions.shared import HERE, QuestionKind, StopAsked
from agent.decisions.stall import Stalled
from agent.job.services import REWARD, digest, service_log
from agent.plan import waits as planned
from agent.plan.plan import AGENT_LOG, JOB_LOG, RAY_LOG, log_files, versions
from agent.plan.show import what_runs
from agent.port.protocol import NodeValues, Reply
from agent.port.reports import Expected, Reports, agent_limit
from agent.port.server import AgentServer, Control
from agent.port.status_model import (
    AdviceStatus,
    FindingsStatus,
    GpuHistoryStatus,
    HeadStatus,
    ItemStatus,
    JobStatus,
    LogPart,
    MachineStatus,
    NodesFinding,
    NodeStatus,
    PartStatus,
    ProgressStatus,
    Reader,
    ServiceStatus,
    StallStatus,
    StepStatus,
    WaitStatus,
    WarningStatus,
    WhatRunsStatus,
)
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import in_thread
from agent.record.events import GoodbyeReceived
from agent.record.files import reading
from agent.record.job_lines import JobLines
from agent.record.outcome_file import OutageRecord, ShortageRecord
from agent.record.run_keys import new_key, write_key
from agent.record.run_record import outcomes_of, proof_of
from agent.record.summary import Timeline
from agent.run.checkpoint_watch import CheckpointWatch
from agent.run.group_status import groups_status
from agent.run.machine_watch import MachineWatch
from agent.run.run_receipt import RunReceipt
from agent.run.split_watch import SplitWatch
from agent.settings.jobs import on_stall

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.checks.finding import Finding
    from agent.decisions.durable import Durable
    from agent.decisions.head.head_state import HeadEvent, HeadState, Key
    from agent.decisions.shared import Item
    from agent.diagnosis.advice import Advice
    from agent.diagnosis.searched_log import Log
    from agent.job.series import SeriesPart
    from agent.plan.plan import Plan
    from agent.port.protocol import WorkerStats
    from agent.run.front_link import FrontLink
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore


def proof(durable: Durable, submitted: int) -> str:
    """Return the proof of so many attempts, which workers show to a later head."""
    return proof_of(durable.fingerprint, durable.run_id, submitted, durable.epoch)


_LOG_POLL = 0.1  # Between two reads of a log; at its end twice as long, for open requests.


async def first_reply(store: RunStore, attempt: int, head_ip: str) -> Reply:
    """Return the reply to workers before the first decision, once its epoch is on disk."""
    await store.on_disk()
    durable = store.durable
    return Reply(
        durable.epoch,
        durable.run_id,
        phase=HeadPhase.BOOTING.value,
        ray_ready=False,
        head_ip=head_ip,
        news=0,
        attempt=attempt,
        fingerprint=proof(durable, attempt - 1),
    )


def make_reports(
    run: NodeRun,
    store: RunStore,
    first: Reply,
    get_state: Callable[[], HeadState],
    send: Callable[[HeadEvent], None],
) -> Reports:
    """Return what answers workers' reports; `first` is the reply before the first decision."""
    plan = run.plan
    return Reports(
        first,
        make_expected(plan, store),
        send,
        run.now,
        # Recorded only: the decisions get it as WorkerReported.
        on_bye=lambda name, bye: run.record(GoodbyeReceived(name, bye.cause, bye.log)),
        rank_names=store.measured.ranks,
        keep_ranks=lambda names: store.measure(ranks=names),
        on_recalled_run=partial(store.recall, send),
        has_token=plan.secret() is not None,
        most=agent_limit(plan.topology.expected_workers),
        is_needed=lambda key: is_worker_needed(get_state(), key, run.now()),
        is_in_ray=lambda key: is_in_ray(get_state(), key),
    )


async def make_server(
    run: NodeRun, status: RunStatus, reports: Reports, send: Callable[[HeadEvent], None]
) -> AgentServer:
    """Return the server of the head's port: workers' reports, status, logs, and a stop."""
    plan = run.plan
    topology = plan.topology
    token = plan.secret()
    control = Control(
        stop=partial(send, StopAsked(SIGTERM, on_request=True)),
        stop_limit=plan.settings.stop_grace,
        # Without a token, a key file grants access to this node's users.
        key=await make_key(run.folder.path) if token is None else None,
        findings=status.findings,
        log=partial(status.read_log, reports),
        with_private=status.with_private,
        series=status.series,
    )
    return AgentServer(
        token=token,
        ready=lambda: True,
        status=status.status,
        reports=reports,
        run_id=lambda: run.run_id,
        names=(topology.node_name, topology.head_host, *topology.platform.own_names),
        control=control,
    )


async def make_key(folder: Path) -> str:
    """Return a new key, written into the run folder.

    If the disk does not answer, the file comes later, or never: the run does not wait for it.
    """
    key = new_key()
    await in_thread(partial(write_key, folder, key), times.STALLED_DISK)
    return key


def make_expected(plan: Plan, store: RunStore) -> Expected:
    """Return what workers must agree on: versions, services, and torchrun's command."""
    job = "" if plan.share_launcher is None else store.durable.fingerprint
    ranks_of = {group.name: group.ranks for group in plan.groups}
    return Expected(*versions(plan), digest(plan.all_services, plan.steps), job, ranks_of)


def count_possible_callers(plan: Plan, sockets: Sequence[socket.socket], state: HeadState) -> int:
    """Return how many workers that never reported may still do so."""
    if not sockets:
        return 0
    if plan.topology.given_ray is not None:  # its workers run no agent
        return 0
    # A killed agent may have decided the end, and have sent it to none of its attempt's nodes.
    former = {*state.earlier.former_workers} - {*state.attempt.lost_nodes}
    expected = max(state.required, len(former))
    return state.fleet.never_reported_count(expected) + len(state.unreported_nodes)


def agents_before_head(plan: Plan, state: HeadState, reports: Reports) -> list[tuple[str, int]]:
    """Return where the agents listen that must be gone before the head's pod ends."""
    held: frozenset[str] = frozenset()
    if plan.topology.deletes_cluster(plan.settings):  # members are held until it is deleted
        held = reports.departed()
    awaited = state.fleet.ending_before_head(held)
    return [(worker.ip, plan.ports.agent) for worker in awaited]


def machine_of(stats: WorkerStats | None) -> MachineStatus | None:
    """Return a node's figures for the status; None if there are none."""
    if stats is None or stats.figures is None:
        return None
    return MachineStatus.of(stats.figures)


def reported_values(stats: WorkerStats | None) -> dict[str, Any]:
    """Return what a node reports of itself and is shown as it is."""
    values = NodeValues() if stats is None else stats
    return {name: getattr(values, name) for name in NodeValues.__struct_fields__}


_NO_AGENT = "in Ray, without an agent"  # The phase of a node that joined by a plain `ray start`
_PART = 256 << 10  # most bytes of a log in one reply
_MOST_REFUSED = 4  # refused agents that the status shows; others are counted


def _with_replaced(workers: Sequence[Worker]) -> Iterator[Worker]:
    """Yield workers; one that is silent, and whose rank another one has, as one that has left."""
    here = (worker for worker in workers if not (worker.silent or worker.has_left))
    held = {worker.effective_rank for worker in here}
    for worker in workers:
        rank = worker.effective_rank
        if worker.silent and rank is not None and rank in held:
            yield replace(worker, has_left=True, detail="silent; another node has its rank")
        else:
            yield worker


class RunStatus:
    """The status and the logs of one run; `get_state` returns the head's current state."""

    def __init__(self, run: NodeRun, store: RunStore, get_state: Callable[[], HeadState]) -> None:
        self._run = run
        self._get_state = get_state
        self.timeline = Timeline()
        self._alive: Mapping[str, str] = {}
        self._most_joined = 0  # workers in Ray at one time
        self._beside: set[int] = set()  # ranks of nodes that join no Ray, and have reported
        self.job_lines = JobLines(run.redactor.clean, run.now)
        self.stalls: tuple[Finding, ...] = ()  # findings about attempts that showed no sign of work
        self.worker_stats: Mapping[str, WorkerStats] = {}  # from workers' reports, by agent
        self.fronts: Mapping[str, FrontLink] = {}  # by service
        self.split = SplitWatch(run, get_state, lambda: self.job_lines, lambda: self.fronts)
        self.receipt = RunReceipt(run, store, get_state, lambda: self.job_lines.progress)
        self.machines = MachineWatch(run, get_state, lambda: self.job_lines.progress)
        self.command = ""  # of the present attempt, as a shell command, once it is submitted to Ray
        self.stalled: Stalled | None = None  # the present attempt, since it was found to be stalled
        self.checkpoints = CheckpointWatch(run)

    def apply_event(self, event: HeadEvent) -> None:
        """Update timeline, receipt and job lines with an event that was decided on."""
        state = self._get_state()
        if state.fleet.alive is not self._alive:
            self._alive = state.fleet.alive
            self._most_joined = max(self._most_joined, len(self._alive))
        self.timeline.add(event, state, self._run.now())
        self.receipt.look_at_change(self.stalls)
        if isinstance(event, Stalled):
            self.stalled = event
        if isinstance(event, WorkerReported):
            worker = state.fleet.workers.get(event.worker.key)
            rank = None if worker is None else worker.effective_rank
            if rank is not None and rank in state.goal.service_only_ranks:
                self._beside.add(rank)
            stats = self.worker_stats.get(event.worker.key)
            has_share = event.worker.key in state.shares.by_node
            if stats is not None and has_share and stats.attempt == state.attempt.number:
                # a report of an earlier attempt is skipped
                facts = state.fleet.facts.get(event.worker.key)
                ahead = None if facts is None else facts.node_versions.clock_ahead
                known = self.job_lines.known
                known.add_from_node(event.worker.name, stats.known, ahead or 0.0)

    def logs_of_nodes(self) -> tuple[Log, ...]:
        """Return what other nodes' shares printed about a cause, the first that failed first."""
        state = self._get_state()
        failed = state.shares.first_failed
        first = "" if failed is None else failed.node
        return self.job_lines.known.logs_of_nodes(first)

    def status(self, reader: Reader = Reader.ANYONE) -> HeadStatus:
        """Return the status without what only callers with a token may read."""
        state = self._get_state()
        plan = self._run.plan
        durable = state.durable
        now = self._run.now()

        # The job, and the name that a recipe gives the run in W&B.
        job = None
        name = plan.settings.run_name
        if plan.job is not None:
            job_status = shares.job_status(state)
            job = JobStatus(plan.job.name, job_status, state.attempt.number)
            if plan.job.recipe is not None:
                name = replace(plan.job.recipe.input, run_id=durable.run_id).named

        # The nodes by rank, then those that joined by a plain `ray start`.
        alive = state.fleet.alive
        workers = state.fleet.workers.values()
        known = {worker.ip for worker in workers}
        refused = [worker for worker in workers if worker.refused]
        shown = [worker for worker in workers if not worker.refused] + refused[:_MOST_REFUSED]
        shown = [*_with_replaced(shown)]
        ranked = sorted(shown, key=lambda worker: (worker.rank or 0, worker.name))
        plain = [Worker("", ip, ip, phase=_NO_AGENT) for ip in alive if ip not in known]

        steps = state.goal.step_names
        caches = self._run.caches.to_status()
        own = self._run.stats.snapshot()
        return HeadStatus(
            run_id=durable.run_id,
            run_name=name and self._run.redactor.clean(name),
            epoch=durable.epoch,
            platform=plan.topology.platform.name,
            name=plan.topology.node_name,
            phase=state.phase,
            at=self._run.utc(now),
            seconds=round(now, 1),
            seconds_in_phase=round(now - state.phase_since, 1),
            phases=tuple(self.timeline.phases),
            waits=tuple(WaitStatus.of(wait, now, reader) for wait in head.pending_waits(state)),
            ray=PartStatus(state.ray.item.step.value, reader.evidence_of(state.ray.item)),
            nodes=tuple(
                self._node(worker, now, reader, steps=steps, joined=worker.ip in alive)
                for worker in (*ranked, *plain)
            ),
            more_refused=len(refused[_MOST_REFUSED:]),
            services=tuple(
                self._service(state, key, item, now, reader)
                for key, item in state.services.by_key.items()
                if not state.goal.is_of_group(key[1])
            ),
            groups=groups_status(state, self.fronts, self._stats_of, reader, now),
            prepare=tuple(
                ItemStatus(name, item.step.value, reader.evidence_of(item))
                for (_, name), item in state.steps.by_key.items()
            ),
            outages=self.outages(),
            shortages=tuple(
                ShortageRecord.of(one, now, self._run.utc) for one in durable.shortages
            ),
            job=job,
            verdict=state.outcome,
            attempts=outcomes_of(durable),
            figures=machine_of(own),
            own=NodeValues(**reported_values(own)),
            slow=self.machines.slow_text(HERE),
            slow_by=self.machines.slow_by(HERE),
            gpu_history=GpuHistoryStatus(**self.machines.gpu_history.to_status()),
            progress=ProgressStatus.of_job(
                self.job_lines, self._run.utc, is_running=state.phase is HeadPhase.RUNNING
            ),
            curves=replace(self.job_lines.curves(), checkpoints=self.checkpoints.to_series()),
            nodes_expected=state.goal.nodes,
            nodes_joined=self._most_joined + 1 + len(self._beside),
            attempts_allowed=state.last_attempt_number,
            loss_seconds_left=self._loss_seconds_left(state, now),
            stall=self._stall(state),
            advice=tuple(AdviceStatus.of(advice) for advice in self.advice()),
            checkpoint=self.checkpoints.to_status(),
            caches=None if caches is None else PartStatus(*caches),
            price=self.receipt.price(),
            cost=self.cost(),
            max_cost=plan.settings.max_cost,
            price_source=self.price_source(),
            receipt=self.receipt.to_status(),
        )

    def series(self, since: int | None = None) -> SeriesPart:
        """Return the job's metrics by step, with the run's checkpoints, as `/series` has them."""
        return replace(self.job_lines.series(since), checkpoints=self.checkpoints.to_series())

    async def look_at_nodes(self) -> None:
        """Look at the figures of all nodes: which are slow, and what will be full."""
        workers = self._get_state().fleet.workers
        own = self._run.figures.newest
        figures = {} if own is None else {HERE: own}
        for key, stats in self.worker_stats.items():
            worker = workers.get(key)
            is_here = worker is not None and not worker.has_left and not worker.silent
            if stats.figures is not None and is_here:
                figures[key] = stats.figures
        self.machines.look(figures)

    async def look_at_run(self) -> None:
        """Look at what the run does, for its receipt and for messages about it."""
        self.receipt.look(self.stalls)
        self.split.log_once()
        run = self._run
        if run.notifies and run.notifier.is_due(run.now()):
            run.notifier.look(self.status(Reader.ALL))

    def cost(self) -> float | None:
        """Return what the run has cost so far, all nodes and heads together; None if unknown."""
        cost = self._get_state().goal.cost(self._run.now())
        return None if cost is None else round(cost, 2)

    def price_source(self) -> str | None:
        """Return who says what a node costs; None if that is unknown."""
        price = self._get_state().goal.price
        return None if price is None else price.source

    def _loss_seconds_left(self, state: HeadState, now: float) -> float | None:
        """Return the seconds until the job is stopped for a missing node; None if none is."""
        since = state.losses.below_required_since
        is_running = state.goal.has_job and state.phase is HeadPhase.RUNNING
        if since is None or not is_running:
            return None
        return round(max(0.0, since + state.goal.limits[planned.NODE] - now), 1)

    def _stall(self, state: HeadState, *, with_suspects: bool = False) -> StallStatus | None:
        """Return the stall of the running attempt, and what follows; None without one."""
        stalled = self.stalled
        is_running = state.phase is HeadPhase.RUNNING
        if stalled is None or stalled.attempt != state.attempt.number or not is_running:
            return None
        then = on_stall(self._run.plan.settings)
        if then == "retry" and state.last_attempt_number <= stalled.attempt:
            then = "log"
        return StallStatus(
            what=stalled.sentence,
            then=then,
            suspects=self._run.redactor.clean(stalled.suspects) if with_suspects else "",
            nodes=stalled.nodes,
            log="job" if state.goal.by_shares else "agent",  # Ray sends the job's to the head
        )

    def _node(
        self, worker: Worker, now: float, reader: Reader, *, steps: frozenset[str], joined: bool
    ) -> NodeStatus:
        stats = self.worker_stats.get(worker.key)
        ray_end = "" if worker.ray_end is None else reader.evidence_of(worker.ray_end)
        state = worker.state(counts=joined)
        detail = worker.detail
        if state is NodeState.LOST and not (worker.silent or detail):
            detail = "reports; Ray's list of nodes does not have it"
        return NodeStatus(
            name=worker.name,
            ip=worker.ip,
            rank=worker.effective_rank,
            state=state,
            phase=worker.phase,
            detail=worker.refused or detail,
            last_error=worker.refused or ray_end,
            heard_seconds_ago=round(now - worker.last_report_at, 1) if worker.key else None,
            joined=joined,
            phases=tuple(self.timeline.nodes.get(worker.key, ())),
            steps=tuple(
                StepStatus(item.name, item.step.value)
                for item in worker.items
                if item.name in steps
            ),
            figures=machine_of(stats),
            slow=self.machines.slow_text(worker.key),
            slow_by=self.machines.slow_by(worker.key),
            **reported_values(stats),
        )

    def _service(
        self, state: HeadState, key: Key, item: Item, now: float, reader: Reader
    ) -> ServiceStatus:
        node, name = key
        worker = state.fleet.workers.get(node)
        where = HERE if worker is None else worker.name
        outages = state.durable.outages_of(name, where)
        since = next((outage.since for outage in outages if outage.until is None), None)
        stats = self._stats_of(node)
        judge = stats.judge if stats is not None and name == REWARD else None
        return ServiceStatus(
            name=service_title(state, key),
            state=item.step.value,
            gpus=state.goal.service(name).gpus,
            detail=reader.evidence_of(item),
            restarts=item.generation - 1,
            outages=len(outages),
            outage_seconds=round(sum(outage.seconds(now) for outage in outages), 1),
            outage_since=None if since is None else round(since, 1),
            latency=None if stats is None else stats.latencies.get(name),
            judge=judge,
        )

    def _stats_of(self, node: str) -> WorkerStats | None:
        return self._run.stats.snapshot() if node == HERE else self.worker_stats.get(node)

    def advice(self) -> tuple[Advice, ...]:
        """Return the advice on the running job."""
        advice = self.job_lines.advice(self._get_state().durable.outages)
        of_split = self.split.advice()
        return advice if of_split is None else (*advice, of_split)

    def with_private(self, status: HeadStatus) -> HeadStatus:
        """Add texts of logs and findings, which only callers with a token may read."""
        state = self._get_state()
        plan = self._run.plan
        clean = self._run.redactor.clean
        between = (*state.comparison.differences, *state.probes.findings)
        findings = [*plan.findings, *between, *self.stalls, *self.machines.findings()]
        found = [self._cleaned(finding) for finding in findings if finding.level is not Level.OK]
        warnings = [
            *map(WarningStatus.of, (*found, *self.job_lines.known.warnings())),
            *map(WarningStatus.of_advice, self.advice()),
        ]

        # What each node's prepare steps print at present.
        prepare_lines = {HERE: dict(self._run.stats.snapshot().progress)} | {
            state.fleet.workers[key].name: dict(stats.progress)
            for key, stats in self.worker_stats.items()
            if stats.progress and key in state.fleet.workers
        }
        return replace(
            status,
            warnings=tuple(warnings),
            stall=self._stall(state, with_suspects=True),
            what_runs=WhatRunsStatus(**map_texts(what_runs(plan, self.command), clean)),
            job_tail=tuple(self.job_lines.tail()),
            metrics=self.job_lines.newest(),
            prepare_lines=prepare_lines,
        )

    def findings(self) -> FindingsStatus:
        """Return the findings of all nodes' checks: each node's own, and those between nodes."""
        state = self._get_state()
        plan = self._run.plan
        fleet = state.fleet
        workers = state.fleet.workers.values()
        present = sorted(workers, key=lambda worker: (worker.effective_rank or 0, worker.name))
        checked = [
            worker for worker in present if not worker.has_left and worker.key in fleet.findings
        ]
        by_node = [(plan.topology.node_name, plan.findings)]
        by_node += [(worker.name, fleet.findings[worker.key]) for worker in checked]
        addresses = {worker.ip for worker in checked}
        between = (*state.comparison.differences, *state.probes.findings)
        return FindingsStatus(
            nodes=tuple(name for name, _ in by_node),
            unknown=tuple(name for ip, name in fleet.alive.items() if ip not in addresses),
            findings=tuple(
                NodesFinding(**asdict(self._cleaned(finding)), nodes=tuple(nodes))
                for finding, nodes in group_findings(by_node)
            ),
            between=tuple(map(self._cleaned, between)),
        )

    def _cleaned(self, finding: Finding) -> Finding:
        clean = self._run.redactor.clean
        texts = {name: clean(getattr(finding, name)) for name in ("check", "what", "remedy")}
        return replace(finding, **texts)

    def outages(self) -> tuple[OutageRecord, ...]:
        """Return the services' outages as records."""
        names = {HERE: self._run.plan.topology.node_name}
        utc = self._run.utc
        return tuple(
            OutageRecord(
                outage.service,
                names.get(outage.node, outage.node),
                utc(outage.since),
                None if outage.until is None else utc(outage.until),
            )
            for outage in self._get_state().durable.outages
        )

    async def read_log(
        self,
        reports: Reports,
        node: str,
        name: str,
        after: int | None,
        before: int | None = None,
    ) -> LogPart | str:
        """Return a log's tail, or what is after or before an offset; or why it cannot."""
        plan = self._run.plan
        own_name = plan.topology.node_name

        # Which log is it? A caller may use its name or that of its file.
        wanted = log_files(name)
        logs = {"agent": AGENT_LOG, "ray": RAY_LOG, "job": JOB_LOG, **plan.logs()}
        workers = self._get_state().fleet.workers.values()
        present = {worker.name: worker for worker in workers if not worker.has_left}
        members = present[node].members if node in present else {}
        for spec in plan.all_services:  # of a group's service each member has a log
            names = spec.names(members.get(spec.name, 1))
            logs |= {own: service_log(own) for own in names}
        known_name = next((known for known, file in logs.items() if file in wanted), name)

        # This node's is read; a worker sends it.
        file = plan.logs().get(known_name)
        if node in {HERE, own_name} and file is not None:
            path = self._run.folder.file(file)
            if before is None:
                return await self._read_local(path, after)
            return await self._read_earlier(path, before)
        if node in present and known_name in logs:
            limit = times.LOG_LINES_AWAITED
            text = await request_log(reports, present[node].key, known_name, limit)
            if text is not None:
                return LogPart(self._run.redactor.clean(f"{text.rstrip()}\n"), None)

        its_logs = listed([file.removesuffix(".log") for file in logs.values()])
        known = f"nodes are {listed([own_name, *present])}; logs {its_logs}"
        if node == HERE:
            return f"{own_name} has no log {name!r}: {known}"
        return f"{node} has no log {name!r}, or did not send it in time: {known}"

    async def _read_local(self, path: Path, after: int | None) -> LogPart | str:
        """Read a local log; wait briefly for new lines or the run's end."""

        async def more() -> LogPart | NotYet:
            is_over = self._get_state().phase is HeadPhase.LEAVING
            part = await in_thread(partial(read_lines, path, after), times.STALLED_DISK)
            if part is None:
                return NotYet()
            lines, start, next_offset = part
            if not lines and after is not None and not is_over:
                return NotYet()
            text = self._run.redactor.clean(lines.decode(errors="replace"))
            earlier = start if after is None and start else None
            return LogPart(text, next_offset, is_over, earlier)

        try:
            return await until(more, times.LOG_LINES_AWAITED, longest=_LOG_POLL)
        except TimedOutError:
            return LogPart("", after or 0)

    async def _read_earlier(self, path: Path, before: int) -> LogPart | str:
        """Read the lines of a local log that end before an offset."""
        read = partial(read_lines, path, before=before)
        part = await in_thread(read, times.STALLED_DISK)
        if part is None:
            return "the disk of the log does not answer"
        lines, start, _ = part
        text = self._run.redactor.clean(lines.decode(errors="replace"))
        return LogPart(text, before, start=start or None)


async def request_log(reports: Reports, key: str, name: str, limit: float) -> str | None:
    """Request a log from a worker and wait for it; None if it does not arrive."""
    reports.logs.pop((key, name), None)
    reports.ask(key, QuestionKind.LOG, name)

    async def sent() -> str | NotYet:
        return reports.logs.get((key, name), NotYet())

    try:
        return await until(sent, limit)
    except TimedOutError:
        return None


def read_lines(
    path: Path, after: int | None = None, *, before: int | None = None
) -> tuple[bytes, int, int]:
    """Read whole lines after an offset, before one, or the last ones.

    Returns them, the offset of the first, and that behind the last.
    """
    try:
        with reading(path) as file:
            size = file.seek(0, os.SEEK_END)
            is_end = after is None or after > size  # the log was started over
            end = size if before is None else min(before, size)
            start = max(0, end - _PART) if is_end else after or 0
            file.seek(start)
            data = file.read(min(_PART, max(0, end - start)))
    except (OSError, ValueError):
        return b"", 0, 0

    # Only whole lines: a secret that is cut in two would not be masked.
    if is_end and start:
        cut = data.find(b"\n") + 1
        data = data[cut:]
        start = start + cut
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) == _PART:
        whole = data
    return whole, start, start + len(whole)
