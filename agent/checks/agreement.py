"""Whether the nodes of a run agree: what differs, on whom, and whether that breaks the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import listed
from agent.checks.finding import Finding, Level
from agent.node.libraries import CUDA, NCCL, TORCH
from agent.node.variables import DEBUGGER, INTERFACES, is_compared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.node.facts import Facts

    Nodes = Sequence[tuple[str, Facts]]
    """Name and facts of each node, the head's first."""

CLOCKS_APART = 5.0
"""A hello may be on its way for three seconds; what is more is the clock's."""
_MOST_NAMED = 4
_LONGEST_VALUE = 80
_ABSENT = "not installed"
_UNSET = "not set"
_ONE_IMAGE = "Use one image on all nodes"


def agreement(nodes: Nodes, *, brings_libraries: bool = False) -> tuple[Finding, ...]:
    """Compare the nodes of a run; return a finding for each thing in which they differ.

    What would break the run is a failure: versions, the debugger, interfaces of different
    networks. Libraries of the images count less where the job brings its own.
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


# --- versions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Library:
    """A library, and how much it matters that all have the same version."""

    name: str
    level: Level = Level.FAIL
    needs_gpu: bool = False
    """True where nodes without GPUs have no use for it while others have some."""


_LIBRARIES = (
    _Library(TORCH),
    _Library(CUDA, needs_gpu=True),
    _Library(NCCL, needs_gpu=True),
    _Library("vllm", needs_gpu=True),
    _Library("sglang", needs_gpu=True),
    _Library("verl"),
    _Library("openrlhf"),
    _Library("trl"),
    _Library("deepspeed", needs_gpu=True),
    _Library("transformers", Level.WARN),
    _Library("flash-attn", Level.WARN, needs_gpu=True),
)


def _versions(nodes: Nodes, *, brings_libraries: bool) -> Iterator[Finding]:
    yield from _differing("pod-agent", nodes, lambda f: f.outfit.agent, Level.FAIL, _ONE_IMAGE)
    with_gpus = [node for node in nodes if node[1].gpus]
    for library in _LIBRARIES:
        asked = with_gpus if library.needs_gpu and with_gpus else nodes
        values = [(name, _version(facts, library.name)) for name, facts in asked]
        versions = {value for _, value in values if value != _ABSENT}
        certain = len(versions) > 1 and not brings_libraries  # one that lacks it may not need it
        level = library.level if certain else Level.WARN
        yield from _finding(library.name, values, level, _ONE_IMAGE)
    yield from _differing("image", nodes, lambda f: f.outfit.image, Level.WARN, _ONE_IMAGE)


def _version(facts: Facts, name: str) -> str:
    """Return a library's version; torch's without what it was built for, which is told apart."""
    found = facts.ray.libraries.get(name, _ABSENT)
    if name == TORCH and facts.torch is not None:  # torchrun's, which may live in another Python
        found = facts.torch.version or _ABSENT
    return found.partition("+")[0] if name == TORCH else found


# --- variables -----------------------------------------------------------------------------------


def _interfaces(nodes: Nodes) -> Iterator[Finding]:
    """Compare which interface the user named for NCCL and Gloo.

    Machines may name the interfaces of one network differently. A node that has the interface
    which most others use, and yet is to use another one, is on another network.
    """
    for name in INTERFACES:
        values = [(node, facts.variables.get(name, _UNSET)) for node, facts in nodes]
        groups = _groups(values)
        usual = groups[-1][0]
        named = {value for value, _ in groups} - {_UNSET}
        strays = [f for _, f in nodes if f.variables.get(name, usual) != usual]
        is_wrong = len(named) > 1 and any(_has_interface(facts, usual) for facts in strays)
        level = Level.FAIL if is_wrong else Level.WARN
        remedy = f"Unset {name}: each node then takes the interface of its own address"
        yield from _finding(name, values, level, remedy)


def _has_interface(facts: Facts, value: str) -> bool:
    """Say whether a node has an interface that NCCL's words mean: by the beginning of its name."""
    if value.startswith("^"):
        return False
    words = [word for word in value.lstrip("=").split(",") if word]
    return any(
        name.startswith(word) for name, has in facts.interfaces.items() if has for word in words
    )


def _variables(nodes: Nodes) -> Iterator[Finding]:
    remedy = f"Set the same {DEBUGGER} on all nodes"
    yield from _differing(
        DEBUGGER, nodes, lambda f: f.variables.get(DEBUGGER) or "0", Level.FAIL, remedy
    )
    names = {name for _, facts in nodes for name in facts.variables if is_compared(name)}
    for name in sorted(names - {*INTERFACES}):
        values = [(node, facts.variables.get(name, _UNSET)) for node, facts in nodes]
        yield from _finding(name, values, Level.WARN, f"Set the same {name} on all nodes")


# --- machines ------------------------------------------------------------------------------------


def _machines(nodes: Nodes) -> Iterator[Finding]:
    counts = [(name, str(facts.gpus or "none")) for name, facts in nodes]
    remedy = "Take nodes of one kind, or a job that uses uneven ones"
    yield from _finding("GPUs", counts, Level.WARN, remedy)
    models = [
        (name, listed(facts.outfit.gpu_models)) for name, facts in nodes if facts.outfit.gpu_models
    ]
    slowest = "Take nodes of one kind: all wait for the slowest, and the smallest memory counts"
    yield from _finding("GPU model", models, Level.WARN, slowest)


def _clocks(nodes: Nodes) -> Iterator[Finding]:
    off = {name: facts.outfit.clock_ahead or 0.0 for name, facts in nodes}
    told = [
        f"{abs(round(ahead))} s {'ahead of' if ahead > 0 else 'behind'} the head's on {name}"
        for name, ahead in off.items()
        if abs(ahead) > CLOCKS_APART
    ]
    if told:
        remedy = "Have these machines set their clocks (chrony, ntp): logs and files lie otherwise"
        yield Finding("clock", Level.WARN, listed(_shortened(told)), remedy)


# --- telling -------------------------------------------------------------------------------------


def _differing(
    check: str, nodes: Nodes, value: Callable[[Facts], str], level: Level, remedy: str
) -> Iterator[Finding]:
    """Compare what is known of each node; one of which it is not known agrees with all."""
    known = [(name, value(facts)) for name, facts in nodes]
    yield from _finding(check, [(name, one) for name, one in known if one], level, remedy)


def _finding(
    check: str, values: Sequence[tuple[str, str]], level: Level, remedy: str
) -> Iterator[Finding]:
    groups = _groups(values)
    if len(groups) > 1:
        yield Finding(check, level, _told(groups), remedy)


def _groups(values: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return who has which value, the odd one first; of two alike in number the head is right."""
    found: dict[str, list[str]] = {}
    for name, value in values:
        found.setdefault(value, []).append(name)
    head = values[0][1] if values else ""
    return sorted(found.items(), key=lambda group: (len(group[1]), group[0] == head, group[0]))


def _told(groups: list[tuple[str, list[str]]]) -> str:
    *odd, (usual, others) = groups
    parts = [f"{_short(value)} on {listed(_shortened(names))}" for value, names in odd]
    rest = others[0] if len(others) == 1 else f"the {len(others)} others"
    return ", ".join([*parts, f"{_short(usual)} on {rest}"])


def _shortened(names: list[str]) -> list[str]:
    more = len(names) - _MOST_NAMED
    return names if more <= 0 else [*names[:_MOST_NAMED], f"{more} more"]


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[: _LONGEST_VALUE - 3]}..."
