"""The worker's story: find the head, join, follow, leave with the verdict."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base.errors import PreflightError
from agent.boot import make_ready
from agent.boot.asked import Asked
from agent.boot.clear_away import clear_away
from agent.boot.explained import explained
from agent.boot.hello import hello_of
from agent.boot.kept_ray import had_agent, kept_ray, note_reach
from agent.boot.node_run import NodeRun, stop_ray
from agent.boot.old_sessions import prune
from agent.boot.outside import Guard
from agent.boot.prepare_steps import PrepareSteps
from agent.boot.run_services import Services
from agent.boot.share import Share
from agent.control.client import HeadLink
from agent.control.protocol import Bye, Hello, Reply, Report
from agent.control.sockets import bind
from agent.decisions import worker
from agent.decisions.items import StepOver
from agent.decisions.shared import Said, StopAsked, Tick, Unfit
from agent.decisions.worker import state as w
from agent.node.addresses import source_towards
from agent.plan import environment
from agent.plan.listeners import may_listen_on
from agent.plan.plan import RAY
from agent.plan.services import alone_ranks
from agent.record.log import say
from agent.runtime import driver, signals
from agent.runtime.inbox import Inbox
from agent.runtime.probes import port_answers
from agent.runtime.ray_parts import RayParts
from agent.runtime.waiting import NotYet, until
from agent.settings.jobs import NO_JOB
from agent.work.where import Place

if TYPE_CHECKING:
    import socket

    from aiohttp import web

    from agent.base.outcome import Outcome
    from agent.runtime.process import Child
    from agent.work.prepare import PrepareStep

_GOODBYE = 1.0
_ANNOUNCE = 5.0


class Worker:
    """One run of a worker."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._plan = run.plan
        self._id = secrets.token_hex(8)
        self._inbox: Inbox[w.WorkerEvent] = Inbox(run.redactor.clean_fields)
        self._ray: Child | None = None
        self._services = Services(run, self._inbox.put)
        self._steps = PrepareSteps(run)
        self._share = Share(run, self._inbox.put)
        self._state = worker.first_state(self._goal(), kept_ray(run), has_agent=had_agent(run))
        self._guard = Guard(worker.decide, w.FROM_OUTSIDE, run.record)
        self._reply: Reply | None = None
        """The head's last word, for the hello to a head that was started anew."""
        self._asked = Asked(run)
        self._told: tuple[object, ...] = ()
        self._last_words: str | None = None
        """The end of the log, for the goodbye, which waits for it."""
        self._own_ip = ""
        self._ray_ip = ""
        """The address with which Ray here was started."""
        self._addressed = anyio.Event()

    async def run(self) -> Outcome:
        """Live the whole story; return how it ended."""
        plan = self._plan
        # The port before all else: a second agent on this node ends here, and harms nothing.
        sockets = bind(["127.0.0.1"], plan.ports.agent)
        host = plan.topology.head_host
        assert host is not None  # noqa: S101 - a worker without a head does not pass the settings
        link = HeadLink(
            *(host, plan.ports.agent, plan.ports.gcs, plan.token),
            *(self._hello, self._report, self._inbox.put, self._on_reply),
            was_at="" if self._run.left is None else self._run.left.record.head_ip,
        )
        unfit = make_ready.make_ready(plan, self._run.left)
        async with anyio.create_task_group() as tasks:
            await tasks.start(signals.watch, self._on_signal, self._on_notice)
            if self._state.ray is w.RayStep.UP:  # a killed agent's
                await self._start_ray(tasks, self._state.head_ip or "")
            tasks.start_soon(link.run)
            tasks.start_soon(self._run.watch_machine, link.report_now)
            if unfit is not None:
                self._inbox.put(Unfit(unfit))
            else:
                tasks.start_soon(self._serve, sockets)
                if plan.own_ray is not None:
                    tasks.start_soon(prune, plan.own_ray.session, self._run.best_effort)
                for step in plan.steps:
                    if step.name in self._state.under_way:
                        tasks.start_soon(self._run_step, step, Place())
                for said in worker.first_words(self._state):
                    self._run.speak(said)
            leave = await self._decide(tasks, link)
            leave = replace(leave, outcome=await explained(self._run, leave.outcome))
            outcome = await self._leave(link, leave)
            await self._run.hold(outcome, partial(self._inbox.take, None))
            tasks.cancel_scope.cancel()
        return outcome

    def _on_signal(self, signum: int) -> None:
        self._inbox.put(StopAsked(signum))

    def _on_notice(self, signum: int) -> None:
        say(driver.kept(signum, "the job's driver runs on the head"))

    def _goal(self) -> w.Goal:
        plan = self._plan
        return w.Goal(
            head=plan.topology.head_host or "",
            limits={wait.key: wait.seconds for wait in plan.waits},
            steps=plan.steps,
            services=plan.possible_services,
            stays=plan.settings.job == NO_JOB,
            rank=plan.topology.claim.rank,
            alone=alone_ranks(plan.all_services),
            by_torchrun=plan.torchrun is not None,
        )

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(self, tasks: anyio.abc.TaskGroup, link: HeadLink) -> w.Leave:
        """Take events one by one until a decision is to leave."""
        while True:
            if self._inbox.is_empty:  # else what is waited for may be over
                self._run.show_waits(worker.waits(self._state))
            limit = self._run.patience(worker.deadline(self._state))
            event = await self._inbox.take(limit) or Tick()
            if not isinstance(event, w.HeadSpoke | w.HeadSilent | Tick):
                self._run.record(event)
            before = self._state
            event, self._state, actions = self._guard.decided(self._state, event, self._run.now())
            self._run.in_phase(self._state.phase.value)
            note_reach(self._run, before, self._state)
            for action in actions:
                if isinstance(action, w.Leave):
                    return action
                await self._perform(action, tasks, link)
            self._tell_if_changed(link)

    def _tell_if_changed(self, link: HeadLink) -> None:
        """Report at once what a person at the head would want to know at once."""
        state = self._state
        news = (state.phase, state.joined, state.preparing, state.tries, worker.words(state))
        all_news = (*news, state.obeyed, state.part, state.runs)
        if all_news != self._told:
            self._told = all_news
            link.report_now()

    async def _perform(  # noqa: C901 - one case, one action
        self, action: w.WorkerAction, tasks: anyio.abc.TaskGroup, link: HeadLink
    ) -> None:
        match action:
            case Said():
                self._run.speak(action)
            case w.StartRay(head_ip):
                await self._start_ray(tasks, head_ip)
            case w.StopRay():
                if self._ray is not None:
                    tasks.start_soon(stop_ray, self._ray, self._plan.budget.ray)
            case w.StopServices():
                tasks.start_soon(self._services.stop, self._plan.budget.services)
            case w.StartService(name, generation):
                spec = next(one for one in self._plan.possible_services if one.name == name)
                place = self._place()
                full = self._plan.environment(place.node_ip, place.head_ip)
                env = environment.for_service(full, self._plan.settings)
                tasks.start_soon(self._services.serve, spec, place, env, generation)
            case w.StopSteps():
                self._steps.stop()
            case w.RunStep(name):
                step = next(step for step in self._plan.steps if step.name == name)
                tasks.start_soon(self._run_step, step, self._place())
            case w.StartPart(attempt, seat):
                run_id = "" if self._reply is None else self._reply.run_id
                await self._share.start(tasks, attempt, seat, self._place(), run_id)
            case w.StopPart():
                tasks.start_soon(self._share.stop, self._plan.budget.job)
            case w.SendLog(name):
                tasks.start_soon(self._asked.log, name, link.report_now)
            case w.Probe(probe, at, seat):
                tell = link.report_now
                tasks.start_soon(self._asked.probe, probe, at, self._place(), tell, seat)

    # --- what comes up --------------------------------------------------------------------------

    def _place(self) -> Place:
        head, rank = self._state.head_ip or "", self._state.rank
        ip = self._own_ip or source_towards(head) or "127.0.0.1"
        known_rank = "" if rank is None else str(rank)
        return Place(ip, head, known_rank, str(self._run.folder.path))

    async def _start_ray(self, tasks: anyio.abc.TaskGroup, head_ip: str) -> None:
        plan = self._plan
        node_ip = plan.address.ip or source_towards(head_ip)
        if node_ip is None:
            self._inbox.put(w.RayExited(f"no route to the head at {head_ip}"))
            return
        self._ray_ip = node_ip
        process = plan.process(RAY)
        argv = process.command(Place(node_ip, head_ip))
        env, epoch = plan.environment(node_ip, head_ip), self._state.epoch or 0
        if self._run.left is not None and self._run.left.record.epoch != epoch:
            self._run.left.end_ray()
        self._run.node.in_epoch(epoch, head_ip, self._state.ray_attempt)
        self._ray = await self._run.start(process.name, argv, env, process.log)
        tasks.start_soon(self._watch_ray, self._ray, node_ip)

    async def _watch_ray(self, child: Child, node_ip: str) -> None:
        async def check() -> bool | NotYet:
            evidence = await port_answers(node_ip, self._plan.ports.node_manager)
            return NotYet(evidence) if evidence else True

        def tell(evidence: str) -> None:
            self._inbox.put(w.RaySilent(evidence))

        async def tell_when_up() -> None:
            await until(check, None, longest=0.2, on_evidence=tell)
            self._inbox.put(w.RayUp())

        parts = RayParts(child, self._run.now, partial(say, level="warning"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_when_up)
            tasks.start_soon(parts.watch)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._run.child_ended(child)
        await clear_away("Ray", None)
        self._inbox.put(w.RayExited(await parts.end_sentence(code)))

    async def _run_step(self, step: PrepareStep, place: Place) -> None:
        """Run a step and tell how it went."""
        full = self._plan.environment_before_addresses()
        env = environment.for_prepare(full, self._plan.settings)
        failure = await self._steps.run_unless_stopped(step, place, env)
        if failure is not None:
            self._inbox.put(StepOver(step.name, failure))

    async def _serve(self, sockets: list[socket.socket]) -> None:
        """Serve this node's own probes and status: on loopback, and on its address.

        Until the head's name has resolved, that is the address of the default route: there a
        platform's probes call, and they must not wait for the head.
        """
        from agent.control import server  # noqa: PLC0415 - aiohttp is not needed to begin

        topology = self._plan.topology
        site = server.Site(
            token=self._plan.token,
            ready=self._is_ready,
            status=self._status,
            run_id=lambda: self._run.run_id,
            names=(topology.node_name, *topology.claim.own_names),
        )
        runner = await site.open(sockets)
        early = self._plan.address.ip or self._plan.facts.default_source
        try:
            first = await self._listen_on(runner, early)
            await self._addressed.wait()
            if self._own_ip != early:
                await self._listen_on(runner, self._own_ip)
                if first is not None:
                    await first.stop()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _listen_on(self, runner: web.AppRunner, ip: str | None) -> web.BaseSite | None:
        """Open the agent's port on an address, where that may be."""
        from agent.control import server  # noqa: PLC0415 - same

        if ip is None or ip.startswith("127.") or not may_listen_on(ip, self._plan.settings):
            return None
        with suppress(PreflightError):  # probes by that address fail; the run does not need them
            (site,) = await server.listen(runner, bind([ip], self._plan.ports.agent))
            return site
        say(f"the agent's port cannot be opened on {ip}: probes there fail", "warning")
        return None

    # --- what the head hears --------------------------------------------------------------------

    def _hello(self) -> Hello:
        last = self._reply
        attempt = 0 if last is None else last.submitted
        return hello_of(self._plan, last, attempt, self._run.redactor.clean)

    def _report(self, node_ip: str) -> Report:
        plan, state = self._plan, self._state
        if node_ip and not self._own_ip:
            self._own_ip = plan.address.ip or node_ip
            self._addressed.set()
        following = state.phase is w.Phase.FOLLOWING
        waits = () if following else worker.waits(state)
        logs, answers = self._asked.to_send()
        return Report(
            id=self._id,
            ip=self._ray_ip or plan.address.ip or node_ip,
            phase=state.phase.value,
            detail="; ".join(f"{wait.what}: {wait.evidence}" for wait in waits if wait.evidence)
            if state.verdict is None
            else state.verdict.reason,
            joined=state.joined,
            alone=state.alone,
            preparing=state.preparing,
            error=state.ray_evidence,
            memory=self._run.memory.recent(),
            items=worker.words(state),
            part=state.part,
            aside=self._run.seen.to_tell(state.steps),
            runs=state.runs,
            logs=logs,
            answers=answers,
            obeyed=0 if state.obeyed is None else state.obeyed.number,
            obeyed_by="" if state.obeyed is None else state.obeyed.by,
            bye=self._bye(),
        )

    def _bye(self) -> Bye | None:
        verdict, words = self._state.verdict, self._last_words
        return None if verdict is None or words is None else Bye(verdict.reason, words)

    def _on_reply(self, reply: Reply) -> None:
        self._asked.arrived()
        self._reply = reply
        self._run.belongs_to(reply.run_id)

    def _is_ready(self) -> bool:
        return self._state.phase is not w.Phase.LEAVING

    def _status(self) -> dict[str, object]:
        plan, state = self._plan, self._state
        return {
            "role": "worker",
            "platform": plan.topology.claim.platform,
            "name": plan.topology.node_name,
            "rank": state.rank,
            "phase": state.phase.value,
            "seconds": round(self._run.now(), 1),
            "waits": [wait.to_dict(self._run.now()) for wait in worker.waits(state)],
            "head": {"host": state.head_ip or plan.topology.head_host, "port": plan.ports.agent},
            "head_phase": state.head_phase,
            "services": [
                {"name": name, "state": item.step.value, "detail": item.evidence}
                for name, item in state.services.items()
            ],
            "last_error": state.ray_evidence,
            "verdict": None if state.verdict is None else state.verdict.to_dict(),
        }

    # --- the end --------------------------------------------------------------------------------

    async def _leave(self, link: HeadLink, leave: w.Leave) -> Outcome:
        self._run.ended(leave.outcome)
        self._last_words = await self._asked.last_words(leave.outcome)
        budget = self._plan.budget
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.goodbye, _ANNOUNCE if leave.head_must_hear else _GOODBYE)
            tasks.start_soon(self._services.stop, budget.services)
            if self._ray is not None:
                tasks.start_soon(stop_ray, self._ray, budget.ray)
            tasks.start_soon(self._share.stop, budget.ray)
        await self._run.sweep(budget.leftovers)
        if link.was_told or (self._reply is not None and self._reply.verdict is not None):
            return leave.outcome  # a head that lives keeps what there is to look at
        from agent.boot.failure import bundled  # noqa: PLC0415 - once the run has ended

        return await bundled(self._run, leave.outcome)


async def run(node_run: NodeRun) -> Outcome:
    """Be a worker."""
    return await Worker(node_run).run()
