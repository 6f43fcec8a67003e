"""A worker's agent: its real decisions and its real link to the head, as in run/worker.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from agent.decisions import worker
from agent.decisions.shared import ALL_REDUCE, Answer, StepOver
from agent.decisions.worker import worker_state as w
from agent.plan.plan_services import service_only_ranks
from agent.port.client import HeadLink
from agent.port.protocol import Bye, Hello, Reply, Report
from agent.run.worker import first_state, make_hello, record_end, record_reachability
from support.simulated.agents import Agent, End
from support.simulated.rays import Raylet
from support.simulated.rules import said_by

if TYPE_CHECKING:
    from agent.run.node_run import NodeRun

_ANNOUNCE, _GOODBYE = 5.0, 1.0


class WorkerAgent(Agent):
    """One agent of a worker."""

    async def live(self) -> None:
        """Run the agent from start to exit."""
        node, plan = self.begin(), self.world.plan(self.machine)
        self.plan = plan
        if not self.replaces and (done := self.world.platform.begins(self.machine, "")):
            self.machine.leave(done.exit_code, done)
            return
        if node.surviving is not None and node.surviving.record.ending is not None:
            decided = node.surviving.record.ending
            self.machine.leave(decided.exit_code, decided)
            return
        self.id = f"{self.machine.name}-{self.world.count()}"
        self.reply: Reply | None = None
        self._answers: list[Answer] = []
        self._sent: tuple[Answer, ...] = ()
        self._told: tuple[Any, ...] = ()
        self._under_way: list[asyncio.Task[Any]] = []
        self._says_bye = False
        run = cast("NodeRun", node)
        self.state = first_state(run, self._goal())
        if self.state.ray is not w.RayStep.UP:
            node.end_ray()
        elif self.machine.raylet is not None and self.machine.raylet.is_up:
            self.inbox.put(w.RayUp())
        was_at = "" if node.surviving is None else node.surviving.record.head_ip
        self.link = HeadLink(
            *("head.test", plan.ports.agent, plan.ports.gcs, None),
            *(self._hello, self._report, self.inbox.put, self._on_reply),
            last_ip=was_at,
        )
        self.go(self.link.run())
        for step in plan.steps:
            if step.name in self.state.running_steps:
                self.go(self._run_step(step))
        leave = await self._decide(run)
        self._says_bye = True
        limit = _ANNOUNCE if leave.must_report else _GOODBYE
        await self.link.send_goodbye(limit)
        told = self.reply is not None and self.reply.verdict == leave.outcome
        self.world.rules.worker_left(self, leave.outcome, End(leave.outcome.exit_code, told))
        for file in self.files:
            file.flush()
        self.machine.leave(leave.outcome.exit_code, leave.outcome)

    def _goal(self) -> w.WorkerGoal:
        plan = self.plan
        return w.WorkerGoal(
            head=plan.topology.head_host or "",
            limits={wait.key: wait.seconds for wait in plan.waits},
            steps=plan.steps,
            services=plan.possible_services,
            rank=plan.topology.platform.rank,
            service_only_ranks=service_only_ranks(plan.all_services),
            by_torchrun=plan.torchrun is not None,
        )

    async def _decide(self, run: NodeRun) -> w.EndWorker:
        while True:
            event = await self.next_event(worker.deadline(self.state))
            before = self.state
            self.state, actions = worker.decide(before, event, self.node.now())
            self.world.note(self.machine.label, event, actions)
            self.world.rules.worker_decided(self, before, event, actions)
            record_reachability(run, before, self.state)
            await record_end(run, self.state)
            for action in actions:
                await self.dies_here()
                if isinstance(action, w.EndWorker):
                    return action
                self._perform(action)
            state = self.state
            told = (
                state.phase,
                state.joined,
                state.preparing,
                state.ray,
                worker.item_reports(state),
            )
            rest = (state.last_order, state.share_over, state.running_attempt, state.taken_at)
            if (*told, *rest) != self._told:
                self._told = (*told, *rest)
                self.link.report_now()

    def _perform(self, action: w.WorkerAction) -> None:
        match action:
            case w.StartRay(head_ip):
                self._start_ray(head_ip)
            case w.StopRay():
                raylet = self.machine.raylet
                if raylet is not None:
                    pause = self.world.random.uniform(0, 3)
                    self.world.later(pause, raylet.end, "stopped", at_once=True)
            case w.StopServices():
                for service in [*self.machine.services.values()]:
                    self.world.later(self.world.random.uniform(0, 3), service.end, "stopped")
            case w.StartOwnService(name, generation):
                self.serve(name, generation)
            case w.StopSteps():
                for task in self._under_way:
                    task.cancel()
            case w.RunOwnStep(name):
                step = next(one for one in self.plan.steps if one.name == name)
                self._under_way.append(self.go(self._run_step(step)))
            case w.StartShare(attempt, seat):
                self.world.start_share(self.machine, attempt, len(seat.nodes))
            case w.StopShare():
                if self.machine.share is not None:
                    self.machine.share.stop()
            case w.RunProbe(probe, at):
                self.go(self._probe(probe, at))
            case _:
                pass

    async def _probe(self, probe: str, at: str) -> None:
        await asyncio.sleep(5.0 if probe == ALL_REDUCE else 0.1)
        self._answers.append(Answer(probe, at, seconds=0.001, size=1 << 30))
        self.link.report_now()

    def _start_ray(self, head_ip: str) -> None:
        epoch, machine = self.state.epoch or 0, self.machine
        self.node.update(epoch=epoch, head_ip=head_ip, attempt=self.state.ray_attempt)
        at = self.world.at(head_ip)
        if at is None or at.cluster is None or machine.raylet is not None:
            self.inbox.put(w.RayExited("no head there"))
            return
        machine.raylet = Raylet(at.cluster, machine)
        self.node.started_ray()

    async def _run_step(self, step: Any) -> None:  # noqa: ANN401 - a PrepareStep
        self.inbox.put(StepOver(step.name, await self.prepared(step)))

    # --- reports to the head --------------------------------------------------------------------

    def _hello(self) -> Hello:
        return make_hello(self.plan, self.reply, str)

    def _report(self, node_ip: str) -> Report:
        state = self.state
        verdict = state.verdict
        self._sent = tuple(self._answers[:16])
        report = Report(
            id=self.id,
            ip=node_ip,
            phase=state.phase.value,
            joined=state.joined,
            service_only=state.service_only,
            preparing=state.preparing,
            error=state.ray_evidence,
            items=worker.item_reports(state),
            share=state.share_over,
            running_attempt=state.running_attempt,
            answers=self._sent,
            obeyed=0 if state.last_order is None else state.last_order.number,
            obeyed_by="" if state.last_order is None else state.last_order.by,
            bye=Bye(verdict.reason) if verdict is not None and self._says_bye else None,
            notice=state.notice(self.node.now()),
        )
        self.world.rules.sent(self.id, said_by(report))
        return report

    def _on_reply(self, reply: Reply) -> None:
        self._answers = [one for one in self._answers if one not in self._sent]
        self.reply = reply
        if reply.run_id != self.node.record.run_id:
            self.node.run_id = reply.run_id
            self.node.update(run_id=reply.run_id)
