"""The head's story: everything comes up side by side, the job runs, everybody leaves together."""

from __future__ import annotations

import secrets
import signal
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.boot import head_port as reception
from agent.boot import make_ready as room
from agent.boot.gcs_watch import watch_gcs
from agent.boot.head_goal import goal_of, prepare_steps
from agent.boot.head_status import status_of
from agent.boot.node_run import Stage, StopSwitch, as_record, find_own_address, stop_ray
from agent.boot.run_services import Attendant
from agent.bridge.link import RayLink
from agent.control.protocol import Reply
from agent.control.reports import Desk
from agent.control.sockets import bind
from agent.decisions.head import state as h
from agent.decisions.head import state as head_state
from agent.decisions.head import story as head
from agent.decisions.head import workers
from agent.decisions.items import Step
from agent.decisions.shared import Said, StopAsked, Tick, Unfit
from agent.record.log import say
from agent.record.outcome_file import write_outcome
from agent.runtime import signals
from agent.runtime.inbox import Inbox
from agent.runtime.output import JobOutput, WithoutPreamble, driver_log
from agent.work.job import Joined, entrypoint, fill

if TYPE_CHECKING:
    import socket

    from agent.base.outcome import Outcome
    from agent.runtime.process import Child


class Head:
    """One run of the head."""

    def __init__(self, stage: Stage, run_id: str) -> None:
        self._stage = stage
        self._plan = stage.plan
        self._run_id = run_id
        self._epoch = secrets.token_hex(8)
        self._inbox: Inbox[h.HeadEvent] = Inbox(stage.redactor.clean_fields)
        self._ray: Child | None = None
        self._attendant = Attendant(stage, self._inbox.put)
        self._output: JobOutput | None = None
        self._bridge_scope = anyio.CancelScope()
        self._stop = StopSwitch()
        self._state = head.start(goal_of(stage.plan))
        self._ip = ""
        self._listens: list[socket.socket] = []
        """The agent's port on this node's own address."""

    async def run(self) -> Outcome:
        """Live the whole story; return how it ended."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signals.watch, self._on_signal)
            outcome = await self._main(tasks)
            tasks.cancel_scope.cancel()
        return outcome

    def _on_signal(self, signum: int) -> None:
        self._stop.ask(signum)
        self._inbox.put(StopAsked(signum))

    async def _main(self, tasks: anyio.abc.TaskGroup) -> Outcome:
        plan, stage = self._plan, self._stage
        # The port before all else: a second agent on this node ends here, and harms nothing.
        sockets = bind(["127.0.0.1"], plan.ports.agent)
        with self._stop.guard():
            limit = plan.settings.wait_head
            self._ip = await find_own_address(plan.address, plan.facts.addresses(), limit)
        if not self._ip:
            return self._stop.outcome(expected=plan.job is None)
        env = plan.environment(self._ip, self._ip)
        link = self._link(env)
        unfit = room.make_room(plan)
        self._listens = reception.open_port(plan, self._ip, unfit)
        sockets += self._listens
        if unfit is None:
            await self._bring_up(tasks, env, link)
        else:
            self._inbox.put(Unfit(reception.as_the_heads(plan, unfit)))
        versions = (plan.facts.ray, plan.facts.python)
        from agent.control.server import Site  # noqa: PLC0415 - aiohttp, while Ray boots

        desk = Desk(self._first_reply(), versions, self._inbox.put, stage.now)
        site = Site(token=plan.token, ready=lambda: True, status=self._status, desk=desk)
        runner = await site.open(sockets)
        try:
            outcome = await self._decide(tasks, desk, link, env)
            outcome = await self._leave(desk, outcome)
            return await self._hold(outcome)
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _bring_up(
        self, tasks: anyio.abc.TaskGroup, env: dict[str, str], link: RayLink
    ) -> None:
        """Start everything, side by side."""
        service = self._plan.service(self._ip)
        await self._start_ray(tasks, env)
        tasks.start_soon(self._bridge, link)
        if service is not None:
            tasks.start_soon(self._attendant.serve, service, env)
        steps = prepare_steps(self._plan.settings)
        if steps:
            tasks.start_soon(self._prepare, steps, env)

    def _first_reply(self) -> Reply:
        phase = head_state.Phase.BOOTING.value
        return Reply(self._epoch, self._run_id, phase, False, self._plan.ports.gcs, 0)  # noqa: FBT003 - ray_ready

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(
        self, tasks: anyio.abc.TaskGroup, desk: Desk, link: RayLink, env: dict[str, str]
    ) -> Outcome:
        """Take events one by one until a decision is to leave."""
        while True:
            if self._inbox.is_empty:  # else what is waited for may be over
                self._stage.show_waits(head.waits(self._state))
            limit = self._stage.patience(head.deadline(self._state))
            event = await self._inbox.take(limit) or Tick()
            self._stage.record(type(event).__name__, data=event)
            before = self._state.phase
            self._state, actions = head.decide(self._state, event, self._stage.now())
            if self._state.phase is not before:
                self._stage.record("phase", phase=self._state.phase.value)
            ready = self._state.gcs_answers and self._state.ray.step is not Step.LOST
            over = self._state.phase is head_state.Phase.LEAVING
            verdict = self._state.verdict if over else None  # until then the job may clean up
            desk.publish(self._state.phase.value, ray_ready=ready, verdict=verdict)
            for action in actions:
                if isinstance(action, h.Leave):
                    return action.outcome
                await self._perform(action, tasks, link, env)

    async def _perform(
        self, action: h.HeadAction, tasks: anyio.abc.TaskGroup, link: RayLink, env: dict[str, str]
    ) -> None:
        match action:
            case Said():
                self._stage.speak(action)
            case h.Submit():
                await self._submit(link)
            case h.StopJob():
                await link.stop_job(self._job_id)
            case h.RestartRay():
                await self._start_ray(tasks, env)
            case h.RestartService():
                service = self._plan.service(self._ip)
                assert service is not None  # noqa: S101 - it ran before
                tasks.start_soon(self._attendant.serve, service, env)

    # --- what comes up --------------------------------------------------------------------------

    async def _start_ray(self, tasks: anyio.abc.TaskGroup, env: dict[str, str]) -> None:
        plan, given = self._plan, self._plan.topology.given_ray
        if plan.ray is None:
            assert given is not None  # noqa: S101 - Ray is given, or ours
            # others start it, sooner or later
            tasks.start_soon(self._watch_gcs, given.gcs_host, given.gcs_port, 1.0)
            return
        say(f"starting Ray's head on {self._ip}:{plan.ports.gcs}")
        argv = plan.ray.head(self._ip)
        self._ray = await self._stage.start("ray start", argv, env, "ray-start.log")
        tasks.start_soon(self._watch_ray, self._ray)

    async def _watch_gcs(self, host: str, port: int, step: float) -> None:
        def is_awaited() -> bool:
            return self._state.ray.step is Step.PENDING

        await watch_gcs(host, port, step, self._inbox.put, is_awaited)

    async def _watch_ray(self, child: Child) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_gcs, self._ip, self._plan.ports.gcs, 0.1)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        child.signal_group(signal.SIGKILL)  # what is left of it would hold its ports
        self._inbox.put(h.RayGone(f"`ray start` ended, {child.end_sentence(code)}"))

    def _link(self, env: dict[str, str]) -> RayLink:
        argv = self._plan.bridge_command(self._ip)
        log = partial(self._stage.folder.file, "ray-bridge.log")
        return RayLink(argv, env, log, self._inbox.put)

    async def _bridge(self, link: RayLink) -> None:
        with self._bridge_scope:
            await link.run()

    async def _prepare(self, steps: dict[str, str], env: dict[str, str]) -> None:
        for name, command in steps.items():
            log = f"{name.removeprefix('AGENT_').lower().replace('_', '-')}.log"
            evidence = await self._stage.run_shell(name, command, env, log)
            if evidence:
                self._inbox.put(h.Prepared(name, evidence))
                return
        self._inbox.put(h.Prepared())

    # --- the job --------------------------------------------------------------------------------

    @property
    def _job_id(self) -> str:
        return self._plan.job_id(self._run_id)

    async def _submit(self, link: RayLink) -> None:
        job, service = self._plan.job, self._plan.service(self._ip)
        assert job is not None  # noqa: S101 - decided only where there is one
        nodes = len(workers.alive_workers(self._state)) + 1
        gpus = workers.min_gpus(self._state)
        joined = Joined(
            nodes=nodes,
            gpus_per_node=gpus,
            total_gpus=gpus * nodes,
            head_ip=workers.ray_head(self._state) or self._ip,
            reward_url="" if service is None else service.url,
            log_dir=str(self._stage.folder.path),
        )
        line = entrypoint(fill(job.argv, joined))
        session, mirror = self._plan.ray_session, None
        if session is None:  # the driver's output is on another machine
            source = mirror = self._stage.folder.file("ray-job.log")
        else:
            source = driver_log(session, self._job_id)
        copy = self._stage.folder.file("job.log")
        self._output = JobOutput(source, WithoutPreamble(self._job_id, line), copy)
        self._output.start()
        await link.submit(self._job_id, line, job.runtime_env, mirror)

    # --- the end --------------------------------------------------------------------------------

    async def _leave(self, desk: Desk, outcome: Outcome) -> Outcome:
        """Tell the workers and take everything down, all within the grace."""
        if self._output is not None:
            drain = partial(self._output.finish, self._plan.budget.output)
            await anyio.to_thread.run_sync(drain)
        self._stage.record("outcome", outcome=as_record(outcome))
        say(f"leaving: {outcome.reason}")
        self._bridge_scope.cancel()
        budget = self._plan.budget
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reception.farewell, desk, budget.farewell, self._may_call())
            tasks.start_soon(self._attendant.stop, budget.services)
            if self._ray is not None:
                tasks.start_soon(stop_ray, self._ray, budget.ray)
        await self._stage.sweep(budget.leftovers)
        return outcome

    def _may_call(self) -> int:
        """Return how many workers that were never heard of may be about to call."""
        given = self._plan.topology.given_ray is not None  # its workers run no agent
        return 0 if given or not self._listens else workers.never_heard(self._state)

    async def _hold(self, outcome: Outcome) -> Outcome:
        """Stay with the verdict where a platform would start the container again."""
        if self._plan.on_done != "hold" or not outcome.is_jobs_verdict:
            return outcome
        write_outcome(self._stage.folder.path, outcome)
        say(f"{outcome.sentence()}")
        say("holding the pod, which would be started again: stop it when you have what you need")
        while not isinstance(await self._inbox.take(None), StopAsked):
            continue
        return outcome

    def _status(self) -> dict[str, object]:
        return status_of(self._state, self._plan, self._run_id, self._epoch, self._stage.now())


async def run(stage: Stage, run_id: str) -> Outcome:
    """Be the head."""
    return await Head(stage, run_id).run()
