"""A head and its workers by their own decisions, with a network, Rays and a job between them.

What the decisions order is done here as slowly and as badly as it may be: actors outlive their
driver until their node's Ray ends, a cut is noticed late, and differently on its two sides.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from agent.decisions import head, worker
from agent.decisions.attempts import Tried, is_loss, spent
from agent.decisions.head import state as h
from agent.decisions.head.state import Phase
from agent.decisions.head.underway import Underway
from agent.decisions.items import Step
from agent.decisions.shared import Unfit
from agent.decisions.worker import state as w
from agent.plan import waits as planned
from unit import heads, workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from agent.base.outcome import Outcome

GRACE = heads.LIMITS[planned.NODE]
LIMITS = {
    planned.HEAD: 600.0,
    planned.JOIN: 120.0,
    planned.FENCE: planned.FENCE_SHARE * GRACE,
    planned.SILENT_HEAD: 300.0,
}
LONGEST = 20_000.0
"""No story takes longer, whatever happens to it."""


class Overlap(AssertionError):  # noqa: N818 - what a test finds
    """Two attempts lived at the same time."""


class Node:
    """A worker's machine: its agent's story, its Ray, and what of which attempt runs there."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.story = workers.Story(replace(workers.goal(), limits=LIMITS), [])
        self.agent, self.began = 1, 0.0
        """Which agent of this node it is, and when that was started: its own clock stood at 0 then.
        """
        self.linked = True
        self.epoch: int | None = None
        """The head's Ray to which the Ray here belongs; None where none runs."""
        self.lives = count()
        self.life = 0
        self.actors: set[int] = set()
        self.done = 0
        self.told: object = None
        self.is_gone = False

    def take(self, event: w.WorkerEvent) -> None:
        """Let something happen to the agent, and do what it decides."""
        if self.is_gone:
            return
        self.story.take(event, self.world.now - self.began)
        actions, self.done = self.story.actions[self.done :], len(self.story.actions)
        for action in actions:
            self._perform(action)
        then = worker.deadline(self.story.state)
        if then is not None:
            self.world.at(max(self.began + then, self.world.now + 0.001), self.tick)
        self.world.exchange_soon(self)

    def tick(self) -> None:
        """Look at the time."""
        then = worker.deadline(self.story.state)
        if then is not None and self.world.now >= self.began + then:
            self.take(workers.TICK)

    def agent_dies(self) -> None:
        """Have its agent killed: its parent starts another, which finds the Ray that lives here."""
        own, now = self.story.state, self.world.now
        if self.is_gone or own.verdict is not None:
            return
        kept = None
        if self.epoch is not None:
            since = None if own.unreached is None else self.began + own.unreached - now
            kept = w.KeptRay(self.epoch, "10.0.1.1", "run", own.ray_attempt, since)
        self.story = workers.Story(replace(workers.goal(), limits=LIMITS), [], kept)
        self.done, self.told, self.began = 0, None, now
        self.agent += 1
        self.take(workers.TICK)
        self.world.later(1, self.misses_the_head)

    def _perform(self, action: w.WorkerAction) -> None:
        later = self.world.later
        match action:
            case w.StartRay():
                self.life, epoch = next(self.lives), self.world.epoch
                self.epoch = epoch
                later(2, self._up, self.life, epoch)
            case w.StopRay():
                later(self.world.random.uniform(0, 3), self.ray_ends, self.life)
            case w.Leave():
                later(self.world.random.uniform(0, 4), self._left)
            case _:
                pass

    def _up(self, life: int, epoch: int) -> None:
        if (life, self.epoch) != (self.life, epoch):
            return
        if self.linked and self.world.ray_is_up and epoch == self.world.epoch:
            self.take(w.RayUp())
            self.world.joined(self)
        else:
            self.ray_ends(life)

    def ray_ends(self, life: int) -> None:
        """End the Ray here, and with it all that ran on it."""
        if life == self.life and self.epoch is not None:
            self.epoch = None
            self.actors.clear()
            self.take(w.RayExited("exit code 1"))

    def _left(self) -> None:
        self.epoch, self.is_gone = None, True
        self.actors.clear()

    @property
    def key(self) -> str:
        """Return the id of its agent."""
        return f"agent{self.number}.{self.agent}"

    def misses_the_head(self) -> None:
        """Notice that there is no answer, again and again."""
        world = self.world
        if not world.answers(self) and not self.is_gone:
            self.take(w.HeadSilent("no answer"))
            world.later(3, self.misses_the_head)


