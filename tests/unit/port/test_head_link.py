"""A worker's link to its head: where it calls while DNS fails, and its goodbye."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.head.head_state import WorkerReported
from agent.decisions.worker import worker_state as w
from agent.port.node_network import NETWORK, Network
from agent.port.protocol import Bye, Reply, Report
from agent.port.reports import Expected, Reports
from agent.processes.resolving import NoDnsAnswer
from agent.processes.waiting import NotYet, until
from support.free_ports import free_port
from support.linked_worker import FIRST, Link, head_at, reports_of
from support.worlds import SECRET

if TYPE_CHECKING:
    from agent.port.reports import ReportEvent

HERE = ("127.0.0.1",)
MUTE = NoDnsAnswer("no answer from DNS about head.test so far")
UNKNOWN = "head.test does not resolve (Name or service not known)"


class Names:
    """DNS answers that a test sets."""

    def __init__(self, answer: tuple[str, ...] | str) -> None:
        self.answer = answer
        self.asked = 0

    async def resolve(self, host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        """Replace the resolver."""
        del host, limit
        self.asked += 1
        return self.answer

    async def were_asked(self, times: int) -> None:
        """Wait until they were asked so many times more."""
        enough = self.asked + times

        async def check() -> bool | NotYet:
            return self.asked >= enough or NotYet()

        await until(check, 20.0, longest=0.05)

    @property
    def network(self) -> Network:
        """Return a network with these names."""
        return NETWORK._replace(resolve=self.resolve)


@pytest.mark.parametrize("answer", [MUTE, UNKNOWN])
def test_a_head_that_falls_silent_while_dns_fails(answer: str) -> None:
    """If DNS does not answer, the last address is tried; not if the name does not exist."""
    dns, port = Names(HERE), free_port()
    worker = Link(port, host="head.test", network=dns.network)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            async with head_at(port):
                tasks.start_soon(worker.link.run)
                await worker.last(w.HeadSpoke)
                asked = dns.asked
                dns.answer = answer
            await worker.last(w.HeadSilent, answer)
            assert dns.asked > asked
            async with head_at(port):
                if answer is UNKNOWN:
                    await dns.were_asked(2)  # one look-up may have begun before
                    assert isinstance(worker.events[-1], w.HeadSilent)
                    dns.answer = HERE
                await worker.last(w.HeadSpoke)
            tasks.cancel_scope.cancel()

    anyio.run(scenario)


def test_a_new_agent_calls_where_the_one_before_did_while_dns_is_silent() -> None:
    """A killed agent followed the head at an address, which its record keeps."""
    port = free_port()
    dns = Names(MUTE)
    worker = Link(port, host="head.test", network=dns.network, last_ip="127.0.0.1")

    async def scenario() -> None:
        async with head_at(port):
            await worker.run_until(w.HeadSpoke)

    anyio.run(scenario)


def test_a_name_that_does_not_resolve_is_looked_up_at_intervals() -> None:
    """Also after a change on this node, which is to be reported at once."""
    dns = Names(UNKNOWN)
    worker = Link(free_port(), host="head.test", network=dns.network)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.link.run)
            worker.link.report_now()
            await anyio.sleep(1.0)
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    assert 3 <= dns.asked <= 10  # 0.1 s, then half as long again each time


class Numbered(Reports):
    """A head's reports, of which only the numbers are kept."""

    numbers: tuple[int, ...] = ()

    async def handle(self, report: Report) -> Reply:
        """Accept a report, and keep its number."""
        self.numbers += (report.sequence,)
        return await super().handle(report)

    async def until(self, count: int) -> None:
        """Wait until so many reports were received."""

        async def arrived() -> bool | NotYet:
            return True if len(self.numbers) >= count else NotYet()

        await until(arrived, 20.0, longest=0.05)

    async def check_quiet(self) -> None:
        """Check that no report follows."""
        last = self.numbers
        self.publish(phase="over")  # a report that is held is answered now
        await anyio.sleep(0.5)
        assert self.numbers == last


@pytest.mark.parametrize("token", [None, SECRET])
def test_reports_are_numbered_in_order_up_to_the_goodbye(token: str | None) -> None:
    """Including one cut short by a change; none follows, though head and worker are held."""
    reports: Numbered = reports_of(Numbered)
    port = free_port()
    worker = Link(port, token)

    async def scenario() -> None:
        async with head_at(port, token, reports), anyio.create_task_group() as tasks:
            tasks.start_soon(worker.link.run)
            for count in (2, 3, 4):
                await reports.until(count)
                worker.link.report_now()
            worker.says = Report("agent1", "127.0.0.1", "leaving", bye=Bye("done", ""))
            await worker.link.send_goodbye(10.0)
            assert worker.link.goodbye_delivered
            await reports.check_quiet()
            tasks.cancel_scope.cancel()

    anyio.run(scenario)
    assert len(reports.numbers) > 4
    assert [*reports.numbers] == sorted({*reports.numbers})
    assert reports.numbers[0] == 1


def test_a_head_that_starts_late_receives_one_goodbye() -> None:
    """A worker that was refused is held, and its head starts after the time for a goodbye."""
    reports: Numbered = reports_of(Numbered)
    port = free_port()
    worker = Link(port)
    worker.says = Report("agent1", "127.0.0.1", "leaving", bye=Bye("refused", ""))

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.link.run)
            await worker.link.send_goodbye(0.1)
            assert not worker.link.goodbye_delivered
            async with head_at(port, None, reports):
                await reports.until(1)
                await reports.check_quiet()
                assert worker.link.goodbye_delivered
                assert [*reports.byes] == ["agent1"]
            tasks.cancel_scope.cancel()

    anyio.run(scenario)


def test_a_goodbye_waits_for_the_head() -> None:
    """A head whose port opens only after the first try receives it nevertheless."""
    port = free_port()
    received: list[ReportEvent] = []
    reports = Reports(FIRST, Expected(None, "", "", ""), received.append, lambda: 0.0)
    worker = Link(port, gcs=port)
    worker.says = Report("agent1", "127.0.0.1", "leaving", "disk full", bye=Bye("disk full"))

    async def tried_again() -> bool | NotYet:
        return True if worker.asked >= 2 else NotYet()

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.link.send_goodbye, 20.0)
            await until(tried_again, 20.0, longest=0.05)
            async with head_at(port, None, reports):
                await until(delivered, 20.0, longest=0.05)

    async def delivered() -> bool | NotYet:
        return True if worker.link.goodbye_delivered else NotYet()

    anyio.run(scenario)
    (said,) = received
    assert isinstance(said, WorkerReported)
    assert (said.worker.has_left, said.worker.detail) == (True, "disk full")


def test_a_goodbye_to_nobody_ends() -> None:
    """A head that is gone costs the limit, no more."""
    worker = Link(free_port())
    worker.says = Report("agent1", "", "leaving", bye=Bye("disk full"))

    async def scenario() -> None:
        with anyio.fail_after(5):
            await worker.link.send_goodbye(0.2)

    anyio.run(scenario)
