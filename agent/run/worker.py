"""The worker's life: find the head, join its Ray, run what it wants, leave with its verdict.

`WorkerAgent.run` is the story:

1. Bind the agent's port on loopback: a second agent on this node ends here.
2. Prepare the machine: limits, a stale Ray, this node's ports and temp dir.
3. Start what runs beside the decisions: signals, the link (it sends reports to the head and emits
   its replies as events), the run's clock, the agent's port and this node's prepare steps.
4. Until the end, take one event after the other. `decisions/worker` turns it into a new state and
   actions, `_perform` carries these out, and each change is reported to the head.
5. The end is an action, too: the head's verdict, a stop, a failure of this node, or a head that
   was silent for too long. The outcome is explained and recorded.
6. Send the goodbye while services, Ray and this node's share of a job stop; then stop every other
   descendant. The exit code is that of the outcome.

Where a killed agent's Ray still runs, the agent that replaces it adopts that Ray and follows the
head at once (`state_with_surviving_ray`).
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base.errors import PreflightError
from agent.decisions import worker
from agent.decisions.shared import (
    ALL_REDUCE,
    RAY,
    SHARE,
    LogLine,
    Publish,
    Refused,
    StopAsked,
    Tick,
)
from agent.decisions.worker import worker_state as w
from agent.job.addresses import with_addresses
from agent.job.job import job_identity
from agent.job.services import Placeholders, digest, service_only_ranks
from agent.plan.plan import versions
from agent.port.client import HeadLink
from agent.port.protocol import Applied, Bye, Hello, Reply, Report
from agent.port.server import AgentServer
from agent.port.status_model import HeadAddress, ItemStatus, Reader, WaitStatus, WorkerStatus
from agent.processes import driver
from agent.processes.waiting import Inbox
from agent.record.log import say
from agent.record.run_record import fingerprint
from agent.run import make_ready
from agent.run.all_reduce_part import all_reduce_runner
from agent.run.diagnose import ExplainedEnd, explain_end
from agent.run.end import end_role
from agent.run.executor import Executor
from agent.run.failure_bundle import make_bundle
from agent.run.job_share import JobShare
from agent.run.local_ray import WorkerRay
from agent.run.local_services import LocalWork
from agent.run.node_run import NodeRun, say_line
from agent.run.questions import Questions
from agent.settings.jobs import NO_JOB
from agent.settings.rules import may_listen_on

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from aiohttp import web

    from agent.base.ends import Outcome
    from agent.node.facts import Facts
    from agent.plan.plan import Plan
    from agent.run.executor import Clear, Runner

_GOODBYE = 1.0  # For a last report that the head need not receive.
# For one that the head must receive: the cause of the end is on this worker.
_AWAITED_GOODBYE = 5.0


class WorkerAgent:
    """One run of a worker."""

    def __init__(self, run: NodeRun, tasks: anyio.abc.TaskGroup) -> None:
        self._run = run
        self._tasks = tasks
        self._plan = run.plan
        self._network = run.effects.network
        self._id = secrets.token_hex(8)
        self._inbox: Inbox[w.WorkerEvent] = Inbox(run.redactor.clean_fields)
        self._state = state_with_surviving_ray(run, worker_goal(run.plan))

        # The head: reports, replies, and what it asks for.
        self._link = self._head_link()
        self._reply: Reply | None = None  # the head's last reply, for the hello to a restarted head
        self._questions = Questions(run, self._place, self._link.report_now)
        self._log_tail: str | None = None  # the end of the log; the goodbye is sent once it is set

        # What runs on this node.
        self._ray = WorkerRay(run, lambda: self._state)
        self._share = JobShare(run, self._place)
        self._all_reduce = all_reduce_runner(run, self._place)
        self._executor = Executor(tasks, self._runner_of, self._inbox.put, self._clear_of)
        self._work = LocalWork(run, self._place, self._executor.until_wanted)

        # Addresses of this node.
        self._own_ip = ""
        self._addressed = anyio.Event()

    def _head_link(self) -> HeadLink:
        run = self._run
        plan = run.plan
        return HeadLink(
            host=self._state.goal.head,
            agent_port=plan.ports.agent,
            gcs_port=plan.ports.gcs,
            token=plan.secret(),
            hello=lambda: make_hello(
                *(plan, self._reply, run.redactor.clean),
                left={} if run.surviving is None else run.surviving.services,
            ),
            report=self._report,
            emit=self._inbox.put,
            on_reply=self._on_reply,
            last_ip="" if run.surviving is None else run.surviving.record.head_ip,
            joins_plain_ray=may_join_plain_ray(plan),
            network=run.effects.network,
            open_session=run.effects.late().open_session,
        )

    async def run(self) -> Outcome:
        """Run the worker until the run ends; return the outcome."""
        plan = self._plan
        run = self._run
        start = self._tasks.start_soon
        put = self._inbox.put

        # The port first: a second agent on this node ends here, before it changes anything.
        local_socket = self._network.bind("127.0.0.1", plan.ports.agent)
        refusal = await make_ready.prepare_machine(run)

        # Signals before any process: one that comes earlier would leave the process behind.
        why = "the job's driver runs on the head"
        await self._tasks.start(
            run.effects.processes.watch_signals,
            lambda signum: put(StopAsked(signum)),
            lambda signum: say(driver.not_passed_on(signum, why)),
            run.record_kill,
        )

        # What a killed agent has left here runs on, such as its Ray.
        self._executor.adopt(self._state.items)

        # The link runs for a node that is refused, too: the head gets the reason.
        start(self._link.run)
        start(run.keep_clock, put)
        start(run.watch_machine, self._link.report_now)
        start(run.watch_figures)
        start(run.watch_caches)
        if refusal is not None:
            put(Refused(refusal))
        else:
            start(self._serve, local_socket)
            if plan.own_ray is not None:
                prune = run.effects.machine.prune_sessions
                start(prune, plan.own_ray.session, run.best_effort)
            start(self._work.read_model)
            self._executor.apply(w.wanted_here(self._state))

        # From here on events decide, until one of them ends the worker.
        leave = await self._decide()
        explained = await explain_end(run, leave.outcome)
        await self._shut_down(replace(leave, outcome=explained.outcome))
        return await self._end(explained)

    async def _decide(self) -> w.EndWorker:
        """Process events one by one until a decision ends the worker."""
        reported: tuple[object, ...] = ()
        while True:
            waits = partial(worker.pending_waits, self._state)
            event = await self._run.next_event(self._inbox, waits, worker.deadline(self._state))
            if not isinstance(event, w.HeadSpoke | w.HeadSilent | Tick):
                self._run.record(event)

            # Decide, and record what an agent that replaces this one must find.
            before = self._state
            _, state, actions = self._run.decide(worker.decide, w.FROM_OUTSIDE, before, event)
            self._state = state
            self._run.rank = state.rank
            self._run.set_phase(state.phase.value)
            record_reachability(self._run, before, state)

            for action in actions:
                if isinstance(action, w.EndWorker):
                    await record_end(self._run, action)
                    return action
                self._perform(action)

            # Has anything changed that the head acts on?
            former = reported
            reported = reported_state(state)
            if reported != former:
                self._link.report_now()

    def _perform(self, action: w.WorkerAction) -> None:
        match action:
            case LogLine():
                say_line(action)
            case Publish():
                self._executor.apply(w.wanted_here(self._state))

    def _runner_of(self, name: str) -> Runner | None:
        if name == RAY:
            return None if self._plan.own_ray is None else self._ray.run
        if name == ALL_REDUCE:
            return self._all_reduce
        is_share = name == SHARE and self._plan.share_launcher is not None
        return self._share.run if is_share else self._work.runner_of(name)

    def _clear_of(self, name: str) -> Clear | None:
        return self._ray.clear if name == RAY else None

    def _place(self) -> Placeholders:
        head = self._state.head_ip or ""
        rank = self._state.rank
        place = Placeholders(
            node_ip=self._own_ip or self._network.source_towards(head) or "127.0.0.1",
            head_ip=head,
            rank="" if rank is None else str(rank),
            log_dir=str(self._run.folder.path),
        )
        place = replace(place, members=self._state.members)
        return with_addresses(place, self._plan.all_services, self._state.addresses)

    async def _serve(self, local_socket: socket.socket) -> None:
        """Serve this node's probes and status on loopback and on its address."""
        topology = self._plan.topology
        site = AgentServer(
            token=self._plan.secret(),
            ready=lambda: self._state.phase is not w.WorkerPhase.LEAVING,
            status=self._status,
            run_id=lambda: self._run.run_id,
            names=(topology.node_name, *topology.platform.own_names),
        )
        runner = await self._run.effects.late().open_port(site, [local_socket])

        # The address may be known only once the head is found: by the route to it.
        early = self._plan.address.ip or self._plan.facts.default_source
        try:
            await self._listen_on(runner, early)
            await self._addressed.wait()
            if self._own_ip != early:
                await self._listen_on(runner, self._own_ip)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _listen_on(self, runner: web.BaseRunner, ip: str | None) -> None:
        """Open the agent's port on an address, if it may be opened there."""
        if ip is None or ip.startswith("127.") or not may_listen_on(ip, self._plan.settings):
            return
        if ip in self._plan.facts.addresses_of(self._plan.topology.head_host or ""):
            return  # the port there is that of the head, another process on this machine
        try:
            opened = self._network.bind(ip, self._plan.ports.agent)
            await self._run.effects.late().listen(runner, [opened])
        except PreflightError:  # the run does not need them
            say(f"the agent's port cannot be opened on {ip}: probes there fail", "warning")

    def _report(self, node_ip: str) -> Report:
        plan = self._plan
        state = self._state

        # The first connection to the head shows this node's address.
        if node_ip and not self._own_ip:
            self._own_ip = plan.address.ip or node_ip
            self._addressed.set()

        bye = None
        if state.verdict is not None and self._log_tail is not None:
            bye = Bye(state.verdict.reason, self._log_tail)
        logs, answers = self._questions.for_report()
        wanted = state.wanted
        return Report(
            id=self._id,
            ip=self._ray.node_ip or plan.address.ip or node_ip,
            phase=state.phase.value,
            detail=report_detail(state),
            memory=self._run.memory.recent(),
            items=worker.item_reports(state),
            stats=self._run.stats.for_report(),
            logs=logs,
            answers=answers,
            applied=Applied() if wanted is None else Applied(wanted.by, wanted.revision),
            bye=bye,
            notice=state.notice(self._run.now()),
        )

    def _on_reply(self, reply: Reply) -> None:
        self._questions.clear_sent()
        self._reply = reply
        self._run.join_run(reply.run_id)
        if reply.wanted is not None:
            self._questions.take(reply.wanted, self._tasks)

    def _status(self, reader: Reader) -> WorkerStatus:
        plan = self._plan
        state = self._state
        now = self._run.now()
        return WorkerStatus(
            platform=plan.topology.platform.name,
            name=plan.topology.node_name,
            rank=state.rank,
            phase=state.phase,
            seconds=round(now, 1),
            waits=tuple(WaitStatus.of(wait, now, reader) for wait in worker.pending_waits(state)),
            head=HeadAddress(state.head_ip or plan.topology.head_host, plan.ports.agent),
            head_phase=state.head_phase,
            services=tuple(
                ItemStatus(item.name, item.step.value, reader.evidence_of(item))
                for item in state.services
            ),
            last_error="" if state.ray_end is None else reader.evidence_of(state.ray_end),
            verdict=state.verdict,
        )

    async def _shut_down(self, leave: w.EndWorker) -> None:
        """Report the end to the head, and stop all that runs here."""
        self._run.record_outcome(leave.outcome)
        self._log_tail = await self._questions.read_log_tails(leave.outcome)
        budget = self._plan.budget
        goodbye_limit = _AWAITED_GOODBYE if leave.must_report else _GOODBYE

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._link.send_goodbye, goodbye_limit)
            self._work.stop_reading()
            self._share.hurry()
            tasks.start_soon(self._executor.close)
            tasks.start_soon(self._run.caches.save_at_end, leave.outcome)
        await self._run.stop_descendants(budget.leftovers)

    async def _end(self, explained: ExplainedEnd) -> Outcome:
        """End the run on this node, with a bundle unless the head makes it."""
        # The head does if it has received this end, or if the end is its own.
        has_verdict = self._reply is not None and self._reply.verdict is not None
        by_head = self._link.goodbye_delivered or has_verdict
        return await end_role(
            self._run,
            explained.outcome,
            bundle=None if by_head else partial(make_bundle, self._run, page=explained.page),
            next_event=partial(self._inbox.take, None),
        )


