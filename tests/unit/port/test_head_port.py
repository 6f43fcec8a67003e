"""The head's port for its workers, and a worker's goodbye to a head that is not ready yet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.base.ends import Kind, Outcome
from agent.base.errors import PreflightError
from agent.decisions.head.head_state import WorkerReported
from agent.port.client import HeadLink
from agent.port.node_network import bind
from agent.port.protocol import Bye, Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from agent.run.make_ready import name_head_in_refusal, open_port
from agent.settings.rules import may_listen_on
from support.free_ports import free_port
from support.statuses import A_WORKER
from support.worlds import SECRET, plan_of, settings_of

if TYPE_CHECKING:
    from agent.plan.plan import Plan
    from agent.port.reports import ReportEvent

REFUSAL = Outcome(Kind.REFUSED, 78, "ports: taken: 8265", "starting", "ports")
HELLO = Hello("pod1", 1)
PUBLIC, PRIVATE, OWN = "8.8.8.8", "10.0.0.5", "127.0.0.2"


def a_plan(**environ: str) -> Plan:
    """Return a head's plan whose port is free."""
    return plan_of({"AGENT_PORT": str(free_port()), "EXPECTED_WORKERS": "1", **environ})


@pytest.mark.parametrize(
    ("address", "environ", "may"),
    [
        (PRIVATE, {}, True),
        (PUBLIC, {}, False),
        (PUBLIC, {"RAY_AUTH_TOKEN": SECRET}, True),
        (PUBLIC, {"AGENT_ALLOW_INSECURE": "1"}, True),
    ],
)
def test_the_internet_needs_a_token(address: str, environ: dict[str, str], may: bool) -> None:  # noqa: FBT001 - a table's column
    """Without a token the agent's port is closed to the internet, unless allowed explicitly."""
    assert may_listen_on(address, settings_of(environ)) is may


def test_a_head_opens_its_port_or_gives_the_reason() -> None:
    """An address that is not this node's is an error of its own."""
    (listening,) = open_port(a_plan(), OWN, None)
    assert listening.getsockname()[0] == OWN
    listening.close()
    with pytest.raises(PreflightError, match="cannot be taken"):
        open_port(a_plan(), PUBLIC, None)


def test_an_unfit_head_opens_its_port_unless_that_is_refused() -> None:
    """It is open for the goodbye, except on a public address or one that it lacks."""
    (listening,) = open_port(a_plan(), OWN, REFUSAL)
    listening.close()
    assert open_port(a_plan(), PUBLIC, REFUSAL) == []
    assert open_port(a_plan(RAY_AUTH_TOKEN=SECRET), PUBLIC, REFUSAL) == []


def test_loopback_is_taken_already() -> None:
    """A head whose address is 127.0.0.1 needs no second socket."""
    assert open_port(a_plan(), "127.0.0.1", None) == []


def test_a_heads_refusal_names_the_head() -> None:
    """Workers print it too, and what is wrong is wrong elsewhere."""
    plan = a_plan()
    sentence = name_head_in_refusal(plan, REFUSAL)
    assert sentence.reason == f"on the head {plan.topology.node_name}: ports: taken: 8265"
    assert name_head_in_refusal(a_plan(EXPECTED_WORKERS="0"), REFUSAL) == REFUSAL


def test_a_goodbye_waits_for_the_head() -> None:
    """A head whose port opens only after the first try hears it nevertheless."""
    port, asked = free_port(), list[str]()
    received: list[ReportEvent] = []
    reply = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)

    async def scenario() -> None:
        again = anyio.Event()

        def report(ip: str) -> Report:
            asked.append(ip)
            if len(asked) == 2:
                again.set()
            return Report("agent1", "127.0.0.1", "leaving", "disk full", bye=Bye("disk full"))

        link = HeadLink(
            "127.0.0.1", port, port, None, lambda: HELLO, report, lambda _: None, lambda _: None
        )
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(link.send_goodbye, 20.0))
                await again.wait()
                reports = Reports(reply, Expected(None, "", "", ""), received.append, lambda: 0.0)
                site = AgentServer(
                    token=None, ready=lambda: True, status=lambda: A_WORKER, reports=reports
                )
                runner = await site.open([bind("127.0.0.1", port)])
        await runner.cleanup()

    anyio.run(scenario)
    (said,) = received
    assert isinstance(said, WorkerReported)
    assert (said.worker.has_left, said.worker.detail) == (True, "disk full")


def test_a_goodbye_to_nobody_ends() -> None:
    """A head that is gone costs the limit, no more."""
    left = Report("agent1", "", "leaving", bye=Bye("disk full"))
    nobody = ("127.0.0.1", free_port(), 1, None)
    link = HeadLink(*nobody, lambda: HELLO, lambda _: left, lambda _: None, lambda _: None)

    async def scenario() -> None:
        with anyio.fail_after(5):
            await link.send_goodbye(0.2)

    anyio.run(scenario)
