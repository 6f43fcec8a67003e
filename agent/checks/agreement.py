"""Compares the nodes of a run: versions, variables, GPUs and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import first_names, listed
from agent.checks.finding import Finding, Level
from agent.checks.network import selected_interfaces
from agent.node.facts import COLLECTIVES, DEBUGGER, INTERFACES
from agent.node.python_facts import CUDA, NCCL, TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.node.facts import Facts

    Nodes = Sequence[tuple[str, Facts]]  # name and facts of each node, the head's first
    Values = Sequence[tuple[str, str]]  # the name of each node and its value

_ABSENT, _UNSET = "not installed", "not set"
_LIBRARIES = (
    *(TORCH, CUDA, NCCL, "vllm", "sglang", "verl", "openrlhf", "trl", "deepspeed"),
    *("transformers", "flash-attn"),
)
_FOR_GPUS = {CUDA, NCCL, "vllm", "sglang", "deepspeed", "flash-attn"}
"""Nodes without GPUs are left out here, where other nodes have GPUs."""
_MAY_DIFFER = {"transformers", "flash-attn"}


def agreement(nodes: Nodes, *, brings_libraries: bool = False) -> tuple[Finding, ...]:
    """Compare the nodes of a run; return a finding for each difference.

    Differences that break the run fail: versions, the debugger, interfaces of different networks.
    Different libraries only warn where the job brings its own.
    """
    if len(nodes) < 2:
        return ()
    found = []
    for check, values, level, remedy in _compared(nodes, brings_libraries=brings_libraries):
        groups = _groups([(name, value) for name, value in values if value])
        if len(groups) > 1:
            found.append(Finding(check, level, _differences(groups), remedy))
    return (*found, *_clocks(nodes))


def _compared(nodes: Nodes, *, brings_libraries: bool) -> Iterator[tuple[str, Values, Level, str]]:
    """Yield what is compared: its name, the nodes' values, a difference's level and remedy."""
    one_image = "Use one image on all nodes"
    agents = [(node, facts.node_versions.agent) for node, facts in nodes]
    yield "pod-agent", agents, Level.FAIL, one_image
    with_gpus = [node for node in nodes if node[1].gpus]
    for library in _LIBRARIES:
        compared = with_gpus if library in _FOR_GPUS and with_gpus else nodes
        values = [(node, _version(facts, library)) for node, facts in compared]
        versions = {value for _, value in values if value != _ABSENT}
        certain = len(versions) > 1 and not brings_libraries  # a node without it may not need it
        level = Level.FAIL if certain and library not in _MAY_DIFFER else Level.WARN
        yield library, values, level, one_image
    for name in INTERFACES:
        values = [(node, facts.variables.get(name, _UNSET)) for node, facts in nodes]
        level = Level.FAIL if _are_different_networks(name, values, nodes) else Level.WARN
        remedy = f"Unset {name}: each node then takes the interface of its own address"
        yield name, values, level, remedy
    values = [(node, facts.variables.get(DEBUGGER) or "0") for node, facts in nodes]
    yield DEBUGGER, values, Level.FAIL, f"Set the same {DEBUGGER} on all nodes"
    names = {name for _, facts in nodes for name in facts.variables} - {*INTERFACES}
    for name in sorted(name for name in names if name.startswith(COLLECTIVES)):
        values = [(node, facts.variables.get(name, _UNSET)) for node, facts in nodes]
        yield name, values, Level.WARN, f"Set the same {name} on all nodes"
    values = [(node, str(facts.gpus or "none")) for node, facts in nodes]
    remedy = "Use nodes of one kind, or a job that supports different ones"
    yield "GPUs", values, Level.WARN, remedy
    values = [(node, listed(facts.node_versions.gpu_models)) for node, facts in nodes]
    remedy = "Use nodes of one kind: the slowest GPU and the smallest memory limit the job"
    yield "GPU model", values, Level.WARN, remedy


def _version(facts: Facts, name: str) -> str:
    """Return a library's version; torch's without its build tag, which is compared by itself."""
    found = facts.ray.libraries.get(name, _ABSENT)
    if name == TORCH and facts.torch is not None:  # torchrun's Python may be another one
        found = facts.torch.version or _ABSENT
    return found.partition("+")[0] if name == TORCH else found


def _are_different_networks(name: str, values: Values, nodes: Nodes) -> bool:
    """Return whether the interfaces that the user set for NCCL or Gloo are of several networks.

    Machines may name the interfaces of one network differently. A node that has the usual
    interface, but is set to another one, uses another network.
    """
    usual = _groups(values)[-1][0]
    strays = [facts for _, facts in nodes if facts.variables.get(name, usual) != usual]
    named = {value for _, value in values} - {_UNSET}
    has_usual = any(selected_interfaces(name, usual, facts) for facts in strays)
    return len(named) > 1 and not usual.startswith("^") and has_usual


def _clocks(nodes: Nodes) -> Iterator[Finding]:
    differences = []
    for name, facts in nodes:
        ahead = facts.node_versions.clock_ahead or 0.0
        if abs(ahead) > times.CLOCKS_DIFFER:
            side = "ahead of" if ahead > 0 else "behind"
            differences.append(f"{abs(round(ahead))} s {side} the head's on {name}")
    if differences:
        remedy = "Set the clocks of these machines (chrony, ntp): timestamps are wrong otherwise"
        yield Finding("clock", Level.WARN, first_names(differences), remedy)


def _groups(values: Values) -> list[tuple[str, list[str]]]:
    """Return each value with its nodes, the rarest first and the first node's last among equals."""
    found: dict[str, list[str]] = {}
    for name, value in values:
        found.setdefault(value, []).append(name)
    first = values[0][1] if values else ""
    return sorted(found.items(), key=lambda group: (len(group[1]), group[0] == first, group[0]))


def _differences(groups: list[tuple[str, list[str]]]) -> str:
    short = [value if len(value) <= 80 else f"{value[:77]}..." for value, _ in groups]
    named = [first_names(names) for _, names in groups]
    usual = groups[-1][1]
    named[-1] = usual[0] if len(usual) == 1 else f"the {len(usual)} others"
    return ", ".join(f"{value} on {names}" for value, names in zip(short, named, strict=True))
