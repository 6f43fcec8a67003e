"""A simulated head's agent: real decisions, reports and record, as in run/head.py."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.decisions import attempts, head
from agent.decisions.attempts import JobReport
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode
from agent.decisions.head.head_decide import is_worker_needed
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import (
    ALL_REDUCE,
    HERE,
    Answer,
    Answered,
    OrderKind,
    Refused,
    Step,
    StepOver,
)
from agent.job.job import job_identity
from agent.job.torchrun_command import ShareOrder
from agent.port.protocol import Report, protocol_mismatch
from agent.port.reports import Reports, agent_limit
from agent.record.run_record import RUN_FILE, ChosenRun, RunRecord, fingerprint, why_not_resumed
from agent.run.head_server import count_possible_callers, first_reply, make_expected
from agent.run.make_goal import make_goal
from agent.run.run_keeper import RunKeeper
from agent.run.silent_nodes import probe_nodes, watch_silent_workers
from agent.settings.jobs import launcher
from support.simulated.agents import Agent
from support.simulated.rays import Cluster
from support.simulated.virtual import RUNS

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.plan.plan import Plan

_HEARTBEAT = 10.0
RAYLET_PORT = 8267
REDUCED = json.dumps(
    {
        "failed": [],
        "in_time": True,
        "at": [],
        "all_reduce": {"bytes": 1 << 20, "seconds": 0.1},
        "ways": [],
    }
)
_GOOD_STOP = 3.0


class HeadAgent(Agent):
    """One agent of a head."""

    async def live(self) -> None:
        """Run the agent from start to exit: run/main.py, run/make_ready.py and run/head.py."""
        node, machine, world = self.begin(), self.machine, self.world
        self.plan = plan = world.plan(machine)
        if not self.replaces and (done := world.platform.begins(machine, self._fingerprint(plan))):
            machine.leave(done.exit_code, done)
            return
        self.keeper = keeper = self._keeper(plan)
        keeper.note_epoch = node.record_epoch
        left = node.surviving
        if left is not None and keeper.has_outdated_ray:
            node.end_ray()
            left.has_ray = False
        keeper.save(keeper.record)
        goes_on_with_ray = left is not None and left.has_ray
        unfit = keeper.final_outcome(plan.settings.job_retries)
        if unfit is not None:
            node.end_ray()
        if not goes_on_with_ray and not keeper.is_superseded:
            keeper.new_epoch(machine.name)
            if keeper.record.attempts:
                await keeper.flush()
        node.update(run_id=keeper.record.run_id)
        if unfit is None and plan.own_ray is not None and not goes_on_with_ray:
            self._start_ray()
        self.state = head.first_state(make_goal(plan, keeper, node.now(), node.finished_steps))
        self.reports = await self._reports(plan)
        self.bridge = Bridge(self)
        machine.serves = self._serves
        self.go(watch_silent_workers(self.reports, plan.ports, self.inbox.put))
        self.go(self._watch_record())
        self.go(self._watch_stall(plan.settings.stall))
        if unfit is None:
            self._bring_up()
        else:
            self.inbox.put(Refused(unfit))
        outcome = await self._decide()
        await self._leave(outcome)

    def _fingerprint(self, plan: Plan) -> str:
        assert plan.job is not None
        argv, recipe = job_identity(plan.job)
        return fingerprint(argv, launcher(plan.settings), recipe, str)

    def _keeper(self, plan: Plan) -> RunKeeper:
        own = self._fingerprint(plan)
        left, files = self.node.surviving, self.machine.files
        found = [RunRecord.read(RUNS / id_ / RUN_FILE) for id_ in self.world.run_ids(files, left)]
        before = found[0] if found and isinstance(found[0], RunRecord) else None
        if left is None and before and why_not_resumed(before, own, self.machine.name):
            before = None
        run_id = self.world.new_run_id() if before is None else before.run_id
        former_head = (
            "" if before is None or self.world.is_former_gone(self.machine) else before.head
        )
        given = plan.topology.given_ray is not None
        return RunKeeper(
            *(RUNS, own, ChosenRun(run_id, before, former_head=former_head)),
            job_survives=given or (left is not None and left.has_ray),
            replaces_agent=left is not None,
            own_epoch=0 if left is None else left.record.epoch,
        )

    async def _reports(self, plan: Plan) -> Reports:
        number, now = self.state.attempt.number, self.node.now
        most = agent_limit(plan.topology.expected_workers)
        return Reports(
            await first_reply(self.keeper, number, self.machine.ip),
            *(make_expected(plan, self.keeper), self.inbox.put, now),
            rank_names=self.keeper.record.ranks,
            keep_ranks=self.keeper.record_ranks,
            on_recalled_run=partial(self.keeper.recall, self.inbox.put),
            has_token=self.world.setup.has_token,
            most=most,
            is_needed=lambda key: is_worker_needed(self.state, key, now()),
        )

    async def _serves(self, text: str) -> str:
        """Answer a report, as port/server.py does."""
        data = json.loads(text)
        refusal = protocol_mismatch(data, "this worker")
        assert not refusal
        reply = await self.reports.handle(Report.from_dict(data))
        return json.dumps(reply.to_dict())

    async def _watch_record(self) -> None:
        """Report a later head that has written the record."""
        while not (epoch := self.keeper.later_epoch()):  # noqa: ASYNC110 - a look at a disk
            await asyncio.sleep(3.0)
        self.inbox.put(h.LaterHead(epoch, "run.json has its epoch"))

    async def _watch_stall(self, limit: float) -> None:
        """Report a job without progress since a node was lost, as run/stall.py does."""
        quiet: attempts.Quiet | None = None
        while True:
            await asyncio.sleep(attempts.diagnostics_interval(limit))
            state, now = self.state, self.node.now()
            number = state.attempt.number if state.phase is HeadPhase.RUNNING else None
            quiet = attempts.quiet_period(
                quiet, number, now, lost_a_node=bool(state.attempt.lost_nodes)
            )
            if quiet is not None and self.world.rules.job_works:
                quiet = quiet.with_work_at(now)
            if quiet is not None and quiet.lasts(limit, now):
                quiet = replace(quiet, is_reported=True)
                if quiet.has_lost_node:
                    self.inbox.put(attempts.StalledSinceLoss(quiet.attempt, f"{limit:g} s"))

    def _bring_up(self) -> None:
        self.go(self._look_after(0))
        for action in self.state.actions:
            self._begin(action)

    def _begin(self, action: h.HeadAction) -> None:
        match action:
            case h.StartService(name, _, generation):
                self.serve(name, generation)
            case h.OrderStep(name):
                self.go(self._prepare(name))
            case _:
                pass

    async def _prepare(self, name: str) -> None:
        step = next(one for one in self.plan.steps if one.name == name)
        self.inbox.put(StepOver(name, await self.prepared(step)))

    async def _look_after(self, attempt: int) -> None:
        await asyncio.sleep(self.world.random.uniform(0, 0.2))
        self.inbox.put(h.CheckpointSeen(attempt))

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(self) -> Outcome:
        while True:
            event = await self.next_event(head.deadline(self.state))
            before, now = self.state, self.node.now()
            self.state, actions = head.decide(before, event, now)
            self.world.note(self.machine.label, event, actions)
            self.world.rules.head_decided(self, before, event, actions)
            if self.state.fleet.alive is not before.fleet.alive:
                self.keeper.record_nodes(self.state.fleet.alive.values())
            outcome = None
            for action in actions:
                await self.dies_here()
                if isinstance(action, h.EndRun):
                    outcome = self._final(action.outcome)
                    self.keeper.record_outcome(outcome)
                    await self.keeper.flush()
                else:
                    await self._perform(action)
            self._publish()
            if outcome is not None:
                return outcome
            if isinstance(event, h.RunRemembered):
                self.reports.run_decided.set()

    def _final(self, outcome: Outcome) -> Outcome:
        if self.machine.restarts is not None:
            outcome = self.machine.restarts.final(outcome)
            self.state = self.state.with_stop(verdict=outcome)
        return outcome

    def _publish(self) -> None:
        state = self.state
        ready = state.ray.gcs_answers and state.ray.item.step is not Step.LOST
        self.reports.publish(
            epoch=self.keeper.epoch,
            run_id=self.keeper.record.run_id,
            phase=state.phase.value,
            attempt=state.attempt.number,
            fingerprint=self.keeper.proof(
                state.attempt.number - (state.phase is HeadPhase.BOOTING)
            ),
            ray_ready=ready or state.goal.by_torchrun,
            verdict=state.verdict_for_workers,
        )

    async def _perform(self, action: h.HeadAction) -> None:  # noqa: C901, PLR0912, PLR0915 - one case, one action
        match action:
            case h.SubmitJob(job):
                await self._record_attempt()
                await self.dies_here()
                self.go(self._submit(job))
            case h.FollowJob(job) if self.state.goal.by_torchrun:
                self.inbox.put(h.NeverSubmitted(job))
            case h.FollowJob(job):
                self.bridge.follow(job)
            case h.ListJobs():
                self.bridge.list_jobs()
            case h.SaveSnapshot(known):
                self.keeper.save(self.keeper.record.with_snapshot(known, self.node.now()))
            case h.SaveStepHolders(holders):
                self.keeper.record_step_holders(holders)
                await self.keeper.flush()
            case h.SaveOutages(outages):
                self.keeper.record_outages(outages, self.node.now())
            case h.StopJob(job):
                self.go(self._stop_job(job))
            case h.SaveJob(job):
                self.go(self._save_job(job))
            case h.ReleaseWorker(node):
                self.reports.order(node, OrderKind.LEAVE)
            case h.AskNodes(job):
                self.go(probe_nodes(job, self.state.fleet, self.inbox.put))
            case h.RestartRay():
                self.node.end_ray()
                self.keeper.new_epoch(self.plan.topology.node_name)
                await self.keeper.flush()
                self._start_ray()
            case h.StartService(node=node) | h.OrderStep(node=node) if node == HERE:
                self._begin(action)
            case h.StartService(name, node, generation):
                self.reports.order(node, OrderKind.START_SERVICE, name, generation)
            case h.OrderStep(name, node):
                self.reports.order(node, OrderKind.RUN_STEP, name)
            case h.ProbeNode(node, probe, at) if node == HERE:
                self.go(self._probe(probe, at))
            case h.ProbeNode(node, probe, at, seat):
                self.reports.order(node, OrderKind.PROBE, probe, at=at, share=seat)
            case h.AdoptRun(run_id, attempts, epoch, is_running):
                self.keeper.adopt_run(run_id, attempts, epoch)
                if is_running:
                    await self._record_attempt()
                self.node.update(run_id=run_id)
                await self.keeper.flush()
            case h.Retry(ended):
                await self._clear_away(ended)
            case _:
                pass

    async def _record_attempt(self) -> None:
        names = (*self.state.fleet.alive.values(),)
        self.keeper.record_submission(self.state.attempt, names, self.state.required)
        await self.keeper.flush()

    async def _save_job(self, job: str) -> None:
        await asyncio.sleep(self.world.random.uniform(0.5, 20.0))
        self.inbox.put(h.SaveOver(job, "the job has saved checkpoint-1"))

    async def _probe(self, probe: str, at: str) -> None:
        await asyncio.sleep(5.0 if probe == ALL_REDUCE else 0.1)
        words = REDUCED if probe == ALL_REDUCE else ""
        self.inbox.put(Answered(Answer(probe, at, seconds=0.001, size=1 << 30, words=words)))

    def _start_ray(self) -> None:
        self.machine.cluster = Cluster(self.world, self.machine)
        self.node.started_ray()

    # --- the job --------------------------------------------------------------------------------

    async def _submit(self, job: str) -> None:
        await asyncio.sleep(self.world.random.uniform(0.0, 2.0))
        state = self.state
        if not state.goal.by_torchrun:
            self.bridge.submit(job)
            return
        nodes, number = state.shares.sizes, state.attempt.number
        for rank, key in enumerate(state.shares.by_node):
            if key != HERE:
                self.reports.order(
                    key, OrderKind.RUN_SHARE, "job", number, share=ShareOrder(rank, nodes, "")
                )
        self.world.start_share(self.machine, number, len(nodes))
        self.inbox.put(h.Submitted(job))

    async def _stop_job(self, job: str) -> None:
        await self.keeper.flush()
        if not self.state.goal.by_torchrun:
            self.bridge.stop(job)
            return
        for key in self.state.shares.by_node:
            if key != HERE:
                self.reports.order(key, OrderKind.STOP_SHARE, "job", self.state.attempt.number)
        if self.machine.share is not None:
            self.machine.share.stop()

    async def _clear_away(self, ended: Any) -> None:  # noqa: ANN401 - an Attempt
        if ended.end is not None:
            announced = ended.loss_was_announced
            cause = ended.own_cause
            self.keeper.record_attempt_end(ended.end, announced=announced, cause=cause)
            await self.keeper.flush()
        await self.dies_here()
        self.bridge.forget(ended.id)
        if self.machine.share is not None:
            self.machine.share.stop()
            while self.machine.share is not None:  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.1)
        elif self.plan.own_ray is not None:
            await asyncio.sleep(self.world.random.uniform(0.1, _GOOD_STOP))
            self.node.end_ray()
            self.bridge.renew()
            self.inbox.discard(h.RayNodes, h.GcsOpen, h.HeadRaySilent, h.RayHangs, h.RayGone)
        self.inbox.put(h.Cleared(ended.number))
        self.go(self._look_after(ended.number))

    # --- the end --------------------------------------------------------------------------------

    async def _leave(self, outcome: Outcome) -> None:
        """Wait for the workers to leave with the verdict, and stop everything."""
        await asyncio.sleep(0.1)
        self.keeper.record_end(outcome)
        await self.keeper.flush()
        await self.dies_here()
        self.bridge.renew()
        if not outcome.is_superseded:
            calls = count_possible_callers(self.plan, [None], self.state)  # type: ignore[list-item]  # it listens
            await self.reports.wait_for_goodbyes(self.plan.budget.final_replies, calls)
        for file in self.files:
            file.flush()
        self.world.rules.head_left(self, outcome)
        self.machine.leave(outcome.exit_code, outcome)


class Bridge:
    """Models the bridge to Ray: watches the cluster and the submitted jobs."""

    def __init__(self, agent: HeadAgent) -> None:
        self._agent, self._world = agent, agent.world
        self._told: tuple[Any, ...] | None = None
        self._jobs: set[str] = set()
        self._asks: list[asyncio.Task[Any]] = []
        self._canceled: set[str] = set()
        self._reported: dict[str, JobReport] = {}
        self._of: Cluster | None = None
        self._saw_gcs = self._told_end = False
        agent.go(self._watch())

    @property
    def _cluster(self) -> Cluster | None:
        return self._world.given or self._agent.machine.cluster

    async def _watch(self) -> None:
        """Read Ray's state after each change, and at intervals."""
        changed = asyncio.Event()
        last_word = 0.0
        while True:
            cluster = self._cluster
            if cluster is not self._of:
                self._of, self._told, self._reported = cluster, None, {}
                self._saw_gcs = self._told_end = False
            if cluster is not None:
                cluster.on_change.append(changed.set)
                due = self._world.now >= last_word + _HEARTBEAT
                last_word = self._world.now if due else last_word
                self._look(cluster, is_due=due)
            try:
                await asyncio.wait_for(changed.wait(), 0.5 if cluster is None else _HEARTBEAT)
            except asyncio.TimeoutError:
                pass
            finally:
                if cluster is not None:
                    cluster.on_change.remove(changed.set)
            changed.clear()
            await asyncio.sleep(self._world.random.uniform(0.05, 0.5))

    def _look(self, cluster: Cluster, *, is_due: bool) -> None:
        tell = self._agent.inbox.put
        if not cluster.lives:
            if not self._told_end:
                self._told_end = True
                tell(h.RayGone("exit code 1"))
            return
        if cluster.has_gcs and not self._saw_gcs:
            self._saw_gcs = True
            tell(h.GcsOpen())
        alive = cluster.listed.values()
        nodes = (
            *((RayNode("head", cluster.machine.ip, is_head=True),) if cluster.is_up else ()),
            *(RayNode(one.id, one.machine.ip, port=RAYLET_PORT) for one in alive),
            *(RayNode(one.id, one.machine.ip, alive=False) for one in cluster.dead.values()),
        )
        if cluster.has_gcs and nodes != self._told:
            self._told = nodes
            tell(h.RayNodes(nodes))
        if self._world.now < cluster.mute_until:
            return
        for id_ in [*self._jobs]:
            job = cluster.jobs.get(id_)
            if job is None:
                continue
            report = JobReport(job.status, "", job.code)
            if is_due or report != self._reported.get(id_):
                self._reported[id_] = report
                tell(h.JobReported(id_, report))

    def submit(self, id_: str) -> None:
        """Submit a job and follow it."""
        self._asks.append(self._agent.go(self._submit(id_)))

    async def _submit(self, id_: str) -> None:
        state = self._agent.state
        await asyncio.sleep(self._world.random.uniform(0.05, 1.5))
        cluster = self._cluster
        while cluster is None or not cluster.is_up or self._world.now < cluster.mute_until:
            self._agent.inbox.put(h.SubmitWaits(id_, "no answer"))
            await asyncio.sleep(1.0)
            cluster = self._cluster
        if id_ in self._canceled:
            self._agent.inbox.put(h.SubmitWaits(id_, "stopped before", canceled=True))
            return
        needed = None if self._world.setup.is_sized else state.required
        cluster.submit(id_, state.attempt.number, needed)
        await asyncio.sleep(self._world.random.uniform(0.01, 0.5))
        self._agent.inbox.put(h.Submitted(id_))
        self._jobs.add(id_)
        if id_ in self._canceled:
            cluster.jobs[id_].stop()
        cluster.changed()

    def follow(self, id_: str) -> None:
        """Follow a job that an earlier agent submitted, or was about to submit."""
        self._asks.append(self._agent.go(self._follow(id_)))

    async def _follow(self, id_: str) -> None:
        await asyncio.sleep(self._world.random.uniform(0.05, 1.5))
        cluster = self._cluster
        while cluster is None or not cluster.is_up or self._world.now < cluster.mute_until:
            await asyncio.sleep(1.0)
            cluster = self._cluster
        if id_ not in cluster.jobs:
            self._agent.inbox.put(h.NeverSubmitted(id_))
            return
        self._agent.inbox.put(h.Submitted(id_))
        self._jobs.add(id_)
        if id_ in self._canceled:
            cluster.jobs[id_].stop()
        cluster.changed()

    def list_jobs(self) -> None:
        """Send the ids of all jobs, as soon as Ray answers."""
        self._asks.append(self._agent.go(self._list_jobs()))

    async def _list_jobs(self) -> None:
        await asyncio.sleep(self._world.random.uniform(0.05, 1.5))
        cluster = self._cluster
        while cluster is None or not cluster.is_up or self._world.now < cluster.mute_until:
            await asyncio.sleep(1.0)
            cluster = self._cluster
        self._agent.inbox.put(h.JobsListed((*cluster.jobs,)))

    def stop(self, id_: str) -> None:
        """Stop a job; if Ray has not accepted it yet, its submission is canceled."""
        self._canceled.add(id_)
        cluster = self._cluster
        if id_ in self._jobs and cluster is not None and id_ in cluster.jobs:
            cluster.jobs[id_].stop()

    def forget(self, id_: str) -> None:
        """Stop following a job."""
        self._jobs.discard(id_)

    def renew(self) -> None:
        """Restart, like another bridge without knowledge of the former Ray."""
        self._jobs.clear()
        for ask in self._asks:
            ask.cancel()
