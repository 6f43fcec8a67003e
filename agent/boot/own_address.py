"""How a head finds the address by which the others know it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError, UnavailableError
from agent.decisions.shared import Wait
from agent.node.addresses import source_towards
from agent.record.log import say
from agent.runtime.names import resolve
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from agent.plan.address import Address


async def find_own_address(address: Address, addresses: tuple[str, ...], limit: float) -> str:
    """Return this node's address; where a name must tell it, wait until it does, and say so."""
    if address.ip is not None:
        return address.ip

    foreign: list[str] = []
    began = time.monotonic()

    def tell(evidence: str) -> None:
        wait = Wait("address", "this node's own address", limit, evidence)
        say(wait.sentence(time.monotonic() - began))

    async def check() -> str | NotYet:
        foreign.clear()
        if address.towards is not None:
            return await _by_route(address.towards)
        return await _by_names(address, addresses, foreign)

    try:
        return await until(check, limit, step=0.1, on_evidence=tell)
    except TimedOutError as error:
        if foreign:
            raise _not_ours(address, error.evidence, addresses) from None
        raise UnavailableError(
            f"this node's address could not be found as {address.how}",
            why=error.evidence,
            remedy="Check DNS, or set AGENT_NODE_IP"
            if address.towards
            else "Check HEAD_POD_ID and DNS, or set AGENT_NODE_IP",
            culprit="DNS",
        ) from None


async def _by_route(host: str) -> str | NotYet:
    found = await resolve(host)
    if isinstance(found, str):
        return NotYet(found)
    return source_towards(found[0]) or NotYet(f"no route to {host} ({found[0]})")


async def _by_names(
    address: Address, addresses: tuple[str, ...], foreign: list[str]
) -> str | NotYet:
    """Look own names up; those that turned out to be other nodes' are added to `foreign`."""
    evidence = []
    for name in address.names:
        found = await resolve(name)
        if isinstance(found, str):
            evidence.append(found)
            continue
        mine = next((a for a in found if a in addresses), None)
        if mine is not None:
            return mine
        evidence.append(f"{name} is {', '.join(found)}, no address of this node")
        foreign.append(name)
        if address.must_be_own:
            raise _not_ours(address, evidence[-1], addresses)
    return NotYet("; ".join(evidence))


def _not_ours(address: Address, evidence: str, addresses: tuple[str, ...]) -> PreflightError:
    own = ", ".join(addresses) or "none"
    return PreflightError(
        f"this node is not the head it is taken for ({address.how})",
        why=f"{evidence} (it has: {own})",
        remedy="On the head, HEAD_POD_ID or AGENT_HEAD must name this node; on a worker "
        "set RAY_WORKER=1",
        culprit="HEAD_POD_ID",
    )
