"""Rules that hold in every world: checked at each decision, at each process, and at the end."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.base.ends import Kind
from agent.decisions import worker
from agent.decisions.attempts import is_loss
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import HERE, StopAsked, Tick
from agent.decisions.stall import Stalled
from agent.decisions.worker import worker_state as w
from agent.record.files import NoRecord
from agent.record.outcome_file import read_outcome
from agent.record.run_record import RUN_FILE, RunRecord
from support.heads import job_report
from support.simulated.rays import Job

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from support.simulated.agents import Agent
    from support.simulated.machines import Machine
    from support.simulated.programs import Execution, Group
    from support.simulated.world import World

_MOST_TICKS = 5
_QUIET = 60.0
"""A machine disturbed less than this many seconds ago may still behave oddly."""
_MOST_LIVES_KEPT = 4
"""The maximum number of known agents with one name."""
TWO_HEADS = 80.0
"""Seconds for which a former, cut-off head may still run its job beside a later head's.

It stops the job AGENT_NODE_GRACE (60 s) after Ray has dropped its workers, which takes 17 s. A head
that shares its disk with the later head sees its record. Two heads with separate disks and enough
workers cannot detect each other, and one that requires no workers keeps running.
"""


class Rules:
    """The rules of one world, and the data to check them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken: list[str] = []
        self._attempts: list[Job | Group] = []
        self._without_record = 0
        self._ticks: Counter[str] = Counter()
        self._ticked_at: dict[str, float] = {}
        self._succeeded: set[tuple[str, int]] = set()
        """The heads, and their boots, that were informed of a success."""
        self._stopped = False
        self._stalled: set[str] = set()
        """The heads that have reported a job without work."""
        self._known: set[str] = set()
        """Workers that have received a reply from an agent."""
        self._sent: dict[str, list[tuple[Any, ...]]] = {}
        self._newest: dict[tuple[str, str], int] = {}
        self._codes: set[int] = set()
        """The outcomes that heads have decided."""

    def breaks(self, rule: str, how: str) -> None:
        """Record a broken rule, and end the world."""
        self.broken.append(f"{rule}: {how}")
        self._world.note("RULE", f"BROKEN {rule}: {how}")
        self._world.over.set()

    # --- what runs ------------------------------------------------------------------------------

    @property
    def job_works(self) -> bool:
        """Return whether any process of a job runs."""
        return any(one.lives and not one.is_stuck for one in self._attempts)

    @property
    def jobs(self) -> tuple[Job | Group, ...]:
        """Return all attempts that began."""
        return (*self._attempts,)

    def begins(self, new: Job | Group) -> None:
        """At most one attempt runs at a time, and no more attempts than allowed."""
        if new not in self._attempts:
            self._attempts.append(new)
        for other in self._attempts:
            if other is not new and other.lives:
                self._meets(other, new)
        the_head = self._world.head
        knows = (the_head.label, the_head.boots) in self._succeeded
        if knows and not self._world.has_two_heads:
            self.breaks("success is final", f"attempt {new.id} begins after it")
        setup = self._world.setup
        most = setup.retries + setup.notices + 1
        if len({one.number for one in self._attempts}) > most:
            self.breaks("no more attempts than were allowed", f"{new.id} with {setup.retries=}")

    def _meets(self, other: Job | Group, new: Job | Group) -> None:
        if not self._world.has_two_heads:
            self.breaks("one attempt at a time", f"{new.id} begins while {other.id} lives")
            return
        later = self._world.head
        for former in self._world.former_heads:
            is_its_own = isinstance(new, Job) and new.cluster.machine is former
            if former.disk == later.disk and _run_of(other) != _run_of(new):
                continue
            if former.disk == later.disk:
                how = f"{new.id} begins while {other.id} lives"
                self.breaks("a former head makes room", how)
            elif former.label in self._world.network.cut_off and not is_its_own and _needs(former):
                self._world.later(TWO_HEADS, self._still_meets, other, new)

    def _still_meets(self, other: Job | Group, new: Job | Group) -> None:
        if other.lives and new.lives:
            how = f"{other.id} lives beside {new.id} for {TWO_HEADS:g} s"
            self.breaks("a former head makes room", how)

    def ray_begins(self, machine: Machine, others: int) -> None:
        """Of a node's Ray nothing is left when another starts."""
        if others:
            self.breaks("one Ray at a time", f"{machine.name} starts another")
        self._world.group_judges.ray_begins(machine)

    def step_begins(self, new: Execution) -> None:
        """A step with a marker runs once per disk: neither again, nor twice in parallel."""
        agent = new.machine.agent
        new.is_unasked = agent is not None and self._takes_it_for_bare(agent)
        if new.is_unasked:
            return
        machines = [one for one in self._world.machines if one.is_on and one.code is None]
        others = [run for one in machines for run in one.steps if not run.is_unasked]
        same = [run for run in others if (run.disk, run.name) == (new.disk, new.name)]
        same.remove(new)
        if same and not self._world.has_two_heads:
            how = f"{new.name} on {new.machine.name} beside {same[0].machine.name}"
            self.breaks("a step runs once on a disk", how)

    def _takes_it_for_bare(self, agent: Agent) -> bool:
        """Return whether a worker began while the head's agent was down, and cannot detect it."""
        state = agent.state
        known = agent.id in self._known
        return isinstance(state, w.WorkerState) and state.is_plain_head and not known

    # --- decisions ------------------------------------------------------------------------------

    def _ticked(self, agent: Agent, event: object, deadline: float | None) -> None:
        """Check that no deadline is in the past after a Tick: the agent would loop."""
        name, now = agent.machine.label, self._world.now
        if not isinstance(event, Tick) or now > self._ticked_at.get(name, -1.0) + 1e-6:
            self._ticks[name] = 0
        if isinstance(event, Tick):
            self._ticked_at[name] = now
            self._ticks[name] += 1
        if self._ticks[name] > _MOST_TICKS:
            late = None if deadline is None else agent.node.now() - deadline
            self.breaks("no deadline in the past survives a Tick", f"{name} spins, {late=}")
            self._ticks[name] = -1_000_000

    def head_decided(
        self, agent: Agent, before: h.HeadState, event: object, actions: Iterable[object]
    ) -> None:
        """Check one decision of a head."""
        after, order = agent.state, [*HeadPhase]
        deadline = head.deadline(after)
        self._ticked(agent, event, deadline)
        has_status = after.goal.has_job and not after.goal.by_shares
        at_rest = after.phase is HeadPhase.LEAVING or (
            after.phase is HeadPhase.RUNNING and not has_status
        )
        if deadline is None and not at_rest:
            self.breaks("every state has a deadline", f"the head in {after.phase}")
        # A killed agent's attempt, which may run, is gone on with.
        is_adopted = after.durable.run_id != before.durable.run_id
        is_adopted |= after.has_resumed and not before.has_resumed
        is_new = after.attempt.number != before.attempt.number or is_adopted
        is_new |= not after.goal.has_job and after.ray.item.generation != before.ray.item.generation
        if not is_new and order.index(after.phase) < order.index(before.phase):
            self.breaks("phases go forward", f"{before.phase} to {after.phase}")
        self._stopped |= isinstance(event, StopAsked)
        want = before.job.want
        report = None if want is None else job_report(event, want)
        if report is not None and report is not before.job.report:
            verdict = before.outcome
            counts = verdict is None or (is_loss(verdict) and not self._stopped)
            live = before.phase not in {HeadPhase.BOOTING, HeadPhase.LEAVING}
            if report.succeeded and counts and live:
                self._succeeded.add((agent.machine.label, agent.machine.boots))
        if isinstance(event, h.WorkerReported):
            self._in_order(agent.machine.label, event.worker)
        if isinstance(event, Stalled):
            self._stalled.add(agent.machine.label)
        self._codes |= {one.outcome.exit_code for one in actions if isinstance(one, h.EndRun)}
        self._world.judges.head_decided(agent, before, actions)
        self._world.group_judges.head_decided(agent, before, actions)

    def report_sent(self, machine: Machine, body: bytes) -> None:
        """Record a worker's report, in order."""
        if not body or machine.agent is None:
            return
        report = json.loads(body)
        machine.agent.id = report["id"]
        self._sent_by(report["id"], said_in(report))

    def _sent_by(self, key: str, content: tuple[Any, ...]) -> None:
        said = self._sent.setdefault(key, [])
        if not said or said[-1] != content:
            said.append(content)

    def _in_order(self, head: str, one: Worker) -> None:
        """Check that no older report replaces a newer one on a head's machine.

        Two heads may count reports of one worker, each those that reach it.
        """
        content = said_by(one)
        said = self._sent.get(one.key, [])
        found = [number for number, other in enumerate(said) if other == content]
        if not found:
            return
        newest = self._newest.get((head, one.key), -1)
        if max(found) < newest:
            self.breaks("reports count in their order", f"{one.key} is taken back to {content}")
        self._newest[head, one.key] = max(newest, min(found))

    def worker_decided(self, agent: Agent, event: object) -> None:
        """Check one decision of a worker."""
        after = agent.state
        deadline = worker.deadline(after)
        self._ticked(agent, event, deadline)
        leaves = after.phase is w.WorkerPhase.LEAVING
        if deadline is None and not leaves:
            self.breaks("every state has a deadline", f"{agent.machine.name} in {after.phase}")
        if isinstance(event, w.HeadSpoke) and event.epoch is not None:
            self._known.add(agent.id)
        if after.is_plain_head and agent.id in self._known:
            self.breaks("a head with an agent is no plain Ray", f"for {agent.machine.name}")

    # --- ends -----------------------------------------------------------------------------------

    def agent_left(self, agent: Agent, end: Outcome, _file: Path) -> None:
        """Check the end of an agent."""
        self._world.group_judges.agent_left(agent.machine)
        if end.kind is Kind.REFUSED:  # a world of refused agents tests nothing
            self.breaks("no node is refused", f"{agent.machine.name}: {end.reason}")
        if agent.state is None:
            self._world.note(agent.machine.label, f"ends at once: {end.sentence()}")
        elif agent.is_head:
            self._head_left(agent, end)
        else:
            self._worker_left(agent, end)

    def _head_left(self, agent: Agent, end: Outcome) -> None:
        state = agent.state
        self._world.note(agent.machine.label, f"the run ends: {end.sentence()}")
        if (agent.machine.label, agent.machine.boots) in self._succeeded and end.exit_code != 0:
            self.breaks("success is final", end.reason)
        if end.is_superseded and not self._world.has_two_heads:
            self.breaks("a head is superseded by another alone", end.reason)
        self._is_recorded(agent, end)
        retries_left = state.another_follows and not self._stopped
        given = self._world.given
        unsure = given is not None and self._world.now < given.mute_until + _QUIET
        is_final = end.attempts_are_used_up or unsure  # a process that may run has no successor
        is_final |= _is_over_in_boot(end)
        if is_loss(end) and retries_left and not is_final:
            self.breaks("a loss is followed by another attempt", end.reason)
        if end.kind is Kind.BUG:
            self.breaks("no bug", end.reason)
        if end.is_jobs_verdict:
            self._of_the_last_attempt(end, retries_left=retries_left)
        # A stop that a killed agent began keeps its limit: what is left may be too short.
        stop = state.durable.stop
        is_late = stop is not None and stop.began_at < 0.0
        if self._world.given is not None and not (end.is_superseded or unsure or is_late):
            running = [job.id for job in self._world.given.jobs.values() if job.has_driver]
            if running:
                self.breaks("nothing runs after the end", f"{running}")
        self._bounded(state)

    def records_are_lost(self) -> None:
        """Note that no record has the nodes of the attempts so far: a given Ray still runs one."""
        self._without_record = len(self._attempts)

    def _is_recorded(self, agent: Agent, end: Outcome) -> None:
        """Check that run.json and outcome.json have the code with which the head exits."""
        machine = agent.machine
        shares = [one for one in self._world.heads if one.disk == machine.disk]
        if end.is_superseded or len(shares) > 1 or not machine.takes_records:
            return
        assert agent.store is not None
        found = RunRecord.read(machine.logs / agent.store.durable.run_id / RUN_FILE)
        verdict = found.durable.verdict if isinstance(found, RunRecord) else None
        written = read_outcome(agent.node.folder.path)
        if verdict is None:
            self.breaks("the records have the end", f"run.json: {found}")
        elif isinstance(written, NoRecord) or {verdict.exit_code, written.exit_code} != {
            end.exit_code
        }:
            how = f"run.json: {verdict.sentence()}, outcome.json: {written}, {end.sentence()}"
            self.breaks("the records have the end", how)

    def _of_the_last_attempt(self, end: Outcome, *, retries_left: bool) -> None:
        """Check that a run that ends with its job has the last attempt's result."""
        last = self._attempts[-1] if self._attempts else None
        if not isinstance(last, Job) or self._world.has_two_heads:
            return
        if last.code is not None and last.code != end.exit_code:
            how = f"{last.id} ended with {last.code}, the run with {end.exit_code}"
            self.breaks("the verdict is the last attempt's", how)
        if last.status == "RUNNING" and last.lives:
            self.breaks("the verdict is the last attempt's", f"{last.id} runs on")
        is_known = len(self._attempts) > self._without_record
        if last.fell_by_loss and is_known and end.exit_code == 1 and retries_left:
            self.breaks("a job that fell by a loss is tried again", end.reason)

    def _bounded(self, state: h.HeadState) -> None:
        """Check that stored agents are bounded by the number of names."""
        kept = {
            "workers": {*state.fleet.workers},
            "facts": {*state.fleet.facts},
            "services": {node for node, _ in state.services.by_key} - {HERE},
            "turns": {*state.steps.wanted},
            "probes": {node for links in state.probes.answers.values() for node, _ in links}
            - {HERE},
        }
        for what, keys in kept.items():
            of_name = Counter(key.partition("-")[0] for key in keys)
            if any(count > _MOST_LIVES_KEPT for count in of_name.values()):
                self.breaks("memory is bounded by the number of names", f"{what}: {of_name}")

    def _worker_left(self, agent: Agent, outcome: Outcome) -> None:
        machine, the_head = agent.machine, self._world.head
        self._world.note(machine.label, f"leaves: {outcome.sentence()}")
        was_told = agent.verdict is not None and agent.verdict.exit_code == outcome.exit_code
        if was_told and outcome.exit_code not in self._codes:
            how = f"{machine.name} leaves with {outcome.exit_code}, the head with {self._codes}"
            self.breaks("workers leave with the head's code", how)
        self._world.judges.worker_left(machine, outcome)
        gives_up = outcome.exit_code == 75 and outcome.culprit == "head"
        there = the_head.agent is not None and self._world.network.reaches(machine, the_head)
        if gives_up and there and self._world.quiet_for(machine) > _QUIET:
            self.breaks("a head in reach is followed", f"{machine.name}: {outcome.reason}")

    def at_the_end(self) -> None:
        """Check that all have ended, and that all reachable workers received the verdict."""
        for machine in self._world.machines:
            if machine.is_on and machine.code is None and self._world.has_agent(machine):
                if self._without_record and machine.label in self._stalled:
                    continue  # no record says that a loss stopped the job: it is only reported
                full = any(not one.takes_records for one in self._world.machines)
                if self._world.platform.keeps_ends and full:
                    continue  # it cannot know how often its container was started
                agent = machine.agent
                phase = getattr(getattr(agent, "state", None), "phase", None)
                self.breaks("the run ends", f"{machine.name} is still there, in {phase}")
                return


def _needs(head: Machine) -> bool:
    """Return whether a head ends without its workers (AGENT_MIN_WORKERS=0 lets it go on)."""
    state = None if head.agent is None else head.agent.state
    return state is None or state.required > 0


def _run_of(job: Job | Group) -> str:
    """Return the run of a job: a head that finds the lock of a run held begins another one."""
    return job.id.rpartition("-")[0]


def _is_over_in_boot(end: Outcome) -> bool:
    """Return whether a run ends in its boot since something that an attempt had is not back.

    What waits for it has a limit (AGENT_WAIT_WORKERS), and no further attempt waits again.
    """
    return end.phase == HeadPhase.BOOTING.value and "not ready in time" in end.reason


_SAID = ("phase", "items")
"""The parts of a worker's report that decisions use, beside its goodbye."""


def said_in(report: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a report that is sent says."""
    return (*(report.get(name) or None for name in _SAID), report.get("bye") is not None)


def said_by(one: Worker) -> tuple[Any, ...]:
    """Return what a report said that a head decides on."""
    return (*(to_builtins(getattr(one, name)) or None for name in _SAID), one.has_left)
