"""A head that looks for its own address waits while its names are wrong, and logs it."""

from __future__ import annotations

import anyio
import pytest

from agent.base.errors import PreflightError
from agent.boot import make_ready
from agent.plan.plan import Address

OWN = Address(None, "the address of pod0.test", ("pod0.test",))
MINE = ("10.0.0.2", "127.0.0.1")


def test_each_dns_reply_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent, wrong and right DNS replies are each logged once."""
    answers: list[tuple[str, ...] | str] = ["no answer", "no answer", ("10.0.0.9",), ("10.0.0.2",)]
    said: list[str] = []

    async def resolve(_host: str) -> tuple[str, ...] | str:
        return answers.pop(0)

    monkeypatch.setattr(make_ready, "resolve", resolve)
    monkeypatch.setattr(make_ready, "say", said.append)
    assert anyio.run(make_ready.find_own_address, OWN, MINE, 60.0) == "10.0.0.2"
    waits, wrong = "waiting for this node's own address", "pod0.test is 10.0.0.9, no address"
    assert said == [
        f"{waits}: no answer",
        f"{waits}: {wrong} of this node",
    ]


def test_a_name_that_stays_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the deadline the node is not the head, and the error has its addresses."""

    async def resolve(_host: str) -> tuple[str, ...] | str:
        return ("10.0.0.9",)

    monkeypatch.setattr(make_ready, "resolve", resolve)
    with pytest.raises(PreflightError, match="is not the head") as caught:
        anyio.run(make_ready.find_own_address, OWN, MINE, 0.3)
    assert "10.0.0.9, no address of this node (it has: 10.0.0.2" in caught.value.why
