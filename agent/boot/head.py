"""The head's story: everything comes up side by side, the job runs, everybody leaves together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.boot import head_port, make_ready
from agent.boot.gcs_watch import watch_gcs
from agent.boot.head_goal import goal_of
from agent.boot.news import News
from agent.boot.node_run import NodeRun, stop_ray
from agent.boot.own_address import StopSwitch, find_own_address
from agent.boot.run_services import Services
from agent.bridge.link import RayLink
from agent.control.sockets import bind
from agent.decisions import head
from agent.decisions.head import state as h
from agent.decisions.items import HERE, Step
from agent.decisions.shared import OrderKind, Said, StopAsked, Tick, Unfit
from agent.plan import environment
from agent.plan.plan import BRIDGE, RAY
from agent.record.events import AttemptOver, ByeHeard, NodesCounted, PhaseEntered
from agent.record.log import say
from agent.runtime import driver, signals
from agent.runtime.inbox import Inbox
from agent.runtime.output import JobOutput, WithoutPreamble, driver_log
from agent.work.job import Joined, entrypoint, fill, sizes
from agent.work.services import digest, reward_url
from agent.work.where import Place

if TYPE_CHECKING:
    import socket

    from agent.base.outcome import Outcome
    from agent.boot.run_keeper import RunKeeper
    from agent.control.protocol import Bye, Reply
    from agent.control.reports import Reports
    from agent.runtime.process import Child
    from agent.topology.given_ray import GivenRay
    from agent.work.services import ServiceSpec


_MOST_NODES = 256
"""Of so many nodes the record keeps GCS's whole list."""


