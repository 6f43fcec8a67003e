"""Checks of the network: ports, interfaces, RDMA, proxies, links, the all-reduce."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from agent.base.ports import port_map, single_ports
from agent.base.text import duration_text, first_names, listed, number_text
from agent.checks.finding import Finding, Level, fail, ok, warn
from agent.node.facts import INTERFACES, PROXIES
from agent.platforms.rank_variables import RUNPOD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.checks.finding import CheckedNode, Result


def expected_nodes(node: CheckedNode) -> Result | None:
    """Pods that do not name their head are as many runs; each looks healthy and bills.

    A number that is not the platform's makes the head wait for nobody, or not for all.
    """
    topology = node.topology
    settings = node.settings
    given = settings.expected_workers
    nodes = topology.platform.nodes
    if not topology.is_head:
        return None

    # Does the number differ from the platform's? A file of services may keep nodes for services
    # alone, which are no workers.
    if given is not None and nodes is not None and given != nodes - 1:
        may_be_fewer = settings.services is not None
        if given < nodes - 1 and may_be_fewer:
            return None
        workers = "1 worker" if nodes == 2 else f"{nodes - 1} workers"
        what = f"EXPECTED_WORKERS={given}, but {topology.platform.name} has {nodes} nodes"
        return warn(f"{what} ({workers})", "Unset EXPECTED_WORKERS, unless this is intended")

    # Do the ranks of another launcher show more nodes?
    if topology.platform.unread_ranks and given is None:
        return warn(
            f"{topology.platform.unread_ranks}: they may count processes and decide nothing, so"
            " this node is a run by itself",
            "Where they count nodes, set NNODES=$WORLD_SIZE NODE_RANK=$RANK on every node, else"
            " AGENT_HEAD and EXPECTED_WORKERS; EXPECTED_WORKERS=0 if one node is all",
        )

    # Pods of RunPod have neither a number nor a rank.
    if topology.platform.name != RUNPOD or given is not None or settings.head is not None:
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
    facts = node.facts
    settings = node.settings
    base = node.topology.platform.ports
    ports = port_map(settings.ray_port, settings.dashboard_port, settings.port, base)
    first, last = facts.ephemeral_ports
    used = {
        *single_ports(ports).values(),
        ports.first_worker,
        ports.last_worker,
        settings.reward_port or base.reward,
    }
    risky = [
        str(port)
        for port in sorted(used)
        if first <= port <= last and not any(a <= port <= b for a, b in facts.reserved_ports)
    ]
    if not risky:
        return ok(f"all ports of the run are outside {first}-{last}")
    return warn(
        f"this machine uses {first}-{last} for outgoing connections, which include ports of the "
        f"run ({first_names(risky)}): one may be in use when Ray needs it",
        "Reserve those that `pod-agent plan -v` lists: `sysctl -w "
        "net.ipv4.ip_local_reserved_ports=…` (on the host, or as the container's sysctl)",
    )


def named_interfaces(node: CheckedNode) -> Result:
    """NCCL and Gloo fail late if the interface that the user set does not exist."""
    facts = node.facts
    present = [interface for interface, addresses in facts.interfaces.items() if addresses]
    given = {name: facts.variables[name] for name in INTERFACES if facts.variables.get(name)}
    for name, value in given.items():
        if name == INTERFACES[0]:
            selected = _nccl_selection(present, value)
        else:
            selected = [interface for interface in present if interface in value.split(",")]
        if not selected:
            own = ", ".join(present) or "none"
            what = f"{name}={value} names no interface of this node (it has: {own})"
        elif not node.is_alone and all(interface == "lo" for interface in selected):
            what = f"{name}={value} is loopback, which does not reach other nodes"
        else:
            continue
        level = fail if facts.gpus else warn
        remedy = f"Unset {name} (the interface of this node's address is then used), or name one"
        return level(what, remedy)
    if not given:
        return ok("that of this node's address")
    return ok(f"as set by {' and '.join(given)}")


def _nccl_selection(present: Sequence[str], value: str) -> list[str]:
    """Return the names that a variable of NCCL selects.

    Its words are prefixes, after `=` whole names, after `^` those to exclude; `:PORT` may follow.
    """
    excludes = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    words = (word.partition(":")[0].strip() for word in rest.removeprefix("=").split(","))
    names = tuple(filter(None, words))

    def is_named(interface: str) -> bool:
        return interface in names if is_exact else interface.startswith(names)

    return [interface for interface in present if is_named(interface) != excludes]


def proxies(node: CheckedNode) -> Result:
    """A proxy between the nodes breaks gRPC and the dashboard."""
    variables = [name for name in node.facts.variables if name in PROXIES]
    if not variables:
        return ok("none")
    return ok(f"{', '.join(variables)} set; head and node are added to no_proxy")


CHECK = "network"
SLOW = 300e6  # bits per second below which syncing a model's weights takes minutes
EXAMPLE = 15_000_000_000  # bytes of a model of 7B parameters, used if the job's is not known


def slow_links(links: Iterable[tuple[str, str, float]], weights: int = 0) -> Finding | None:
    """Describe slow links and how long syncing `weights` bytes takes (0: not known).

    A link has its two nodes and its rate in bits per second, the best of several samples.
    """
    slow = [link for link in links if link[2] < SLOW]
    if not slow:
        return None
    rate = min(link[2] for link in slow)

    # Which nodes are slow? The likely cause is in most of the links.
    counts = Counter(name for link in slow for name in link[:2])
    names = sorted(counts, key=lambda name: (-counts[name], name))

    # What does it cost?
    size = weights or EXAMPLE
    model = "" if weights else " (a model of 7B, for one)"
    what = (
        f"{number_text(rate / 1e6)} Mbps between {first_names(names)}: syncing "
        f"{round(size / 1e9, 1):g} GB of weights{model} takes {duration_text(size * 8 / rate)}"
    )
    remedy = (
        "Use nodes with a faster network between them (on RunPod an Instant Cluster), or fewer "
        "and larger ones"
    )
    return Finding(CHECK, Level.WARN, what, remedy)


_CHOSEN = "NCCL_IB_HCA"
_OFF = "NCCL_IB_DISABLE"
_NET = "NCCL_NET"


def rdma_devices(node: CheckedNode) -> Result | None:
    """NCCL falls back to TCP, many times slower, and its usual log does not show it."""
    devices = node.facts.rdma
    if not devices:
        return None
    described = listed(device.sentence() for device in devices)
    if node.is_alone:
        return ok(f"{described}; not needed on one node")

    # Which devices does NCCL use, as the user's variables select?
    variables = node.facts.variables
    chosen = variables.get(_CHOSEN, "").strip()
    disabled = variables.get(_OFF, "").strip()
    net = variables.get(_NET, "").strip()
    used = [device.name for device in devices if device.is_active]
    if chosen:
        used = _nccl_selection(used, chosen)

    if disabled not in {"", "0"}:
        fault = f"{_OFF}={disabled} turns them off"
        remedy = f"Unset {_OFF}"
    elif net.lower() == "socket":
        fault = f"{_NET}={net} turns them off"
        remedy = f"Unset {_NET}"
    elif not node.facts.rdma_is_open:
        fault = "this container cannot open /dev/infiniband/uverbs*"
        remedy = "Start the container with `--device /dev/infiniband --ulimit memlock=-1`"
    elif not used:
        fault = f"{_CHOSEN}={chosen} selects no active one" if chosen else "none is active"
        remedy = f"Unset {_CHOSEN}, or have the provider of the machine check its links"
    else:
        return ok(f"{described}; NCCL uses {listed(used)}")
    return warn(f"{described}; {fault}: NCCL uses TCP", remedy)


PREFLIGHT = "AGENT_PREFLIGHT"
_CONSEQUENCES = ("connection", "reset by peer", "broken pipe", "closed", "timed out", "timeout")
"""Words in errors that another rank's failure causes."""


