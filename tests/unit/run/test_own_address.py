"""A head that looks for its own address waits while its names are wrong, and logs it."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from agent.base.errors import PreflightError, UnavailableError
from agent.checks import OWN_NAME
from agent.checks.finding import Level
from agent.plan.plan import Address
from agent.port.node_network import NETWORK
from agent.run import make_ready
from support.worlds import plan_of

OWN = Address(None, "the address of pod0.test", ("pod0.test",))
MINE = ("10.0.0.2", "127.0.0.1")


def test_each_dns_reply_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent, wrong and right DNS replies are each logged once."""
    answers: list[tuple[str, ...] | str] = ["no answer", "no answer", ("10.0.0.9",), ("10.0.0.2",)]
    said: list[str] = []

    async def resolve(host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        del host, limit
        return answers.pop(0)

    network = NETWORK._replace(resolve=resolve)
    monkeypatch.setattr(make_ready, "say", said.append)
    assert anyio.run(make_ready.find_own_address, OWN, MINE, 60.0, network) == "10.0.0.2"
    waits, wrong = "waiting for this node's own address", "pod0.test is 10.0.0.9, no address"
    assert said == [
        f"{waits}: no answer",
        f"{waits}: {wrong} of this node",
    ]


def test_the_pod_of_an_ssh_shell_has_no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD_POD_ID is wrong there: 78 within seconds, instead of 69 after AGENT_WAIT_HEAD."""

    async def resolve(host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        del host, limit
        return "pod0.test does not resolve"

    network = NETWORK._replace(resolve=resolve)
    monkeypatch.setattr("agent.run.make_ready.OWN_POD_NAME", 0.3)
    in_shell = replace(OWN, must_be_own=True)
    with pytest.raises(PreflightError, match="could not be found") as caught:
        anyio.run(make_ready.find_own_address, in_shell, MINE, 600.0, network)
    assert caught.value.culprit == "HEAD_POD_ID"
    assert "pod0.test does not resolve" in caught.value.why
    assert "RAY_WORKER=1" in caught.value.remedy
    with pytest.raises(UnavailableError):
        anyio.run(make_ready.find_own_address, OWN, MINE, 0.3, network)


def test_a_name_that_stays_anothers() -> None:
    """At the deadline the node is not the head, and the error has its addresses."""

    async def resolve(host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        del host, limit
        return ("10.0.0.9",)

    network = NETWORK._replace(resolve=resolve)
    with pytest.raises(PreflightError, match="is not the head") as caught:
        anyio.run(make_ready.find_own_address, OWN, MINE, 0.3, network)
    assert "10.0.0.9, no address of this node (it has: 10.0.0.2" in caught.value.why


@pytest.mark.parametrize(
    ("answer", "level", "what"),
    [
        (("10.0.0.5",), Level.OK, "10.0.0.5"),
        (("10.0.0.9",), Level.FAIL, "this node is not the head it is taken for"),
        ("podaaa.runpod.internal does not resolve", Level.WARN, "`run` waits for it, for 20 s"),
    ],
)
def test_a_plan_looks_the_name_up_once(
    answer: tuple[str, ...] | str, level: Level, what: str
) -> None:
    """It refuses what a run would refuse at once, and warns of what a run waits for."""

    async def resolve(host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        del host, limit
        return answer

    plan = plan_of({"HEAD_POD_ID": "podaaa"})
    checked = make_ready.with_own_address(plan, NETWORK._replace(resolve=resolve))
    finding = checked.findings[0]
    assert (finding.check, finding.level) == (OWN_NAME, level)
    assert what in finding.what
    without_names = plan_of({})
    assert make_ready.with_own_address(without_names) is without_names
