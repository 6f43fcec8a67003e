"""What the figures of all nodes show on the head: slow nodes, and what will be full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.finding import Finding, Level
from agent.decisions.shared import HERE
from agent.diagnosis import forecast
from agent.diagnosis.gpu_history import GpuHistory
from agent.diagnosis.slow_nodes import SHORTEST, NodeMean, SlowNode, slow_nodes
from agent.record.events import NodeNoticed
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.head.head_state import HeadState
    from agent.job.progress import Progress
    from agent.node.figures import Figures, Forecast
    from agent.port.status_model import SlowBy
    from agent.run.node_run import NodeRun

_SLOW = "Check its cooling, its power and other jobs on it, or replace it"
_RAY_KILLS = "Ray kills workers there"
_FULL = (
    "Lower what grows (batch, workers, what is kept), or give the node more; with checkpoints a "
    "restart of the job frees memory"
)


class MachineWatch:
    """Looks at the nodes' figures at intervals; logs what is new."""

    def __init__(
        self,
        run: NodeRun,
        get_state: Callable[[], HeadState],
        get_progress: Callable[[], Progress | None],
    ) -> None:
        self._run = run
        self._get_state = get_state
        self._get_progress = get_progress
        self._means: dict[str, NodeMean] = {}
        self.gpu_history = GpuHistory()
        self._logged: dict[tuple[str, str], float] = {}
        """What was logged of a node, and the seconds ahead of a forecast."""
        self.slow: Mapping[str, SlowNode] = {}  # by agent
        self._slow_since: dict[str, float] = {}  # the same, on this run's clock
        self._full: tuple[tuple[str, str], ...] = ()
        """What will be full, and the remedy."""

    def look(self, figures: Mapping[str, Figures]) -> None:
        """Look at the newest figures of all nodes, by their agents; HERE is this node."""
        self.gpu_history.add(self._run.now(), figures.values())

        # Which nodes are slow, and was it logged?
        self._means = {
            key: self._means.get(key, NodeMean()).with_figures(newest)
            for key, newest in figures.items()
        }
        self.slow = {slow.key: slow for slow in slow_nodes(self._means)}
        since = self._run.now() - SHORTEST
        self._slow_since = {key: self._slow_since.get(key, since) for key in self.slow}
        for key, slow in self.slow.items():
            if (key, slow.measure) not in self._logged:
                sentence = f"slow node {self._name(key)}: {self.slow_text(key)}"
                self._log(key, slow.measure, sentence, _SLOW, 0.0)

        # What will be full? It is logged again once half of that time is over.
        full = []
        for key, known in figures.items():
            for ahead in known.forecasts:
                sentence = forecast.sentence(ahead, self._name(key), self._since(ahead))
                full.append((sentence, self._remedy(ahead)))
                logged = self._logged.get((key, ahead.what))
                if logged is None or ahead.seconds < logged / 2:
                    self._log(key, ahead.what, sentence, self._remedy(ahead), ahead.seconds)
        self._full = tuple(full)

    def findings(self) -> list[Finding]:
        """Return what the figures show now, as warnings."""
        slow = [f"{self._name(key)}: {self.slow_text(key)}" for key in self.slow]
        return [
            *(Finding("slow node", Level.WARN, what, _SLOW) for what in slow),
            *(Finding("full soon", Level.WARN, what, remedy) for what, remedy in self._full),
        ]

    def slow_by(self, key: str) -> SlowBy:
        """Return the figure that shows that a node is slow, or ''."""
        slow = self.slow.get(key)
        return "" if slow is None else slow.measure

    def slow_text(self, key: str) -> str:
        """Return in which figure a node is slow and for how long, without its name, or ''."""
        slow = self.slow.get(key)
        return "" if slow is None else slow.sentence(self._run.now() - self._slow_since[key])

    def _remedy(self, ahead: Forecast) -> str:
        """Return what to do about what will be full, and what follows at the latest."""
        by_ray = not self._get_state().goal.by_shares
        is_memory = ahead.what == forecast.HOST_MEMORY
        return f"{_RAY_KILLS}. {_FULL}" if by_ray and is_memory else _FULL

    def _log(self, key: str, what: str, sentence: str, remedy: str, seconds: float) -> None:
        self._logged[key, what] = seconds
        self._run.record(NodeNoticed(self._name(key), sentence))
        say(f"{sentence}. {remedy}", "warning")

    def _name(self, key: str) -> str:
        if key == HERE:
            return self._run.plan.topology.node_name
        worker = self._get_state().fleet.workers.get(key)
        return key if worker is None else worker.name

    def _since(self, ahead: Forecast) -> str:
        """Return the step since which it grows, by the usual length of a step; '' if not known."""
        progress = self._get_progress()
        each = None if progress is None else progress.seconds_per_step
        if progress is None or progress.last is None or progress.first is None or not each:
            return ""
        step = progress.last - round(ahead.since / each)
        return f"since about step {step}" if step >= progress.first else ""
