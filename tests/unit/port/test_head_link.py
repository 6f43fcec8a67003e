"""A worker's link to its head when DNS fails: the last working address is tried again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.worker import worker_state as w
from agent.port.client import HeadLink
from agent.port.node_network import NETWORK, Network, bind
from agent.port.protocol import Bye, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from agent.processes.resolving import NoDnsAnswer
from agent.processes.waiting import NotYet, until
from support.free_ports import free_port
from support.linked_worker import FIRST, HELLO
from support.statuses import A_WORKER

if TYPE_CHECKING:
    from aiohttp import web

HERE = ("127.0.0.1",)
MUTE = NoDnsAnswer("no answer from DNS about head.test so far")
UNKNOWN = "head.test does not resolve (Name or service not known)"


class Names:
    """DNS answers that a test sets."""

    def __init__(self) -> None:
        self.answer: tuple[str, ...] | str = HERE
        self.asked = 0

    async def resolve(self, host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        """Replace the resolver."""
        del host, limit
        self.asked += 1
        return self.answer

    @property
    def network(self) -> Network:
        """Return a network with these names."""
        return NETWORK._replace(resolve=self.resolve)


async def a_head(port: int) -> web.BaseRunner:
    """Open a head's port."""
    reports = Reports(FIRST, Expected(None, "", "", ""), lambda _: None, anyio.current_time)
    site = AgentServer(token=None, ready=lambda: True, status=lambda: A_WORKER, reports=reports)
    return await site.open([bind("127.0.0.1", port)])


@pytest.mark.parametrize("answer", [MUTE, UNKNOWN])
def test_a_head_that_falls_silent_while_dns_fails(answer: str) -> None:
    """If DNS does not answer, the last address is tried; not if the name does not exist."""
    dns, port = Names(), free_port()
    received: list[w.WorkerEvent] = []

    def report(_ip: str) -> Report:
        return Report("agent1", "127.0.0.1", "following the head")

    link = HeadLink(
        *("head.test", port, 1, None, lambda: HELLO),
        *(report, received.append, lambda _: None),
        network=dns.network,
    )

    async def await_last(kind: type[w.WorkerEvent], words: str = "") -> None:
        async def look() -> bool | NotYet:
            last = received[-1] if received else None
            return True if isinstance(last, kind) and words in str(last) else NotYet()

        await until(look, 20.0)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            first = await a_head(port)
            tasks.start_soon(link.run)
            await await_last(w.HeadSpoke)
            asked = dns.asked
            dns.answer = answer
            await first.cleanup()
            await await_last(w.HeadSilent, answer)
            assert dns.asked > asked
            second = await a_head(port)
            if answer is MUTE:
                await await_last(w.HeadSpoke)
            else:
                await anyio.sleep(1.5)  # tries are at most a second apart
                assert isinstance(received[-1], w.HeadSilent)
                dns.answer = HERE
                await await_last(w.HeadSpoke)
            tasks.cancel_scope.cancel()
        await second.cleanup()

    anyio.run(scenario)


