"""A worker's agent: its real decisions and its real link to the head, as in boot/worker.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from agent.boot.hello import hello_of
from agent.boot.kept_ray import had_agent, kept_ray, note_reach
from agent.control.client import HeadLink
from agent.control.protocol import Bye, Hello, Reply, Report
from agent.decisions import worker
from agent.decisions.items import StepOver
from agent.decisions.probing import ALL_REDUCE, Answer
from agent.decisions.worker import state as w
from agent.plan.services import alone_ranks
from unit.simulated.agents import Agent, End
from unit.simulated.rays import Raylet
from unit.simulated.rules import said_by

if TYPE_CHECKING:
    from agent.boot.node_run import NodeRun

_ANNOUNCE, _GOODBYE = 5.0, 1.0


class WorkerAgent(Agent):
    """One agent of a worker."""

    async def live(self) -> None:
        """Live its whole story."""
        node, plan = self.begin(), self.world.plan(self.machine)
        self.plan = plan
        self.id = f"{self.machine.name}-{self.world.count()}"
        self.reply: Reply | None = None
        self._answers: list[Answer] = []
        self._sent: tuple[Answer, ...] = ()
        self._told: tuple[Any, ...] = ()
        self._under_way: list[asyncio.Task[Any]] = []
        self._says_bye = False
        run = cast("NodeRun", node)
        self.state = worker.first_state(self._goal(), kept_ray(run), has_agent=had_agent(run))
        if self.state.ray is not w.RayStep.UP:
            node.end_ray()
        elif self.machine.raylet is not None and self.machine.raylet.is_up:
            self.inbox.put(w.RayUp())
        was_at = "" if node.left is None else node.left.record.head_ip
        self.link = HeadLink(
            *("head.test", plan.ports.agent, plan.ports.gcs, None),
            *(self._hello, self._report, self.inbox.put, self._on_reply),
            was_at=was_at,
        )
        self.go(self.link.run())
        for step in plan.steps:
            if step.name in self.state.under_way:
                self.go(self._run_step(step))
        leave = await self._decide(run)
        self._says_bye = True
        limit = _ANNOUNCE if leave.head_must_hear else _GOODBYE
        await self.link.goodbye(limit)
        told = self.reply is not None and self.reply.verdict == leave.outcome
        self.world.rules.worker_left(self, leave.outcome, End(leave.outcome.exit_code, told))
        for file in self.files:
            file.flush()
        self.machine.leave(leave.outcome.exit_code)

    def _goal(self) -> w.Goal:
        plan = self.plan
        return w.Goal(
            head=plan.topology.head_host or "",
            limits={wait.key: wait.seconds for wait in plan.waits},
            steps=plan.steps,
            services=plan.possible_services,
            rank=plan.topology.claim.rank,
            alone=alone_ranks(plan.all_services),
            by_torchrun=plan.torchrun is not None,
        )

    async def _decide(self, run: NodeRun) -> w.Leave:
        while True:
            event = await self.next_event(worker.deadline(self.state))
            before = self.state
            self.state, actions = worker.decide(before, event, self.node.now())
            self.world.note(self.machine.label, event, actions)
            self.world.rules.worker_decided(self, before, event, actions)
            note_reach(run, before, self.state)
            for action in actions:
                await self.dies_here()
                if isinstance(action, w.Leave):
                    return action
                self._perform(action)
            state = self.state
            told = (state.phase, state.joined, state.preparing, state.tries, worker.words(state))
            if (*told, state.obeyed, state.part, state.runs) != self._told:
                self._told = (*told, state.obeyed, state.part, state.runs)
                self.link.report_now()

    def _perform(self, action: w.WorkerAction) -> None:  # noqa: C901, PLR0912 - one case, one action
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
            case w.StartService(name, generation):
                self.serve(name, generation)
            case w.StopSteps():
                for task in self._under_way:
                    task.cancel()
            case w.RunStep(name):
                step = next(one for one in self.plan.steps if one.name == name)
                self._under_way.append(self.go(self._run_step(step)))
            case w.StartPart(attempt, seat):
                self.world.start_share(self.machine, attempt, len(seat.nodes))
            case w.StopPart():
                if self.machine.share is not None:
                    self.machine.share.stop()
            case w.Probe(probe, at):
                self.go(self._probe(probe, at))
            case _:
                pass

    async def _probe(self, probe: str, at: str) -> None:
        await asyncio.sleep(5.0 if probe == ALL_REDUCE else 0.1)
        self._answers.append(Answer(probe, at, seconds=0.001, size=1 << 30))
        self.link.report_now()

    def _start_ray(self, head_ip: str) -> None:
        epoch, machine = self.state.epoch or 0, self.machine
        self.node.in_epoch(epoch, head_ip, self.state.ray_attempt)
        at = self.world.at(head_ip)
        if at is None or at.cluster is None or machine.raylet is not None:
            self.inbox.put(w.RayExited("no head there"))
            return
        machine.raylet = Raylet(at.cluster, machine)
        self.node.started_ray()

    async def _run_step(self, step: Any) -> None:  # noqa: ANN401 - a PrepareStep
        self.inbox.put(StepOver(step.name, await self.prepared(step)))

    # --- what the head is told ------------------------------------------------------------------

    def _hello(self) -> Hello:
        last = self.reply
        return hello_of(self.plan, last, 0 if last is None else last.submitted, str)

    def _report(self, node_ip: str) -> Report:
        state = self.state
        verdict = state.verdict
        self._sent = tuple(self._answers[:16])
        report = Report(
            id=self.id,
            ip=node_ip,
            phase=state.phase.value,
            joined=state.joined,
            alone=state.alone,
            preparing=state.preparing,
            error=state.ray_evidence,
            items=worker.words(state),
            part=state.part,
            runs=state.runs,
            answers=self._sent,
            obeyed=0 if state.obeyed is None else state.obeyed.number,
            obeyed_by="" if state.obeyed is None else state.obeyed.by,
            bye=Bye(verdict.reason) if verdict is not None and self._says_bye else None,
        )
        self.world.rules.sent(self.id, said_by(report))
        return report

    def _on_reply(self, reply: Reply) -> None:
        self._answers = [one for one in self._answers if one not in self._sent]
        self.reply = reply
        if reply.run_id != self.node.record.run_id:
            self.node.run_id = reply.run_id
            self.node.note(run_id=reply.run_id)
