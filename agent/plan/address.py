"""By which address this node is known to the others, or how the run will find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology


@dataclass(frozen=True)
class Address:
    """This node's address: known, or to be found in a way that is."""

    ip: str | None
    how: str
    names: tuple[str, ...] = ()
    """Own names to resolve until one of them is an address of this node."""
    must_be_own: bool = False
    """True where a name that turns out to be another node's proves this node is no head."""
    towards: str | None = None
    """The host to which this node's route tells the address."""


def address_of(  # noqa: PLR0911 - an ordered list of ways, the first that applies wins
    topology: Topology, settings: Settings, facts: Facts
) -> Address:
    """Choose the address, or the way to it."""
    if settings.node_ip is not None:
        return Address(settings.node_ip, "AGENT_NODE_IP")
    if not topology.is_head:
        return Address(None, f"the source address of the route to {topology.head_host}")
    given = topology.given_ray
    if given is not None and given.session is None:
        how = f"the source address of the route to {given.gcs_host}"
        return Address(None, how, towards=given.gcs_host)
    if topology.must_own_head_host:
        how = f"{topology.head_host}, which must be this node"
        return Address(None, how, topology.claim.own_names, must_be_own=True)
    named = topology.head_host
    mine = facts.own_address_of(named, topology.claim.reported_address) if named else None
    if mine is not None:  # first, since it is where the others will call
        return Address(mine, f"{topology.head_host} is an address of this node")
    between = facts.interfaces.get(topology.claim.interface or "", ())
    if between and topology.head_host is not None:
        return Address(between[0], f"interface {topology.claim.interface}")
    names = (topology.head_host,) if topology.head_host else ()
    if names:
        return Address(None, f"what {names[0]} resolves to", names)
    if facts.default_source is not None:
        return Address(facts.default_source, "the source address of the default route")
    return Address(next(iter(facts.addresses()), "127.0.0.1"), "the only address found")
