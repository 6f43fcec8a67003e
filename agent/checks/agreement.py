"""Compares the nodes of a run: versions, variables, GPUs and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import first_names, listed
from agent.checks.finding import Finding, Level
from agent.checks.network import selected_interfaces
from agent.node.facts import DEBUGGER, INTERFACES, is_compared
from agent.node.python_facts import CUDA, NCCL, TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.node.facts import Facts

    Nodes = Sequence[tuple[str, Facts]]
    """Name and facts of each node, the head's first."""

_LONGEST_VALUE = 80
_ABSENT = "not installed"
_UNSET = "not set"
_ONE_IMAGE = "Use one image on all nodes"


def agreement(nodes: Nodes, *, brings_libraries: bool = False) -> tuple[Finding, ...]:
    """Compare the nodes of a run; return a finding for each difference.

    Differences that break the run fail: versions, the debugger, interfaces of different networks.
    Different libraries only warn where the job brings its own.
    """
    if len(nodes) < 2:
        return ()
    return (
        *_versions(nodes, brings_libraries=brings_libraries),
        *_interfaces(nodes),
        *_variables(nodes),
        *_machines(nodes),
        *_clocks(nodes),
    )


_LIBRARIES = (
    *(TORCH, CUDA, NCCL, "vllm", "sglang", "verl", "openrlhf", "trl", "deepspeed"),
    *("transformers", "flash-attn"),
)
_FOR_GPUS = {CUDA, NCCL, "vllm", "sglang", "deepspeed", "flash-attn"}
"""Nodes without GPUs are left out here, where other nodes have GPUs."""
_MAY_DIFFER = {"transformers", "flash-attn"}


def _versions(nodes: Nodes, *, brings_libraries: bool) -> Iterator[Finding]:
    agents = [(name, facts.node_versions.agent) for name, facts in nodes]
    yield from _finding("pod-agent", agents, Level.FAIL, _ONE_IMAGE)
    with_gpus = [node for node in nodes if node[1].gpus]
    for library in _LIBRARIES:
        compared = with_gpus if library in _FOR_GPUS and with_gpus else nodes
        values = [(name, _version(facts, library)) for name, facts in compared]
        versions = {value for _, value in values if value != _ABSENT}
        certain = len(versions) > 1 and not brings_libraries  # a node without it may not need it
        level = Level.FAIL if certain and library not in _MAY_DIFFER else Level.WARN
        yield from _finding(library, values, level, _ONE_IMAGE)


def _version(facts: Facts, name: str) -> str:
    """Return a library's version; torch's without its build tag, which is compared by itself."""
    found = facts.ray.libraries.get(name, _ABSENT)
    if name == TORCH and facts.torch is not None:  # torchrun's Python may be another one
        found = facts.torch.version or _ABSENT
    return found.partition("+")[0] if name == TORCH else found


def _interfaces(nodes: Nodes) -> Iterator[Finding]:
    """Compare the interfaces that the user set for NCCL and Gloo.

    Machines may name the interfaces of one network differently. A node that has the usual
    interface, but is set to another one, uses another network.
    """
    for name in INTERFACES:
        values = [(node, facts.variables.get(name, _UNSET)) for node, facts in nodes]
        groups = _groups(values)
        usual = groups[-1][0]
        named = {value for value, _ in groups} - {_UNSET}
        strays = [f for _, f in nodes if f.variables.get(name, usual) != usual]
        has_usual = any(selected_interfaces(name, usual, facts) for facts in strays)
        is_wrong = len(named) > 1 and not usual.startswith("^") and has_usual
        level = Level.FAIL if is_wrong else Level.WARN
        remedy = f"Unset {name}: each node then takes the interface of its own address"
        yield from _finding(name, values, level, remedy)


def _variables(nodes: Nodes) -> Iterator[Finding]:
    remedy = f"Set the same {DEBUGGER} on all nodes"
    debuggers = [(name, facts.variables.get(DEBUGGER) or "0") for name, facts in nodes]
    yield from _finding(DEBUGGER, debuggers, Level.FAIL, remedy)
    names = {name for _, facts in nodes for name in facts.variables if is_compared(name)}
    for name in sorted(names - {*INTERFACES}):
        values = [(node, facts.variables.get(name, _UNSET)) for node, facts in nodes]
        yield from _finding(name, values, Level.WARN, f"Set the same {name} on all nodes")


def _machines(nodes: Nodes) -> Iterator[Finding]:
    counts = [(name, str(facts.gpus or "none")) for name, facts in nodes]
    remedy = "Use nodes of one kind, or a job that supports different ones"
    yield from _finding("GPUs", counts, Level.WARN, remedy)
    models = [(name, listed(facts.node_versions.gpu_models)) for name, facts in nodes]
    slowest = "Use nodes of one kind: all wait for the slowest, and the smallest memory counts"
    yield from _finding("GPU model", models, Level.WARN, slowest)


def _clocks(nodes: Nodes) -> Iterator[Finding]:
    off = {name: facts.node_versions.clock_ahead or 0.0 for name, facts in nodes}
    differences = [
        f"{abs(round(ahead))} s {'ahead of' if ahead > 0 else 'behind'} the head's on {name}"
        for name, ahead in off.items()
        if abs(ahead) > times.CLOCKS_DIFFER
    ]
    if differences:
        remedy = "Set the clocks of these machines (chrony, ntp): timestamps are wrong otherwise"
        yield Finding("clock", Level.WARN, first_names(differences), remedy)


def _finding(
    check: str, values: Sequence[tuple[str, str]], level: Level, remedy: str
) -> Iterator[Finding]:
    """Compare a value of each node; nodes without a value are left out."""
    groups = _groups([(name, value) for name, value in values if value])
    if len(groups) > 1:
        yield Finding(check, level, _differences(groups), remedy)


def _groups(values: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return each value with its nodes, the rarest first and the head's last among equals."""
    found: dict[str, list[str]] = {}
    for name, value in values:
        found.setdefault(value, []).append(name)
    head = values[0][1] if values else ""
    return sorted(found.items(), key=lambda group: (len(group[1]), group[0] == head, group[0]))


def _differences(groups: list[tuple[str, list[str]]]) -> str:
    *odd, (usual, others) = groups
    parts = [f"{_short(value)} on {first_names(names)}" for value, names in odd]
    rest = others[0] if len(others) == 1 else f"the {len(others)} others"
    return ", ".join([*parts, f"{_short(usual)} on {rest}"])


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[: _LONGEST_VALUE - 3]}..."
