"""The life of the head: start, serve, decide, perform, submit, try again, end.

`start_head` (run/make_ready.py) has bound the agent's port and started Ray. Then this file does:

- Start what else the plan has for this node: the link to Ray, services, prepare steps.
- Serve workers at the agent's port. Watch the machine, silent workers, and a later head.
- Decide: `decide` (decisions/head) turns one event after the other into a state and actions. It
  waits for services, steps and workers, has the job submitted and followed, and tries again after
  a loss.
- Perform those actions; what nodes run is published to the executor of this node (executor.py), and
  to those of the workers with the replies to their reports. Nothing is decided in this file.
- End, once an action is EndRun: record the outcome, send it to the workers, and stop services and
  Ray within the grace. Then the run ends as any other does (end.py).

job_runner.py submits the job and follows it, head_job.py makes its submission and reads its
checkpoints, head_server.py makes what the port serves, and run_store.py writes the run's record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.text import shown_path
from agent.bridge.link import RayLink
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.losses import durable_after_attempt
from agent.decisions.head.service_addresses import (
    addresses_by_rank,
    judges_now,
    known_place,
    members_by_service,
)
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import (
    ALL_REDUCE,
    CHECK,
    HERE,
    JOB,
    RAY,
    SAVE,
    SHARE,
    Answered,
    LogLine,
    Publish,
    QuestionKind,
    Step,
    Woke,
)
from agent.diagnosis.end_lines import totals
from agent.plan import environment
from agent.plan.plan import BRIDGE
from agent.processes import driver
from agent.record.background import result_in_thread
from agent.record.event_filter import EventFilter, recorded_form
from agent.record.events import AttemptOver
from agent.record.log import say
from agent.run import head_job, head_server, make_ready
from agent.run.about_pod import ask_about_pod
from agent.run.all_reduce_part import all_reduce_runner
from agent.run.checkpoint_watch import say_newest_checkpoint
from agent.run.diagnose import Elsewhere, ExplainedEnd, diagnose_end, with_cause
from agent.run.end import end_role, write_outcome_early
from agent.run.executor import Executor
from agent.run.failure_bundle import Bundled, make_bundle, parts_of_workers, request_logs
from agent.run.framework_answer import FrameworkAsker
from agent.run.front_link import LOOK, FrontLink
from agent.run.job_runner import HeadView, JobRunner
from agent.run.job_share import JobShare
from agent.run.job_steps import StepKeeper
from agent.run.local_ray import HeadRay, WatchedRay
from agent.run.local_services import LocalWork
from agent.run.make_goal import make_goal
from agent.run.node_run import say_line
from agent.run.questions import Prober
from agent.run.run_report import write_report
from agent.run.silent_nodes import probe_nodes, watch_silent_workers
from agent.run.stall import StallWatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent.decisions.durable import Durable
    from agent.decisions.shared import LocalAnswer
    from agent.port.reports import Reports
    from agent.processes.waiting import Inbox
    from agent.run.executor import Clear, OnProgress, Runner
    from agent.run.make_ready import HeadStart
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore

_CHECKPOINTS_LOOK = 60.0  # Between two looks for new checkpoints of the running job.
_NODES_LOOK = 30.0  # Between two looks at the figures of all nodes, as often as they are sent.
_RECEIPT_LOOK = 1.0  # Between two looks at what a run spends its time on.
_HOURS_RECORDED = 60.0  # Between two records of the used hours: a killed agent forgets no more.
_RUN_RECORD_CHECK = 3.0  # Between two checks whether a later head serves this run.
_STEPS_SAVED = 1.0  # Between two writes of the job's steps: a killed agent forgets no more.


class HeadAgent:
    """One run of the head."""

    def __init__(
        self,
        run: NodeRun,
        tasks: anyio.abc.TaskGroup,
        store: RunStore,
        started: HeadStart,
        inbox: Inbox[h.HeadEvent],
    ) -> None:
        self._run = run
        self._store = store
        self._started = started
        self._tasks = tasks
        self._inbox = inbox
        self._plan = run.plan
        self._placeholders = started.placeholders
        self._env = started.env

        # What decisions are made on, and what is shown of them.
        refusal = started.refusal
        if refusal is not None:
            refusal = make_ready.refusal_of_head(run.plan, run.redactor, refusal)
        goal = make_goal(run.plan, store, run.now(), run.finished_steps, refusal)
        self._state = head.first_state(goal, store.durable)
        self._event_filter = EventFilter()
        self._status = head_server.RunStatus(run, store, lambda: self._state)
        self._steps = StepKeeper(run, self._status.job_lines)
        self._reports: Reports  # of the workers; there once the port is served

        # What runs on this node.
        self._executor = Executor(tasks, self._runner_of, inbox.put, self._clear_of)
        self._work = LocalWork(
            run,
            lambda: known_place(self._placeholders, self._state),
            self._executor.until_wanted,
            lambda: self._state.fleet.addresses(),  # noqa: PLW0108 - of the state at that time
            lambda urls: judges_now(urls, self._placeholders, self._state),
        )
        self._link = self._make_link()
        self._link_scope = anyio.CancelScope()
        self._ray = self._make_ray()
        self._job = JobRunner(
            run, store, self._status, self._steps, self._link, started.env, self._view()
        )
        self._share = JobShare(
            run, lambda: known_place(self._placeholders, self._state), self._job.pass_on
        )
        self._status.fronts = {
            spec.name: FrontLink(run, spec, lambda: self._state, inbox.put)
            for spec in run.plan.all_services
            if spec.front
        }
        self._prober = Prober(run)
        self._all_reduce = all_reduce_runner(run, lambda: self._placeholders)
        self._framework = FrameworkAsker(run, started.env, lambda: self._placeholders)

    def _view(self) -> HeadView:
        """Return what the job's runner is given of this head."""
        return HeadView(
            lambda: self._state,
            lambda: self._placeholders,
            self._elsewhere,
            self._executor.until_wanted,
        )

    def _make_link(self) -> RayLink | None:
        """Return the link to Ray; None where a launcher starts the job on all nodes."""
        plan = self._plan
        run = self._run
        if plan.share_launcher is not None:
            return None
        process = plan.process(BRIDGE)
        return RayLink(
            process.command(self._placeholders),
            environment.for_bridge(self._env, plan.settings),
            partial(run.folder.file, process.log),
            self._inbox.put,
            run.record_child,
            run.effects.processes.start,
        )

    def _make_ray(self) -> HeadRay | WatchedRay | None:
        """Return what runs this node's Ray, or watches a given one; None without Ray."""
        given = self._plan.topology.given_ray
        if self._link is None:
            return None
        if given is not None:
            return WatchedRay(self._run, given)
        early = self._started.ray
        view = self._view()
        return HeadRay(self._run, early, self._link, view.place, self._env, view.state)

    async def run(self) -> Outcome:
        """Run the head until the run ends; return the outcome."""
        # Services and steps first: they take the longest. A head that is refused starts nothing,
        # and is served only until its workers have the refusal.
        started = self._started
        await self._steps.restore()
        if started.refusal is None:
            await self._start_all()

        # Workers report from their first second.
        self._reports = await self._make_reports()
        server = await head_server.make_server(
            self._run, self._status, self._reports, self._inbox.put
        )
        self._start_watches()
        sockets = [started.local_socket, *started.sockets]
        runner = await self._run.effects.late().open_port(server, sockets)

        # The run, its end, and the pod's. Until then callers get the verdict.
        try:
            outcome = await self._decide()
            explained = await self._shut_down(outcome)
            outcome = await self._end(explained)
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
        return outcome

    def on_notice(self, signum: int) -> None:
        """Handle a signal that is meant for the job."""
        if self._plan.own_ray is None:
            say(driver.not_passed_on(signum, "the agent has not started the Ray of the job"))
        else:
            process = self._run.effects.processes.find_driver(self._state.attempt.id)
            say(driver.forward_signal(process, signum))

    # --- start ----------------------------------------------------------------------------------

    async def _start_all(self) -> None:
        """Start everything that the plan has for this node, concurrently."""
        start = self._tasks.start_soon
        plan = self._plan

        # The link to Ray: the agent's own runs since `start_head`.
        if plan.own_ray is not None:
            prune = self._run.effects.machine.prune_sessions
            start(prune, plan.own_ray.session, self._run.best_effort)
        if self._link is not None:
            start(self._run_link, self._link)

        # Ray, and services and steps that need nothing else; the model is read ahead after them.
        start(self._work.read_model)
        for action in self._state.actions:
            await self._perform(action)

    async def _run_link(self, link: RayLink) -> None:
        with self._link_scope:
            await link.run()

    def _runner_of(self, name: str) -> Runner | None:
        if name == JOB:
            return self._job.run
        if name == ALL_REDUCE:
            return self._all_reduce
        if name == CHECK:
            return self._framework.run
        if name == SAVE:
            return partial(head_job.save_job, self._run)
        if name == RAY and self._ray is not None:
            return self._ray.run
        is_share = name == SHARE and self._link is None
        return self._share.run if is_share else self._work.runner_of(name)

    def _clear_of(self, name: str) -> Clear | None:
        if name == JOB:
            return self._job.clear
        if name == RAY and self._ray is not None:
            return self._ray.clear
        return self._await_gpus if name == SHARE else None

    async def _await_gpus(self, _progress: OnProgress) -> None:
        """Wait until a share has left no GPU memory in use."""
        await self._run.gpu_memory.await_free()

    async def _make_reports(self) -> Reports:
        """Return what answers workers' reports, once the epoch that they follow is on disk."""
        number = self._state.attempt.number
        first = await head_server.first_reply(self._store, number, self._placeholders.node_ip)
        reports = head_server.make_reports(
            self._run, self._store, first, get_state=lambda: self._state, send=self._inbox.put
        )
        self._status.worker_stats = reports.worker_stats
        return reports

    def _start_watches(self) -> None:
        """Watch the clock, the machine, the job's progress, workers, and the run's record."""
        start = self._tasks.start_soon
        put = self._inbox.put
        every = self._run.best_effort.every
        stall = StallWatch(
            self._run,
            self._reports,
            self._status,
            self._link,
            get_state=lambda: self._state,
            send=put,
            place=lambda: self._placeholders,
            elsewhere=self._elsewhere,
        )

        # The clock, the machine, the job's signs of work, and silent workers.
        start(self._run.keep_clock, self._on_wake)
        start(self._run.watch_machine)
        start(self._run.watch_figures)
        start(self._run.watch_caches)
        start(stall.run)
        start(watch_silent_workers, self._reports, self._plan.ports, put, self._run.effects)

        # The fronts of groups, and their members.
        for front in self._status.fronts.values():
            start(every, LOOK, "an order to a front", front.look)

        # Looks at intervals, without which the run goes on.
        status = self._status
        start(every, _RECEIPT_LOOK, "a look at what the run does", status.look_at_run)
        start(every, _CHECKPOINTS_LOOK, "a look for checkpoints", status.checkpoints.look)
        start(every, _NODES_LOOK, "a look at the nodes' figures", status.look_at_nodes)
        start(every, _HOURS_RECORDED, "a record of the used hours", self._record_use)
        start(every, _STEPS_SAVED, "the job's steps", self._steps.look)
        has_price = self._state.goal.price is not None
        ask_runpod = partial(ask_about_pod, self._run, put, has_price=has_price)
        start(self._run.best_effort, "RunPod's answers about this pod", ask_runpod)
        check = self._look_for_later_head
        start(every, _RUN_RECORD_CHECK, "a look for a later head's record", check)

    def _on_wake(self, event: Woke) -> None:
        self._store.used_hours += event.seconds / 3600
        self._inbox.put(event)

    async def _record_use(self) -> None:
        self._status.receipt.save()
        status = self._status
        self._store.measure_use(self._run.now(), status.cost(), status.price_source())

    async def _look_for_later_head(self) -> None:
        epoch = await result_in_thread(self._store.later_epoch)
        if epoch:
            self._inbox.put(h.LaterHead(epoch, "run.json has its epoch"))

    # --- decide ---------------------------------------------------------------------------------

    async def _decide(self) -> Outcome:
        """Process events one by one until a decision ends the run."""
        run = self._run
        while True:
            # What happened? A tick, if nothing did before the next deadline.
            waits = partial(head.pending_waits, self._state)
            event = await run.next_event(self._inbox, waits, head.deadline(self._state))
            if self._event_filter.is_new(event, self._state.fleet):
                run.record(recorded_form(event))

            # What follows from it?
            before = self._state
            event, self._state, actions = run.decide(
                head.decide, h.FROM_OUTSIDE, self._state, event
            )
            self._status.apply_event(event)
            request_logs(run, before.phase, self._state, self._reports)
            run.set_phase(self._state.phase.value)
            for over in self._state.durable.ended[len(before.durable.ended) :]:
                run.record(AttemptOver(over.number, over.id, over.reason, over.exit_code))
            for action in actions:
                if not isinstance(action, h.EndRun):
                    await self._perform(action)

            # Is the run over? The outcome is on disk before workers leave with it.
            last = actions[-1] if actions else None
            outcome = (
                run.container.restarts.final(last.outcome) if isinstance(last, h.EndRun) else None
            )
            if outcome is not None:
                outcome = await self._check_steps(outcome)
                await self._persist(replace(self._state.durable, verdict=outcome))

            self._publish()
            if isinstance(event, h.RunRemembered):
                self._reports.run_decided.set()
            if outcome is not None:
                return outcome

    async def _check_steps(self, outcome: Outcome) -> Outcome:
        """Warn of a job that succeeded without all its steps: its whole output is read first."""
        if outcome.kind is not Kind.DONE or not outcome.is_jobs_verdict:
            return outcome
        await self._executor.end(JOB)
        earlier = self._state.earlier
        return self._steps.warn_of_few(outcome, self._state.attempt.number, earlier.resumes_from)

    def _publish(self) -> None:
        """Set what workers' reports are answered with."""
        state = self._state
        number = state.attempt.number
        is_booting = state.phase is h.HeadPhase.BOOTING
        submitted = number - 1 if is_booting else number
        ray_ready = state.ray.gcs_answers and state.ray.item.step is not Step.LOST
        self._reports.publish(
            epoch=state.durable.epoch,
            run_id=state.durable.run_id,
            phase=state.phase.value,
            attempt=number,
            fingerprint=head_server.proof(state.durable, submitted),
            ray_ready=ray_ready or state.goal.by_shares,  # without Ray
            verdict=state.verdict_for_workers,
        )

    # --- perform --------------------------------------------------------------------------------

    async def _perform(self, action: h.HeadAction) -> None:
        match action:
            case LogLine():
                say_line(action)

            # What the next agent of the run must have.
            case h.Persist(durable, must_be_on_disk):
                await self._persist(durable, waits=must_be_on_disk)

            # What nodes run, and what they are asked: here, or on workers.
            case Publish(nodes):
                self._publish_wanted(nodes)
            case h.Ask(question, node):
                await self._ask(question, node)

    async def _ask(self, question: h.HeadQuestion, node: str) -> None:
        start = self._tasks.start_soon
        match question:
            case h.Probe(kind, at) if node == HERE:
                start(self._answer, self._prober.probe, kind, at, self._placeholders)
            case h.Probe(kind, at):
                self._reports.ask(node, QuestionKind.PROBE, kind, at)
            case h.AskNodes(job):
                network = self._run.effects.network
                start(self._answer, probe_nodes, job, self._state.fleet, network)
            case h.ListJobs(prefix) if self._link is not None:
                await self._link.list_jobs(prefix)
            case h.AskProgress(attempt):
                last_step = self._steps.last_of(attempt)
                start(self._answer, head_job.find_progress, self._run, attempt, last_step)

    async def _answer(self, find: Callable[..., Awaitable[LocalAnswer]], *asked: object) -> None:
        self._inbox.put(Answered(await find(*asked)))

    def _publish_wanted(self, nodes: tuple[str, ...]) -> None:
        """Have nodes run what is wanted of them now."""
        addresses = addresses_by_rank(self._state)
        members = members_by_service(self._state, self._placeholders.head_ip)
        for node in nodes:
            wants = wanted_of(self._state, node)
            if node == HERE:
                self._executor.apply(wants)
            else:
                may_leave = node in self._state.notices.released
                self._reports.want(node, wants, addresses, members, may_leave=may_leave)

    async def _persist(self, durable: Durable, *, waits: bool = True) -> None:
        """Write what is durable; `waits` until it is on disk, within a limit."""
        self._state = replace(self._state, durable=durable)
        if durable.run_id != self._store.durable.run_id:  # a run that workers remember
            self._run.join_run(durable.run_id)
            log_dir = str(self._run.folder.path)
            self._placeholders = replace(self._placeholders, log_dir=log_dir)
        self._store.put(durable, self._run.now())
        if waits:
            await self._store.on_disk()

    def _elsewhere(self) -> Elsewhere:
        """Return where else the cause of a failed job may be."""
        workers = self._state.fleet.workers.values()
        names = {worker.ip: worker.name for worker in workers if worker.ip}
        link = self._link
        known = self._status.job_lines.known
        logs = self._status.logs_of_nodes()
        return Elsewhere(logs, names, link, known.first_at, known.named)

    # --- end ------------------------------------------------------------------------------------

    async def _shut_down(self, outcome: Outcome) -> ExplainedEnd:
        """Send the verdict to the workers and stop everything; return the explained outcome."""
        run = self._run
        budget = self._plan.budget

        # Why did it end? The rest of the job's output may have the cause.
        await self._executor.end(JOB)
        diagnosis = await diagnose_end(run, outcome, self._elsewhere())
        attempt = self._state.attempt
        last_step = self._steps.last_of(attempt.number)
        end = await head_job.known_end(run, outcome, diagnosis, attempt, last_step)
        explained = await with_cause(run, outcome, diagnosis)
        outcome = explained.outcome

        # Record it, and what the run cost.
        await self._record_use()
        state = self._state.with_durable(verdict=outcome)
        await self._persist(durable_after_attempt(state, outcome, run.now()))
        run.record_outcome(outcome, end)

        # Stop all at the same time, while workers get the verdict: those of a superseded head
        # follow the later one.
        self._link_scope.cancel()
        async with anyio.create_task_group() as tasks:
            if not outcome.is_superseded:
                sockets = self._started.sockets
                callers = head_server.count_possible_callers(self._plan, sockets, self._state)
                tasks.start_soon(self._reports.wait_for_goodbyes, budget.final_replies, callers)
            self._work.stop_reading()
            self._share.hurry()
            tasks.start_soon(self._executor.close)
            tasks.start_soon(run.caches.save_at_end, outcome)
        await run.stop_descendants(budget.leftovers)
        return explained

    def _say_totals(self, records: Path) -> None:
        """Log what the run took, and where its records are."""
        rewards = self._status.job_lines.rewards()
        say(totals(self._run.now(), rewards, self._run.facts.cost, shown_path(records)))

    async def _end(self, explained: ExplainedEnd) -> Outcome:
        """End the run with the evidence of all nodes; the workers' pods stop before this one."""
        run = self._run
        outcome = explained.outcome
        parts = parts_of_workers(run, self._status, self._state, self._reports)
        others = head_server.agents_before_head(self._plan, self._state, self._reports)

        # First the outcome: a platform that stops the pod may not wait for the report.
        await write_outcome_early(run, outcome)

        async def write_bundle(outcome: Outcome) -> Bundled:
            bundled = await make_bundle(run, outcome, parts, page=explained.page)
            self._say_totals(records)
            await say_newest_checkpoint(run, outcome)
            return bundled

        records = await write_report(run, self._status, outcome)
        return await end_role(
            run,
            outcome,
            bundle=write_bundle,
            next_event=partial(self._inbox.take, None),
            others=others,
        )