class World:
    """All of it, on one clock."""

    def __init__(self, of: h.Goal, spares: int, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.of = of
        self.epoch, self.ray_is_up, self.driver = 1, False, 0
        self.ray_lives = False
        """True from its start on; it is up a little later."""
        self.job_ends: dict[int, tuple[str, int | None]] = {}
        """How Ray says that an attempt ended."""
        self.performed, self.dies_before = 0, -1
        """Actions of the head's agent so far; before which of them it is killed."""
        self.begun: list[int] = []
        """The attempts that were submitted, in their order."""
        self.attempts: list[tuple[int, tuple[str, ...], bool]] = []
        """The record: number, workers, whether it is over."""
        self.underway: Underway | None = None
        """The record of the last of these, its times on the world's clock."""
        self.ending: Outcome | None = None
        """The record of how the run is to end, once that was decided."""
        self.listed: dict[int, int] = {}
        """GCS's list: workers by number, with the life of their Ray."""
        self.nodes = [Node(self, n) for n in range(2, 2 + of.expected_workers + spares)]
        self.story = heads.Story(of, [])
        self.done, self.agent = 0, 1
        self.head_lives = True
        self.began = 0.0
        """When the head's agent did: its own clock stood at 0 then."""
        self._boot_ray()
        for node in self.nodes:
            self._beat(node)
            node.take(workers.TICK)
        self.take(heads.TICK)

    # --- time -----------------------------------------------------------------------------------

    def at(self, then: float, do: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._queue, (then, next(self._order), do))

    def later(self, seconds: float, do: Callable[..., None], *arguments: object) -> None:
        """Do something in so many seconds."""
        self.at(self.now + seconds, lambda: do(*arguments))

    def run(self) -> None:
        """Let all happen; at most one attempt lives at any time."""
        while self._queue and self.now < LONGEST:
            self.now, _, do = heapq.heappop(self._queue)
            do()
            living = {self.driver} | {one for node in self.nodes for one in node.actors}
            if len(living - {0}) > 1:
                raise Overlap(f"attempts {living} at {self.now}")

    # --- the head -------------------------------------------------------------------------------

    def take(self, event: h.HeadEvent) -> None:
        """Let something happen to the head's agent, and do what it decides."""
        if not self.head_lives:
            return
        self.story.take(event, self.now - self.began)
        actions, self.done = self.story.actions[self.done :], len(self.story.actions)
        agent = self.agent
        for action in actions:
            if self._dies_here():
                return
            self._perform(action)
            if agent != self.agent:
                return
        self._served_by()
        then = head.deadline(self.story.state)
        if then is not None:
            self.at(max(self.began + then, self.now + 0.001), self._tick)
        for node in self.nodes:
            self.exchange_soon(node)

    def _dies_here(self) -> bool:
        """Count something that the agent does; kill it where it is this one's turn."""
        if self.performed == self.dies_before:
            self._agent_dies()
            return True
        self.performed += 1
        return False

    def _tick(self) -> None:
        then = head.deadline(self.story.state)
        if then is not None and self.now >= self.began + then:
            self.take(heads.TICK)

    def _perform(self, action: h.HeadAction) -> None:  # noqa: C901, PLR0912 - one case, one action
        agent = self.agent
        match action:
            case h.Submit(job):
                names = tuple(self.story.state.fleet.alive.values())
                number = int(job.rpartition("-")[2])
                if number not in [one for one, _, _ in self.attempts]:
                    self.attempts.append((number, names, False))
                state = self.story.state
                self.underway = Underway(
                    *(number, self.now, state.required), places=state.attempt.places
                )
                self.later(self.random.uniform(0.1, 2), self._begin, agent, number)
            case h.Follow(job):
                number = int(job.rpartition("-")[2])
                self.later(self.random.uniform(0.1, 2), self._follow, agent, number)
            case h.Keep(known):
                self.underway = known.later(self.began)
            case h.StopJob(job):
                grace = self.random.uniform(0, 15)
                self.later(grace, self._job_ends, job, "STOPPED")
            case h.AskNodes(job):
                silent = {f"pod{n.number}": "no answer" for n in self.nodes if not n.linked}
                self.later(2, self._tell, agent, h.NodesAsked(job, silent))
            case h.Retry():
                self._over()
                if not self._dies_here():
                    self._end_ray()
            case h.RestartRay():
                self.epoch += 1
                self._boot_ray()
            case h.Leave(outcome):
                self.ending = outcome
                if self._dies_here():
                    return
                for node in self.nodes:
                    if node.linked:
                        node.take(self._word())
                self._over()
                self._end_ray()
                self.head_lives = False
                for node in self.nodes:
                    self.later(self.random.uniform(0, 15), node.misses_the_head)
            case _:
                pass

    def _end_ray(self) -> None:
        self.ray_lives, self.ray_is_up, self.driver, self.listed = False, False, 0, {}

    def _over(self) -> None:
        self.underway = None
        self.attempts = [(number, nodes, True) for number, nodes, _ in self.attempts]

    def _tell(self, agent: int, event: h.HeadEvent) -> None:
        if agent == self.agent:
            self.take(event)

    def _boot_ray(self) -> None:
        self.listed, self.ray_lives = {}, True
        self.later(2, self._opens, self.epoch)

    def _opens(self, epoch: int) -> None:
        if epoch == self.epoch and self.ray_lives:
            self.ray_is_up = True
            self.take(h.GcsOpen())
            self.tell_nodes()

    def tell_nodes(self) -> None:
        """Tell what GCS lists."""
        if self.ray_is_up:
            living = [
                h.RayNode(f"id{n}-{self.epoch}-{life}", f"10.0.0.{n}")
                for n, life in self.listed.items()
            ]
            self.take(h.RayNodes((heads.HEAD, *living)))

    def joined(self, node: Node) -> None:
        """Have GCS list a node; a running driver may use it at once."""
        self.listed[node.number] = node.life
        if self.driver and self.random.random() < 0.5:
            node.actors.add(self.driver)
        self.tell_nodes()
        self._served_by(f"pod{node.number}")

    def _served_by(self, *more: str) -> None:
        """Record who is there while an attempt runs."""
        if self.attempts and not self.attempts[-1][2]:
            number, before, _ = self.attempts[-1]
            names = {*before, *self.story.state.fleet.alive.values(), *more}
            self.attempts[-1] = (number, tuple(names), False)

    def _begin(self, agent: int, number: int) -> None:
        if agent != self.agent or not self.ray_is_up or self.story.state.phase is Phase.LEAVING:
            return
        if number not in self.begun:
            self.driver = number
            self.begun.append(number)
        for node in self.nodes:
            if (
                self.driver
                and node.linked
                and node.number in self.listed
                and node.epoch == self.epoch
            ):
                node.actors.add(number)
        job = f"run-{number}"
        self.take(h.Submitted(job))
        status, code = self.job_ends.get(number, ("RUNNING", None))
        self.take(heads.job(status, code, attempt=number))
        self.later(20, self._speaks_of, agent, number)

    def _follow(self, agent: int, number: int) -> None:
        """Follow a job that an earlier agent submitted, or had not yet."""
        if agent != self.agent or not self.ray_is_up:
            return
        if number in self.begun:
            self._begin(agent, number)
        else:
            self.take(h.NeverSubmitted(f"run-{number}"))

    def _speaks_of(self, agent: int, number: int) -> None:
        """Have Ray speak of a job that runs, again and again."""
        if agent == self.agent and self.driver == number and self.ray_is_up:
            self.take(heads.job("RUNNING", attempt=number))
            self.later(20, self._speaks_of, agent, number)

    def _job_ends(self, job: str, status: str, code: int | None = None) -> None:
        """Have Ray end a job, whatever has become of who asked for it."""
        number = int(job.rpartition("-")[2])
        if self.ray_lives and number not in self.job_ends:
            self.job_ends[number] = status, code
            self.driver = 0 if self.driver == number else self.driver
            self.take(heads.job(status, code, attempt=number))

    # --- between them ---------------------------------------------------------------------------

    def answers(self, node: Node) -> bool:
        """Say whether a worker reaches the head."""
        return node.linked and self.head_lives

    def exchange_soon(self, node: Node) -> None:
        """Have news travel, where there is some."""
        self.later(0.1, self._exchange, node, self.agent)

    def _beat(self, node: Node) -> None:
        """Have it speak now and then though there is no news."""
        node.told = None
        self.exchange_soon(node)
        if not node.is_gone:
            self.later(10, self._beat, node)

    def _exchange(self, node: Node, agent: int) -> None:
        state, own = self.story.state, node.story.state
        if not self.answers(node) or agent != self.agent or node.is_gone:
            return
        ready = self._is_ready()
        news = (agent, self.epoch, state.phase, state.attempt.number, ready)
        report = (own.phase, own.joined, own.runs, own.verdict is not None)
        if node.told == (news, report):
            return
        node.told = (news, report)
        n = node.number
        gone, heard = own.verdict is not None, self.now - self.began
        said = heads.word(n, joined=own.joined, gone=gone, heard=heard)
        self.take(h.WorkerReported(replace(said.worker, key=node.key, runs=own.runs)))
        if node.agent > 1 and f"agent{n}.{node.agent - 1}" in self.story.state.fleet.workers:
            self.take(h.WorkerReplaced(f"agent{n}.{node.agent - 1}"))
        node.take(self._word())

    def _is_ready(self) -> bool:
        state = self.story.state
        return state.gcs_answers and state.ray.step is not Step.LOST

    def _word(self) -> w.HeadSpoke:
        """Return what the head's agent tells a worker now."""
        state = self.story.state
        where = (f"10.0.1.{self.agent}", self.epoch, self._is_ready())
        return w.HeadSpoke(
            *(*where, state.phase.value, state.told_verdict),
            attempt=state.attempt.number,
            run_id="run",
        )

    @property
    def codes(self) -> list[int]:
        """Return with which codes all have left, the head first."""
        ends = [self.story.ends, *(node.story.ends for node in self.nodes)]
        return [end.exit_code for (end,) in ends]

    # --- what may happen to it ------------------------------------------------------------------

    def cut(self, index: int) -> None:
        """Cut a worker's link; both sides notice it, each in its time, and GCS much later."""
        node = self.nodes[index % len(self.nodes)]
        if node.linked:
            node.linked, node.told = False, None
            self.later(self.random.uniform(1, 15), node.misses_the_head)
            self.later(self.random.uniform(1, 5), self._misses, node, self.agent)
            self.later(17, self._dead_for_gcs, node, node.life)

    def _misses(self, node: Node, agent: int) -> None:
        if not node.linked and agent == self.agent:
            self.take(h.WorkerSilent(node.key, "no answer"))

    def _dead_for_gcs(self, node: Node, life: int) -> None:
        if not node.linked and self.listed.get(node.number) == life:
            del self.listed[node.number]
            self.tell_nodes()

    def heal(self, index: int) -> None:
        """Mend a worker's link; a Ray that GCS has given up ends itself."""
        node = self.nodes[index % len(self.nodes)]
        if not node.linked:
            node.linked = True
            if node.epoch == self.epoch and node.number not in self.listed:
                self.later(1, node.ray_ends, node.life)
            self.exchange_soon(node)

    def workers_agent_dies(self, index: int) -> None:
        """Have only the agent of a worker killed."""
        self.nodes[index % len(self.nodes)].agent_dies()

    def job_succeeds(self) -> None:
        """Have the job end well, now or later."""
        if self.driver:
            self._job_ends(f"run-{self.driver}", "SUCCEEDED", 0)
        if self.head_lives:
            self.later(100, self.job_succeeds)

    def job_fails(self, _index: int) -> None:
        """Have the job fail by itself, or for what was lost."""
        if self.driver:
            self._job_ends(f"run-{self.driver}", "FAILED", 1)

    def ray_dies(self, index: int) -> None:
        """Have a worker's Ray die."""
        node = self.nodes[index % len(self.nodes)]
        if self.listed.get(node.number) == node.life:
            del self.listed[node.number]
            self.later(1, self.tell_nodes)
        node.ray_ends(node.life)

    def heads_ray_dies(self, _index: int) -> None:
        """Have the head's Ray die; its driver lives on for a while."""
        if self.ray_is_up:
            self.ray_lives, self.ray_is_up, self.listed = False, False, {}
            self.take(h.RayGone("exit code 1"))

    def head_restarts(self, _index: int) -> None:
        """Have the head's pod die, and come back with its record."""
        if not self.head_lives:
            return
        self._end_ray()
        self.head_lives = False
        self.agent += 1
        self._over()
        for node in self.nodes:
            node.told = None
            self.later(self.random.uniform(0.1, 15), node.misses_the_head)
        self.later(3, self._head_is_back)

    def _agent_dies(self) -> None:
        """Kill the head's agent alone: its Ray and job live on, its parent starts another."""
        self.dies_before = -1
        self.agent += 1
        self.head_lives = False
        for node in self.nodes:
            node.told = None
            self.later(0.5, node.misses_the_head)
        self.later(2, self._head_is_back)

    def _head_is_back(self) -> None:
        """Begin anew from the record, as boot/run.py and boot/run_keeper.py have it."""
        self.began = self.now
        known, ending = self.underway, self.ending
        if not self.ray_lives:
            stopped_as = None if known is None else known.end
            if stopped_as is not None and not is_loss(stopped_as):
                ending = ending or stopped_as
            self._over()
        ended = [one for one in self.attempts if one[2]]
        follows = len(ended) < len(self.attempts)
        if self.attempts and not follows:
            self._end_ray()
        tried = tuple(Tried(700.0, "its head was lost") for _ in ended)
        nodes = self.attempts[-1][1] if self.attempts else ()
        if follows and known is not None:
            known = replace(known.later(-self.now), nodes=nodes)
        of = replace(
            self.of,
            tried=tried,
            first_attempt=len(tried) + 1,
            former_nodes=() if follows else nodes,
            underway=known if follows else None,
        )
        self.story, self.done, self.head_lives = heads.Story(of, []), 0, True
        end = ending or (None if follows else spent(tried, of.retries))
        if end is not None:
            self.take(Unfit(end))
            return
        if not self.ray_lives:
            self.epoch += 1
            self._boot_ray()
        self.take(heads.TICK)
        if self.ray_is_up:
            self.take(h.GcsOpen())
            self.tell_nodes()