class Head:
    """One run of the head."""

    def __init__(self, run: NodeRun, keeper: RunKeeper) -> None:
        self._run = run
        self._plan = run.plan
        self._keeper = keeper
        self._epoch = 0
        self._inbox: Inbox[h.HeadEvent] = Inbox(run.redactor.clean_fields)
        self._ray: Child | None = None
        self._services = Services(run, self._inbox.put)
        self._output: JobOutput | None = None
        self._bridge_scope = anyio.CancelScope()
        self._stop = StopSwitch()
        self._state = head.first_state(goal_of(run.plan, keeper.run_id, keeper.next_attempt))
        self._place = Place()
        self._env: dict[str, str] = {}
        self._news = News()
        self._listens: list[socket.socket] = []
        """The agent's port on this node's own address."""

    async def run(self) -> Outcome:
        """Live the whole story; return how it ended."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(signals.watch, self._on_signal, self._on_notice)
            outcome = await self._main(tasks)
            tasks.cancel_scope.cancel()
        return outcome

    def _on_signal(self, signum: int) -> None:
        self._stop.ask(signum)
        self._inbox.put(StopAsked(signum))

    def _on_notice(self, signum: int) -> None:
        if self._plan.own_ray is None:
            say(driver.kept(signum, "the job runs on a Ray that others have started"))
        else:
            say(driver.pass_on(driver.find_driver(self._state.attempt.id), signum))

    async def _main(self, tasks: anyio.abc.TaskGroup) -> Outcome:
        plan, run = self._plan, self._run
        # The port before all else: a second agent on this node ends here, and harms nothing.
        sockets = bind(["127.0.0.1"], plan.ports.agent)
        run.folder.become_latest()
        ip = ""
        with self._stop.guard():
            limit = plan.settings.wait_head
            ip = await find_own_address(plan.address, plan.facts.addresses(), limit)
        if not ip:
            return self._stop.outcome(expected=plan.job is None)
        self._place = Place(ip, ip, "0", str(run.folder.path))
        self._env = plan.environment(ip, ip)
        link = self._link()
        unfit = make_ready.make_ready(plan)
        self._listens = head_port.open_port(plan, ip, unfit)
        sockets += self._listens
        self._begin_epoch()
        if unfit is None:
            await self._bring_up(tasks, link)
        else:
            self._inbox.put(Unfit(head_port.as_the_heads(plan, unfit)))
        from agent.control.reports import Expected, Reports  # noqa: PLC0415 - while Ray boots
        from agent.control.server import Site  # noqa: PLC0415 - aiohttp, same

        expected = Expected(
            plan.facts.ray.version, plan.facts.ray.python, digest(plan.all_services)
        )
        reports = Reports(self._first_reply(), expected, self._inbox.put, run.now, self._on_bye)
        names = (plan.topology.node_name, plan.topology.head_host, *plan.topology.claim.own_names)
        site = Site(
            token=plan.token, ready=lambda: True, status=self._status, reports=reports, names=names
        )
        runner = await site.open(sockets)
        try:
            outcome = await self._decide(tasks, reports, link)
            outcome = await self._leave(reports, outcome)
            await run.hold(outcome, partial(self._inbox.take, None), self._keeper.attempts)
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
        return outcome

    async def _bring_up(self, tasks: anyio.abc.TaskGroup, link: RayLink) -> None:
        """Start everything that the plan has for this node, side by side."""
        await self._start_ray(tasks)
        tasks.start_soon(self._follow_ray, link)
        for spec in self._plan.services:
            tasks.start_soon(self._serve, spec)
        if self._plan.steps:
            tasks.start_soon(self._prepare)

    def _begin_epoch(self) -> None:
        """Name the Ray that is about to start; a later one has a higher number."""
        self._epoch = self._keeper.new_epoch(self._plan.topology.node_name)

    def _first_reply(self) -> Reply:
        from agent.control.protocol import Reply  # noqa: PLC0415 - while Ray boots

        phase, port = h.Phase.BOOTING.value, self._plan.ports.gcs
        return Reply(
            *(self._epoch, self._keeper.run_id, phase),
            ray_ready=False,
            gcs_port=port,
            news=0,
            attempt=self._state.attempt.number,
            fingerprint=self._keeper.record.fingerprint,
        )

    def _on_bye(self, name: str, bye: Bye) -> None:
        """Keep a worker's last word; the decisions hear of its leaving as of any report."""
        self._run.record(ByeHeard(name, bye.cause, bye.log))

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(self, tasks: anyio.abc.TaskGroup, reports: Reports, link: RayLink) -> Outcome:
        """Take events one by one until a decision is to leave."""
        while True:
            if self._inbox.is_empty:  # else what is waited for may be over
                self._run.show_waits(head.waits(self._state))
            limit = self._run.patience(head.deadline(self._state))
            event = await self._inbox.take(limit) or Tick()
            if self._news.is_news(event, self._state.fleet):
                self._run.record(_as_recorded(event))
            before = self._state.phase
            self._state, actions = head.decide(self._state, event, self._run.now())
            if self._state.phase is not before:
                self._run.record(PhaseEntered(self._state.phase.value))
            for action in actions:
                if not isinstance(action, h.Leave):
                    await self._perform(action, tasks, reports, link)
            self._publish(reports)
            if actions and isinstance(actions[-1], h.Leave):
                return actions[-1].outcome

    def _publish(self, reports: Reports) -> None:
        state = self._state
        over = state.phase is h.Phase.LEAVING
        reports.publish(
            epoch=self._epoch,
            phase=state.phase.value,
            attempt=state.attempt.number,
            ray_ready=state.gcs_answers and state.ray.step is not Step.LOST,
            verdict=state.verdict if over else None,  # until then the job may clean up
        )

    async def _perform(
        self, action: h.HeadAction, tasks: anyio.abc.TaskGroup, reports: Reports, link: RayLink
    ) -> None:
        match action:
            case Said():
                self._run.speak(action)
            case h.Submit(job):
                await self._submit(link, job)
            case h.StopJob(job):
                await link.stop_job(job)
            case h.RestartRay():
                self._begin_epoch()
                await self._start_ray(tasks)
            case h.StartService(name, node, generation) if node == HERE:
                tasks.start_soon(self._serve, self._plan_service(name), generation)
            case h.StartService(name, node, generation):
                reports.order(node, OrderKind.START_SERVICE, name, generation)
            case h.Retry(ended):
                link.forget(ended.id)
                self._run.record(AttemptOver(ended.number, ended.id, ended.end))
                if ended.end is not None:
                    self._keeper.attempt_over(ended.end)
                await self._finish_output()

    async def _serve(self, spec: ServiceSpec, generation: int = 1) -> None:
        env = environment.for_service(self._env, self._plan.settings)
        await self._services.serve(spec, self._place, env, generation)

    def _plan_service(self, name: str) -> ServiceSpec:
        return next(spec for spec in self._plan.services if spec.name == name)

    # --- what comes up --------------------------------------------------------------------------

    async def _start_ray(self, tasks: anyio.abc.TaskGroup) -> None:
        plan, given = self._plan, self._plan.topology.given_ray
        if given is not None:
            tasks.start_soon(self._watch_given, given)  # others start it, sooner or later
            return
        say(f"starting Ray's head on {self._place.node_ip}:{plan.ports.gcs}")
        process = plan.process(RAY)
        argv = process.command(self._place)
        self._ray = await self._run.start(process.name, argv, self._env, process.log)
        tasks.start_soon(self._watch_ray, self._ray)

    def _awaits_ray(self) -> bool:
        return self._state.ray.step is Step.PENDING

    async def _watch_given(self, ray: GivenRay) -> None:
        host, port = ray.gcs_host, ray.gcs_port
        await watch_gcs(host, port, 1.0, self._inbox.put, self._awaits_ray)

    async def _watch_ray(self, child: Child) -> None:
        host, port = self._place.node_ip, self._plan.ports.gcs
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_gcs, host, port, 0.1, self._inbox.put, self._awaits_ray)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._run.child_ended(child)
        self._inbox.put(h.RayGone(f"`ray start` ended, {await child.end_sentence(code)}"))

    def _link(self) -> RayLink:
        process = self._plan.process(BRIDGE)
        log = partial(self._run.folder.file, process.log)
        env = environment.for_bridge(self._env, self._plan.settings)
        argv, tell = process.command(self._place), self._inbox.put
        return RayLink(argv, env, log, tell, self._run.note_child)

    async def _follow_ray(self, link: RayLink) -> None:
        with self._bridge_scope:
            await link.run()

    async def _prepare(self) -> None:
        env = environment.for_prepare(self._env, self._plan.settings)
        for step in self._plan.steps:
            failure = await self._run.run_step(step, env)
            self._inbox.put(h.StepOver(step.name, failure))
            if failure:
                return

    # --- the job --------------------------------------------------------------------------------

    async def _submit(self, link: RayLink, job_id: str) -> None:
        job, state = self._plan.job, self._state
        assert job is not None  # noqa: S101 - decided only where there is one
        self._keeper.submitted(state.attempt.number, job_id)
        nodes, least, total = sizes(state.gpus_by_node())
        joined = Joined(
            nodes=nodes,
            gpus_per_node=least,
            total_gpus=total,
            head_ip=state.ray_head or self._place.head_ip,
            reward_url=reward_url(self._plan.all_services, self._place),
            log_dir=str(self._run.folder.path),
            attempt=state.attempt.number,
        )
        line = entrypoint(fill(job.argv, joined))
        session, mirror = self._plan.launch.session, None
        if session is None:  # the driver's output is on another machine
            source = mirror = self._run.folder.file("ray-job.log")
        else:
            source = driver_log(session, job_id)
        copy = self._run.folder.file("job.log")
        if session is not None:
            self._run.node.in_session(str(source.parents[1]))
        passed_on = self._run.node.passed_on
        self._output = JobOutput(source, WithoutPreamble(job_id, line), copy, on_passed=passed_on)
        self._output.start()
        await link.submit(job_id, line, job.runtime_env, mirror)

    async def _finish_output(self) -> None:
        """Pass on what is left of an attempt's output."""
        if self._output is not None:
            drain = partial(self._output.finish, self._plan.budget.output)
            await anyio.to_thread.run_sync(drain)
            self._output = None

    # --- the end --------------------------------------------------------------------------------

    async def _leave(self, reports: Reports, outcome: Outcome) -> Outcome:
        """Tell the workers and take everything down, all within the grace."""
        await self._finish_output()
        self._keeper.over(outcome)
        self._run.ended(outcome)
        self._bridge_scope.cancel()
        budget = self._plan.budget
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(head_port.farewell, reports, budget.farewell, self._may_still_call())
            tasks.start_soon(self._services.stop, budget.services)
            if self._ray is not None:
                tasks.start_soon(stop_ray, self._ray, budget.ray)
        await self._run.sweep(budget.leftovers)
        return outcome

    def _may_still_call(self) -> int:
        """Return how many workers that were never heard of may be about to call."""
        given = self._plan.topology.given_ray is not None  # its workers run no agent
        if given or not self._listens:
            return 0
        return self._state.fleet.never_heard(self._state.required)

    def _status(self) -> dict[str, object]:
        from agent.boot.head_status import status_of  # noqa: PLC0415 - asked while Ray boots

        return status_of(self._state, self._plan, self._keeper.run_id, self._epoch, self._run.now())


def _as_recorded(event: h.HeadEvent) -> object:
    """Return what the record keeps of an event: of a very long list of nodes, their number.

    Of a machine's facts it keeps no addresses: those of other networks are nobody's business.
    """
    if isinstance(event, h.WorkerIntroduced):
        facts = replace(event.facts, interfaces={}, default_source=None)
        return replace(event, facts=facts)
    if not isinstance(event, h.RayNodes) or len(event.nodes) <= _MOST_NODES:
        return event
    alive = sum(node.alive for node in event.nodes)
    return NodesCounted(alive, len(event.nodes) - alive)


async def run(node_run: NodeRun, keeper: RunKeeper) -> Outcome:
    """Be the head."""
    return await Head(node_run, keeper).run()
