"""The head's event loop: start everything, decide on events, perform actions, shut down."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind
from agent.base.text import error_text, in_url
from agent.bridge.link import RayLink
from agent.decisions import head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_decide import is_worker_needed
from agent.decisions.head.service_order import service_address
from agent.decisions.shared import (
    HERE,
    Answered,
    LogLine,
    OrderKind,
    Refused,
    Step,
    StopAsked,
    Woke,
)
from agent.job.services import REWARD, reward_url
from agent.plan import environment
from agent.plan.plan import BRIDGE
from agent.port.reports import Reports, agent_limit
from agent.port.server import AgentServer, Control
from agent.processes import driver
from agent.processes.driver import watch_helpers
from agent.processes.probing import first_answer, port_answers, reply_evidence
from agent.processes.waiting import NotYet, until
from agent.record.background import in_thread
from agent.record.events import AttemptOver, GoodbyeReceived
from agent.record.files import remove_file, write_atomically
from agent.record.log import say
from agent.record.run_folder import make_key
from agent.run import head_job, head_server
from agent.run.diagnose import (
    Elsewhere,
    explain_end,
    find_cause,
    make_bundle,
    parts_of_workers,
    request_logs,
)
from agent.run.head_job import Submission, SubmissionTask
from agent.run.holding import hold_after_verdict
from agent.run.local_services import LocalWork
from agent.run.make_ready import prune_sessions
from agent.run.node_run import (
    EventFilter,
    kill_leftovers,
    recorded_form,
    start_ray,
    stop_ray,
    watch_until_end,
)
from agent.run.orders import Prober
from agent.run.run_keeper import make_goal
from agent.run.stall import StallWatch
from agent.run.torchrun import TorchrunLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.base.ends import Outcome
    from agent.base.ports import Ports
    from agent.decisions.attempts import Attempt
    from agent.decisions.head.fleet import Fleet
    from agent.job.torchrun_command import ShareOrder
    from agent.plan.plan import Plan
    from agent.processes.output import OutputCopies
    from agent.processes.process import Child
    from agent.processes.waiting import Inbox
    from agent.run.make_ready import HeadStart
    from agent.run.node_run import NodeRun
    from agent.run.run_keeper import RunKeeper


class HeadAgent:
    """One run of the head."""

    def __init__(
        self,
        run: NodeRun,
        tasks: anyio.abc.TaskGroup,
        keeper: RunKeeper,
        started: HeadStart,
        inbox: Inbox[h.HeadEvent],
    ) -> None:
        self._run = run
        self._keeper = keeper
        self._started = started
        self._tasks = tasks
        self._inbox = inbox
        self._plan = plan = run.plan
        self._placeholders = started.placeholders
        self._env = started.env
        self._ray = started.ray
        self._work = LocalWork(run, inbox.put, lambda: self._placeholders)
        self._output: OutputCopies | None = None
        self._secrets: Path | None = None  # the file from which the driver reads its secrets
        self._bridge_scope = anyio.CancelScope()
        self._state = head.first_state(make_goal(plan, keeper, run.now(), run.finished_steps))
        self._submission_task = SubmissionTask()
        self._event_filter = EventFilter()
        self._status = head_server.RunStatus(run, keeper, lambda: self._state)
        run.outages = self._status.outages
        self._prober = Prober(run)
        self._reports: Reports
        self._link: RayLink | TorchrunLink
        if plan.torchrun is not None:
            lines = self._status.job_lines
            self._link = TorchrunLink(run, tasks, self._placeholders, inbox.put, lines)
        else:
            process = plan.process(BRIDGE)
            log = partial(run.folder.file, process.log)
            env = environment.for_bridge(self._env, plan.settings)
            argv = process.command(self._placeholders)
            self._link = RayLink(argv, env, log, self._put_ray_event, run.record_child)

    def on_notice(self, signum: int) -> None:
        """Handle a signal that is meant for the job."""
        if self._plan.own_ray is None:
            say(driver.not_passed_on(signum, "the agent has not started the Ray of the job"))
        else:
            say(driver.forward_signal(driver.find_driver(self._state.attempt.id), signum))

    async def run(self) -> Outcome:
        """Run the head until the run ends; return the outcome."""
        plan = self._plan
        run = self._run
        keeper = self._keeper
        started = self._started
        put = self._inbox.put
        start = self._tasks.start_soon
        if started.refusal is None:
            await self._start_all()
        else:
            put(Refused(name_head_in_refusal(plan, started.refusal)))
        number = self._state.attempt.number
        first = await head_server.first_reply(keeper, number, started.placeholders.node_ip)
        most = agent_limit(plan.topology.expected_workers)
        token = plan.secret()
        self._reports = reports = Reports(
            first,
            head_server.make_expected(plan, keeper),
            put,
            run.now,
            # Recorded only: the decisions get it as WorkerReported.
            on_bye=lambda name, bye: run.record(GoodbyeReceived(name, bye.cause, bye.log)),
            rank_names=keeper.record.ranks,
            keep_ranks=keeper.record_ranks,
            on_recalled_run=partial(keeper.recall, put),
            has_token=token is not None,
            most=most,
            is_needed=lambda key: is_worker_needed(self._state, key, run.now()),
        )
        self._status.worker_stats = reports.worker_stats
        status = self._status
        topology = plan.topology
        server = AgentServer(
            token=token,
            ready=lambda: True,
            status=status.status,
            reports=reports,
            run_id=lambda: run.run_id,
            names=(topology.node_name, topology.head_host, *topology.platform.own_names),
            control=Control(
                partial(put, StopAsked(SIGTERM)),
                plan.settings.stop_grace,
                # Without a token, a key file grants access to this node's users.
                key=make_key(run.folder.path) if token is None else None,
                findings=status.findings,
                log=partial(status.read_log, reports),
                private_status=status.private_details,
            ),
        )
        start(run.keep_clock, self._on_wake)
        start(run.watch_machine)
        start(StallWatch(run, reports, self._status, self._link, lambda: self._state, put).run)
        start(watch_silent_workers, reports, plan.ports, put)
        recorded = (times.HOURS_RECORDED, "a record of the used hours", self._record_use)
        start(run.best_effort.every, *recorded)
        what = "a look for a later head's record"
        start(run.best_effort.every, times.RUN_RECORD_CHECK, what, self._look_for_later_head)
        runner = await server.open([started.local_socket, *started.sockets])
        try:
            outcome = await self._shut_down(await self._decide())
            workers = self._state.fleet.workers.values()
            there = (one for one in workers if one.ip and not one.silent and not one.refused)
            others = [(one.ip, plan.ports.agent) for one in there]
            take = partial(self._inbox.take, None)
            await hold_after_verdict(run, outcome, take, others)
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
        return outcome

    async def _start_all(self) -> None:
        """Start everything that the plan has for this node, concurrently."""
        start = self._tasks.start_soon
        plan = self._plan
        put = self._inbox.put
        if self._ray is not None:
            start(self._watch_ray, self._ray)
        if plan.own_ray is not None:
            start(prune_sessions, plan.own_ray.session, self._run.best_effort)
        given = plan.topology.given_ray
        if given is not None:  # the platform starts it at any time
            start(self._watch_gcs, given.gcs_host, given.gcs_port, 1.0)
        start(self._follow_ray)
        start(head_job.send_newest_checkpoint, self._run, 0, put)
        for action in self._state.actions:
            await self._perform(action)

    async def _look_for_later_head(self) -> None:
        read = self._keeper.later_epoch
        epoch = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        if epoch:
            self._inbox.put(h.LaterHead(epoch, "run.json has its epoch"))

    def _on_wake(self, event: Woke) -> None:
        self._keeper.used_hours += event.seconds / 3600
        self._inbox.put(event)

    async def _record_use(self) -> None:
        self._keeper.record_use(self._run.now())

    async def _decide(self) -> Outcome:
        """Process events one by one until a decision ends the run."""
        run = self._run
        keeper = self._keeper
        while True:
            waits = partial(head.pending_waits, self._state)
            event = await run.next_event(self._inbox, waits, head.deadline(self._state))
            if self._event_filter.is_new(event, self._state.fleet):
                run.record(recorded_form(event))
            before = self._state.phase
            about = (head.decide, h.FROM_OUTSIDE, self._state)
            event, self._state, actions = run.decide(*about, event)
            self._status.apply_event(event)
            request_logs(run, before, self._state, self._reports)
            run.set_phase(self._state.phase.value)
            for action in actions:
                if not isinstance(action, h.EndRun):
                    await self._perform(action)
            last = actions[-1] if actions else None
            outcome = run.final(last.outcome) if isinstance(last, h.EndRun) else None
            if outcome is not None:
                self._state = replace(self._state, verdict=outcome)
                self._keeper.record_outcome(outcome)
                await self._keeper.flush()  # before workers leave with it
            state = self._state
            number = self._state.attempt.number
            ray_ready = state.gcs_answers and state.ray.step is not Step.LOST
            self._reports.publish(
                epoch=keeper.epoch,
                run_id=keeper.record.run_id,
                phase=state.phase.value,
                attempt=number,
                fingerprint=keeper.proof(number - (state.phase is h.HeadPhase.BOOTING)),
                ray_ready=ray_ready or state.goal.by_torchrun,  # without Ray
                verdict=state.verdict_for_workers,
            )
            if isinstance(event, h.RunRemembered):
                self._reports.run_decided.set()
            if outcome is not None:
                return outcome

    async def _perform(  # noqa: C901, PLR0912, PLR0915 - one case, one action
        self, action: h.HeadAction
    ) -> None:
        run = self._run
        start = self._tasks.start_soon
        put = self._inbox.put
        match action:
            case h.SubmitJob(job):
                await self._record_attempt()  # before workers receive its number
                self._submission_task.start(self._tasks, self._submit, job)
            case h.FollowJob(job):
                await self._follow(job)
            case h.ListJobs(first_id) if isinstance(self._link, RayLink):
                await self._link.list_jobs(first_id)
            case h.SaveSnapshot(known):
                self._keeper.save(self._keeper.record.with_snapshot(known, run.now()))
            case h.SaveStepHolders(holders):
                self._keeper.record_step_holders(holders)
                await self._keeper.flush()
            case h.SaveOutages(outages):
                self._keeper.record_outages(outages, run.now())
            case h.StopJob(job):
                about = (self._keeper.flush, put, self._submission_task)
                start(head_job.stop_job, self._link, job, *about)
            case h.SaveJob(job, signum):
                start(head_job.save_job, run, job, signum, put)
            case h.ReleaseWorker(node):
                self._reports.order(node, OrderKind.LEAVE)
            case h.AskNodes(job):
                start(probe_nodes, job, self._state.fleet, put)
            case h.RestartRay():
                await self._start_ray_again()
            case LogLine():
                say(action.sentence, action.level)
            case h.StartService(name, node, generation) if node == HERE:
                start(self._work.serve, name, generation)
            case h.StartService(name, node, generation):
                self._reports.order(node, OrderKind.START_SERVICE, name, generation)
            case h.OrderStep(name, node) if node == HERE:
                start(self._work.prepare, name)
            case h.OrderStep(name, node):
                self._reports.order(node, OrderKind.RUN_STEP, name)
            case h.ProbeNode(node, probe, at, share) if node == HERE:
                start(self._probe, probe, at, share)
            case h.ProbeNode(node, probe, at, share):
                self._reports.order(node, OrderKind.PROBE, probe, at=at, share=share)
            case h.AdoptRun(run_id, attempts, epoch, is_running):
                self._keeper.adopt_run(run_id, attempts, epoch)
                if is_running:
                    await self._record_attempt()
                run.join_run(run_id)
                self._placeholders = replace(self._placeholders, log_dir=str(run.folder.path))
                await self._keeper.flush()
            case h.Retry(ended):
                await self._clean_up_attempt(ended)
                start(head_job.send_newest_checkpoint, run, ended.number, put)

    async def _record_attempt(self) -> None:
        nodes = (*self._state.fleet.alive.values(),)
        self._keeper.record_submission(self._state.attempt, nodes, self._state.required)
        await self._keeper.flush()

    async def _probe(self, probe: str, at: str, share: ShareOrder | None) -> None:
        answer = await self._prober.probe(probe, at, self._placeholders, share)
        self._inbox.put(Answered(answer))

    async def _watch_ray(self, child: Child) -> None:
        run = self._run
        put = self._inbox.put
        ip = self._placeholders.node_ip
        port = self._plan.ports.gcs
        end = await watch_until_end(
            run,
            child,
            partial(self._watch_gcs, ip, port, 0.1),
            partial(watch_helpers, child, lambda *found: put(h.RayHangs(*found)), run.best_effort),
        )
        if child is self._ray:  # else it was replaced
            put(h.RayGone(end, run.memory.recent()))

    async def _watch_gcs(self, host: str, port: int, step: float) -> None:
        """Put an event when GCS accepts connections: the bridge, which imports Ray, is later."""
        put = self._inbox.put

        async def is_open() -> bool | NotYet:
            evidence = await port_answers(host, port)
            return NotYet(evidence) if evidence else True

        await until(is_open, None, longest=step, on_evidence=lambda why: put(h.HeadRaySilent(why)))
        put(h.GcsOpen())

    async def _start_ray_again(self) -> None:
        if self._ray is not None and self._ray.running:
            hung = self._ray
            self._ray = None
            await stop_ray(hung, 0.0)
            await self._discard_ray_events()
        self._keeper.new_epoch(self._plan.topology.node_name)
        await self._keeper.flush()
        self._ray = await start_ray(self._run, self._placeholders, self._env)
        self._tasks.start_soon(self._watch_ray, self._ray)

    async def _discard_ray_events(self) -> None:
        """Discard events of a Ray that was stopped: they do not apply to the next."""
        assert isinstance(self._link, RayLink)  # noqa: S101 - torchrun needs no Ray
        await self._link.restart_bridge()
        self._inbox.discard(h.RayNodes, h.GcsOpen, h.HeadRaySilent, h.RayHangs, h.RayGone)

    def _put_ray_event(self, event: h.HeadEvent) -> None:
        """Put an event of the bridge; a failed job's report gets the cause that its output has."""
        if isinstance(event, h.JobReported) and event.report.ended and not event.report.succeeded:
            self._tasks.start_soon(self._put_with_cause, event, self._run.memory.recent())
        else:
            self._inbox.put(event)

    async def _put_with_cause(self, event: h.JobReported, memory: str) -> None:
        source = None if self._output is None else self._output.path
        cause = None if source is None else await find_cause(self._run, source, self._elsewhere())
        self._inbox.put(replace(event, report=replace(event.report, memory=memory, cause=cause)))

    async def _follow_ray(self) -> None:
        with self._bridge_scope:
            await self._link.run()

    async def _submit(self, job_id: str) -> None:
        made = await self._submission_task.make(self._make_submission)
        if not isinstance(made, Submission):
            self._keeper.withdraw_submission(job_id)
            canceled = h.SubmitWaits(job_id, "stopped before it was submitted", canceled=True)
            self._inbox.put(canceled if made is None else Refused(made))
            return
        for message in made.messages:
            say(message.sentence, message.level)
        self._status.job_lines.begin_attempt()
        if isinstance(self._link, TorchrunLink):
            self._output = await self._link.launch(
                self._state, self._reports, self._reward_ip, made.basis
            )
            return
        # A killed agent passed on an earlier attempt's output.
        self._run.node.update(passed_on=0, copied=0)
        output = (self._run, job_id, made.line, self._status.job_lines)
        self._output, mirror = await head_job.start_job_output(*output)
        if made.secrets:
            self._secrets = Path(made.secrets_file)
            write = partial(write_atomically, self._secrets, made.secrets, mode=0o600)
            error = await anyio.to_thread.run_sync(write, abandon_on_cancel=True)
            if error is not None:
                self._inbox.put(h.SubmitWaits(job_id, error_text(error), final=True))
                return
        await self._link.submit(job_id, made.line, made.runtime_env, mirror)

    @property
    def _reward_ip(self) -> str:
        return service_address(self._state, REWARD) or self._placeholders.node_ip

    async def _follow(self, job_id: str) -> None:
        made = await self._make_submission(is_followed=True)
        line = made.line if isinstance(made, Submission) else ""
        about = (self._run, job_id, line, self._status.job_lines)
        self._output, mirror = await head_job.start_job_output(*about)
        await self._link.follow(job_id, mirror)

    async def _make_submission(self, *, is_followed: bool = False) -> Submission | Outcome:
        place = replace(self._placeholders, node_ip=self._reward_ip)
        url = reward_url(self._plan.all_services, place)
        keeper = self._keeper
        basis = self._keeper.record.basis
        if basis is None:
            basis = await head_job.read_basis(self._plan, self._state)
            keeper.save(replace(keeper.record, basis=basis))
        about = (self._plan, self._state, keeper.record.run_id, basis)
        maker = head_job.SubmissionMaker(*about, is_followed=is_followed)
        return await maker.make(self._placeholders, url, self._env, self._run.redactor.clean)

    async def _clean_up_attempt(self, ended: Attempt) -> None:
        """Record an attempt's end, and stop all that could run beside the next attempt.

        Our own Ray is stopped with it: actors may be detached, and their child processes have
        sessions of their own.
        """
        self._run.record(AttemptOver(ended.number, ended.id, ended.end))
        if ended.end is not None:
            announced = ended.loss_was_announced
            self._keeper.record_attempt_end(ended.end, announced=announced)
            await self._keeper.flush()
        await self._finish_output()
        self._link.forget(ended.id)
        left = ""
        if isinstance(self._link, TorchrunLink):
            await self._link.share.stop(self._plan.budget.ray)
        elif self._plan.own_ray is not None:
            old = self._ray
            self._ray = None
            if old is not None:
                await stop_ray(old, self._plan.budget.ray)
            left = await kill_leftovers(f"attempt {ended.number}", times.LEFTOVERS_KILLED)
            await self._discard_ray_events()
        self._inbox.put(h.Cleared(ended.number, left))

    async def _finish_output(self) -> None:
        """Pass on the rest of an attempt's output; cancel a submission in preparation."""
        await self._submission_task.cancel()
        if self._secrets is not None:
            await in_thread(partial(remove_file, self._secrets))  # of a job that never started
            self._secrets = None
        if self._output is not None:
            drain = partial(self._output.finish, self._plan.budget.output)
            await anyio.to_thread.run_sync(drain)
            self._output = None
            self._run.node.update(passed_on=0, copied=0)  # of the next attempt

    def _elsewhere(self) -> Elsewhere:
        """Return where else the cause of a failed job may be."""
        link = None if isinstance(self._link, TorchrunLink) else self._link
        names = {one.ip: one.name for one in self._state.fleet.workers.values() if one.ip}
        return Elsewhere(self._status.logs_of_nodes(), names, link)

    async def _shut_down(self, outcome: Outcome) -> Outcome:
        """Send the verdict to the workers and stop everything, within the grace."""
        await self._finish_output()
        outcome = await explain_end(self._run, outcome, self._elsewhere())
        await self._record_use()
        self._keeper.record_end(outcome)
        await self._keeper.flush()
        self._run.cost = self._status.cost()
        if self._run.cost is not None:
            say(f"all nodes of this run cost ${self._run.cost:.2f} so far (AGENT_PRICE_PER_HOUR)")
        self._run.record_outcome(outcome)
        self._bridge_scope.cancel()
        plan = self._plan
        budget = self._plan.budget
        sockets = self._started.sockets
        async with anyio.create_task_group() as tasks:
            if not outcome.is_superseded:  # else the workers follow the later head
                may_call = head_server.count_possible_callers(plan, sockets, self._state)
                about = (budget.final_replies, may_call)
                tasks.start_soon(self._reports.wait_for_goodbyes, *about)
            tasks.start_soon(self._work.stop_services, budget.services)
            if self._ray is not None:
                tasks.start_soon(stop_ray, self._ray, budget.ray)
            if isinstance(self._link, TorchrunLink):
                tasks.start_soon(self._link.share.stop, budget.ray)
        await self._run.stop_descendants(budget.leftovers)
        parts = parts_of_workers(self._run, self._status, self._state, self._reports)
        return await make_bundle(self._run, outcome, self._keeper.record.attempts, parts)


