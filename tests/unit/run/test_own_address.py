"""A head that looks for its own address waits while its names are wrong, and logs it."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from agent.base.errors import PreflightError, UnavailableError
from agent.checks import OWN_NAME
from agent.checks.finding import Level
from agent.node import read
from agent.plan.plan import Address
from agent.port.node_network import NETWORK, Network
from agent.run import make_ready
from agent.run import plan_input as start
from support import captured
from support.worlds import plan_of

OWN = Address(None, "the address of pod0.test", ("pod0.test",))
ANOTHERS: tuple[str, ...] = ("10.0.0.9",)


def answering(*answers: tuple[str, ...] | str) -> Network:
    """Return a network whose DNS gives these answers; the last one again and again."""
    rest = [*answers]

    async def resolve(host: str, limit: float = 0.0) -> tuple[str, ...] | str:
        del host, limit
        return rest.pop(0) if len(rest) > 1 else rest[0]

    return NETWORK._replace(resolve=resolve)


MINE = ("10.0.0.2", "127.0.0.1")


def test_each_dns_reply_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent, wrong and right DNS replies are each logged once."""
    said: list[str] = []
    network = answering("no answer", "no answer", ANOTHERS, ("10.0.0.2",))
    monkeypatch.setattr(make_ready, "say", said.append)
    assert anyio.run(make_ready.find_own_address, OWN, MINE, 60.0, network) == "10.0.0.2"
    waits, wrong = "waiting for this node's own address", "pod0.test is 10.0.0.9, no address"
    assert said == [f"{waits}: no answer", f"{waits}: {wrong} of this node"]


def test_the_pod_of_an_ssh_shell_has_no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD_POD_ID is wrong there: 78 within seconds, instead of 69 after AGENT_WAIT_HEAD."""
    network = answering("pod0.test does not resolve")
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
    with pytest.raises(PreflightError, match="is not the head") as caught:
        anyio.run(make_ready.find_own_address, OWN, MINE, 0.3, answering(ANOTHERS))
    assert "10.0.0.9, no address of this node (it has: 10.0.0.2" in caught.value.why


@pytest.mark.parametrize(
    ("answer", "level", "what"),
    [
        (("10.0.0.5",), Level.OK, "10.0.0.5"),
        (ANOTHERS, Level.FAIL, "this node is not the head it is taken for"),
        ("podaaa.runpod.internal does not resolve", Level.WARN, "`run` waits for it, for 20 s"),
    ],
)
def test_a_plan_looks_the_name_up_once(
    answer: tuple[str, ...] | str, level: Level, what: str
) -> None:
    """It refuses what a run would refuse at once, and warns of what a run waits for."""
    plan = plan_of({"HEAD_POD_ID": "podaaa"})
    finding = make_ready.with_own_address(plan, answering(answer)).findings[0]
    assert (finding.check, finding.level) == (OWN_NAME, level)
    assert what in finding.what
    without_names = plan_of({})
    assert make_ready.with_own_address(without_names) is without_names


# --- the name by which others know a head -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hostname", "known"),
    [
        ("slurm-head", "gpu-0", {"gpu-0": ("10.9.9.9",)}),
        ("slurm-head", "gpu-0.cluster.local", {"gpu-0": ("10.9.9.9",)}),
        ("slurm-head", "another", {}),
        ("slurm-worker", "gpu-0", {}),
        ("slurm-one-node-head", "gpu-0", {}),
        ("runpod-head", "gpu-0", {}),
    ],
)
def test_a_heads_own_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, name: str, hostname: str, known: dict[str, tuple[str, ...]]
) -> None:
    """Only where the others know the head by its host name, and it has several addresses."""
    environ, facts = captured.read(name)
    facts = replace(facts, hostname=hostname)
    monkeypatch.setattr(read, "gather", lambda *_, **__: facts)
    monkeypatch.setattr(start, "lookup_briefly", lambda *_: ("10.9.9.9",))
    assert start.plan_from_environment(environ, ["true"]).facts.known_names == known
