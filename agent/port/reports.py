"""Handle workers' reports on the head: one reply for all, and for each what it is to do.

The first report of an agent carries a hello. The agent is registered once the head has decided on
its run, and no agent that still reports has its address or rank. Each report is recorded and passed
on to the head's decisions as an event. It is answered when the reply changes, when the head wants
something else of its node, or when its hold is over. An agent leaves with a goodbye. At a limit,
those that have departed are forgotten first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from agent.base import times
from agent.base.value import Value
from agent.decisions.head.fleet import Worker
from agent.decisions.head.head_state import (
    LaterHead,
    WorkerIntroduced,
    WorkerReplaced,
    WorkerReported,
)
from agent.decisions.shared import NodeWanted, Question, QuestionKind
from agent.port.protocol import Applied
from agent.processes.waiting import Inbox
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.decisions.shared import Wants
    from agent.port.protocol import Bye, Hello, Reply, Report, WorkerStats

K = TypeVar("K")
BASE_LIMIT = 256
_SENT_AGAIN = 0.2  # Until what was sent, and is not applied, is sent again.
_MAX_CLOCK_AHEAD_MS = 24 * 3600 * 1000  # Of a later head, and so its epoch


def agent_limit(expected_workers: int) -> int:
    """Return the most agents that a head keeps: more than ever take part in a run."""
    return BASE_LIMIT + 2 * expected_workers


class TooManyAgentsError(Exception):
    """The limit of agents is reached, and none has departed."""


ReportEvent = WorkerIntroduced | WorkerReported | WorkerReplaced | LaterHead
"""Events that reports cause for the head's decisions."""


class _Agent(Struct):
    """One worker's agent: its hello, what is wanted of its node, its last report."""

    hello: Hello
    refusal: str
    rank: int | None = None  # The rank assigned here, where its platform sets none
    wanted: NodeWanted | None = None  # What the head wants of its node, with what is asked
    sent: int = 0  # The revision of it in the last reply
    asked_logs: set[str] = field(default_factory=set)  # Logs that were asked for and not sent yet
    waiting: int = 0  # Its reports that are held now; while there is one, its agent is connected
    last_report: float = 0.0
    said_goodbye: bool = False
    ip: str = ""
    is_cut_off: bool = False  # Its connection broke, and no report has followed
    sequence: int = 0  # The number of its last report
    applied: Applied = Applied()  # What it had received with that
    is_silent: bool = False  # It did not answer either, until its next report
    wake: anyio.Event = field(default_factory=anyio.Event)  # Set by news
    reported: anyio.Event = field(default_factory=anyio.Event)

    @property
    def effective_rank(self) -> int | None:
        """Return the platform's rank, or else the one that was assigned here."""
        return self.rank if self.hello.rank is None else self.hello.rank

    def forget_received(self, applied: Applied) -> None:
        """Drop the questions that it has received."""
        wanted = self.wanted
        if wanted is not None and applied.by == wanted.by:
            new = [asked for asked in wanted.questions if asked.number > applied.revision]
            self.wanted = replace(wanted, questions=tuple(new))

    def news_since(self, applied: Applied) -> NodeWanted | None:
        """Return what the head wants of its node; None if it has received that."""
        wanted = self.wanted
        if wanted is None or applied == Applied(wanted.by, wanted.revision):
            return None
        return wanted


def _add(index: dict[K, list[str]], value: K | None, key: str) -> None:
    if value is not None:
        index.setdefault(value, []).append(key)


def _remove(index: dict[K, list[str]], value: K | None, key: str) -> None:
    keys = [] if value is None else index.get(value, [])
    if key in keys:
        keys.remove(key)
    if value is not None and not keys:
        index.pop(value, None)


