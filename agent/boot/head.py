"""The head's story: everything comes up side by side, the job runs, everybody leaves together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from signal import SIGTERM
from typing import TYPE_CHECKING

import anyio

from agent.boot import head_port
from agent.boot.asked import prober_of
from agent.boot.clear_away import end_attempt
from agent.boot.explained import explained
from agent.boot.gcs_watch import watch_gcs
from agent.boot.head_goal import goal_of
from agent.boot.head_start import start_ray
from agent.boot.heard import Heard
from agent.boot.job_command import Submission, submission
from agent.boot.job_output import job_output
from agent.boot.later_head import memory_of, watch_record
from agent.boot.lost_nodes import ask_nodes
from agent.boot.news import News, as_recorded, with_memory
from agent.boot.node_run import WRITE_LIMIT, stop_ray
from agent.boot.outside import Guard
from agent.boot.prepare_steps import PrepareSteps
from agent.boot.ray_watch import watch_ray
from agent.boot.run_services import Services
from agent.boot.stop_job import stop_job
from agent.boot.submitting import Submitting
from agent.boot.torchrun_head import TorchrunLink
from agent.boot.watched import Watched
from agent.bridge.link import RayLink
from agent.decisions import head
from agent.decisions.head import state as h
from agent.decisions.head.notes import is_needed
from agent.decisions.head.services import address_of
from agent.decisions.items import HERE, Step
from agent.decisions.shared import OrderKind, Said, StopAsked, Tick, Unfit
from agent.plan import environment
from agent.plan.plan import BRIDGE
from agent.record.events import AttemptOver, ByeHeard
from agent.record.log import say
from agent.runtime import driver
from agent.runtime.inbox import Inbox
from agent.runtime.last_words import in_thread
from agent.work.services import REWARD, reward_url

if TYPE_CHECKING:
    from agent.base.outcome import Outcome
    from agent.boot.head_start import HeadStart
    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.control.protocol import Bye
    from agent.control.reports import Reports
    from agent.decisions.attempts import Attempt
    from agent.runtime.output import JobOutput
    from agent.runtime.process import Child

    Link = RayLink | TorchrunLink


class Head:
    """One run of the head."""

    def __init__(self, run: NodeRun, keeper: RunKeeper, begun: HeadStart) -> None:
        self._run = run
        self._plan = run.plan
        self._keeper = keeper
        self._begun = begun
        self._place = begun.place
        self._env = begun.env
        self._inbox: Inbox[h.HeadEvent] = Inbox(run.redactor.clean_fields)
        self._ray = begun.ray
        self._services = Services(run, self._inbox.put)
        self._output: JobOutput | None = None
        self._bridge_scope = anyio.CancelScope()
        self._steps = PrepareSteps(run)
        goal = goal_of(run.plan, keeper, run.now(), run.done)
        self._state = head.first_state(goal)
        self._guard = Guard(head.decide, h.FROM_OUTSIDE, run.record)
        self._submitting = Submitting()
        self._news = News()
        self._watched = Watched(run, keeper, lambda: self._state)
        self._prober = prober_of(run)
        self._heard = Heard(run, self._watched)

    def on_signal(self, signum: int) -> None:
        """Hear a request to stop."""
        self._inbox.put(StopAsked(signum))

    def on_notice(self, signum: int) -> None:
        """Hear a notice, which is for the job."""
        if self._plan.torchrun is not None:
            say(driver.kept(signum, "torchrun, which would have to hand it on, would end by it"))
        elif self._plan.own_ray is None:
            say(driver.kept(signum, "the job runs on a Ray that others have started"))
        else:
            say(driver.pass_on(driver.find_driver(self._state.attempt.id), signum))

    async def run(self, tasks: anyio.abc.TaskGroup) -> Outcome:
        """Live the whole story; return how it ended."""
        plan, run, begun = self._plan, self._run, self._begun
        link = self._link()
        if begun.unfit is None:
            self._bring_up(tasks, link)
        else:
            self._inbox.put(Unfit(head_port.as_the_heads(plan, begun.unfit)))
        from agent.boot.head_site import site_of  # noqa: PLC0415 - aiohttp, while Ray boots
        from agent.boot.shown import show_live  # noqa: PLC0415 - same
        from agent.boot.silence import SilenceWatch  # noqa: PLC0415 - same
        from agent.control.ranks import Ranks  # noqa: PLC0415 - same
        from agent.control.reports import Reports  # noqa: PLC0415 - same
        from agent.control.room import Room, most_agents  # noqa: PLC0415 - same

        number = self._state.attempt.number
        first = await head_port.first_reply(self._keeper, number, plan.ports.gcs)
        most = most_agents(plan.topology.expected_workers)
        reports = Reports(
            *(first, head_port.expected_of(plan, self._keeper), self._inbox.put, run.now),
            on_bye=self._on_bye,
            ranks=Ranks(self._keeper.record.ranks, self._keeper.given_ranks, most),
            on_memory=memory_of(self._keeper, self._inbox.put),
            has_token=plan.token is not None,
            room=Room(most, run.now, lambda key: is_needed(self._state, key, run.now())),
        )
        self._watched.asides = reports.asides
        site = site_of(
            *(run, reports, partial(self.on_signal, SIGTERM), self._watched),
            lambda: (*self._state.fleet.workers.values(),),
        )
        tasks.start_soon(run.watch_machine)
        tasks.start_soon(self._heard.watch, reports, link, lambda: self._state, self._inbox.put)
        tasks.start_soon(SilenceWatch(reports, plan.ports, self._inbox.put).run)
        tasks.start_soon(watch_record, run, self._keeper, self._inbox.put)
        tasks.start_soon(run.best_effort, "live view", show_live, self._watched, plan.settings.log)
        runner = await site.open([*begun.local, *begun.listens])
        try:
            outcome = await self._decide(tasks, reports, link)
            outcome = await self._leave(reports, link, outcome)
            await run.hold(outcome, partial(self._inbox.take, None), self._keeper.attempts)
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
        return outcome

    def _bring_up(self, tasks: anyio.abc.TaskGroup, link: Link) -> None:
        """Start everything else that the plan has for this node, side by side."""
        if self._ray is not None:
            tasks.start_soon(self._watch_ray, self._ray)
        if self._plan.own_ray is not None:
            from agent.boot.old_sessions import prune  # noqa: PLC0415 - while Ray boots

            tasks.start_soon(prune, self._plan.own_ray.session, self._run.best_effort)
        given = self._plan.topology.given_ray
        if given is not None:  # others start it, sooner or later
            gcs = (given.gcs_host, given.gcs_port)
            tasks.start_soon(watch_gcs, *gcs, 1.0, self._inbox.put, self._awaits_ray)
        tasks.start_soon(self._follow_ray, link)
        tasks.start_soon(self._look_after, 0)
        for action in head.first_actions(self._state):
            self._begin(tasks, action)

    def _on_bye(self, name: str, bye: Bye) -> None:
        """Keep a worker's last word; the decisions hear of its leaving as of any report."""
        self._run.record(ByeHeard(name, bye.cause, bye.log))

    def _take_up(self, run_id: str, attempts: int, epoch: int) -> None:
        self._keeper.take_up(run_id, attempts, epoch)
        self._run.belongs_to(run_id)
        self._place = replace(self._place, log_dir=str(self._run.folder.path))

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(self, tasks: anyio.abc.TaskGroup, reports: Reports, link: Link) -> Outcome:
        """Take events one by one until a decision is to leave."""
        while True:
            if self._inbox.is_empty:  # else what is waited for may be over
                self._run.show_waits(head.waits(self._state))
            limit = self._run.patience(head.deadline(self._state))
            event = await self._inbox.take(limit) or Tick()
            if self._news.is_news(event, self._state.fleet):
                self._run.record(as_recorded(event))
            before = self._state.phase
            event, self._state, actions = self._guard.decided(self._state, event, self._run.now())
            self._watched.note(event)
            self._heard.note(event, before, self._state, reports)
            self._run.in_phase(self._state.phase.value)
            for action in actions:
                if not isinstance(action, h.Leave):
                    await self._perform(action, tasks, reports, link)
            self._publish(reports)
            if isinstance(event, h.RunRemembered):
                reports.weighed()
            if actions and isinstance(actions[-1], h.Leave):
                return actions[-1].outcome

    def _publish(self, reports: Reports) -> None:
        state = self._state
        submitted = state.attempt.number - (state.phase is h.Phase.BOOTING)
        reports.publish(
            epoch=self._keeper.epoch,
            run_id=self._keeper.run_id,
            phase=state.phase.value,
            attempt=state.attempt.number,
            fingerprint=self._keeper.proof(submitted),
            ray_ready=(state.gcs_answers and state.ray.step is not Step.LOST)
            or state.goal.by_torchrun,  # which has no Ray to wait for
            verdict=state.told_verdict,
        )

    async def _perform(  # noqa: C901, PLR0912 - one case, one action
        self, action: h.HeadAction, tasks: anyio.abc.TaskGroup, reports: Reports, link: Link
    ) -> None:
        match action:
            case Said():
                self._run.speak(action)
            case h.Submit(job):
                self._submitting.begin(tasks, self._submit, link, job, tasks, reports)
            case h.Follow(job):
                await self._follow(link, job)
            case h.Keep(known):
                self._keeper.keep(known, self._run.now())
            case h.StopJob(job):
                tell, submitting = self._inbox.put, self._submitting
                tasks.start_soon(stop_job, link, job, self._keeper.settled, submitting, tell)
            case h.AskNodes(job):
                tasks.start_soon(ask_nodes, job, self._state.fleet, self._inbox.put)
            case h.RestartRay():
                await self._start_ray_again(tasks, link)
            case h.StartService(node=node) | h.RunStep(node=node) if node == HERE:
                self._begin(tasks, action)
            case h.StartService(name, node, generation):
                reports.order(node, OrderKind.START_SERVICE, name, generation)
            case h.RunStep(name, node):
                reports.order(node, OrderKind.RUN_STEP, name)
            case h.Probe(node, probe, at, seat) if node == HERE:
                tasks.start_soon(self._prober.here, probe, at, self._place, self._inbox.put, seat)
            case h.Probe(node, probe, at, seat):
                reports.order(node, OrderKind.PROBE, probe, at=at, seat=seat)
            case h.TakeUp(run_id, attempts, epoch):
                self._take_up(run_id, attempts, epoch)
                await self._keeper.settled()
            case h.Retry(ended):
                await self._clear_away(ended, link)
                tasks.start_soon(self._look_after, ended.number)

    def _begin(self, tasks: anyio.abc.TaskGroup, action: h.HeadAction) -> None:
        """Start something on this node."""
        match action:
            case Said():
                self._run.speak(action)
            case h.StartService(name, _, generation):
                tasks.start_soon(self._serve, name, generation)
            case h.RunStep(name):
                tasks.start_soon(self._prepare, name)

    async def _serve(self, name: str, generation: int) -> None:
        spec = next(spec for spec in self._plan.services if spec.name == name)
        env = environment.for_service(self._env, self._plan.settings)
        await self._services.serve(spec, self._place, env, generation)

    # --- what comes up --------------------------------------------------------------------------

    def _awaits_ray(self) -> bool:
        return self._state.ray.step is Step.PENDING

    async def _watch_ray(self, child: Child) -> None:
        gone = await watch_ray(self._run, child, self._place, self._inbox.put, self._awaits_ray)
        if child is self._ray:  # else it was ended for another
            self._inbox.put(gone)

    async def _start_ray_again(self, tasks: anyio.abc.TaskGroup, link: Link) -> None:
        if self._ray is not None and self._ray.running and isinstance(link, RayLink):
            hung, self._ray = self._ray, None
            await stop_ray(hung, 0.0)
            await self._forget_ray(link)
        self._keeper.new_epoch(self._plan.topology.node_name)
        await self._keeper.settled()
        self._ray = await start_ray(self._run, self._place, self._env)
        tasks.start_soon(self._watch_ray, self._ray)

    async def _forget_ray(self, link: RayLink) -> None:
        """Drop what was heard of a Ray that was ended: it says nothing of the next."""
        await link.renew()
        self._inbox.discard(h.RayNodes, h.GcsOpen, h.RaySilent, h.RayHangs, h.RayGone)

    def _link(self) -> Link:
        if self._plan.torchrun is not None:
            return TorchrunLink(self._run, self._place, self._inbox.put, self._watched.job)
        process = self._plan.process(BRIDGE)
        log = partial(self._run.folder.file, process.log)
        env = environment.for_bridge(self._env, self._plan.settings)
        argv, tell = process.command(self._place), with_memory(self._inbox.put, self._run.memory)
        return RayLink(argv, env, log, tell, self._run.note_child)

    async def _follow_ray(self, link: Link) -> None:
        with self._bridge_scope:
            await link.run()

    async def _prepare(self, name: str) -> None:
        step = next(step for step in self._plan.steps if step.name == name)
        env = environment.for_prepare(self._env, self._plan.settings)
        self._inbox.put(h.StepOver(name, await self._steps.run(step, self._place, env)))

    # --- the job --------------------------------------------------------------------------------

    async def _submit(
        self, link: Link, job_id: str, tasks: anyio.abc.TaskGroup, reports: Reports
    ) -> None:
        home = address_of(self._state, REWARD) or self._place.node_ip
        made = await self._submitting.made(self._made, home)
        if not isinstance(made, Submission):
            given_up = h.SubmitWaits(job_id, "stopped before it was submitted", cancelled=True)
            self._inbox.put(given_up if made is None else Unfit(made))
            return
        for said in made.said:
            self._run.speak(said)
        state, nodes = self._state, (*self._state.fleet.alive.values(),)
        about = (job_id, state.checkpoint, nodes, state.required, state.attempt.places)
        self._keeper.submitted(state.attempt.number, *about)
        if isinstance(link, TorchrunLink):
            self._output = await link.launch(tasks, state, reports, self._keeper.run_id, home)
            return
        self._run.node.output_begins()  # what a killed agent passed on was another attempt's
        self._output, mirror = job_output(self._run, job_id, made.line, self._watched.job)
        await link.submit(job_id, made.line, made.runtime_env, mirror, made.upload)

    async def _follow(self, link: Link, job_id: str) -> None:
        """Go on with a job of an earlier agent's, whoever of its nodes is there now."""
        made = await self._made(self._place.node_ip, is_followed=True)
        line = made.line if isinstance(made, Submission) else ""
        self._output, mirror = job_output(self._run, job_id, line, self._watched.job)
        await link.follow(job_id, mirror)

    async def _made(self, reward: str, *, is_followed: bool = False) -> Submission | Outcome:
        url = reward_url(self._plan.all_services, replace(self._place, node_ip=reward))
        return await submission(
            self._plan, self._state, self._place, url, self._env, is_followed=is_followed
        )

    async def _clear_away(self, ended: Attempt, link: Link) -> None:
        """Write down an attempt's end, and let nothing of it run beside the next.

        Our own Ray ends with it: actors may be detached, and what they started lives in sessions of
        its own. What was heard of that Ray says nothing of the next.
        """
        self._run.record(AttemptOver(ended.number, ended.id, ended.end))
        if ended.end is not None:
            self._keeper.attempt_over(ended.end)
            await self._keeper.settled()
        await self._finish_output()
        link.forget(ended.id)
        left = ""
        if isinstance(link, TorchrunLink):
            await link.stop_own(self._plan.budget.ray)
        elif self._plan.own_ray is not None:
            old, self._ray = self._ray, None
            left = await end_attempt(ended, old, self._plan.budget.ray)
            await self._forget_ray(link)
        self._inbox.put(h.Cleared(ended.number, left))

    async def _look_after(self, attempt: int) -> None:
        from agent.boot.saved import look_after  # noqa: PLC0415 - while Ray boots

        self._inbox.put(await look_after(self._run, attempt))

    async def _finish_output(self) -> None:
        """Pass on what is left of an attempt's output; one in the making has none."""
        await self._submitting.give_up()
        if self._output is not None:
            drain = partial(self._output.finish, self._plan.budget.output)
            await anyio.to_thread.run_sync(drain)
            self._output = None
            self._run.node.output_begins()  # that of a further attempt

    # --- the end --------------------------------------------------------------------------------

    async def _leave(self, reports: Reports, link: Link, outcome: Outcome) -> Outcome:
        """Tell the workers and take everything down, all within the grace."""
        self._keeper.leaving(outcome)
        await self._finish_output()
        outcome = await explained(self._run, outcome, self._watched.told_where_it_failed())
        self._keeper.over(outcome)
        await self._keeper.settled()
        self._run.outages = self._watched.outages()
        self._run.ended(outcome)
        self._bridge_scope.cancel()
        budget, begun = self._plan.budget, self._begun
        async with anyio.create_task_group() as tasks:
            if not outcome.is_superseded:  # else the workers follow the later head
                may_call = head_port.may_still_call(self._plan, begun.listens, self._state)
                tasks.start_soon(head_port.farewell, reports, budget.farewell, may_call)
            tasks.start_soon(in_thread, partial(self._watched.leave_trace, outcome), WRITE_LIMIT)
            tasks.start_soon(self._services.stop, budget.services)
            if self._ray is not None:
                tasks.start_soon(stop_ray, self._ray, budget.ray)
            if isinstance(link, TorchrunLink):
                tasks.start_soon(link.stop_own, budget.ray)
        await self._run.sweep(budget.leftovers)
        return await self._heard.bundled(outcome, self._keeper.attempts, self._state, reports)