def all_reduce_result(text: str, shares: Sequence[tuple[str, int]]) -> tuple[str, str]:
    """Read the file that the program on the head wrote: its speed, or '' and the failure.

    The shares are each node's name and GPUs.
    """
    try:
        data = json.loads(text)
    except ValueError:
        return "", "it wrote no result; preflight.log has its output"
    if "error" in data:
        return "", f"it could not start on {shares[0][0]}: {data['error']}"

    # Did a rank fail? There is one per GPU, or per node without GPUs.
    gpus = sum(count for _, count in shares)
    nodes = [name for name, count in shares for _ in range(count if gpus else 1)]
    if data["failed"]:
        rank, error = min(data["failed"], key=lambda failure: _is_consequence(failure[1]))
        return "", f"rank {rank} on {nodes[rank]}: {error}"

    # Did it end? If not, how far did each node come?
    reduced = data["all_reduce"]
    if not data["in_time"] or reduced is None:
        where: dict[str, dict[str, None]] = {}
        for node, stage in zip(nodes, data["at"], strict=True):
            where.setdefault(stage or "no result", {})[node] = None
        stages = (f"{stage} on {first_names(names, 3)}" for stage, names in where.items())
        return "", "; ".join(["it did not end in time", *stages])

    over = f"{gpus} GPUs" if gpus else f"{len(shares)} node(s) by CPU"
    size = round(reduced["bytes"] / (1 << 20))
    ms = reduced["seconds"] * 1000
    return f"{PREFLIGHT}: an all-reduce of {size} MiB over {over} takes {number_text(ms)} ms", ""


def _is_consequence(error: str) -> bool:
    return any(word in error.lower() for word in _CONSEQUENCES)
