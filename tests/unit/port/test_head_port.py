"""The addresses at which a head opens its port, and its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.errors import PreflightError
from agent.run.make_ready import bind_own_address, refusal_of_head
from agent.settings.redact import Redactor
from agent.settings.rules import may_listen_on
from support.free_ports import free_port
from support.worlds import SECRET, plan_of, settings_of

if TYPE_CHECKING:
    from agent.plan.plan import Plan

REFUSAL = Outcome(Kind.REFUSED, 78, "ports: taken: 8265", "starting", "ports")
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
    (listening,) = bind_own_address(a_plan(), OWN, None)
    assert listening.getsockname()[0] == OWN
    listening.close()
    with pytest.raises(PreflightError, match="cannot be taken"):
        bind_own_address(a_plan(), PUBLIC, None)


def test_an_unfit_head_opens_its_port_unless_that_is_refused() -> None:
    """It is open for the goodbye, except on a public address or one that it lacks."""
    (listening,) = bind_own_address(a_plan(), OWN, REFUSAL)
    listening.close()
    assert bind_own_address(a_plan(), PUBLIC, REFUSAL) == []
    assert bind_own_address(a_plan(RAY_AUTH_TOKEN=SECRET), PUBLIC, REFUSAL) == []


def test_loopback_is_taken_already() -> None:
    """A head whose address is 127.0.0.1 needs no second socket."""
    assert bind_own_address(a_plan(), "127.0.0.1", None) == []


def test_a_heads_refusal_names_the_head() -> None:
    """Workers print it too, and what is wrong is wrong elsewhere."""
    plan = a_plan()
    clean = Redactor(())
    sentence = refusal_of_head(plan, clean, REFUSAL)
    assert sentence.reason == f"on the head {plan.topology.node_name}: ports: taken: 8265"
    assert refusal_of_head(a_plan(EXPECTED_WORKERS="0"), clean, REFUSAL) == REFUSAL


def test_a_heads_refusal_has_no_secret() -> None:
    """A check may quote a line of the user's script; workers and outcome.json have the refusal."""
    quotes = replace(REFUSAL, reason=f'train.py:3: ray.init(env={{"HF_TOKEN": "{SECRET}"}})')
    refusal = refusal_of_head(a_plan(), Redactor((SECRET,)), quotes)
    assert "train.py:3: ray.init" in refusal.reason
    assert SECRET not in refusal.reason