# --- How a worker starts ------------------------------------------------------------------------


def worker_goal(plan: Plan) -> w.WorkerGoal:
    """Return what the plan asks of this worker."""
    host = plan.topology.head_host
    assert host is not None  # noqa: S101 - a worker without a head does not pass the settings
    return w.WorkerGoal(
        head=host,
        limits={wait.key: wait.seconds for wait in plan.waits},
        steps=plan.steps,
        services=plan.possible_services,
        without_job=plan.settings.job == NO_JOB,
        rank=plan.topology.platform.rank,
        service_only_ranks=service_only_ranks(plan.all_services),
        groups=plan.groups,
        group=plan.own_group,
        by_shares=plan.share_launcher is not None,
        gpu_split=plan.gpu_split,
    )


def state_with_surviving_ray(run: NodeRun, goal: w.WorkerGoal) -> w.WorkerState:
    """Return the state in which the worker starts: with a killed agent's Ray if it can be kept."""
    if run.surviving is None:
        return worker.first_state(goal)

    # Had the killed agent joined the head's Ray, and is the record complete?
    record = run.surviving.record
    was_joined = record.epoch and record.ray_generation and record.head_ip and run.run_id
    if not run.surviving.has_ray or not was_joined:
        return worker.first_state(goal, has_agent=record.epoch > 0)

    recorded = w.WorkerState(
        goal,
        head_ip=record.head_ip,
        epoch=record.epoch,
        run_id=run.run_id,
        unreached_since=run.run_time(record.unreached or None),
    )
    return recorded.with_surviving_ray(record.ray_generation)


