"""Checks of the network: ports, interfaces, RDMA, proxies, links, the all-reduce."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.ports import port_map, single_ports
from agent.base.text import first_names, listed
from agent.base.value import Value
from agent.checks.finding import Finding, Level, fail, ok, warn
from agent.node.facts import INTERFACES, PROXIES, STALE_ADDRESSES
from agent.topology.ranked import RUNPOD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.checks.finding import CheckedNode, Result
    from agent.node.facts import Facts, RdmaDevice


_NCCL = INTERFACES[0]
_LOOPBACK = "lo"


def expected_nodes(node: CheckedNode) -> Result | None:
    """Pods that do not name their head are as many runs; each looks healthy and bills."""
    topology, settings = node.topology, node.settings
    if topology.platform.name != RUNPOD or not topology.is_head:
        return None
    if settings.expected_workers is not None or settings.head is not None:
        return None
    number = "EXPECTED_WORKERS to the number of pods - 1"
    if settings.head_pod_id is not None:
        return warn("expects 1 worker, as only HEAD_POD_ID is set", f"Set {number} on the head")
    return warn(
        "neither HEAD_POD_ID nor EXPECTED_WORKERS is set: this pod is a run by itself, and three "
        "such pods would be three runs",
        f"Set HEAD_POD_ID to the id of the head pod, the same on every pod, and {number}; "
        "EXPECTED_WORKERS=0 if one pod is all",
    )


def ephemeral_ports(node: CheckedNode) -> Result:
    """The kernel may use a port of the run for an outgoing connection before Ray binds it."""
    facts, settings = node.facts, node.settings
    base = node.topology.platform.ports
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    single = sorted({*single_ports(ports).values(), settings.reward_port})
    first, last = facts.ephemeral_ports
    wanted = [(port, port) for port in single] + [(ports.first_worker, ports.last_worker)]
    risky = [
        (low, high)
        for low, high in wanted
        if (high >= first and low <= last)
        and not any(a <= low and high <= b for a, b in facts.reserved_ports)
    ]
    if not risky:
        return ok(f"all ports of the run are outside {first}-{last}")
    named = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in risky)
    return warn(
        f"this machine uses {first}-{last} for outgoing connections, which include ports of the "
        f"run ({named}): one may be in use when Ray needs it",
        f"Reserve them: `sysctl -w net.ipv4.ip_local_reserved_ports={named}` (on the host, or as "
        "the container's sysctl)",
    )


def named_interfaces(node: CheckedNode) -> Result:
    """NCCL and Gloo fail late if the interface that the user set does not exist."""
    facts = node.facts
    given = {name: facts.variables[name] for name in INTERFACES if facts.variables.get(name)}
    for name, value in given.items():
        found = selected_interfaces(name, value, facts)
        if not found:
            own = ", ".join(one for one, has in facts.interfaces.items() if has) or "none"
            what = f"{name}={value} names no interface of this node (it has: {own})"
        elif not node.is_alone and all(one == _LOOPBACK for one in found):
            what = f"{name}={value} is loopback, which does not reach other nodes"
        else:
            continue
        level = fail if facts.gpus else warn
        remedy = f"Unset {name} (the interface of this node's address is then used), or name one"
        return level(what, remedy)
    return ok(f"as set by {' and '.join(given)}" if given else "that of this node's address")


def selected_interfaces(name: str, value: str, facts: Facts) -> list[str]:
    """Return the interfaces with an address that a variable selects."""
    present = [one for one, addresses in facts.interfaces.items() if addresses]
    if name != _NCCL:
        return [one for one in present if one in value.split(",")]
    return nccl_selection(present, value)


def nccl_selection(present: Sequence[str], value: str) -> list[str]:
    """Return the names that a variable of NCCL selects.

    Its words are prefixes, after `=` whole names, and after `^` those to exclude; `:PORT` may
    follow.
    """
    excludes, rest = value.startswith("^"), value.removeprefix("^")
    words = [word.partition(":")[0].strip() for word in rest.removeprefix("=").split(",")]
    names = tuple(filter(None, words))
    return [
        one
        for one in present
        if (one in names if rest.startswith("=") else one.startswith(names)) != excludes
    ]


def proxies(node: CheckedNode) -> Result:
    """A proxy between the nodes breaks gRPC and the dashboard."""
    named = [name for name in node.facts.variables if name in PROXIES]
    if not named:
        return ok("none")
    which, given = f"{', '.join(named)} set", node.topology.given_ray
    if given is None:
        return ok(f"{which}; head and node are added to no_proxy")
    return warn(
        f"{which} here, and perhaps in {given.owner}'s pods: it breaks Ray there",
        "Name the nodes' network in no_proxy of those pods",
    )


def leftovers(node: CheckedNode) -> Result:
    """An address of another Ray makes processes connect to it."""
    variables = node.facts.variables
    named = [name for name in STALE_ADDRESSES if variables.get(name)]
    if not named or node.topology.given_ray is not None:
        return ok("no address of another Ray")
    addresses = ", ".join(f"{name}={variables[name]}" for name in named)
    return warn(
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


class Link(Value):
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
        return f"{one} and {first_names(name for name in names if name != one)}"
    if len(pairs) == measured:
        return f"all {len(names)} nodes"
    named = [" and ".join(sorted(pair)) for pair in pairs[:_MOST_NAMED]]
    more = len(pairs) - len(named)
    return "; ".join([*named, *([f"{more} more"] if more else [])])


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


_CHOSEN, _OFF, _NET = "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET"


def rdma_devices(node: CheckedNode) -> Result | None:
    """NCCL falls back to TCP, many times slower, and its usual log does not show it."""
    found, variables = node.facts.rdma, node.facts.variables
    chosen = variables.get(_CHOSEN, "").strip()
    if not found:
        if not chosen:
            return None
        what = f"{_CHOSEN}={chosen}, but there is no RDMA device here: NCCL uses TCP"
        remedy = "Unset it, or start the container with the devices (`--device /dev/infiniband`)"
        return warn(what, remedy)
    named = listed(device.sentence() for device in found)
    if node.is_alone:
        return ok(f"{named}; not needed on one node")
    fault, remedy = _fault(node.facts, chosen, variables)
    if fault:
        return warn(f"{named}; {fault}: NCCL uses TCP", remedy)
    used = listed(_active(found, chosen))
    return ok(f"{named}; NCCL uses {used}")


def _fault(facts: Facts, chosen: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Return why NCCL uses none of the devices, and the remedy; '' if it uses some."""
    off = _turned_off(variables.get(_OFF, ""), variables.get(_NET, ""))
    if off:
        return f"{off} turns them off", f"Unset {off.partition('=')[0]}"
    if not facts.rdma_is_open:
        remedy = "Start the container with `--device /dev/infiniband --ulimit memlock=-1`"
        return "this container cannot open /dev/infiniband/uverbs*", remedy
    if not _active(facts.rdma, ""):
        return "none has an active port", "Have the provider of the machine check its links"
    if not _active(facts.rdma, chosen):
        return f"{_CHOSEN}={chosen} selects no active one", f"Unset {_CHOSEN}, or name active ones"
    return "", ""


