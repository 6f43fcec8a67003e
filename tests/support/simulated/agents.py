"""An agent on a simulated machine: the shipped one, from its plan to its exit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent.decisions.head.head_state import Ask
from agent.decisions.shared import HERE, Publish
from agent.record.memory import RecordMemory
from agent.record.outcome_file import OUTCOME_FILE
from agent.run import main
from agent.run.end import agent_error_in, close_records, end_failed_role
from agent.run.restarts import Container
from agent.run.takeover import find_killed_agent
from agent.settings.redact import redactor_for
from support.heads import of_job
from support.simulated.effects import SIMULATED, hold_nothing
from support.simulated.virtual import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.base.ends import Outcome
    from agent.plan.plan import Plan
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore
    from support.simulated.machines import Machine


class Agent:
    """One agent, until it exits or is killed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.is_head = self.world.is_head(machine)
        self.life = Life(machine, self)
        self.pid = machine.new_pid()
        self.plan: Plan
        self.node: NodeRun
        self._has_begun = False
        """True once it takes part in a run: `node` is there, and has locked its folder."""
        self.store: RunStore | None = None

        # What is seen of it: its state after each decision, its id in reports.
        self.state: Any = None
        self.id = ""
        self.verdict: Outcome | None = None
        """On a worker: the verdict that it was sent."""
        self._of_job: Sequence[object] = ()
        """What the last decision wants of the job."""
        self._on_stop: Callable[[int], None] | None = None
        self._stops: list[int] = []
        """Signals that came before this agent handled any: its parent has recorded them."""

    def start(self) -> None:
        """Start its process."""
        self.world.lives.append(self.life)
        task = self.life.context.run(asyncio.get_running_loop().create_task, self._live())
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and not self.life.is_over:
            self.world.fail(task.exception())

    def end(self) -> None:
        """End its process: the kernel releases its locks, and ends what only it could end."""
        self.life.is_over = True
        if self._has_begun:
            self.node.folder.close()
        if self.store is not None and self.store.lock is not None:
            self.store.lock.release()
        for process in [*self.machine.processes.values()]:
            if hasattr(process, "stdin"):  # a bridge reads the end of its input
                self.world.later(self.world.random.uniform(0.0, 0.5), process.end, 0)

    def signal(self, signum: int) -> None:
        """Send it a signal that asks for a stop."""
        if self._on_stop is None:
            self._stops.append(signum)
        else:
            self.life.context.copy().run(self._on_stop, signum)

    def handle_stops(self, on_stop: Callable[[int], None]) -> None:
        """Handle signals from now on, those before included."""
        self._on_stop = on_stop
        for signum in self._stops:
            on_stop(signum)

    async def _live(self) -> None:
        """Run from start to exit, as run/main.py does with a plan."""
        machine = self.machine
        world = self.world
        plan = self.plan = world.plan(machine)
        role = "HeadAgent" if self.is_head else "WorkerAgent"
        world.note(machine.label, f"{role} begins")

        # The parent's values: which agents were killed before it, and what they left in memory.
        machine.records = RecordMemory()
        machine.records.attach(machine.memory)
        restarts = world.platform.begins(machine)
        settings = plan.settings
        container = Container(
            settings, plan.environ, plan.on_done, restarts, hold_nothing, machine.killed
        )
        redactor = redactor_for(plan.environ, settings, plan.texts_with_secrets)
        started = machine.clock.monotonic()
        killed = await find_killed_agent(
            machine.logs, machine.name, machine.killed, is_head=self.is_head
        )
        begun = main.begin(plan, redactor, container, killed, started, SIMULATED)
        if isinstance(begun, main.DecidedRun):
            outcome = await begun.end()
            machine.leave(outcome.exit_code, outcome)
            return

        # Its role.
        self.node, self.store = begun
        self._has_begun = True
        try:
            outcome = await main.run_in_loop(*begun)
        except Exception as failure:
            if agent_error_in(failure) is None:
                raise
            outcome = await end_failed_role(self.node, failure)
        close_records(*begun)
        world.rules.agent_left(self, outcome, self.node.folder.path / OUTCOME_FILE)
        machine.leave(outcome.exit_code, outcome)

    # --- what is seen of it -----------------------------------------------------------------------

    def decided(self, before: Any, event: object, after: Any, actions: tuple[Any, ...]) -> None:  # noqa: ANN401 - of either role
        """Look at one decision."""
        if self.life.is_over:
            return
        self.state = after
        self._of_job = of_job(before, after) if self.is_head else []
        self.world.note(self.machine.label, event, actions)
        if self.is_head:
            self.world.rules.head_decided(self, before, event, actions)
        else:
            self.verdict = getattr(event, "verdict", None) or self.verdict
            self.world.rules.worker_decided(self, event)

    def comes_to_action(self, action: object) -> None:
        """Count an action; before it, let happen what the setup says."""
        if not self.life.is_over:
            kinds = [action]
            if isinstance(action, Publish) and HERE in action.nodes:  # what of it is about the job
                kinds = [*self._of_job, action]
            if isinstance(action, Ask):
                kinds = [action.question, action]
            for kind in kinds:
                self.world.faults.of_decision(self.machine, type(kind).__name__)
        place = self.world.counted(self.machine.label, "actions")
        if place in self.world.setup.kills and not self.life.is_over:
            self.world.note(self.machine.label, f"agent is killed before its action {place[1]}")
            self.machine.kill_agent()


class Watched(tuple[Any, ...]):  # noqa: SLOT001 - a tuple has no slots for its agent
    """The actions of a decision, each counted as it begins."""

    agent: Agent

    @classmethod
    def by(cls, agent: Agent, actions: tuple[Any, ...]) -> Watched:
        """Return the actions of an agent."""
        watched = cls(actions)
        watched.agent = agent
        return watched

    def __iter__(self) -> Iterator[Any]:
        """Yield the actions."""
        for action in tuple.__iter__(self):
            self.agent.comes_to_action(action)
            yield action