def test_a_new_agent_calls_where_the_one_before_did_while_dns_is_silent() -> None:
    """A killed agent followed the head at an address, which its record keeps."""
    dns, port = Names(), free_port()
    dns.answer = MUTE
    received: list[w.WorkerEvent] = []
    says = (lambda: HELLO, lambda _: Report("agent1", "127.0.0.1", "following the head"))
    link = HeadLink(
        *("head.test", port, 1, None),
        *says,
        received.append,
        lambda _: None,
        last_ip="127.0.0.1",
        network=dns.network,
    )

    async def spoke() -> bool | NotYet:
        return True if any(isinstance(one, w.HeadSpoke) for one in received) else NotYet()

    async def scenario() -> None:
        runner = await a_head(port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await until(spoke, 20.0)
            tasks.cancel_scope.cancel()
        await runner.cleanup()

    anyio.run(scenario)


class Numbered(Reports):
    """A head's reports, of which only the numbers are kept."""

    numbers: tuple[int, ...] = ()

    async def handle(self, report: Report) -> Reply:
        """Accept a report, and keep its number."""
        self.numbers += (report.sequence,)
        return await super().handle(report)


def test_reports_are_numbered_in_order() -> None:
    """Including a report cut short by a change, and the goodbye."""
    reports = Numbered(FIRST, Expected(None, "", "", ""), lambda _: None, anyio.current_time)
    port = free_port()
    link = HeadLink(
        *("127.0.0.1", port, 1, None, lambda: HELLO),
        lambda _: Report("agent1", "127.0.0.1", "following the head"),
        lambda _: None,
        lambda _: None,
    )

    async def arrived(count: int) -> bool | NotYet:
        return True if len(reports.numbers) >= count else NotYet()

    async def scenario() -> None:
        site = AgentServer(token=None, ready=lambda: True, status=lambda: A_WORKER, reports=reports)
        runner = await site.open([bind("127.0.0.1", port)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            for count in (2, 3, 4):
                await until(partial(arrived, count), 20.0)
                link.report_now()
            tasks.cancel_scope.cancel()
        await link.send_goodbye(20.0)
        await runner.cleanup()

    anyio.run(scenario)
    assert link.goodbye_delivered
    assert len(reports.numbers) > 4
    assert [*reports.numbers] == sorted({*reports.numbers})
    assert reports.numbers[0] == 1


class Leaving:
    """A worker's link to a head that counts its reports, and the worker's goodbye."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        self.reports = Numbered(FIRST, Expected(None, "", "", ""), lambda _: None, lambda: 0.0)
        self.port = free_port()
        self.bye: Bye | None = None
        self.link = HeadLink(
            *("127.0.0.1", self.port, 1, token, lambda: HELLO),
            lambda _: Report("agent1", "127.0.0.1", "leaving", bye=self.bye),
            lambda _: None,
            lambda _: None,
        )

    async def serve(self) -> web.BaseRunner:
        """Open the head's port."""
        site = AgentServer(
            token=self.token, ready=lambda: True, status=lambda: A_WORKER, reports=self.reports
        )
        return await site.open([bind("127.0.0.1", self.port)])

    async def until_reported(self, count: int) -> None:
        """Wait until the head has received so many reports."""

        async def arrived() -> bool | NotYet:
            return True if len(self.reports.numbers) >= count else NotYet()

        await until(arrived, 20.0)

    async def check_quiet(self) -> None:
        """Check that the link ends: it sends no report any more."""
        last = self.reports.numbers
        self.reports.publish(phase="over")  # a report that is held is answered now
        await anyio.sleep(0.5)
        assert self.reports.numbers == last


@pytest.mark.parametrize("token", [None, "t" * 32])
def test_no_report_follows_the_goodbye(token: str | None) -> None:
    """A pod that is held after its run keeps its agent: a head that is held, too, is left alone."""

    async def scenario() -> None:
        leaving = Leaving(token)
        runner = await leaving.serve()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leaving.link.run)
            await leaving.until_reported(2)
            leaving.bye = Bye("done", "")
            await leaving.link.send_goodbye(10.0)
            assert leaving.link.goodbye_delivered
            await leaving.check_quiet()
            tasks.cancel_scope.cancel()
        await runner.cleanup()

    anyio.run(scenario)


def test_a_head_that_starts_late_receives_one_goodbye() -> None:
    """A worker that was refused is held, and its head starts after the time for a goodbye."""

    async def scenario() -> None:
        leaving = Leaving(None)
        leaving.bye = Bye("refused", "")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leaving.link.run)
            await leaving.link.send_goodbye(0.1)
            assert not leaving.link.goodbye_delivered
            runner = await leaving.serve()
            await leaving.until_reported(1)
            await leaving.check_quiet()
            assert leaving.link.goodbye_delivered
            assert [*leaving.reports.byes] == ["agent1"]
            tasks.cancel_scope.cancel()
        await runner.cleanup()

    anyio.run(scenario)


def test_a_name_that_does_not_resolve_is_looked_up_at_intervals() -> None:
    """Also after a change on this node, which is to be reported at once."""
    dns = Names()
    dns.answer = UNKNOWN
    link = HeadLink(
        *("head.test", free_port(), 1, None, lambda: HELLO),
        lambda _: Report("agent1", "127.0.0.1", "finding the head"),
        lambda _: None,
        lambda _: None,
        network=dns.network,
    )

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            link.report_now()
            await anyio.sleep(1.0)
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    assert 3 <= dns.asked <= 10  # 0.1 s, then half as long again each time