def record_reachability(run: NodeRun, before: w.WorkerState, after: w.WorkerState) -> None:
    """Record since when the head is out of reach, for an agent that replaces this one.

    The epoch is recorded from the first reply on: it shows that the head has an agent.
    """
    if after.phase is w.WorkerPhase.FINDING and after.epoch != before.epoch:
        head_ip = after.head_ip or ""
        run.node.update(epoch=after.epoch or 0, head_ip=head_ip, ray_generation=0)
    if before.unreached_since != after.unreached_since:
        since = after.unreached_since
        run.node.update(unreached=0.0 if since is None else run.started + since)


async def record_end(run: NodeRun, leave: w.EndWorker) -> None:
    """Record the decided outcome before this node acts on it.

    To stop everything takes seconds: an agent that replaces this one in that time ends with it,
    and does not wait for a head that has left. An end that the head must receive is not recorded:
    the next agent follows the head, decides it again, and reports it.
    """
    if not leave.must_report:
        run.node.update(ending=leave.outcome)
        await run.node.until_settled()


def may_join_plain_ray(plan: Plan) -> bool:
    """Return whether this node may join a head without an agent.

    Ray would send the token to it in clear.
    """
    if plan.secret() is None or plan.own_ray is None:
        return True
    has_tls = plan.environ.get("RAY_USE_TLS", "").lower() in {"1", "true"}
    return has_tls or plan.settings.allow_insecure


