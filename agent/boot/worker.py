"""The worker's story: find the head, join, follow, leave with the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.boot import make_ready as room
from agent.boot.head_status import waits_of
from agent.boot.node_run import Stage, as_record, stop_ray
from agent.control.client import HeadLink
from agent.control.protocol import Reply, Report
from agent.control.sockets import bind
from agent.decisions.items import Step
from agent.decisions.shared import Said, StopAsked, Tick, Unfit
from agent.decisions.worker import state as w
from agent.decisions.worker import story as worker
from agent.node.addresses import source_towards
from agent.plan import environment
from agent.record.log import say
from agent.record.outcome_file import write_outcome
from agent.runtime import signals
from agent.runtime.inbox import Inbox
from agent.runtime.probes import port_answers
from agent.runtime.waiting import NotYet, until
from agent.settings.rules import NO_JOB

if TYPE_CHECKING:
    import socket

    from agent.base.outcome import Outcome
    from agent.runtime.process import Child

_GOODBYE = 1.0
_ANNOUNCE = 5.0


class Worker:
    """One run of a worker."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._plan = stage.plan
        self._inbox: Inbox[w.WorkerEvent] = Inbox(stage.redactor.clean_fields)
        self._ray: Child | None = None
        self._state = worker.start(self._goal())
        self._tell_head = Telling(self)
        self._own_ip = ""
        self._addressed = anyio.Event()

    async def run(self) -> Outcome:
        """Live the whole story; return how it ended."""
        plan = self._plan
        # The port before all else: a second agent on this node ends here, and harms nothing.
        sockets = bind(["127.0.0.1"], plan.ports.agent)
        host = plan.topology.head_host
        assert host is not None  # noqa: S101 - a worker without a head does not pass the settings
        link = HeadLink(
            host,
            plan.ports.agent,
            plan.ports.gcs,
            plan.token,
            self._report,
            self._inbox.put,
            self._on_reply,
        )
        self._tell_head.link = link
        unfit = room.make_room(plan)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signals.watch, lambda signum: self._inbox.put(StopAsked(signum)))
            tasks.start_soon(link.run)
            if unfit is not None:
                self._inbox.put(Unfit(unfit))
            else:
                tasks.start_soon(self._serve, sockets)
                if plan.settings.prepare_each:
                    tasks.start_soon(self._prepare, plan.settings.prepare_each)
            leave = await self._decide(tasks)
            await self._leave(link, leave)
            await self._hold(leave.outcome)
            tasks.cancel_scope.cancel()
        return leave.outcome

    def _goal(self) -> w.Goal:
        settings, topology = self._plan.settings, self._plan.topology
        return w.Goal(
            head=topology.head_host or "",
            head_deadline=settings.wait_head,
            prepare_deadline=settings.wait_prepare,
            silence_limit=settings.node_grace,
            has_prepare=settings.prepare_each is not None,
            stays=settings.job == NO_JOB,
        )

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(self, tasks: anyio.abc.TaskGroup) -> w.Leave:
        """Take events one by one until a decision is to leave."""
        while True:
            if self._inbox.is_empty:  # else what is waited for may be over
                self._stage.show_waits(worker.waits(self._state))
            limit = self._stage.patience(worker.deadline(self._state))
            event = await self._inbox.take(limit) or Tick()
            if not isinstance(event, w.HeadSpoke | w.HeadSilent):
                self._stage.record(type(event).__name__, data=event)
            before = self._state
            self._state, actions = worker.decide(self._state, event, self._stage.now())
            if self._state.phase is not before.phase:
                self._stage.record("phase", phase=self._state.phase.value)
            for action in actions:
                if isinstance(action, w.Leave):
                    return action
                await self._perform(action, tasks)
            self._tell_head.if_changed()

    async def _perform(self, action: w.WorkerAction, tasks: anyio.abc.TaskGroup) -> None:
        match action:
            case Said():
                self._stage.speak(action)
            case w.StartRay(head_ip):
                await self._start_ray(tasks, head_ip)
            case w.StopRay():
                if self._ray is not None:
                    tasks.start_soon(stop_ray, self._ray, self._plan.budget.ray)

    # --- what comes up --------------------------------------------------------------------------

    async def _start_ray(self, tasks: anyio.abc.TaskGroup, head_ip: str) -> None:
        plan = self._plan
        node_ip = plan.address.ip or source_towards(head_ip)
        if node_ip is None:
            self._inbox.put(w.RayExited(f"no route to the head at {head_ip}"))
            return
        env = plan.environment(node_ip, head_ip)
        assert plan.ray is not None  # noqa: S101 - a node whose Ray is given lives no story
        argv = plan.ray.worker(node_ip, head_ip)
        self._ray = await self._stage.start("ray start", argv, env, "ray-start.log")
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

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_when_up)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._inbox.put(w.RayExited(child.end_sentence(code)))

    async def _prepare(self, command: str) -> None:
        plan = self._plan
        env = environment.passed_on(plan.environ, plan.settings)
        name = "AGENT_PREPARE_EACH"
        evidence = await self._stage.run_shell(name, command, env, "prepare-each.log")
        self._inbox.put(w.Prepared(evidence))

    async def _serve(self, sockets: list[socket.socket]) -> None:
        """Serve this node's own probes and status: on loopback, then on its address too."""
        from agent.control import server  # noqa: PLC0415 - aiohttp is not needed to begin

        port = self._plan.ports.agent
        site = server.Site(token=self._plan.token, ready=self._is_ready, status=self._status)
        runner = await site.open(sockets)
        try:
            await self._addressed.wait()
            if not self._own_ip.startswith("127."):
                await server.listen(runner, bind([self._own_ip], port))
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    # --- what the head hears --------------------------------------------------------------------

    def _report(self, node_ip: str) -> Report:
        plan, state = self._plan, self._state
        if node_ip and not self._own_ip:
            self._own_ip = plan.address.ip or node_ip
            self._addressed.set()
        following = state.phase is w.Phase.FOLLOWING
        waits = () if following else worker.waits(state)
        return Report(
            name=plan.topology.node_name,
            ip=plan.address.ip or node_ip,
            rank=plan.topology.rank,
            phase=state.phase.value,
            detail="; ".join(f"{wait.what}: {wait.evidence}" for wait in waits if wait.evidence)
            if state.verdict is None
            else state.verdict.reason,
            joined=state.joined,
            preparing=state.prepare.step is Step.PENDING,
            leaving=state.phase is w.Phase.LEAVING,
            error=state.ray_evidence,
            ray=plan.facts.ray,
            python=plan.facts.python,
        )

    def _on_reply(self, reply: Reply) -> None:
        self._stage.folder.belongs_to(reply.run_id)

    def _is_ready(self) -> bool:
        return self._state.phase is not w.Phase.LEAVING

    def _status(self) -> dict[str, object]:
        plan, state = self._plan, self._state
        return {
            "role": "worker",
            "platform": plan.topology.platform,
            "name": plan.topology.node_name,
            "rank": plan.topology.rank,
            "phase": state.phase.value,
            "seconds": round(self._stage.now(), 1),
            "waits": waits_of(worker.waits(state), self._stage.now()),
            "head": {"host": state.head_ip or plan.topology.head_host, "port": plan.ports.agent},
            "head_phase": state.head_phase,
            "last_error": state.ray_evidence,
            "verdict": None if state.verdict is None else state.verdict.to_dict(),
        }

    # --- the end --------------------------------------------------------------------------------

    async def _leave(self, link: HeadLink, leave: w.Leave) -> None:
        self._stage.record("outcome", outcome=as_record(leave.outcome))
        say(f"leaving: {leave.outcome.reason}")
        budget = self._plan.budget
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.goodbye, _ANNOUNCE if leave.head_must_hear else _GOODBYE)
            if self._ray is not None:
                tasks.start_soon(stop_ray, self._ray, budget.ray)
        await self._stage.sweep(budget.leftovers)

    async def _hold(self, outcome: Outcome) -> None:
        """Stay with the verdict where a platform would start the container again."""
        if self._plan.on_done != "hold" or not outcome.is_jobs_verdict:
            return
        write_outcome(self._stage.folder.path, outcome)
        say(f"{outcome.sentence()}")
        say("holding the pod, which would be started again: stop it when you have what you need")
        while not isinstance(await self._inbox.take(None), StopAsked):
            continue


class Telling:
    """Reports at once what a person at the head would want to know at once."""

    def __init__(self, of: Worker) -> None:
        self._worker = of
        self._told: tuple[object, ...] = ()
        self.link: HeadLink | None = None

    def if_changed(self) -> None:
        """Report now if the phase, or whether this node has joined, has changed."""
        state = self._worker._state  # noqa: SLF001 - its own worker's
        facts = (state.phase, state.joined, state.prepare.step, state.tries)
        if facts != self._told and self.link is not None:
            self._told = facts
            self.link.report_now()


async def run(stage: Stage) -> Outcome:
    """Be a worker."""
    return await Worker(stage).run()