def _active(found: Sequence[RdmaDevice], chosen: str) -> list[str]:
    """Return the active devices that NCCL_IB_HCA selects; all of them if it is not set."""
    active = [device.name for device in found if device.is_active]
    return nccl_selection(active, chosen) if chosen else active


def _turned_off(disabled: str, net: str) -> str:
    """Return the setting by which NCCL uses sockets, or ''."""
    if disabled.strip() not in {"", "0"}:
        return f"{_OFF}={disabled.strip()}"
    return f"{_NET}={net.strip()}" if net.strip().lower() == "socket" else ""


PREFLIGHT = "AGENT_PREFLIGHT"
_CONSEQUENCES = ("connection", "reset by peer", "broken pipe", "closed", "timed out", "timeout")
"""Words in errors that another rank's failure causes."""


class AllReduceShare(Value):
    """A node of the all-reduce and its GPUs."""

    node: str
    gpus: int


class AllReduceResult(Value):
    """The result of the all-reduce."""

    summary: str = ""
    """Its speed, in one line."""
    failure: str = ""
    """Why it failed, or ''."""


def all_reduce_result(text: str, shares: Sequence[AllReduceShare]) -> AllReduceResult:
    """Read the file that the program on the head wrote."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        return AllReduceResult(failure="it wrote no result; preflight.log has its output")
    if "error" in data:
        return AllReduceResult(failure=f"it could not start on {shares[0].node}: {data['error']}")
    nodes = _nodes_of_ranks(shares)
    failed = _failure(data["failed"], nodes)
    if failed:
        return AllReduceResult(failure=failed)
    reduced = data["all_reduce"]
    if not data["in_time"] or reduced is None:
        return AllReduceResult(failure=_stuck(data["at"], nodes))
    return AllReduceResult(_speed(reduced, shares))


def _nodes_of_ranks(shares: Sequence[AllReduceShare]) -> list[str]:
    """Return the node of each rank: one rank per GPU, or per node without GPUs."""
    if not any(share.gpus for share in shares):
        return [share.node for share in shares]
    return [share.node for share in shares for _ in range(share.gpus)]


def _failure(failed: Sequence[tuple[int, str]], nodes: Sequence[str]) -> str:
    """Describe the error of the first rank that failed by itself."""
    if not failed:
        return ""
    causes = [(r, e) for r, e in failed if not any(word in e.lower() for word in _CONSEQUENCES)]
    rank, error = (causes or failed)[0]
    return f"rank {rank} on {nodes[rank]}: {error}"


def _stuck(stages: Sequence[str], nodes: Sequence[str]) -> str:
    """Describe which nodes sent nothing, and the last stage of the others."""
    absent = [node for node, stage in zip(nodes, stages, strict=True) if not stage]
    where: dict[str, list[str]] = {}
    for node, stage in zip(nodes, stages, strict=True):
        if stage:
            where.setdefault(stage, []).append(node)
    parts = [f"no result from {_named(absent)}"] if absent else []
    parts += [f"last stage of {_named(found)}: {stage!r}" for stage, found in where.items()]
    return "; ".join(["it did not end in time", *parts])


def _named(nodes: Sequence[str]) -> str:
    return first_names(dict.fromkeys(nodes), 3)


def _speed(reduced: Mapping[str, float], shares: Sequence[AllReduceShare]) -> str:
    gpus, parts = sum(share.gpus for share in shares), sum(share.gpus > 0 for share in shares)
    over = f"{gpus} GPUs on {parts} node(s)" if gpus else f"{len(shares)} node(s) by CPU"
    size, ms = round(reduced["bytes"] / (1 << 20)), reduced["seconds"] * 1000
    return f"{PREFLIGHT}: an all-reduce of {size} MiB over {over} takes {ms:.3g} ms"
