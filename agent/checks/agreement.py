"""Compares the nodes of a run: versions, variables, GPUs and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import first_names, listed
from agent.checks.finding import Finding, Level
from agent.node.facts import COLLECTIVES, DEBUGGER, INTERFACES
from agent.node.python_facts import CUDA, LIBRARIES, NCCL, TORCH
from agent.settings.jobs import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from agent.node.facts import Facts

    Nodes = Sequence[tuple[str, Facts]]  # name and facts of each node, the head's first

_CLOCKS_DIFFER = 5.0  # A first report may take three; a larger difference comes from the clock.
_UNSET = "not set"
_LIBRARIES = tuple(dict.fromkeys((TORCH, CUDA, NCCL, *LIBRARIES.values(), *FRAMEWORKS)))
_OF_TRAINER = {"GPUs", "GPU model"}
_MAY_DIFFER = {"transformers", "flash-attn"}


def agreement(
    nodes: Nodes, *, brings_libraries: bool = False, in_groups: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Compare the nodes of a run; return a finding for each difference.

    Differences that break the run fail: versions and the debugger. Different libraries only warn
    where the job brings its own. Nodes of groups, by name, may have other GPUs than the trainer's.
    """
    if len(nodes) < 2:
        return ()
    findings = []
    machines = [facts for _, facts in nodes]
    for check, values, level, remedy in _compared(machines, brings_libraries=brings_libraries):
        groups: dict[str, list[str]] = {}
        for (name, _), value in zip(nodes, values, strict=True):
            if value and not (check in _OF_TRAINER and name in in_groups):
                groups.setdefault(value, []).append(name)
        if len(groups) > 1:
            findings.append(Finding(check, level, _differences(groups), remedy))
    return (*findings, *_clocks(nodes))


def _compared(
    machines: Sequence[Facts], *, brings_libraries: bool
) -> Iterator[tuple[str, list[str], Level, str]]:
    """Yield what is compared: its name, the nodes' values, a difference's level and remedy.

    An empty value is not compared.
    """
    # Versions; a node without a library may not need it.
    one_image = "Use one image on all nodes"
    yield "pod-agent", [facts.node_versions.agent for facts in machines], Level.FAIL, one_image
    for library in _LIBRARIES:
        is_failure = not brings_libraries and library not in _MAY_DIFFER
        level = Level.FAIL if is_failure else Level.WARN
        yield library, [_version(facts, library) for facts in machines], level, one_image

    # Variables of the debugger, of NCCL and of the other collectives.
    values = [facts.variables.get(DEBUGGER) or "0" for facts in machines]
    yield DEBUGGER, values, Level.FAIL, f"Set the same {DEBUGGER} on all nodes"
    names = {name for facts in machines for name in facts.variables}
    for name in sorted(names):
        if not name.startswith((*COLLECTIVES, *INTERFACES)):
            continue
        remedy = f"Set the same {name} on all nodes"
        if name in INTERFACES:
            remedy = f"Unset {name}: each node then takes the interface of its own address"
        yield name, [facts.variables.get(name, _UNSET) for facts in machines], Level.WARN, remedy

    # GPUs.
    remedy = "Use nodes of one kind, or a job that supports different ones"
    yield "GPUs", [str(facts.gpus or "none") for facts in machines], Level.WARN, remedy
    remedy = "Use nodes of one kind: the slowest GPU and the smallest memory limit the job"
    models = [listed(facts.node_versions.gpu_models) for facts in machines]
    yield "GPU model", models, Level.WARN, remedy


def _version(facts: Facts, name: str) -> str:
    """Return a library's version; torch's without its build tag, which is compared by itself."""
    version = facts.ray.libraries.get(name, "")
    if name != TORCH:
        return version
    if facts.torch is not None:  # torchrun's Python may be another one
        version = facts.torch.version or ""
    return version.partition("+")[0]


def _clocks(nodes: Nodes) -> Iterator[Finding]:
    clocks = [(name, facts.node_versions.clock_ahead or 0.0) for name, facts in nodes]
    differing = [f"{name} ({by:+.0f} s)" for name, by in clocks if abs(by) > _CLOCKS_DIFFER]
    if differing:
        remedy = "Set the clocks of these machines (chrony, ntp): timestamps are wrong otherwise"
        what = f"differs from the head's on {first_names(differing)}"
        yield Finding("clock", Level.WARN, what, remedy)


def _differences(groups: dict[str, list[str]]) -> str:
    """Return each value with its nodes, the rarest first and the first node's last among equals."""
    first = next(iter(groups))
    *others, (value, usual) = sorted(
        groups.items(), key=lambda group: (len(group[1]), group[0] == first, group[0])
    )
    rest = usual[0] if len(usual) == 1 else f"the {len(usual)} others"
    texts = [f"{other[:80]} on {first_names(names)}" for other, names in others]
    return ", ".join([*texts, f"{value[:80]} on {rest}"])