def name_head_in_refusal(plan: Plan, refusal: Outcome) -> Outcome:
    """Add the head's name to its refusal where workers read it."""
    if not plan.topology.expected_workers or refusal.kind is not Kind.REFUSED:
        return refusal
    return replace(refusal, reason=f"on the head {plan.topology.node_name}: {refusal.reason}")


async def watch_silent_workers(
    reports: Reports, ports: Ports, send: Callable[[h.WorkerSilent], None]
) -> None:
    """Probe workers whose connection broke, and at intervals those that are overdue.

    An event is sent for each worker whose agent does not answer.
    """
    limit = times.PROBE_OF_SILENT + times.PROBE_EVIDENCE
    pause = times.PROBE_INTERVAL
    limiter = anyio.CapacityLimiter(128)  # if the head is cut off, all workers are silent at once

    async def probe(key: str) -> None:
        agent = reports.awaited(key)
        found = dict[str, str]()
        if agent is None or not agent.ip:
            return

        async def ask(part: str, question: Callable[[], Awaitable[str]]) -> None:
            found[part] = await first_answer(question, times.PROBE_OF_SILENT)

        url = f"http://{in_url(agent.ip)}:{ports.agent}/livez"
        async with limiter, anyio.create_task_group() as both:
            # without redirects: a stranger that reported has no request sent elsewhere
            livez = partial(reply_evidence, url, None, "", limit, follows_redirects=False)
            both.start_soon(ask, "agent", livez)
            ask_ray = partial(port_answers, agent.ip, ports.node_manager, limit)
            both.start_soon(ask, "ray", ask_ray)
        agent = reports.awaited(key)
        if found["agent"] and agent is not None:
            agent.is_silent = True
            send(h.WorkerSilent(key, found["agent"], ray_answers=not found["ray"]))

    async def probe_overdue() -> NotYet:
        async with anyio.create_task_group() as overdue:
            for key in reports.overdue():
                overdue.start_soon(probe, key)
        return NotYet()

    async def on_disconnect(key: str) -> None:
        if not await reports.reports_again(key, times.RECONNECT):
            await probe(key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(until, probe_overdue, None, step=pause, longest=pause))
        while True:
            key = await reports.disconnected.take(None)
            if key is not None:
                tasks.start_soon(on_disconnect, key)


async def probe_nodes(job_id: str, fleet: Fleet, send: Callable[[h.NodesAsked], None]) -> None:
    """Probe all workers of a failed job at their raylets' ports, and send the silent ones.

    GCS needs 15 s to miss a node; the kernel of a live node answers at once.
    """
    silent: dict[str, str] = {}

    async def probe_port(ip: str, name: str, port: int) -> None:
        evidence = await port_answers(ip, port, times.PER_NODE_ASKED)
        if evidence:
            silent[name] = f"its Ray does not answer, {evidence}"

    with anyio.move_on_after(times.NODES_ASKED):
        async with anyio.create_task_group() as tasks:
            for ip, name in fleet.alive.items():
                for port in {node.port for node in fleet.ray_nodes.get(ip, ())}:
                    tasks.start_soon(probe_port, ip, name, port)
    send(h.NodesAsked(job_id, dict(silent)))
