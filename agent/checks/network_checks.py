"""Checks of the network as this node sees it: ports, interfaces, proxies, addresses left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.ports import listening, port_map
from agent.checks.finding import Finding, Level
from agent.node.variables import INTERFACES, LEFTOVERS, PROXIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.node.facts import Facts
    from agent.settings import Settings
    from agent.topology.resolve import Topology

_NCCL = INTERFACES[0]
_LOOPBACK = "lo"


def given_away_ports(facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """A port that the kernel gave to an outgoing connection is taken when Ray wants it."""
    base = topology.claim.ports
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    single = sorted({*listening(ports).values(), settings.reward_port})
    wanted = [(port, port) for port in single] + [(ports.first_worker, ports.last_worker)]
    first, last = facts.ephemeral_ports
    risky = [
        one for one in wanted if one[1] >= first and one[0] <= last and not _is_kept(facts, one)
    ]
    if not risky:
        return Finding("port range", Level.OK, f"ours lie outside {first}-{last}")
    named = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in risky)
    return Finding(
        "port range",
        Level.WARN,
        f"this machine gives {first}-{last} to outgoing connections, ports of ours among them "
        f"({named}): one may be taken when Ray needs it",
        f"Keep them out of it: `sysctl -w net.ipv4.ip_local_reserved_ports={named}` (on the host, "
        "or as the container's sysctl)",
    )


def _is_kept(facts: Facts, wanted: tuple[int, int]) -> bool:
    return any(a <= wanted[0] and wanted[1] <= b for a, b in facts.reserved_ports)


def named_interfaces(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """NCCL and Gloo look for the interface that was named, and fail late where there is none."""
    alone = topology.is_head and topology.expected_workers == 0
    for name in INTERFACES:
        asked = facts.variables.get(name)
        if not asked:
            continue
        found = _interfaces_for(name, asked, facts)
        carrying = ", ".join(one for one, has in facts.interfaces.items() if has) or "none"
        if not found:
            what = f"{name}={asked} names no interface of this node (it has: {carrying})"
        elif not alone and all(one == _LOOPBACK for one in found):
            what = f"{name}={asked} is loopback, by which no other node is reached"
        else:
            continue
        remedy = f"Unset {name} (the interface of this node's address is then taken), or name one"
        return Finding("interfaces", Level.FAIL if facts.gpus else Level.WARN, what, remedy)
    given = [name for name in INTERFACES if facts.variables.get(name)]
    told = f"as named by {' and '.join(given)}" if given else "that of this node's address"
    return Finding("interfaces", Level.OK, told)


def _interfaces_for(name: str, asked: str, facts: Facts) -> list[str]:
    """Return the interfaces with an address that a variable means."""
    there = [one for one, addresses in facts.interfaces.items() if addresses]
    if name != _NCCL:
        return [one for one in there if one in asked.split(",")]
    words, ends = asked.lstrip("^="), asked.startswith(("^=", "="))
    meant = [one for one in there if _is_meant(one, words.split(","), exactly=ends)]
    return [one for one in there if one not in meant] if asked.startswith("^") else meant


def _is_meant(interface: str, words: Iterable[str], *, exactly: bool) -> bool:
    """Say whether NCCL's words mean an interface: by its beginning, after `=` by all of it."""
    return any(interface == word if exactly else interface.startswith(word) for word in words)


def proxies(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """A proxy between the nodes breaks gRPC and the dashboard."""
    known = {word for name in PROXIES for word in (name, name.upper())}
    named = [name for name in facts.variables if name in known]
    if not named:
        return Finding("proxies", Level.OK, "none")
    told = f"{', '.join(named)} set"
    if topology.given_ray is None:
        return Finding("proxies", Level.OK, f"{told}; no_proxy is extended by head and node")
    return Finding(
        "proxies",
        Level.WARN,
        f"{told} here, and perhaps in {topology.given_ray.owner}'s pods: it breaks Ray there",
        "Name the nodes' network in no_proxy of those pods",
    )


def leftovers(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """An address left over from another Ray sends whatever reads it there."""
    named = [name for name in LEFTOVERS if facts.variables.get(name)]
    if not named or topology.given_ray is not None:
        return Finding("leftovers", Level.OK, "no address of another Ray")
    told = ", ".join(f"{name}={facts.variables[name]}" for name in named)
    return Finding(
        "leftovers",
        Level.WARN,
        f"{told}: not passed on to Ray and the job, which have this run's own",
        f"Unset {' and '.join(named)}",
    )
