"""What the head's port does with reports: one reply for all workers, and orders for each."""

from __future__ import annotations

import secrets
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING

import anyio

from agent.base.value import dataclass
from agent.control.protocol import LONGEST_HOLD, Bye, Hello, Reply, Report, disagreement
from agent.control.ranks import Ranks
from agent.control.room import LEAST, Room
from agent.decisions.head.state import (
    LaterHead,
    WorkerIntroduced,
    WorkerReplaced,
    WorkerReported,
)
from agent.decisions.head.workers import Worker
from agent.decisions.shared import Order, OrderKind
from agent.runtime.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.control.aside import Aside
    from agent.work.torchrun import Seat


Heard = WorkerIntroduced | WorkerReported | WorkerReplaced | LaterHead
"""What reports may tell the head's story."""
HELD = "held"
_WEIGHED_WITHIN = 5.0
_SILENT = LONGEST_HOLD + 5.0
"""An agent that lives is heard of more often than this."""
_MOST_AHEAD = 24 * 3600 * 1000
"""By how many milliseconds a later head's clock, and so its epoch, may be ahead of this one's."""


@dataclass
class _Known:
    """One worker's agent, as this port knows it."""

    hello: Hello
    refusal: str
    rank: int | None = None
    """The one that it was given, where its platform has none."""
    orders: list[Order] = field(default_factory=list)
    """Those that it has not taken in yet."""
    asked_logs: set[str] = field(default_factory=set)
    """The names of logs that it was asked for and has not sent yet."""
    waiting: int = 0
    """Reports of it that are held back now: while there is one, it certainly lives."""
    heard: float = 0.0
    said_goodbye: bool = False
    ip: str = ""
    sequence: int = 0
    """The number of the last report that was taken in; 0 where its reports have none."""
    is_silent: bool = False
    """True once it was told to have fallen silent, until it speaks again."""
    wake: anyio.Event = field(default_factory=anyio.Event)
    spoke: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True)
class Expected:
    """What a worker must agree with the head about."""

    ray: str | None
    python: str
    torch: str
    services: str
    job: str = ""
    """The digest of a command of which every node starts its share; '' where only the head does."""


