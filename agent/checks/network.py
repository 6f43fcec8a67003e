"""Checks of the network: ports, interfaces, proxies, links between nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.ports import port_map, single_ports
from agent.base.text import listed
from agent.base.value import dataclass
from agent.checks.finding import Finding, Level
from agent.node.variables import INTERFACES, PROXIES, STALE_ADDRESSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.node.facts import Facts
    from agent.settings.model import Settings
    from agent.topology.resolve import Topology


_NCCL = INTERFACES[0]
_LOOPBACK = "lo"


def ephemeral_ports(facts: Facts, settings: Settings, topology: Topology) -> Finding:
    """The kernel may use a port of ours for an outgoing connection before Ray binds it."""
    base = topology.platform.ports
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    single = sorted({*single_ports(ports).values(), settings.reward_port})
    wanted = [(port, port) for port in single] + [(ports.first_worker, ports.last_worker)]
    first, last = facts.ephemeral_ports
    risky = [
        one for one in wanted if one[1] >= first and one[0] <= last and not _is_reserved(facts, one)
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


def _is_reserved(facts: Facts, wanted: tuple[int, int]) -> bool:
    return any(a <= wanted[0] and wanted[1] <= b for a, b in facts.reserved_ports)


def named_interfaces(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """NCCL and Gloo fail late if the interface that the user set does not exist."""
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
    what = f"as set by {' and '.join(given)}" if given else "that of this node's address"
    return Finding("interfaces", Level.OK, what)


def _interfaces_for(name: str, asked: str, facts: Facts) -> list[str]:
    """Return the interfaces with an address that a variable selects."""
    present = [one for one, addresses in facts.interfaces.items() if addresses]
    if name != _NCCL:
        return [one for one in present if one in asked.split(",")]
    words, ends = asked.lstrip("^="), asked.startswith(("^=", "="))
    chosen = [one for one in present if _matches(one, words.split(","), exactly=ends)]
    return [one for one in present if one not in chosen] if asked.startswith("^") else chosen


def _matches(interface: str, words: Iterable[str], *, exactly: bool) -> bool:
    """Return whether NCCL's words match an interface: by prefix, or `exactly` after `=`."""
    return any(interface == word if exactly else interface.startswith(word) for word in words)


def proxies(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """A proxy between the nodes breaks gRPC and the dashboard."""
    known = {word for name in PROXIES for word in (name, name.upper())}
    named = [name for name in facts.variables if name in known]
    if not named:
        return Finding("proxies", Level.OK, "none")
    which = f"{', '.join(named)} set"
    if topology.given_ray is None:
        return Finding("proxies", Level.OK, f"{which}; no_proxy is extended by head and node")
    return Finding(
        "proxies",
        Level.WARN,
        f"{which} here, and perhaps in {topology.given_ray.owner}'s pods: it breaks Ray there",
        "Name the nodes' network in no_proxy of those pods",
    )


def leftovers(facts: Facts, _settings: Settings, topology: Topology) -> Finding:
    """An address of another Ray makes processes connect to it."""
    named = [name for name in STALE_ADDRESSES if facts.variables.get(name)]
    if not named or topology.given_ray is not None:
        return Finding("leftovers", Level.OK, "no address of another Ray")
    addresses = ", ".join(f"{name}={facts.variables[name]}" for name in named)
    return Finding(
        "leftovers",
        Level.WARN,
        f"{addresses}: not passed on to Ray and the job, which use this run's addresses",
        f"Unset {' and '.join(named)}",
    )


CHECK = "network"
SLOW = 300e6
"""Bits per second below which syncing a model's weights takes minutes."""
EXAMPLE = 15_000_000_000
"""Bytes of a model of 7 billion parameters, used if the job's model is not known."""
_MOST_NAMED = 4
_SAME_RATE = 1.5
_REMEDY = "Use nodes with a faster network between them, or fewer and larger ones"


@dataclass(frozen=True)
class Link:
    """The measured link between two nodes."""

    one: str
    other: str
    rate: float
    """In bits per second, the best of several samples."""


def slow_links(links: Sequence[Link], weights: int = 0, platform: str = "") -> Finding | None:
    """Describe slow links and how long syncing `weights` bytes takes (0: not known)."""
    rates: dict[frozenset[str], float] = {}
    for link in links:
        pair = frozenset((link.one, link.other))
        rates[pair] = min(link.rate, rates.get(pair, link.rate))  # the slower direction counts
    slow = {pair: rate for pair, rate in rates.items() if rate < SLOW}
    if not slow:
        return None
    low, high = min(slow.values()), max(slow.values())
    rate = _mbps(low) if high < _SAME_RATE * low else f"{_mbps(low)} to {_mbps(high)}"
    synced = f"the model's {_gb(weights)}" if weights else f"{_gb(EXAMPLE)}"
    example = "" if weights else " (a model of 7B, for one)"
    what = (
        f"{rate} Mbps between {_between(slow, len(rates))}: syncing {synced} of weights{example} "
        f"takes {_duration((weights or EXAMPLE) * 8 / low)}"
    )
    if platform == "runpod":
        what += "; Instant Clusters have faster links"
    return Finding(CHECK, Level.WARN, what, _REMEDY)


def _between(slow: Mapping[frozenset[str], float], measured: int) -> str:
    """List the nodes of slow links; a node that is part of all of them comes first."""
    pairs = sorted(slow, key=lambda pair: (slow[pair], sorted(pair)))
    if len(pairs) == 1:
        return listed(sorted(pairs[0]))
    common = frozenset.intersection(*pairs)
    names = sorted(frozenset.union(*pairs))
    if common:
        (one,) = common
        return f"{one} and {_first_words([name for name in names if name != one])}"
    if len(pairs) == measured:
        return f"all {len(names)} nodes"
    return _first_words([f"{a} and {b}" for a, b in map(sorted, pairs)], "; ")


def _first_words(words: Sequence[str], between: str = "") -> str:
    more = len(words) - _MOST_NAMED
    shown = [*words] if more <= 0 else [*words[:_MOST_NAMED], f"{more} more"]
    return between.join(shown) if between else listed(shown)


def _mbps(rate: float) -> str:
    """Format megabits per second with two significant digits."""
    return f"{float(f'{rate / 1e6:.2g}'):g}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2g} GB" if size < 1e11 else f"{size / 1e9:.0f} GB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{round(seconds)} s"
    if seconds < 7200:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"