# --- What it sends to the head ------------------------------------------------------------------


def make_hello(
    plan: Plan,
    last: Reply | None,
    clean: Callable[[str], str],
    left: Mapping[str, int],
) -> Hello:
    """Return a worker's hello; `last` is the last reply of a head that may be restarted.

    `left` are the generations of the services that a killed agent has left.
    """
    # Without Ray each node starts its share of the job: it must be the same job.
    job = ""
    if plan.share_launcher is not None and plan.job is not None:
        argv, recipe = job_identity(plan.job)
        job = fingerprint(argv, plan.share_launcher.launcher, recipe, clean)

    ray, python, torch = versions(plan)
    findings = tuple(
        replace(finding, what=clean(finding.what), remedy=clean(finding.remedy))
        for finding in plan.findings
    )
    return Hello(
        name=plan.topology.node_name,
        rank=plan.topology.platform.rank,
        ray=ray,
        python=python,
        torch=torch,
        services=digest(plan.all_services, plan.steps),
        job=job,
        gpus=plan.gpus,
        group=plan.own_group,
        members=plan.gpu_split.fits,
        left=left,
        run_id="" if last is None else last.run_id,
        attempt=0 if last is None else last.submitted,
        fingerprint="" if last is None else last.fingerprint,
        facts=facts_to_send(plan.facts),
        clock=time.time(),
        findings=findings,
    )


def facts_to_send(facts: Facts) -> Facts:
    """Return facts without what only their own node uses, such as thousands of addresses."""
    return replace(
        facts,
        interfaces={},
        known_names={},
        reserved_ports=(),
        ray_temp=None,
        script_lines=(),
    )


def reported_state(state: w.WorkerState) -> tuple[object, ...]:
    """Return what the head acts on: a change is reported at once."""
    return (
        state.phase,
        worker.item_reports(state),
        state.wanted,
        state.taken_at,
    )


def report_detail(state: w.WorkerState) -> str:
    """Return why this node leaves, or what it waits for before it follows the head."""
    if state.verdict is not None:
        return state.verdict.reason
    if state.phase is w.WorkerPhase.FOLLOWING:
        return ""
    waits = worker.pending_waits(state)
    return "; ".join(f"{wait.what}: {wait.evidence}" for wait in waits if wait.evidence)
