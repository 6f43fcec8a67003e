"""The check of RDMA devices (InfiniBand, RoCE) against NCCL's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import listed
from agent.checks.finding import ok, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.checks.finding import CheckedNode, Result
    from agent.node.facts import Facts, RdmaDevice

_CHOSEN, _OFF, _NET = "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET"


def devices(node: CheckedNode) -> Result | None:
    """NCCL falls back to TCP, many times slower, without a word in the usual log."""
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
    used = listed(device.name for device in selected(found, chosen) if device.is_active)
    return ok(f"{named}; NCCL uses {used}")


def _fault(facts: Facts, chosen: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Return why NCCL uses none of the devices, and the remedy; '' if it uses some."""
    off = _turned_off(variables.get(_OFF, ""), variables.get(_NET, ""))
    active = [device for device in facts.rdma if device.is_active]
    if off:
        return f"{off} turns them off", f"Unset {off.partition('=')[0]}"
    if not facts.rdma_is_open:
        remedy = "Start the container with `--device /dev/infiniband --ulimit memlock=-1`"
        return "this container cannot open /dev/infiniband/uverbs*", remedy
    if not active:
        return "none has an active port", "Have the provider of the machine check its links"
    if not selected(active, chosen):
        return f"{_CHOSEN}={chosen} selects no active one", f"Unset {_CHOSEN}, or name active ones"
    return "", ""


def _turned_off(disabled: str, net: str) -> str:
    """Return the setting by which NCCL uses sockets, or ''."""
    if disabled.strip() not in {"", "0"}:
        return f"{_OFF}={disabled.strip()}"
    return f"{_NET}={net.strip()}" if net.strip().lower() == "socket" else ""


def selected(found: Sequence[RdmaDevice], value: str) -> list[RdmaDevice]:
    """Return the devices that NCCL_IB_HCA selects.

    Its names are prefixes, after `=` whole names, after `^` those to exclude; `:PORT` may follow.
    """
    if not value:
        return [*found]
    excludes = value.startswith("^")
    rest = value.removeprefix("^")
    is_whole = rest.startswith("=")
    words = [word.partition(":")[0].strip() for word in rest.removeprefix("=").split(",")]
    names = tuple(filter(None, words))
    return [
        device
        for device in found
        if (device.name in names if is_whole else device.name.startswith(names)) != excludes
    ]