class Expected(Value):
    """What must be the same on a worker as on the head."""

    ray: str | None
    python: str
    torch: str
    services: str
    job: str = ""  # The digest of a torchrun job's command; '' for other jobs
    ranks_of: Mapping[str, range] = field(default_factory=dict)
    """The ranks of each group, by its name."""

    def refusal_of(self, hello: Hello) -> str:
        """Return why a worker cannot take part, or ''; None or '' is an unknown version."""
        for what in ("Ray", "Python", "torch"):
            ours = getattr(self, what.lower())
            theirs = getattr(hello, what.lower())
            if ours and theirs and ours != theirs:
                return (
                    f"version mismatch: {what} {theirs} here, {ours} on the head; "
                    "use one image on all nodes"
                )
        if hello.services != self.services:
            return (
                "its AGENT_SERVICES differ from the head's; use one value and file on all nodes, "
                "and with groups one EXPECTED_WORKERS"
            )
        if hello.job != self.job:
            return (
                f"the job of {hello.name} differs from the head's; give every node the same "
                "AGENT_LAUNCHER, and without Ray the same command"
            )
        return ""


class Reports:
    """Handles reports; the reply to one may be held until the head's state changes."""

    def __init__(  # noqa: PLR0913 - callbacks, most with a default
        self,
        reply: Reply,
        expected: Expected,
        emit: Callable[[ReportEvent], None],
        clock: Callable[[], float],
        on_bye: Callable[[str, Bye], None] = lambda _name, _bye: None,
        rank_names: Iterable[str] = (),
        keep_ranks: Callable[[tuple[str, ...]], None] = lambda _names: None,
        on_recalled_run: Callable[[Hello, int], bool] = lambda _hello, _epoch: False,
        *,
        most: int = BASE_LIMIT,
        is_needed: Callable[[str], bool] = lambda _key: False,
        is_in_ray: Callable[[str], bool] = lambda _key: False,
        has_token: bool = False,
    ) -> None:
        self._reply = reply
        self._expected = expected
        self._emit = emit
        self._clock = clock
        self._on_bye = on_bye
        self._on_recalled_run = on_recalled_run
        self._rank_names: list[str] = [*rank_names]  # From rank 1 on; namesakes have one entry each
        self._keep_ranks = keep_ranks
        self._most = most
        self._is_needed = is_needed
        self._is_in_ray = is_in_ray
        self._has_token = has_token

        # The agents, by key, and what is known of them.
        self._agents: dict[str, _Agent] = {}
        self._by_address: dict[str, list[str]] = {}
        self._by_rank: dict[int, list[str]] = {}
        self._namesakes: dict[tuple[str, int | None], list[str]] = {}
        self._replaced: list[str] = []  # Their WorkerReplaced is not emitted yet
        self.logs: dict[tuple[str, str], str] = {}  # Ends of workers' logs, by agent and name
        self.worker_stats: dict[str, WorkerStats] = {}  # Statistics that workers sent, by agent
        self.byes: dict[str, Bye] = {}  # Goodbyes of those that left, by agent

        # What is waited for.
        self.run_decided = anyio.Event()  # Unset while the head decides on an agent's run
        self.run_decided.set()
        self.disconnected: Inbox[str] = Inbox(str)  # Agents whose connection broke during a hold
        self._report = anyio.Event()
        self._is_closed = False

        # What is sent is counted by this head, for all agents: a forgotten one may register again.
        self._id = secrets.token_hex(8)
        self._count = 0

    def publish(self, **changed: object) -> None:
        """Change the reply; held reports are answered at once."""
        new = replace(self._reply, **changed)  # names of its fields
        if new != self._reply:
            self._reply = replace(new, news=self._reply.news + 1)
            if new.verdict is not None:
                self.run_decided.set()
            for agent in self._agents.values():
                agent.wake.set()

    def want(
        self,
        key: str,
        wants: Wants,
        addresses: Mapping[str, str] | None = None,
        members: Mapping[str, tuple[str, ...]] | None = None,
        *,
        may_leave: bool = False,
    ) -> None:
        """Send one worker what its node is to run, and whether it may leave.

        `addresses` are those of services on a rank, `members` those of services in a group.
        """
        self._change(
            key,
            wants=wants,
            addresses=addresses or {},
            members=members or {},
            may_leave=may_leave,
        )

    def ask(self, key: str, kind: QuestionKind, name: str, at: str = "") -> None:
        """Ask one worker; its answer comes with a report."""
        agent = self._agents.get(key)
        if agent is None:
            return
        asked = () if agent.wanted is None else agent.wanted.questions
        if kind is QuestionKind.LOG:  # asked for again while its node is out of reach
            agent.asked_logs.add(name)
            asked = tuple(other for other in asked if (other.kind, other.name) != (kind, name))
        question = Question(self._count + 1, kind, name, at)
        self._change(key, questions=(*asked, question))

    def _change(self, key: str, **changes: object) -> None:
        """Change what is wanted of a node; ignored for an agent that left or was forgotten."""
        agent = self._agents.get(key)
        if agent is None or agent.said_goodbye:
            return
        self._count += 1
        before = agent.wanted or NodeWanted(self._id, 0)
        agent.wanted = replace(before, revision=self._count, **changes)
        agent.wake.set()

    async def handle(self, report: Report) -> Reply:
        """Handle one report; reply when the head's state changes, or after the report's hold."""
        # Is it the first one of an agent? Its clock is read before any delay.
        agent = self._agents.get(report.id)
        if report.hello is not None and agent is None and not self._is_closed:
            hello = report.hello.with_clock_offset(time.time())
            await self._wait_for_run_decision(hello, report.epoch)
            if self._is_outranked(report, hello):
                return replace(self._reply, verdict=None)
            unclear = await self._reply_of_conflict(report, hello)
            if unclear is not None:
                return unclear
            agent = self._agents.get(report.id) or self._register(report, hello)

        # Without a hello, or after the end, whose verdict is another run's, nothing is recorded.
        if agent is None and self._is_closed:
            return replace(self._reply, phase="held", verdict=None, ray_ready=False, held=True)
        if agent is None:
            return replace(self._reply, verdict=None, wants_hello=True)

        # Does it follow a later head, has it left, or does another agent have its new address?
        if self._is_outranked(report, report.hello or agent.hello):
            return replace(self._reply, verdict=None)
        if agent.said_goodbye:  # it was its last report: a copy adds nothing
            return self._reply_to(agent)
        if report.ip != agent.ip and not agent.refusal:
            unclear = await self._reply_of_conflict(report, agent.hello)
            if unclear is not None:
                return unclear

        # Record it, unless a later one has overtaken it, and hold the reply if nothing is new.
        if not 0 < report.sequence <= agent.sequence:
            self._record_report(agent, report)
            agent.forget_received(report.applied)
            if report.news == self._reply.news and not agent.refusal:
                await self._hold(agent, report, self._hold_of(agent, report))
        return self._reply_to(agent, agent.news_since(report.applied))

    def _hold_of(self, agent: _Agent, report: Report) -> float:
        """Return for how long the reply to a report is held if nothing new comes.

        One with what its node has not applied follows at once, and again after a pause: the node
        may be unable to apply it.
        """
        wanted = agent.news_since(report.applied)
        if wanted is None:
            return report.hold
        return min(report.hold, _SENT_AGAIN) if wanted.revision == agent.sent else 0.0

    def _reply_to(self, agent: _Agent, wanted: NodeWanted | None = None) -> Reply:
        reply = replace(self._reply, wanted=wanted)
        if wanted is not None:
            agent.sent = wanted.revision
        if agent.refusal:
            reply = replace(self.refuse(agent.refusal), verdict=self._reply.verdict)
        return replace(reply, rank=agent.rank)

    def _is_outranked(self, report: Report, hello: Hello) -> bool:
        """Return whether a worker follows a later head of this run; emit LaterHead if proven."""
        epoch = self._reply.epoch
        run_id = self._reply.run_id
        if report.epoch <= epoch or hello.run_id not in {"", run_id}:
            return False
        latest = max(epoch, int(time.time() * 1000)) + _MAX_CLOCK_AHEAD_MS
        names_run = report.hello is not None and report.hello.run_id == run_id
        # without a token anyone can send a report; a hello names the run that the epoch belongs to
        if self._has_token and names_run and report.epoch <= latest:
            self._emit(LaterHead(report.epoch, f"{hello.name} follows it"))
        return True

    def refuse(self, why: str) -> Reply:
        """Return the reply to an agent that is refused: it cannot name this run to a later head."""
        return replace(self._reply, verdict=None, refusal=why, fingerprint="")

    async def _reply_of_conflict(self, report: Report, hello: Hello) -> Reply | None:
        """Return the reply to a report with the address or rank of an agent that still reports.

        An address keeps its agent: otherwise anyone at that address could report a worker as gone.
        A rank does so without a token, which would show that the later agent belongs to the run.
        None if there is no such agent, or it is gone.
        """
        if self._expected.refusal_of(hello):
            return None  # it takes neither
        for key, place in self._holders(report, hello):
            holder = self._agents.get(key)
            if holder is None or holder.said_goodbye:
                continue

            # Does the holder still report? One whose connection broke here has a successor.
            is_here = holder.ip == report.ip
            ended = holder.is_cut_off and is_here
            limit = times.RECONNECT if ended else times.HOLDER_REPORTS
            is_gone = self._is_gone(holder) and not holder.waiting
            if not is_gone and await self._reports_still(key, limit):
                other = f"another agent has {place}: {holder.hello.name} ({holder.ip})"
                other_cluster = "if this one is of another cluster, correct its head's address"
                return self.refuse(f"{other} still reports; end one of the two; {other_cluster}")

            # Until it is gone, this agent asks again.
            if not (ended or self._is_gone(holder)):
                return replace(self._reply, verdict=None, wants_hello=True)
            if is_here and key in self._agents:
                self._forget(key)
                self._replaced.append(key)
        return None

    def _holders(self, report: Report, hello: Hello) -> list[tuple[str, str]]:
        """Return other agents with the address or rank of a report, each with what it has."""
        places = [(self._by_address.get(report.ip, []), f"the address {report.ip}")]
        if hello.rank is not None and not self._has_token:
            places.append((self._by_rank.get(hello.rank, []), f"rank {hello.rank}"))
        return [
            (key, place)
            for keys, place in places
            for key in keys
            if key != report.id and not self._agents[key].refusal
        ]

    async def _reports_still(self, key: str, limit: float) -> bool:
        """Return whether an agent reports within `limit` seconds, and soon that it got the reply.

        A report by itself shows less: while this head was stopped, one that has ended since may
        have sent several. A report that is held is answered now, with a new revision.
        """
        agent = self._agents.get(key)
        if agent is None:
            return False
        self._change(key)
        agent.wake.set()
        until = anyio.current_time() + times.HOLDER_REPORTS
        with anyio.move_on_after(limit) as waiting:
            await agent.reported.wait()
            waiting.deadline = until  # the second report follows after a round trip
            while agent.news_since(agent.applied) is not None:
                await agent.reported.wait()
            return not agent.said_goodbye
        return False

    async def _hold(self, agent: _Agent, report: Report, limit: float) -> None:
        if limit <= 0:
            return
        agent.waiting += 1
        if agent.wake.is_set():
            agent.wake = anyio.Event()
        try:
            with anyio.move_on_after(limit):
                await agent.wake.wait()
        except anyio.get_cancelled_exc_class():  # its connection broke
            agent.is_cut_off = True
            self.disconnected.put(report.id)
            raise
        finally:
            agent.waiting -= 1

    async def reports_again(self, key: str, limit: float) -> bool:
        """Return whether an agent reports within `limit` seconds, or was forgotten."""
        agent = self._agents.get(key)
        if agent is None or agent.waiting:
            return True
        with anyio.move_on_after(limit):
            await agent.reported.wait()
            return True
        return False

    def overdue(self) -> list[str]:
        """Return the agents whose report is overdue and that are not marked silent."""
        latest = self._clock() - times.AGENT_SILENT
        agents = self._agents.items()
        return [key for key, agent in agents if agent.last_report < latest and self.awaited(key)]

    def awaited(self, key: str) -> _Agent | None:
        """Return an agent that must report and is not marked silent, else None."""
        agent = self._agents.get(key)
        if agent is None or agent.said_goodbye or agent.refusal or agent.waiting or agent.is_silent:
            return None
        return agent

    async def _wait_for_run_decision(self, hello: Hello, epoch: int) -> None:
        """Wait until the head has decided on the agent's run: another run's name makes it leave.

        An agent that asks again waits too: the run may be recorded and not yet in the reply.
        """
        # A refused agent changes nothing, and a head whose run is over decides on no other.
        is_over = self._reply.verdict is not None
        if not hello.run_id or is_over or self._expected.refusal_of(hello):
            return
        if self._on_recalled_run(hello, epoch) and self.run_decided.is_set():
            self.run_decided = anyio.Event()
        with anyio.move_on_after(times.RUN_DECIDED):
            await self.run_decided.wait()

    def _register(self, report: Report, hello: Hello) -> _Agent:
        """Register an agent, and forget an earlier one of the same node."""
        key = report.id
        refusal = self._expected.refusal_of(hello)
        if not refusal:
            self._replace_others(key, hello, lambda _other: True)
        self._make_space()
        namesakes = self._namesakes.setdefault((hello.name, hello.rank), [])
        needs_rank = not refusal and hello.rank is None
        rank = self._assign_rank(hello) if needs_rank else None
        agent = self._agents[key] = _Agent(hello, refusal, rank, ip=report.ip)
        _add(self._by_address, report.ip or None, key)
        _add(self._by_rank, agent.effective_rank, key)
        namesakes.append(key)
        if hello.facts is not None:
            self._emit(WorkerIntroduced(key, hello.name, hello.facts, hello.findings))
        return agent

    def _assign_rank(self, hello: Hello) -> int:
        """Return the rank of a node: its former one, a new one, or at the limit any free one.

        In a run with groups it may also be that of a node that has gone.
        """
        names = self._rank_names
        former = [
            rank
            for rank, other in enumerate(names, 1)
            if other == hello.name and self._may_have(rank, hello.group)
        ]
        former_of_run = [rank for rank in former if not self._is_of_spare(rank)]
        new = next(rank for rank in count(1) if self._is_unused(rank, hello.group))
        others = [new] if new <= self._most else [*range(1, new)]
        of_groups = self._ranks_without_node(hello.group, new)
        in_use = {agent.rank for agent in self._agents.values()} - {*of_groups}
        in_order = (*former_of_run, *of_groups, *former, *others)
        rank: int = next(rank for rank in in_order if rank not in in_use)
        if rank not in former:
            names.extend([""] * (rank - len(names)))
            names[rank - 1] = hello.name
            self._keep_ranks(tuple(names))
        ranks = self._expected.ranks_of.get(hello.group, range(rank, rank + 1))
        if rank not in ranks:
            why = f"{hello.group} has all of its {len(ranks)} node(s)"
            say(f"{hello.name} is a spare: {why}, and it follows the next one that goes")
        return rank

    def _ranks_without_node(self, group: str, new: int) -> list[int]:
        """Return the ranks of groups that a node may fill: those of no node, then of gone ones.

        A node that names no group may be one of the trainer's, too: it fills a rank of a group only
        once each expected rank has been given (`new` is beyond them) and the trainer lacks no node.
        """
        present = {a.rank for key, a in self._agents.items() if not self._is_gone_from(key)}
        ranks_of = self._expected.ranks_of
        ranges = [ranks_of[group]] if group in ranks_of else []
        if ranks_of and not group:
            in_groups = {rank for ranks in ranks_of.values() for rank in ranks}
            of_trainer = present - in_groups - {None}
            lacks_none = len(of_trainer) >= min(in_groups) - 1
            ranges = [*ranks_of.values()] if lacks_none and new > max(in_groups) else []

        # To an agent that replaces a killed one, the nodes report one after the other.
        may_report = self._clock() < times.AGENT_SILENT
        known = {agent.rank for agent in self._agents.values()}
        ranks = [rank for ranks in ranges for rank in ranks if rank not in present]
        names = self._rank_names
        free = [rank for rank in ranks if rank > len(names) or not names[rank - 1]]
        had_one = [rank for rank in ranks if rank not in free]
        return [*free, *(rank for rank in had_one if rank in known or not may_report)]

    def _end_as_spare(self, key: str, agent: _Agent) -> None:
        """Give a spare of a group the rank of a node that has gone since it reported first."""
        hello = agent.hello
        ranks = self._expected.ranks_of.get(hello.group, range(0))
        if not ranks or agent.rank is None or agent.rank in ranks or agent.said_goodbye:
            return
        if not self._ranks_without_node(hello.group, agent.rank):
            return
        self._rank_names[agent.rank - 1] = ""
        self._assign_anew(key, agent)
        say(f"{hello.name} takes the place of a node of {hello.group} that has gone")

    def _leave_rank_of_other(self, key: str, agent: _Agent) -> None:
        """Give an agent that was silent another rank, if another node got its own meanwhile."""
        if agent.rank is None or agent.said_goodbye:
            return
        others = [other for other in self._by_rank.get(agent.rank, ()) if other != key]
        holders = [other for other in others if self._agents[other].rank == agent.rank]
        holder = next((other for other in holders if not self._is_gone_from(other)), None)
        if holder is not None:
            name = self._agents[holder].hello.name
            say(f"{agent.hello.name} reports again, and {name} has rank {agent.rank} since")
            self._assign_anew(key, agent)

    def _assign_anew(self, key: str, agent: _Agent) -> None:
        """Assign an agent another rank than it has."""
        _remove(self._by_rank, agent.rank, key)
        agent.rank = None
        agent.rank = self._assign_rank(agent.hello)
        _add(self._by_rank, agent.rank, key)

    def _is_of_spare(self, rank: int) -> bool:
        """Return whether a rank is beyond those of all groups."""
        ranges = self._expected.ranks_of.values()
        return bool(ranges) and rank >= max(ranks.stop for ranks in ranges)

    def _is_unused(self, rank: int, group: str) -> bool:
        """Return whether no node has had a rank, and a node of this group may have it."""
        names = self._rank_names
        return (rank > len(names) or not names[rank - 1]) and self._may_have(rank, group)

    def _may_have(self, rank: int, group: str) -> bool:
        """Return whether a rank is none of another group than the one that a node names.

        Beyond the ranks of its group a node may only be a spare.
        """
        ranks_of = self._expected.ranks_of
        if not group or not ranks_of:
            return True
        is_of_trainer = rank < min(ranks.start for ranks in ranks_of.values())
        if is_of_trainer:
            return group not in ranks_of
        return all(rank not in ranks for name, ranks in ranks_of.items() if name != group)

    def _is_gone_from(self, key: str) -> bool:
        """Return whether an agent has left its rank: with a goodbye, or it is silent for long.

        A late report alone shows less: after a pause of this head those of all agents are late. Nor
        has one left whose node is in Ray: what the job has there goes on.
        """
        agent = self._agents[key]
        is_silent = agent.is_silent and self._is_overdue(agent)
        return agent.said_goodbye or (is_silent and not self._is_in_ray(key))

    def _make_space(self) -> None:
        """At the limit, forget the agent that departed first; raise if none has departed."""
        if len(self._agents) < self._most:
            return
        departed = [*filter(self._may_be_forgotten, self._agents)]
        if not departed:
            raise TooManyAgentsError
        oldest = min(departed, key=lambda key: self._agents[key].last_report)
        self._forget(oldest)
        self._emit(WorkerReplaced(oldest))

    def _may_be_forgotten(self, key: str) -> bool:
        agent = self._agents[key]
        has_departed = agent.said_goodbye or agent.refusal or self._is_overdue(agent)
        return bool(has_departed) and not (agent.waiting or self._is_needed(key))

    def _forget(self, key: str) -> None:
        agent = self._agents.pop(key)
        _remove(self._by_address, agent.ip, key)
        _remove(self._by_rank, agent.effective_rank, key)
        node = (agent.hello.name, agent.hello.rank)
        self._namesakes[node].remove(key)
        if not self._namesakes[node]:
            del self._namesakes[node]
        self.logs = {at: text for at, text in self.logs.items() if at[0] != key}
        self.worker_stats.pop(key, None)
        self.byes.pop(key, None)

    def _is_overdue(self, agent: _Agent) -> bool:
        return self._clock() - agent.last_report >= times.AGENT_SILENT

    def _is_gone(self, agent: _Agent) -> bool:
        return agent.said_goodbye or agent.is_silent or self._is_overdue(agent)

    def _replace_others(
        self, key: str, hello: Hello, is_replaced: Callable[[_Agent], bool]
    ) -> None:
        """Forget earlier agents of a node, but no connected one: two may share a host name."""
        namesakes = self._namesakes.get((hello.name, hello.rank), [])
        for other in [*namesakes]:
            if other == key:
                continue
            agent = self._agents[other]
            if not agent.waiting and is_replaced(agent):
                self._forget(other)
                self._replaced.append(other)

    def _record_report(self, agent: _Agent, report: Report) -> None:
        was_gone = self._is_gone_from(report.id)

        # What it brings: a goodbye, logs (those that were asked for, and any with the goodbye),
        # statistics.
        agent.said_goodbye = report.bye is not None
        if report.bye is not None:
            self._on_bye(agent.hello.name, report.bye)
            self.byes[report.id] = report.bye
            agent.wanted = None  # the agent is gone
        for name, text in (report.logs or {}).items():
            if agent.said_goodbye or name in agent.asked_logs:
                agent.asked_logs.discard(name)
                self.logs[report.id, name] = text
        if report.stats is not None:
            former = self.worker_stats.get(report.id)
            self.worker_stats[report.id] = report.stats.after(former)

        # The agent is here, at this address.
        if report.ip != agent.ip:
            _remove(self._by_address, agent.ip, report.id)
            _add(self._by_address, report.ip or None, report.id)
        agent.last_report = self._clock()
        agent.ip = report.ip
        agent.is_silent = False
        agent.is_cut_off = False
        agent.sequence = report.sequence
        agent.applied = report.applied
        agent.reported.set()
        agent.reported = anyio.Event()
        if not agent.refusal:
            self._replace_others(report.id, agent.hello, self._is_overdue)
            if was_gone:
                self._leave_rank_of_other(report.id, agent)
            self._end_as_spare(report.id, agent)

        # Pass it on to the head's decisions, then the agents that it replaces: their node may
        # never have left.
        worker = Worker(
            key=report.id,
            name=agent.hello.name,
            ip=report.ip,
            rank=agent.hello.rank,
            phase=report.phase,
            detail=report.detail,
            last_report_at=agent.last_report,
            refused=agent.refusal,
            has_left=report.bye is not None,
            items=report.items,
            answers=report.answers,
            given_rank=agent.rank,
            group=agent.hello.group,
            gpus=agent.hello.gpus,
            members=agent.hello.members,
            left=agent.hello.left,
            memory=report.memory,
            notice=report.notice,
        )
        self._emit(WorkerReported(worker))
        while self._replaced:
            self._emit(WorkerReplaced(self._replaced.pop()))
        self._report.set()

    async def wait_for_goodbyes(self, limit: float, missing: int) -> None:
        """Wait until every worker has received the verdict and sent its goodbye.

        `missing` workers have not reported yet: without this wait, a head that ends in its first
        second would leave them waiting for a head. An agent that registers afterwards belongs to
        another run.
        """
        expected = len(self._agents) + missing
        with anyio.move_on_after(limit):
            while self._present_names() or len(self._agents) < expected:
                self._report = anyio.Event()
                await self._report.wait()
        self._is_closed = True
        for name in self._present_names():
            say(f"{name} did not confirm the verdict; it leaves once the head is out of reach")
        unreported = expected - len(self._agents)
        if unreported > 0:
            say(f"{unreported} never called; a later worker waits AGENT_WAIT_HEAD for a head")

    def departed(self) -> frozenset[str]:
        """Return the ids of the agents that said goodbye."""
        return frozenset(key for key, agent in self._agents.items() if agent.said_goodbye)

    def _present_names(self) -> list[str]:
        """Return the names of agents that neither left nor were refused."""
        return [
            agent.hello.name
            for agent in self._agents.values()
            if not agent.said_goodbye and not agent.refusal
        ]