class Reports:
    """Takes reports in and hands replies out; a report may wait for the next news."""

    def __init__(  # noqa: PLR0913 - what it says, to whom, and what it goes by
        self,
        reply: Reply,
        expected: Expected,
        tell: Callable[[Heard], None],
        clock: Callable[[], float],
        on_bye: Callable[[str, Bye], None] = lambda _name, _bye: None,
        ranks: Ranks | None = None,
        on_memory: Callable[[Hello, int], bool] = lambda _hello, _epoch: False,
        room: Room | None = None,
        *,
        has_token: bool = False,
    ) -> None:
        self._reply = reply
        self._expected = expected
        self._tell = tell
        self._clock = clock
        self._on_bye = on_bye
        self._ranks = ranks or Ranks()
        self._on_memory = on_memory
        self._has_token = has_token
        self._room = room or Room(LEAST, clock, lambda _key: False)
        self._weighed = anyio.Event()
        self._broken_off: Inbox[str] = Inbox(str)
        self._id = secrets.token_hex(8)
        self._news = anyio.Event()
        self._known: dict[str, _Known] = {}
        self._namesakes: dict[tuple[str, int | None], list[str]] = {}
        self._replaced: list[str] = []
        """Agents that are no more, of which the head's story was not told yet."""
        self._report = anyio.Event()
        self._ordered = 0
        self._is_over = False
        self.logs: dict[tuple[str, str], str] = {}
        """Ends of logs that workers sent, by agent and name."""
        self.asides: dict[str, Aside] = {}
        """What workers told beside their word, by agent."""
        self.byes: dict[str, Bye] = {}
        """The last words of those that left, by agent."""

    def publish(self, **changed: object) -> None:
        """Change the reply; everyone who waits for news is answered at once."""
        new = replace(self._reply, **changed)  # type: ignore[arg-type]  # names of its fields
        if new == self._reply:
            return
        self._reply = replace(new, news=self._reply.news + 1)
        self._news.set()
        self._news = anyio.Event()

    def order(  # noqa: PLR0913 - what an order may say
        self,
        key: str,
        kind: OrderKind,
        name: str = "",
        generation: int = 1,
        seat: Seat | None = None,
        at: str = "",
    ) -> None:
        """Have one worker do something; an agent that is not known any more does nothing."""
        known = self._known.get(key)
        if known is None:
            return
        self._ordered += 1  # one count for all: an agent may come back as one unknown
        known.orders.append(Order(self._id, self._ordered, kind, name, generation, seat, at))
        if kind is OrderKind.SEND_LOG:
            known.asked_logs.add(name)
        known.wake.set()

    async def take(self, report: Report) -> Reply:
        """Take one report in; answer when there is news, or when its patience ends."""
        known = self._known.get(report.id)
        if report.hello is not None and known is None and not self._is_over:
            hello = report.hello.arrived(time.time())  # before anything takes its time
            await self._weigh(hello, report.epoch)
            if self._is_outranked(report, hello):
                return replace(self._reply, verdict=None)
            known = self._known.get(report.id) or self._welcome(report.id, hello)
        if known is None:
            return self._to_a_stranger()
        if self._is_outranked(report, report.hello or known.hello):
            return replace(self._reply, verdict=None)
        if 0 < report.sequence <= known.sequence:  # it arrives after its successor
            return self._answer(known)
        self._note(known, report)
        obeyed = report.obeyed if report.obeyed_by == self._id else 0
        known.orders = [order for order in known.orders if order.number > obeyed]
        may_hold = report.hold > 0 and not known.orders and not known.refusal
        if may_hold and report.news == self._reply.news:
            await self._hold(known, report)
        return self._answer(known)

    def _answer(self, known: _Known) -> Reply:
        orders = () if known.refusal else tuple(known.orders)
        return replace(self._reply, refusal=known.refusal, orders=orders, rank=known.rank)

    def accepts(self, key: str) -> bool:
        """Say whether an agent's reports are accepted."""
        known = self._known.get(key)
        return known is not None and not known.refusal

    def _is_outranked(self, report: Report, hello: Hello) -> bool:
        """Return whether a worker of this run follows a later head; emit LaterHead if it is proven.

        Without a token anyone can send a report. A hello names the run that the epoch belongs to.
        """
        epoch, run_id = self._reply.epoch, self._reply.run_id
        if report.epoch <= epoch or hello.run_id not in {"", run_id}:
            return False
        latest = max(epoch, int(time.time() * 1000)) + _MOST_AHEAD
        names_run = report.hello is not None and report.hello.run_id == run_id
        if self._has_token and names_run and report.epoch <= latest:
            self._tell(LaterHead(report.epoch, f"{hello.name} follows it"))
        return True

    def refuse(self, why: str) -> Reply:
        """Answer an agent whose reports cannot be read."""
        return replace(self._reply, verdict=None, refusal=why)

    def _to_a_stranger(self) -> Reply:
        """Answer an agent that was never welcomed: nobody learns of an end that is not its own."""
        if self._is_over:
            return replace(self._reply, phase=HELD, verdict=None, ray_ready=False, held=True)
        return replace(self._reply, verdict=None, wants_hello=True)

    async def _hold(self, known: _Known, report: Report) -> None:
        known.waiting += 1
        known.wake = anyio.Event()
        try:
            with anyio.move_on_after(report.hold):
                async with anyio.create_task_group() as group:

                    async def until(event: anyio.Event) -> None:
                        await event.wait()
                        group.cancel_scope.cancel()

                    group.start_soon(until, self._news)
                    group.start_soon(until, known.wake)
        except anyio.get_cancelled_exc_class():  # its connection broke
            self._broken_off.put(report.id)
            raise
        finally:
            known.waiting -= 1

    # --- who does not call any more -------------------------------------------------------------

    async def broken_off(self) -> AsyncIterator[str]:
        """Yield each agent whose connection broke while its report was held."""
        while True:
            key = await self._broken_off.take(None)
            if key is not None:
                yield key

    async def calls_again(self, key: str, limit: float) -> bool:
        """Say whether an agent is heard of within so many seconds, or is no more of interest."""
        known = self._known.get(key)
        if known is None or known.waiting:
            return True
        with anyio.move_on_after(limit):
            await known.spoke.wait()
            return True
        return False

    def overdue(self) -> list[str]:
        """Return the agents that should have called by now, and were not told to be silent."""
        latest = self._clock() - _SILENT
        return [key for key, one in self._known.items() if one.heard < latest and _is_awaited(one)]

    def address_of(self, key: str) -> str | None:
        """Return where an agent is that should call; None where it need not."""
        known = self._known.get(key)
        return known.ip or None if known is not None and _is_awaited(known) else None

    def fell_silent(self, key: str) -> bool:
        """Note that an agent does not answer; say whether that is news, and still so."""
        known = self._known.get(key)
        if known is None or not _is_awaited(known):
            return False
        known.is_silent = True
        return True

    async def _weigh(self, hello: Hello, epoch: int) -> None:
        """Let the head decide whether it goes on with the run that an agent comes from.

        Until then no reply may name another run to it: it would leave.
        """
        if not hello.run_id:
            return
        if self._weighed.is_set():
            self._weighed = anyio.Event()
        weighed = self._weighed
        if self._on_memory(hello, epoch):
            with anyio.move_on_after(_WEIGHED_WITHIN):
                await weighed.wait()

    def weighed(self) -> None:
        """Answer those whose word of a run was decided upon."""
        self._weighed.set()

    def _welcome(self, key: str, hello: Hello) -> _Known:
        """Get to know an agent, which may be a later life of one that is known."""
        self._replace_others(key, hello, 0.0)
        self._make_room()
        own, theirs = self._expected, (hello.ray, hello.python, hello.torch)
        refusal = disagreement((own.ray, own.python, own.torch), theirs)
        if not refusal and hello.services != self._expected.services:
            refusal = (
                "its AGENT_SERVICES differ from the head's; set the same environment on all nodes, "
                "and have the same file there"
            )
        if not refusal and hello.job != self._expected.job:
            refusal = (
                f"the job of {hello.name} differs from the head's; give every node the same "
                "AGENT_LAUNCHER, and torchrun the same command"
            )
        rank = self._rank_of(hello) if not refusal and hello.rank is None else None
        known = self._known[key] = _Known(hello, refusal, rank)
        self._namesakes.setdefault((hello.name, hello.rank), []).append(key)
        if hello.facts is not None:
            self._tell(WorkerIntroduced(key, hello.name, hello.facts, hello.findings))
        return known

    def _rank_of(self, hello: Hello) -> int:
        """Give a node its rank; living namesakes keep theirs."""
        others = self._namesakes.get((hello.name, hello.rank), [])
        held = {self._known[other].rank for other in others}
        return self._ranks.of(hello.name, held, lambda: {one.rank for one in self._known.values()})

    def _make_room(self) -> None:
        """Forget those that departed first of too many; raises where no room is left."""
        for key in self._room.made(len(self._known), self._departed):
            self._forget(key)
            self._tell(WorkerReplaced(key))

    def _departed(self) -> dict[str, float]:
        """Return who has left, was refused or is silent, and when each was heard last."""
        silent = self._clock() - _SILENT
        known = ((key, one) for key, one in self._known.items() if not one.waiting)
        return {
            key: one.heard
            for key, one in known
            if one.said_goodbye or one.refusal or one.heard <= silent
        }

    def _forget(self, key: str) -> None:
        known = self._known.pop(key)
        node = (known.hello.name, known.hello.rank)
        self._namesakes[node].remove(key)
        if not self._namesakes[node]:
            del self._namesakes[node]
        self.logs = {at: text for at, text in self.logs.items() if at[0] != key}
        self.asides.pop(key, None)
        self.byes.pop(key, None)

    def _replace_others(self, key: str, hello: Hello, silent_for: float) -> None:
        """Forget agents of the same name and rank that no longer live.

        Two machines may share a host name: one whose report is held here lives for certain.
        """
        namesakes = self._namesakes.get((hello.name, hello.rank), [])
        for other in [one for one in namesakes if one != key]:
            known = self._known[other]
            if not known.waiting and self._clock() - known.heard >= silent_for:
                self._forget(other)
                self._replaced.append(other)

    def _note(self, known: _Known, report: Report) -> None:
        if report.bye is not None and not known.said_goodbye:
            self._on_bye(known.hello.name, report.bye)
        if report.bye is not None:
            self.byes[report.id] = report.bye
        known.said_goodbye = report.bye is not None
        if known.said_goodbye:
            known.orders.clear()  # nobody is there to obey them
        sent = report.logs or {}
        for name in sent if known.said_goodbye else known.asked_logs & sent.keys():
            known.asked_logs.discard(name)
            self.logs[report.id, name] = sent[name]
        if report.aside is not None:
            self.asides[report.id] = report.aside
        known.heard, known.ip, known.is_silent = self._clock(), report.ip, False
        known.sequence = report.sequence
        known.spoke.set()
        known.spoke = anyio.Event()
        self._replace_others(report.id, known.hello, _SILENT)
        self._tell(WorkerReported(_worker(known, report, known.heard)))
        while self._replaced:  # once the later one was heard: its node may never have left
            self._tell(WorkerReplaced(self._replaced.pop()))
        self._report.set()

    async def farewell(self, limit: float, unheard: int) -> tuple[list[str], int]:
        """Wait until every worker has heard the end and said goodbye.

        So many that were never heard of may be about to call: a head that ends within its first
        second must not leave them to wait for it until their own deadline. Return the names of
        those who said no goodbye, and how many never called. Whoever calls for the first time
        after this belongs to another run.
        """
        awaited = len(self._known) + unheard
        with anyio.move_on_after(limit):
            while self._here() or len(self._known) < awaited:
                self._report = anyio.Event()
                await self._report.wait()
        self._is_over = True
        return self._here(), max(0, awaited - len(self._known))

    def _here(self) -> list[str]:
        """Name those who have neither left nor been refused."""
        known = self._known.values()
        return [k.hello.name for k in known if not k.said_goodbye and not k.refusal]


def _is_awaited(known: _Known) -> bool:
    """Say whether an agent should call, and is not known to be silent."""
    silent_by_right = known.said_goodbye or bool(known.refusal) or known.waiting > 0
    return not silent_by_right and not known.is_silent


def _worker(known: _Known, report: Report, now: float) -> Worker:
    return Worker(
        key=report.id,
        name=known.hello.name,
        ip=report.ip,
        rank=known.hello.rank,
        phase=report.phase,
        detail=report.detail,
        heard=now,
        joined=report.joined,
        preparing=report.preparing,
        refused=known.refusal,
        gone=report.bye is not None,
        error=report.error,
        items=report.items,
        answers=report.answers,
        given_rank=known.rank,
        alone=report.alone,
        part=report.part,
        gpus=known.hello.gpus,
        runs=report.runs,
        memory=report.memory,
    )
